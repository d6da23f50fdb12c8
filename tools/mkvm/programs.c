/* mkvm compile, verify, disasm and asm: programs as files; isa: what they are made of. */
#include <stdio.h>
#include <string.h>

#include "lib/prompt.h"
#include "models/directory.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tools/lib/isa_doc.h"
#include "tools/mkvm/command.h"
#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/verify/explain.h"
#include "vm/verify/verify.h"

enum { KEY_SMS = 256, KEY_MAX_SEQ, KEY_EXPLAIN, KEY_SAMPLING, KEY_ROWS, KEY_RANKS, KEY_KV };

typedef struct compile_options {
  const char *model, *output;
  uint32_t sms, ranks, rows;
  uint64_t max_seq;
  mk_dtype kv;
  bool sampling;
} compile_options;

static const struct argp_option compile_table[] = {
    {"model", 'm', "DIR", 0, "Model directory; its config.json is enough (required)", 1},
    {"output", 'o', "FILE", 0, "Program file to write, usually *.mkp (required)", 1},
    {"sms", KEY_SMS, "N", 0, "SMs to compile for (132), of each rank", 1},
    {"ranks", KEY_RANKS, "N", 0, "Ranks (GPUs) that share the model; results are those of one, bit for bit (1)", 1},
    {"max-seq", KEY_MAX_SEQ, "L", 0, "Tokens of context (the model's limit, at most 4096)", 1},
    {"rows", KEY_ROWS, "T", 0,
     "Rows per step: tokens of one sequence or of several that a step computes: 1, 2, 4, 8 or 16, or 64, 128, 256, "
     "512 or 1024 of one sequence (1)",
     1},
    {"kv", KEY_KV, "FORM", 0, MK_KV_HELP, 1},
    {"sampling", KEY_SAMPLING, NULL, 0,
     "A program that draws tokens, by parameters given at run time; else a greedy one", 1},
    {0}};

