/* A model directory as it is computed with: its configuration, its weights, and what the two say together.
 *
 * Everything that takes a directory by its path goes through mk_directory_open, so that it is decided once, here, what
 * the model is: above all whether the LM head is the embedding table. A mk_directory owns its checkpoint until
 * mk_directory_close. One thread. Failure: that of mk_config_load, mk_checkpoint_open and mk_checkpoint_check;
 * MK_ERR_RUNTIME "interrupted" once *cancel is not 0. */
#ifndef MK_DIRECTORY_H
#define MK_DIRECTORY_H

#include <signal.h>

#include "models/checkpoint.h"

/* Where logits come from, and why. Releases 5 of transformers decide it this way; 4 compute tied whatever is stored. */
typedef enum mk_head {
  MK_HEAD_UNTIED,       /* the configuration does not tie */
  MK_HEAD_TIED,         /* it does, and no lm_head.weight is stored */
  MK_HEAD_TIED_EQUAL,   /* it does, and the stored lm_head.weight is the embedding table once more */
  MK_HEAD_TIED_DIFFERS, /* it does, but the stored lm_head.weight is another one: untied */
} mk_head;

typedef struct mk_directory {
  mk_config config;          /* `tied`: as it is computed */
  mk_checkpoint *checkpoint; /* NULL: no weights are there */
  mk_head head;              /* without weights: as config.json says */
  mk_checkpoint_survey survey;
} mk_directory;

typedef enum mk_weights_wanted {
  MK_WEIGHTS_NEEDED,
  MK_WEIGHTS_IF_THERE, /* model.safetensors or its index; without either, config.json alone decides */
} mk_weights_wanted;

/* Reads the configuration, opens and checks the weights, and compares a stored lm_head.weight with the embedding table
 * when the configuration ties them: byte for byte when they have one dtype, else by the bf16 values that would be
 * computed with, up to the first difference. cancel: NULL, or interrupts that. On failure nothing is left open. */
mk_status mk_directory_open(const char *path, mk_weights_wanted wanted, const volatile sig_atomic_t *cancel,
                            mk_directory *out);
void mk_directory_close(mk_directory *directory);

/* For who writes a model: MK_ERR_USAGE where that would replace one, or leave it files of another one. */
mk_status mk_directory_check_free(const char *directory);

/* What a user is told of a directory that is not what it seems. */
typedef enum mk_note {
  MK_NOTE_HEAD,      /* untied, though config.json ties */
  MK_NOTE_ROUNDING,  /* tensors that become bf16 */
  MK_NOTE_ASIDE,     /* layers that are not computed */
  MK_NOTE_IMAGES,    /* images are not read */
  MK_NOTE_QUANTISED, /* what weights are, where they are quantised */
  MK_NOTE_ORDERED,   /* modules that are quantised, but packed as bf16 */
  MK_NOTES
} mk_note;

enum { MK_NOTE_SIZE = 256 };
/* One line without its end, or NULL when there is nothing to tell. */
const char *mk_directory_note(const mk_directory *directory, mk_note note, char line[MK_NOTE_SIZE]);

#endif
