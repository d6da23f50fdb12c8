/* See run_compare.h. */
#include "tools/mkvm/run_compare.h"

#include <stdio.h>
#include <unistd.h>

#include "tools/lib/compare.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/signals.h"

typedef struct progress {
  uint32_t steps;
  bool terminal;
} progress;

static bool on_step(void *user, uint32_t position, uint32_t token, bool generated) {
  progress *p = user;
  p->steps++;
  if (p->terminal) {
    fprintf(stderr, "\rposition %u: token %u%s, every output inside the tolerance", position, token,
            generated ? "" : " (prompt)");
  }
  return mk_interrupted == 0;
}

static void print_rows(const mk_compare *compare) {
  printf("%-12s %10s %12s %10s\n", "opcode", "outputs", "worst error", "of #uid");
  for (uint32_t op = 0; op < MK_OP_COUNT; op++) {
    const mk_compare_row *row = &mk_compare_rows(compare)[op];
    if (row->outputs != 0) {
      printf("%-12s %10llu %12.2e %10u\n", mk_opcode_lookup(op)->name, (unsigned long long)row->outputs, row->worst,
             row->uid);
    }
  }
}

mk_status mk_run_compare(const char *model, const mk_engine_options *options, const mk_tokens *prompt, size_t n_predict,
                         const mk_trace_option *trace) {
  mk_engine *machine, *oracle;
  mk_engine_options on_cpu = *options;
  on_cpu.device = "cpu";
  MK_TRY(mk_open_engine(model, options, &machine));
  mk_status status = mk_open_engine(model, &on_cpu, &oracle);
  if (status != MK_OK) {
    mk_engine_close(machine);
    return status;
  }
  progress p = {.terminal = isatty(STDERR_FILENO) != 0};
  mk_compare *compare;
  mk_trace_option_begin(trace, machine);
  status = mk_compare_generate(machine, oracle, prompt->ids, prompt->count, n_predict, on_step, &p, &compare);
  if (p.terminal && p.steps != 0) {
    fputc('\n', stderr);
  }
  if (compare != NULL) {
    print_rows(compare);
    printf("%s beside the references: %u steps%s, tolerance %g (bf16) and %g (fp32)%s\n", mk_engine_device(machine),
           p.steps, mk_interrupted != 0 ? " until interrupted" : "", MK_COMPARE_LIMIT_BF16, MK_COMPARE_LIMIT_F32,
           status == MK_OK ? ", every output inside" : "");
  }
  mk_compare_free(compare);
  status = status == MK_OK ? mk_trace_option_end(trace, machine) : status;
  mk_engine_close(machine);
  mk_engine_close(oracle);
  return status == MK_OK ? mk_print_done() : status;
}
