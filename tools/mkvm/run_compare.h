/* mkvm run --compare: the machine beside the plain C references, instruction by instruction (tools/lib/compare.h). */
#ifndef MK_RUN_COMPARE_H
#define MK_RUN_COMPARE_H

#include "engine/engine.h"
#include "text/tokenizer.h"
#include "tools/mkvm/trace_option.h"

/* Runs the prompt and n_predict greedy tokens on the device of `options` and prints a line per opcode with the worst
 * relative error of an output. Each step is a launch, and `trace` may ask for one of them. Failure: MK_ERR_DEVICE names
 * the first output that is off by more than the tolerance. */
mk_status mk_run_compare(const char *model, const mk_engine_options *options, const mk_tokens *prompt, size_t n_predict,
                         const mk_trace_option *trace);

#endif
