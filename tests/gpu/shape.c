/* See shape.h. */
#include "tests/gpu/shape.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/gpu/gpu_test.h"

enum { PROMPT = 40, PREDICTED = 4 };

mk_config config_of(const shape *s) {
  mk_config config;
  if (mk_synth_shape("tiny", &config) != MK_OK) {
    memset(&config, 0, sizeof config);
  }
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.heads = s->heads;
  config.kv_heads = s->kv_heads;
  config.head_dim = s->head_dim;
  config.layers = s->layers;
  config.vocab = 1000;
  config.max_position = s->max_seq > 4096 ? s->max_seq : 4096;
  if (s->change != NULL) {
    s->change(&config);
  }
  return config;
}

bool has_wide_steps(const shape *s) {
  const mk_config config = config_of(s);
  const mk_compile_options options = {.rows = MK_WIDE_ROWS, .slots = 1};
  mk_graph *graph = NULL;
  const bool wide = expect_ok(mk_llama_graph(&config, &graph), s->name) && mk_is_wide(graph, &options);
  mk_graph_free(graph);
  return wide;
}

static bool open_one(const mk_config *config, const char *on, const char *name, mk_engine **engine) {
  const mk_engine_options options = {.device = on,
                                     .synth = config,
                                     .synth_seed = 3,
                                     .rows = 1,
                                     .max_seq = 128,
                                     .kv = kv,
                                     .gpu_deadline_ms = deadline_ms};
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

void print_worst(const char *name, const mk_compare *compare) {
  printf("%s, instruction by instruction, worst:", name);
  for (uint32_t op = 0; compare != NULL && op < MK_OP_COUNT; op++) {
    if (mk_compare_rows(compare)[op].outputs != 0) {
      printf(" %s %.1e", mk_opcode_lookup(op)->name, mk_compare_rows(compare)[op].worst);
    }
  }
  printf("\n");
}

void test_one_row_of(const shape *s) {
  const mk_config config = config_of(s);
  mk_engine *machine = NULL, *oracle = NULL;
  mk_compare *compare = NULL;
  uint32_t prompt[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) {
    prompt[i] = (i * 37 + 11) % config.vocab;
  }
  if (open_one(&config, device, s->name, &machine) && open_one(&config, "cpu", s->name, &oracle)) {
    expect_ok(mk_compare_generate(machine, oracle, prompt, PROMPT, PREDICTED, NULL, NULL, &compare), s->name);
    char name[96];
    snprintf(name, sizeof name, "%s, one row", s->name);
    print_worst(name, compare);
  }
  mk_compare_free(compare);
  mk_engine_close(oracle);
  mk_engine_close(machine);
}
