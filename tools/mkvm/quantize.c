/* mkvm quantize: a model directory with quantised weights. */
#include <stdio.h>
#include <string.h>

#include "tools/lib/quantise.h"
#include "tools/mkvm/command.h"

enum { KEY_TO = 256 };

typedef struct options {
  const char *model, *output;
  mk_codes codes;
} options;

static const struct argp_option option_table[] = {
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout, of bf16, fp16 or fp32 weights (required)", 1},
    {"output", 'o', "DIR", 0, "Directory to write; created if need be (required)", 1},
    {"to", KEY_TO, "FORM", 0, "fp8 or int4 (required)", 1},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
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
    case KEY_TO:
      o->codes = strcmp(text, "fp8") == 0 ? MK_CODES_E4M3 : strcmp(text, "int4") == 0 ? MK_CODES_INT4 : MK_CODES_NONE;
      if (o->codes == MK_CODES_NONE) {
        argp_error(state, "--to: '%s' is neither fp8 nor int4", text);
      }
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected; a model is given with --model", text);
      return 0;
    case ARGP_KEY_END:
      if (o->model == NULL || o->output == NULL || o->codes == MK_CODES_NONE) {
        argp_error(state, "%s is missing",
                   o->model == NULL    ? "--model DIR"
                   : o->output == NULL ? "--output DIR"
                                       : "--to fp8 or --to int4");
      }
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static void show_progress(void *user, uint64_t done, uint64_t total) {
  (void)user;
  mk_progress("writing weights", done, total);
}

mk_status mk_command_quantize(int argc, char **argv) {
  static const char doc[] =
      "Writes the model once more with the matrices of its layers quantised, round to nearest: fp8 (e4m3, a scale for "
      "each row) or int4 (a scale for each 128 columns of a row, or 64 or 32 where 128 does not divide them). "
      "Embedding, head, vectors, and in int4 matrices whose columns 32 does not divide stay as they are; other files "
      "are copied, folders are not. The layout is that of "
      "compressed-tensors, which transformers loads, too."
      "\v"
      "Example:\n  mkvm quantize -m models/demo -o /tmp/demo-int4 --to int4 && mkvm run -m /tmp/demo-int4 -p hello\n";
  static const struct argp argp = {option_table, parse, "", doc, mk_common_options, mk_help_filter, NULL};
  options o = {.codes = MK_CODES_NONE};
  mk_quantise_result result;
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  const mk_quantise_options quantise = {.codes = o.codes, .progress = show_progress};
  double start = mk_seconds();
  MK_TRY(mk_quantise_directory(o.model, o.output, &quantise, &result));
  printf("%s: %u matrices in %s", o.output, result.modules, mk_codes_name(o.codes));
  if (result.group != 0) {
    printf(", groups of %u", result.group);
  }
  if (result.left != 0) {
    printf(", %u left as they are, since 32 does not divide their columns", result.left);
  }
  printf("; %s of weights, from %s, in %.1f s\n", mk_human_bytes(result.after), mk_human_bytes(result.before),
         mk_seconds() - start);
  return mk_print_done();
}
