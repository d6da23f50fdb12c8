/* mkvm run --program: runs a program file by itself, without a model, on the CPU machine.
 *
 * The program is verified first. Its weights get made-up numbers, the same every time; block tables name block i at
 * entry i; the first step computes the lowest token at the lowest position of the declared ranges, without a prompt. At
 * the end its output buffers are printed, and what `trace` asks for is saved. One thread. Failure: those of
 * mk_program_load, mk_verify, mk_cpu_run and mk_trace_option_end. */
#ifndef MK_RUN_PROGRAM_H
#define MK_RUN_PROGRAM_H

#include "tools/mkvm/trace_option.h"
#include "vm/cpu/machine.h"

/* Runs `steps` steps, fewer when the range of positions ends before. */
mk_status mk_run_program(const char *path, uint64_t steps, const mk_cpu_options *options, const mk_trace_option *trace);

#endif
