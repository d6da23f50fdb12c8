/* The JSON files of a hash checkpoint, as text.
 *
 * Each function gives the whole text of one file in *out (zero-initialised or empty); the caller frees it with
 * mk_text_free, after a failure too. Any thread may call. Failure: MK_ERR_RUNTIME (memory), MK_ERR_USAGE (a vocabulary
 * or a special token that a byte-level tokenizer has no room for). */
#ifndef MK_SYNTH_TEXT_H
#define MK_SYNTH_TEXT_H

#include "models/config.h"
#include "models/safetensors_write.h"

/* config.json: parsing it gives `config` back, every number to the bit, where it is of a family that a named shape
 * (models/synth.h) is of. */
mk_status mk_synth_config_json(const mk_config *config, mk_text *out);
mk_status mk_synth_generation_json(const mk_config *config, mk_text *out);

/* Byte-level BPE without merges: id b is byte b, then fillers "<extra_ID>" that no text encodes to; from the smallest
 * of the bos and eos ids on all are special tokens. */
mk_status mk_synth_tokenizer_json(const mk_config *config, mk_text *out);
mk_status mk_synth_tokenizer_config_json(const mk_config *config, mk_text *out);

#endif
