/* Golden files (tests/oracle/README.md has the format), and how far from them an engine may be. Free of Criterion: the
 * GPU tests read them too. One thread. */
#ifndef MK_TEST_GOLDEN_FILE_H
#define MK_TEST_GOLDEN_FILE_H

#include "models/config.h"

/* The oracle is Hugging Face transformers in fp32; the engine rounds activations, keys and values to bf16.
 *   GOLDEN_ERROR   every step: |logits - oracle| <= GOLDEN_ERROR |oracle|, both in L2 over the vocabulary.
 *   GOLDEN_MARGIN  the token must be the oracle's wherever the oracle's two largest logits differ by more than
 *                  GOLDEN_MARGIN times the root mean square of that row. Rounding errors spread over
 *                  the whole row, so this is five times the error that one logit typically has at
 *                  GOLDEN_ERROR.
 * And all steps together differ from the oracle by no more than transformers in bf16 do (golden_file.bf16_error). */
#define GOLDEN_ERROR 1e-2
#define GOLDEN_MARGIN 0.05

enum { GOLDEN_NAME = 33 };

typedef struct golden_file { /* owns `bytes`, into which the pointers point */
  uint8_t *bytes;
  char name[GOLDEN_NAME];
  mk_config config; /* of a random model; its seed */
  uint64_t seed;
  bool is_directory; /* the weights are files */
  uint32_t prompt_count, steps;
  const uint32_t *tokens; /* prompt, then the token chosen at each step by its row of */
  const float *logits;    /* [steps][vocab] */
  /* |logits - oracle| over |oracle| in L2, over all steps, of transformers in bf16: bf16_errors.txt beside the golden
   * has it. Infinite where there is no such file, and where the weights are files; NaN, which no error is below, where
   * that file does not name this golden. */
  double bf16_error;
  /* Of a family's golden, which has its config.json in the file: the text, logits as fp32, and the most that a step may
   * be off: GOLDEN_ERROR, or what the worst step of transformers in bf16 is. */
  const char *config_text;
  size_t config_length;
  float *widened;
  double step_error;
} golden_file;

#define GOLDEN_BF16_FILE "bf16_errors.txt"

/* False, with what is wrong in *why, for a file that is no complete golden. */
bool golden_file_read(const char *path, golden_file *out, const char **why);
void golden_file_free(golden_file *golden);

#endif
