/* mkvm trace: what a trace file shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mkvm/command.h"
#include "tools/profiler/page.h"
#include "tools/profiler/perfetto.h"
#include "tools/profiler/picture.h"
#include "vm/file.h"

enum { KEY_SUMMARY = 256, KEY_PATH, KEY_DIFF, KEY_JSON, KEY_BANDWIDTH, KEY_STEP, KEY_FROM, KEY_TO };

/* What -o writes, by the end of the name. */
typedef enum format { FORMAT_NONE, FORMAT_PAGE, FORMAT_PERFETTO, FORMAT_PICTURE } format;

typedef struct options {
  const char *files[2];
  const char *output;
  format format;
  mk_picture_window window;
  size_t file_count;
  bool path, diff, json, step_given;
  uint32_t step;
  double bandwidth; /* bytes per second; 0: not given */
} options;

static const struct argp_option option_table[] = {
    {"summary", KEY_SUMMARY, NULL, 0, "Findings, where the time went, longest waits, critical path of a step (default)",
     1},
    {"critical-path", KEY_PATH, "STEP", OPTION_ARG_OPTIONAL,
     "The critical path of a step, part by part (the step of median length)", 1},
    {"diff", KEY_DIFF, NULL, 0, "Two files, A and B: what takes longer in B", 1},
    {"json", KEY_JSON, NULL, 0, "All of it as one JSON object", 1},
    {"bandwidth", KEY_BANDWIDTH, "TB/S", 0, "Read bandwidth that percentages are of (bytes over time of the trace)", 1},
    {"output", 'o', "NAME", 0,
     "Write NAME.html (a page to look around in), NAME.pftrace (for ui.perfetto.dev) or NAME.svg", 2},
    {"step", KEY_STEP, "STEP", 0,
     "With -o: the step that a page starts with or a picture shows (the one of median length)", 2},
    {"from", KEY_FROM, "US", 0, "With -o NAME.svg: from this time of the trace,", 2},
    {"to", KEY_TO, "US", 0, "up to this one", 2},
    {0}};

static const char doc[] =
    "Shows what every role of every SM did, from a file that `mkvm run --trace' or `mkvm bench --trace' wrote."
    "\v"
    "docs/TRACE.md says how to read it.\n\n"
    "Examples:\n"
    "  mkvm run -m models/demo -p \"Once upon a time\" --trace demo.mktrace\n"
    "  mkvm trace demo.mktrace\n"
    "  mkvm trace demo.mktrace --critical-path=5\n"
    "  mkvm trace demo.mktrace -o demo.html\n"
    "  mkvm trace --diff before.mktrace after.mktrace\n";

static double parse_bandwidth(const char *text, struct argp_state *state) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value > 0 && value < 1000)) {
    argp_error(state, "--bandwidth: '%s' is not a number of TB/s above 0", text);
    exit(MK_ERR_USAGE);
  }
  return value * 1e12;
}

static double parse_time(const char *flag, const char *text, struct argp_state *state) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value >= 0 && value < 1e12)) {
    argp_error(state, "%s: '%s' is not a number of microseconds from 0 on", flag, text);
    exit(MK_ERR_USAGE);
  }
  return value;
}

static format format_of(const char *name) {
  static const char *const ends[] = {
      [FORMAT_PAGE] = ".html", [FORMAT_PERFETTO] = ".pftrace", [FORMAT_PICTURE] = ".svg"};
  const char *dot = strrchr(name, '.');
  for (format f = FORMAT_PAGE; f <= FORMAT_PICTURE; f++) {
    if (dot != NULL && strcmp(dot, ends[f]) == 0) {
      return f;
    }
  }
  return FORMAT_NONE;
}

static void check_output(const options *o, struct argp_state *state) {
  bool window = o->window.from != 0 || o->window.to != 0;
  if (o->output != NULL && o->format == FORMAT_NONE) {
    argp_error(state,
               "-o %s: the name says what is written: .html (a page), .pftrace (for Perfetto) or .svg (a picture)",
               o->output);
  } else if (o->output != NULL && (o->path || o->diff || o->json)) {
    argp_error(state, "-o goes with none of --critical-path, --diff and --json");
  } else if (o->output == NULL && (o->step_given || window)) {
    argp_error(state, "--step, --from and --to need -o NAME");
  } else if (window && (o->format != FORMAT_PICTURE || o->window.from >= o->window.to)) {
    argp_error(state, "--from and --to are of a picture (-o NAME.svg), and --to is the later one");
  }
}

