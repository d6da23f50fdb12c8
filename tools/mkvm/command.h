/* What the subcommands of `mkvm` share. Each mk_command_x takes its own argc and argv (argv[0] is "mkvm x"), prints
 * results to standard output and everything else to standard error, and returns a mk_status, which mk_finish turns into
 * a message and the exit code. Wrong flags end the process with exit code 2 (argp does that). One thread. */
#ifndef MK_COMMAND_H
#define MK_COMMAND_H

#include <argp.h>

#include "models/config.h"
#include "tools/lib/clock.h"
#include "vm/program/program.h"
#include "vm/status.h"

mk_status mk_command_run(int argc, char **argv);
mk_status mk_command_serve(int argc, char **argv);
mk_status mk_command_bench(int argc, char **argv);
mk_status mk_command_trace(int argc, char **argv);
mk_status mk_command_compile(int argc, char **argv);
mk_status mk_command_verify(int argc, char **argv);
mk_status mk_command_disasm(int argc, char **argv);
mk_status mk_command_asm(int argc, char **argv);
mk_status mk_command_isa(int argc, char **argv);
mk_status mk_command_info(int argc, char **argv);
mk_status mk_command_synth(int argc, char **argv);
mk_status mk_command_quantize(int argc, char **argv);

/* Gives a subcommand -h, --help and --usage, as a child of its argp. */
extern const struct argp_child mk_common_options[];
extern const struct argp mk_common_argp; /* the child itself, for an argp that has others, too */
/* Drops argp's own note on optional arguments, which says nothing here, and puts the names of the shapes that
 * models/synth.h knows in the place of MK_HELP_SHAPES. */
#define MK_HELP_SHAPES "@SHAPES@"
char *mk_help_filter(int key, const char *text, void *input);

/* The most bytes of a prompt or of a line of a conversation: far more than any context takes. */
enum { MK_PROMPT_BYTES = 16 << 20 };

/* The number that `text`, the value of `flag`, states; anything but a whole number from low to high is a usage
 * error. */
uint64_t mk_number(struct argp_state *state, const char *flag, const char *text, uint64_t low, uint64_t high);

/* The value of --rows, rows per step: 1, 2, 4, 8, 16, or 64, 128, 256 or 512 of one sequence; anything else is a
 * usage error. */
uint32_t mk_rows_number(struct argp_state *state, const char *text);
/* How many sequences share them, for mk_compile_options and mk_engine_options. */
uint32_t mk_rows_slots(uint32_t rows);

/* The value of --kv: bf16 or fp8; anything else is a usage error. And the other way round. */
#define MK_KV_HELP                                                                                                \
  "Keep keys and values of the context in bf16, or in fp8 (e4m3 with a scale for each token and KV head), which " \
  "takes half the memory and costs a little accuracy (bf16)"
mk_dtype mk_kv(struct argp_state *state, const char *text);
const char *mk_kv_name(mk_dtype kv);

/* The value of --threads. */
#define MK_THREADS_HELP \
  "On the cpu: threads (one for each core that the process may use); the result does not depend on it"
uint32_t mk_threads(struct argp_state *state, const char *text);

/* The value of --deadline, in milliseconds. */
#define MK_DEADLINE_HELP                                                                                          \
  "On cuda: give up on a program of which some part has waited so long for another (1500); more for a tool that " \
  "slows the GPU down"
uint32_t mk_deadline(struct argp_state *state, const char *text);

/* The value of --device: cpu, cuda or cuda:N; anything else is a usage error. */
const char *mk_device(struct argp_state *state, const char *text);
/* NULL is no cuda: the engine chooses. */
bool mk_is_cuda(const char *device);
/* N of cuda:N; 0 where the name has none. */
uint32_t mk_cuda_index(const char *device);

/* The version of NVIDIA's kernel driver; "" when the system does not tell. */
void mk_driver_version(char *out, size_t size);

/* "1.50 GiB" and the like, in one of a few static buffers that later calls reuse. */
const char *mk_human_bytes(uint64_t bytes);

/* "1.24 billion" and the like, likewise. */
const char *mk_human_count(uint64_t count);

/* Writes to standard output at once. */
mk_status mk_print(const char *text, size_t length);
/* Ends a subcommand that used stdio on standard output: a full disk becomes an error here. */
mk_status mk_print_done(void);

/* The exit code of a subcommand that ended so; tells of a failure in a line that begins with `title`. */
int mk_finish(const char *title, mk_status status);

/* A percentage on standard error, only when that is a terminal; `what` names the work. done == total clears the
 * line. */
void mk_progress(const char *what, uint64_t done, uint64_t total);

#endif
