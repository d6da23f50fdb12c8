/* Quantised modules of a checkpoint: rows of them, as codes with scales and zeros, or as the bf16 weights that they
 * stand for. models/quant.h says what is stored, vm/program/strips.h how weights are packed.
 *
 * A mk_quantised owns what it has read until it is closed; the checkpoint and the configuration must live as long. One
 * thread. Failure: MK_ERR_FILE, MK_ERR_RUNTIME, as mk_tensor_read's. */
#ifndef MK_QUANTISED_H
#define MK_QUANTISED_H

#include "models/checkpoint.h"
#include "models/graph.h"
#include "vm/program/program.h"

typedef struct mk_quantised {
  const mk_checkpoint *checkpoint;
  const mk_quant *quant;
  const mk_tensor *codes;
  uint32_t rows, cols, groups;
  uint32_t *words;      /* codes of four bits: all of them, row by row */
  uint32_t *zero_words; /* NULL: all zeros are 8 */
  float *scales;
  int32_t *order; /* by column, its group; NULL: in order */
} mk_quantised;

/* `name` is that of its tensor in the family's table, "....weight". */
mk_status mk_quantised_open(const mk_checkpoint *checkpoint, const mk_config *config, const char *name,
                            mk_quantised *out);
void mk_quantised_close(mk_quantised *module); /* a zero one is fine */

/* A row's codes, one for each column; the scale, and the zero, of a group of columns of a row. */
mk_status mk_quantised_codes(const mk_quantised *module, uint32_t row, uint8_t *out);
float mk_quantised_scale(const mk_quantised *module, uint32_t row, uint32_t group);
uint32_t mk_quantised_zero(const mk_quantised *module, uint32_t row, uint32_t group);

/* The row as bf16. `codes` is scratch memory for the codes of a row. */
mk_status mk_quantised_row(const mk_quantised *module, uint32_t row, uint8_t *codes, uint16_t *out);

/* Writes row `row` of the module as row `at` of a row tile of such a buffer; its columns are in plain groups. */
mk_status mk_quantised_pack(const mk_quantised *module, uint32_t row, uint8_t *codes, const mk_buffer *buffer,
                            uint32_t at, uint8_t *row_tile);

#endif