static void check_options(const options *o, struct argp_state *state) {
  if (o->file_count != (o->diff ? 2 : 1)) {
    argp_error(state, o->diff ? "--diff needs two files, A and B" : "one trace file is needed");
  }
  if (o->path + o->diff + o->json > 1) {
    argp_error(state, "--critical-path, --diff and --json: one of them at a time");
  }
  check_output(o, state);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case KEY_SUMMARY:
      return 0;
    case KEY_PATH:
      o->path = true;
      o->step = text == NULL ? MK_MEDIAN_STEP : (uint32_t)mk_number(state, "--critical-path", text, 0, UINT32_MAX - 1);
      return 0;
    case KEY_DIFF:
      o->diff = true;
      return 0;
    case KEY_JSON:
      o->json = true;
      return 0;
    case 'o':
      o->output = text;
      o->format = format_of(text);
      return 0;
    case KEY_STEP:
      o->step_given = true;
      o->step = (uint32_t)mk_number(state, "--step", text, 0, UINT32_MAX - 1);
      return 0;
    case KEY_FROM:
      o->window.from = parse_time("--from", text, state);
      return 0;
    case KEY_TO:
      o->window.to = parse_time("--to", text, state);
      return 0;
    case KEY_BANDWIDTH:
      o->bandwidth = parse_bandwidth(text, state);
      return 0;
    case ARGP_KEY_ARG:
      if (o->file_count == 2) {
        argp_error(state, "'%s' is one file too many", text);
        exit(MK_ERR_USAGE);
      }
      o->files[o->file_count++] = text;
      return 0;
    case ARGP_KEY_END:
      check_options(o, state);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

typedef struct loaded {
  mk_trace *trace;
  mk_summary *summary;
} loaded;

static mk_status load(const options *o, size_t file, loaded *out) {
  MK_TRY(mk_trace_load(o->files[file], &out->trace));
  mk_status status = mk_summary_new(out->trace, o->step, o->bandwidth, &out->summary);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", o->files[file]);
}

static void unload(loaded *l) {
  mk_summary_free(l->summary);
  mk_trace_free(l->trace);
}

static mk_status print_json(const mk_summary *summary) {
  json_t *json = mk_summary_json(summary);
  char *text = json == NULL ? NULL : json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  json_decref(json);
  if (text == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory: the summary could not be made into JSON");
  }
  puts(text);
  free(text);
  return mk_print_done();
}

static mk_status write_output(const options *o, const mk_summary *summary) {
  void *data;
  size_t length;
  switch (o->format) {
    case FORMAT_PERFETTO:
      MK_TRY(mk_perfetto_make(summary, &data, &length));
      break;
    case FORMAT_PICTURE:
      MK_TRY(mk_picture_make(summary, o->window, &data, &length));
      break;
    default:
      MK_TRY(mk_page_make(summary, &data, &length));
  }
  mk_status status = mk_save_bytes(o->output, data, length);
  mk_free(data);
  return status;
}

static mk_status show(const options *o, const loaded *a, const loaded *b) {
  if (o->output != NULL) {
    return write_output(o, a->summary);
  }
  if (o->diff) {
    MK_TRY(mk_summary_print_difference(a->summary, b->summary, stdout));
  } else if (o->json) {
    return print_json(a->summary);
  } else if (o->path) {
    mk_summary_print_path(a->summary, stdout);
  } else {
    mk_summary_print(a->summary, stdout);
  }
  return mk_print_done();
}

mk_status mk_command_trace(int argc, char **argv) {
  static const struct argp argp = {option_table,   parse, "FILE\n--diff A B", doc, mk_common_options,
                                   mk_help_filter, NULL};
  options o = {.step = MK_MEDIAN_STEP};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  loaded a = {0}, b = {0};
  mk_status status = load(&o, 0, &a);
  if (status == MK_OK && o.diff) {
    status = load(&o, 1, &b);
  }
  if (status == MK_OK) {
    status = show(&o, &a, &b);
  }
  unload(&a);
  unload(&b);
  return status;
}
