/* mkvm synth: model directories of a known shape with made-up weights. */
#include "models/synth.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/family.h"
#include "tools/mkvm/command.h"

enum { KEY_LIKE = 256, KEY_CONFIG_ONLY };

typedef struct options {
  const char *like, *output;
  uint64_t seed;
  bool config_only;
} options;

static const struct argp_option option_table[] = {
    {"like", KEY_LIKE, "NAME", 0, "Shape of the model (required)", 1},
    {"output", 'o', "DIR", 0, "Directory to write; created if need be (required)", 1},
    {"seed", 's', "SEED", 0, "Seed of the weights (0)", 1},
    {"config-only", KEY_CONFIG_ONLY, NULL, 0,
     "Write config.json and generation_config.json alone: enough to compile for", 1},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case KEY_LIKE:
      o->like = text;
      return 0;
    case 'o':
      o->output = text;
      return 0;
    case 's':
      o->seed = mk_number(state, "--seed", text, 0, UINT64_MAX);
      return 0;
    case KEY_CONFIG_ONLY:
      o->config_only = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected", text);
      return 0;
    case ARGP_KEY_END:
      if (o->like == NULL || o->output == NULL) {
        argp_error(state, "%s is missing", o->like == NULL ? "--like NAME" : "--output DIR");
      }
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static bool show_progress(void *user, uint64_t done, uint64_t total) {
  (void)user;
  mk_progress("writing weights", done, total);
  return true;
}

mk_status mk_command_synth(int argc, char **argv) {
  static const char doc[] =
      "Writes a model directory in Hugging Face layout whose weights are a hash of (seed, tensor, index), so that the "
      "same "
      "seed gives the same bits everywhere. Its text is noise; its shape, size and speed are real."
      "\v"
      "Names: " MK_HELP_SHAPES
      ".\n\n"
      "Example:\n  mkvm synth --like tiny -o /tmp/tiny && mkvm run -m /tmp/tiny -p hello -n 16\n";
  static const struct argp argp = {option_table, parse, "", doc, mk_common_options, mk_help_filter, NULL};
  options o = {0};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  mk_config config;
  MK_TRY(mk_synth_shape(o.like, &config));
  const mk_synth_options write = {.seed = o.seed, .config_only = o.config_only, .progress = show_progress};
  double start = mk_seconds();
  MK_TRY(mk_synth_write(o.output, &config, &write));
  uint64_t parameters = mk_family_parameters(&config);
  printf("%s: %s, %s parameters", o.output, o.like, mk_human_count(parameters));
  if (o.config_only) {
    printf(", configuration alone\n");
  } else {
    printf(", %s of weights from seed %" PRIu64 ", in %.1f s\n", mk_human_bytes(parameters * 2), o.seed,
           mk_seconds() - start);
  }
  return mk_print_done();
}
