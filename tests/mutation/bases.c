/* The programs that are mutated. See mutation.h. */
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/mutation/mutation.h"
#include "tests/support/generate.h"
#include "vm/program/asm.h"

/* Shapes that bring out every way of lowering: attention in one split and in several, K in one part and in several. */
static mk_status compiled(uint64_t *random, mk_program **out) {
  static const uint32_t sms[] = {1, 2, 3, 5}, contexts[] = {200, 600, 1024};
  uint32_t heads = 1 + mutation_draw(random, 2);
  mk_config config = {.hidden = 64 * heads,
                      .intermediate = mutation_draw(random, 3) == 0 ? 1040 : 96,
                      .layers = 1 + mutation_draw(random, 2),
                      .heads = heads,
                      .kv_heads = 1 + mutation_draw(random, heads),
                      .head_dim = 64,
                      .vocab = 100,
                      .max_position = 1024,
                      .rms_eps = 1e-5f,
                      .rope_theta = 10000};
  mk_compile_options options = {.sms = sms[mutation_draw(random, sizeof sms / sizeof sms[0])],
                                .max_seq = contexts[mutation_draw(random, sizeof contexts / sizeof contexts[0])],
                                .sampling = mutation_draw(random, 2) == 0};
  mk_graph *graph;
  MK_TRY(mk_llama_graph(&config, &graph));
  mk_status status = mk_compile(graph, &options, out);
  mk_graph_free(graph);
  return status;
}

static mk_status written(uint64_t *random, mk_program **out) {
  static const char *const paths[] = {
      MK_SOURCE_DIR "/tests/vm/data/layer.mks", MK_SOURCE_DIR "/tests/vm/data/one_tile.mks",
      MK_SOURCE_DIR "/tests/vm/data/copies.mks", MK_SOURCE_DIR "/tests/vm/data/two_ranks.mks",
      MK_SOURCE_DIR "/tests/vm/data/two_sms.mks"};
  return mk_assemble_file(paths[mutation_draw(random, sizeof paths / sizeof paths[0])], out);
}

mk_status mutation_base(uint64_t *random, mk_program **out) {
  switch (mutation_draw(random, 4)) {
    case 0:
      return compiled(random, out);
    case 1:
      return written(random, out);
    default:
      return test_generate(mutation_draw(random, UINT32_MAX), out);
  }
}
