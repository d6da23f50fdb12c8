/* The options of mkvm bench, as they are given; what is not given has its default. What contradicts itself ends the
 * process with a usage error, as argp does. Texts are argv's. One thread. */
#ifndef MK_BENCH_OPTION_H
#define MK_BENCH_OPTION_H

#include "models/graph.h"
#include "tools/mkvm/bench_load.h"
#include "tools/mkvm/bench_mla.h"
#include "tools/mkvm/bench_table.h"
#include "tools/mkvm/process_option.h"
#include "tools/mkvm/trace_option.h"

enum { MK_BENCH_VALUES = 32 }; /* of a list, at most */

typedef struct mk_bench_list {
  uint32_t values[MK_BENCH_VALUES];
  size_t count;
} mk_bench_list;

typedef struct mk_bench_option {
  const char *model, *like, *device, *cache;
  mk_codes weights;
  mk_bench_list prompts, generated, depths;
  uint32_t repetitions, sms, ranks, rows;
  mk_dtype kv;
  uint32_t threads;     /* 0: one for each core */
  uint32_t deadline_ms; /* 0: the machine's own */
  uint64_t ctx_size, seed;
  bool seeded;
  mk_bench_format format;
  bool breakdown, sampling;
  mk_bench_mla mla;
  mk_trace_option trace;
  mk_bench_load_option load;
  mk_process_option process;
} mk_bench_option;

void mk_bench_option_parse(int argc, char **argv, mk_bench_option *option);
/* One of the tests of MLA is asked for, which take no model. */
bool mk_bench_option_is_mla(const mk_bench_option *option);
/* What the layers' hash weights are, as --weights has it. */
const char *mk_bench_weights_name(mk_codes weights);

#endif