static error_t parse_compile(int key, char *text, struct argp_state *state) {
  compile_options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case 'm':
      o->model = text;
      return 0;
    case 'o':
      o->output = text;
      return 0;
    case KEY_SMS:
      o->sms = (uint32_t)mk_number(state, "--sms", text, 1, MK_MAX_SMS);
      return 0;
    case KEY_RANKS:
      o->ranks = (uint32_t)mk_number(state, "--ranks", text, 1, MK_MAX_RANKS);
      return 0;
    case KEY_KV:
      o->kv = mk_kv(state, text);
      return 0;
    case KEY_SAMPLING:
      o->sampling = true;
      return 0;
    case KEY_ROWS:
      o->rows = mk_rows_number(state, text);
      return 0;
    case KEY_MAX_SEQ:
      o->max_seq = mk_number(state, "--max-seq", text, 1, UINT32_MAX);
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected", text);
      return 0;
    case ARGP_KEY_END:
      if (o->model == NULL || o->output == NULL) {
        argp_error(state, "%s is missing", o->model == NULL ? "--model DIR" : "--output FILE");
      }
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* The directory's last component, as far as it is printable ASCII. */
static void label(const char *directory, char *out, size_t size) {
  size_t end = strlen(directory), used = 0;
  while (end > 0 && directory[end - 1] == '/') {
    end--;
  }
  size_t start = end;
  while (start > 0 && directory[start - 1] != '/') {
    start--;
  }
  for (size_t i = start; i < end && used + 1 < size; i++) {
    out[used++] = directory[i] < ' ' || directory[i] > '~' ? '?' : directory[i];
  }
  memset(out + used, 0, size - used);
}

static mk_status verify_and_save(const mk_program *program, const compile_options *o, double compile_seconds) {
  double start = mk_seconds();
  MK_TRY(mk_verify(program, NULL));
  double verify_seconds = mk_seconds() - start;
  char ranks[32] = "";
  if (program->machine.ranks > 1) {
    snprintf(ranks, sizeof ranks, " on each of %u ranks", program->machine.ranks);
  }
  MK_TRY(mk_program_save(program, o->output));
  printf(
      "%s: %zu instructions for %u SMs%s, %u tokens of context, weights %s, memory beside them %s; compiled in %.2f s, "
      "verified in %.2f s\n",
      o->output, program->instruction_count, program->machine.sms, ranks, program->ranges.position.high + 1,
      mk_human_bytes(program->weight_bytes), mk_human_bytes(program->work_bytes), compile_seconds, verify_seconds);
  return mk_print_done();
}

/* Reads the configuration, and looks at the weights if there are any, so that this is the program that `run` makes. */
static mk_status read_config(const char *model, mk_config *config) {
  mk_directory directory;
  char line[MK_NOTE_SIZE];
  MK_TRY(mk_directory_open(model, MK_WEIGHTS_IF_THERE, NULL, &directory));
  *config = directory.config;
  if (mk_directory_note(&directory, MK_NOTE_HEAD, line) != NULL) {
    fprintf(stderr, "mkvm: %s\n", line);
  }
  mk_directory_close(&directory);
  return MK_OK;
}

mk_status mk_command_compile(int argc, char **argv) {
  static const char doc[] =
      "Compiles a model's configuration into a program file, verifies it, and writes it. The same configuration and "
      "options "
      "give the same file, byte for byte. config.json is enough; weights beside it are checked against it, and a "
      "stored "
      "lm_head.weight that is not the embedding table makes the program untied.";
  static const struct argp argp = {compile_table, parse_compile, "", doc, mk_common_options, mk_help_filter, NULL};
  compile_options o = {.sms = MK_DEFAULT_SMS, .rows = 1};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  mk_config config;
  mk_compile_options options = {.sms = o.sms,
                                .ranks = o.ranks,
                                .rows = o.rows,
                                .slots = mk_rows_slots(o.rows),
                                .kv = o.kv,
                                .sampling = o.sampling};
  MK_TRY(read_config(o.model, &config));
  MK_TRY(mk_context_size(o.max_seq, &config, &options.max_seq));
  double start = mk_seconds();
  mk_graph *graph;
  mk_config_set_context(&config, options.max_seq);
  MK_TRY(mk_llama_graph(&config, &graph));
  mk_program *program;
  mk_status status = mk_compile(graph, &options, &program);
  mk_graph_free(graph);
  MK_TRY(status);
  label(o.model, program->model, sizeof program->model);
  status = verify_and_save(program, &o, mk_seconds() - start);
  mk_program_free(program);
  return status;
}

static error_t take_file(const char **path, int key, char *text, struct argp_state *state) {
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case ARGP_KEY_ARG:
      if (*path != NULL) {
        argp_error(state, "'%s' is not expected; one FILE at a time", text);
      }
      *path = text;
      return 0;
    case ARGP_KEY_NO_ARGS:
      argp_error(state, "FILE is missing");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_file(int key, char *text, struct argp_state *state) {
  return take_file(state->input, key, text, state);
}

typedef struct verify_options {
  const char *path;
  bool explain;
  uint32_t uid;
} verify_options;

static const struct argp_option verify_table[] = {{"explain", KEY_EXPLAIN, "UID", 0,
                                                   "Tell what orders the instruction of that number: its waits and who "
                                                   "satisfies them, its place on the critical path",
                                                   1},
                                                  {0}};

static error_t parse_verify(int key, char *text, struct argp_state *state) {
  verify_options *o = state->input;
  switch (key) {
    case KEY_EXPLAIN:
      o->explain = true;
      o->uid = (uint32_t)mk_number(state, "--explain", text, 0, UINT32_MAX);
      return 0;
    default:
      return take_file(&o->path, key, text, state);
  }
}

static mk_status verify(const mk_program *program, const verify_options *o) {
  double start = mk_seconds();
  MK_TRY(o->explain ? mk_explain(program, o->uid, stdout) : mk_verify(program, NULL));
  printf("%s: verified: %zu instructions in %zu queues, %zu buffers, %zu counters, in %.2f s\n", o->path,
         program->instruction_count, program->queue_count, program->buffer_count, program->counter_count,
         mk_seconds() - start);
  return mk_print_done();
}

mk_status mk_command_verify(int argc, char **argv) {
  static const char doc[] =
      "Proves that a program stays inside its buffers, cannot hang and has no data race, for every value of its step "
      "parameters, or names the rule it breaks and where. Exit code 0: proven; 3: not a program file; 4: rejected.";
  static const struct argp argp = {verify_table, parse_verify, "FILE", doc, mk_common_options, mk_help_filter, NULL};
  verify_options o = {0};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  mk_program *program;
  MK_TRY(mk_program_load(o.path, &program));
  mk_status status = verify(program, &o);
  mk_program_free(program);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", o.path);
}

mk_status mk_command_disasm(int argc, char **argv) {
  static const char doc[] =
      "Prints a program as text: its machine, ranges, buffers and counters, then the queue of each SM with one "
      "instruction "
      "per line. The program need not be one that `mkvm verify' accepts.";
  static const struct argp argp = {NULL, parse_file, "FILE", doc, mk_common_options, mk_help_filter, NULL};
  const char *path = NULL;
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &path);
  mk_program *program;
  MK_TRY(mk_program_load(path, &program));
  mk_status status = mk_disassemble(program, stdout);
  mk_program_free(program);
  MK_TRY(status);
  return mk_print_done();
}

typedef struct asm_options {
  const char *input, *output;
} asm_options;

static const struct argp_option asm_table[] = {
    {"output", 'o', "FILE", 0, "Program file to write, usually *.mkp (required)", 1}, {0}};

static error_t parse_asm(int key, char *text, struct argp_state *state) {
  asm_options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case 'o':
      o->output = text;
      return 0;
    case ARGP_KEY_ARG:
      if (o->input != NULL) {
        argp_error(state, "'%s' is not expected; one FILE at a time", text);
      }
      o->input = text;
      return 0;
    case ARGP_KEY_END:
      if (o->input == NULL || o->output == NULL) {
        argp_error(state, "%s is missing", o->input == NULL ? "FILE" : "--output FILE");
      }
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

mk_status mk_command_asm(int argc, char **argv) {
  static const char doc[] =
      "Turns a program in the text form that `mkvm disasm' prints into a program file. It writes what the text says, "
      "right or wrong: `mkvm verify' judges the result.";
  static const struct argp argp = {asm_table, parse_asm, "FILE", doc, mk_common_options, mk_help_filter, NULL};
  asm_options o = {0};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  mk_program *program;
  MK_TRY(mk_assemble_file(o.input, &program));
  mk_status status = mk_program_save(program, o.output);
  if (status == MK_OK) {
    printf("%s: %zu instructions in %zu queues, %zu buffers, %zu counters; not verified yet\n", o.output,
           program->instruction_count, program->queue_count, program->buffer_count, program->counter_count);
  }
  mk_program_free(program);
  MK_TRY(status);
  return mk_print_done();
}

static error_t parse_nothing(int key, char *text, struct argp_state *state) {
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected", text);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

mk_status mk_command_isa(int argc, char **argv) {
  static const char doc[] =
      "Prints the manual of all instructions, as docs/ISA.md of the sources has it: their operands, what they compute "
      "and how they are encoded, from the table that the machines are built from.";
  static const struct argp argp = {NULL, parse_nothing, "", doc, mk_common_options, mk_help_filter, NULL};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, NULL);
  MK_TRY(mk_isa_write(stdout));
  return mk_print_done();
}
