/* See command.h. */
#include "tools/mkvm/command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/synth.h"
#include "vm/cpu/machine.h"

enum { KEY_USAGE = 256 };

static error_t parse_common(int key, char *text, struct argp_state *state) {
  (void)text;
  if (key != 'h' && key != KEY_USAGE) {
    return ARGP_ERR_UNKNOWN;
  }
  /* Without argp's own end of the process, which is 0 whether or not the text went out. */
  const unsigned ends = ARGP_HELP_EXIT_OK | ARGP_HELP_EXIT_ERR;
  argp_state_help(state, stdout, (key == 'h' ? ARGP_HELP_STD_HELP : ARGP_HELP_USAGE) & ~ends);
  exit(mk_finish(state->name, mk_print_done()));
}

static const struct argp_option common_options[] = {
    {"help", 'h', NULL, 0, "Show this help and exit", -1},
    {"usage", KEY_USAGE, NULL, 0, "Show the options in short and exit", -1},
    {0}};
static const char common_doc[] =
    "\vExit codes: 0 done, 1 run time, 2 usage, 3 bad model or file, 4 program rejected, 5 device fault.";
const struct argp mk_common_argp = {.options = common_options, .parser = parse_common, .doc = common_doc};
const struct argp_child mk_common_options[] = {{&mk_common_argp, 0, NULL, -1}, {0}};

char *mk_help_filter(int key, const char *text, void *input) {
  (void)input;
  const char *at = text != NULL ? strstr(text, MK_HELP_SHAPES) : NULL;
  if (key == ARGP_KEY_HELP_DUP_ARGS_NOTE) {
    return NULL;
  }
  char names[MK_SYNTH_NAMES];
  const size_t bytes = at != NULL ? strlen(text) + sizeof names : 0;
  char *with = at != NULL ? malloc(bytes) : NULL; /* argp frees it */
  if (with != NULL) {
    mk_synth_shape_names(names);
    snprintf(with, bytes, "%.*s%s%s", (int)(at - text), text, names, at + strlen(MK_HELP_SHAPES));
  }
  return with != NULL ? with : (char *)(uintptr_t)text;
}

uint64_t mk_number(struct argp_state *state, const char *flag, const char *text, uint64_t low, uint64_t high) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  bool digit = text[0] >= '0' && text[0] <= '9';
  if (!digit || *end != 0 || errno != 0 || value < low || value > high) {
    argp_error(state, "%s: '%s' is not a whole number from %" PRIu64 " to %" PRIu64, flag, text, low, high);
    exit(MK_ERR_USAGE);
  }
  return value;
}

uint32_t mk_rows_number(struct argp_state *state, const char *text) {
  uint32_t rows = (uint32_t)mk_number(state, "--rows", text, 1, MK_MOST_ROWS);
  if ((rows & (rows - 1)) != 0 || (rows > MK_MAX_ROWS && rows < MK_PROMPT_ROWS)) {
    argp_error(state, "--rows: %u is none of 1, 2, 4, 8, 16, %d, 128, 256, 512 and %d", rows, MK_PROMPT_ROWS,
               MK_MOST_ROWS);
    exit(MK_ERR_USAGE);
  }
  return rows;
}

uint32_t mk_rows_slots(uint32_t rows) { return rows > MK_MAX_ROWS ? 1 : 0; }

mk_dtype mk_kv(struct argp_state *state, const char *text) {
  const bool fp8 = strcmp(text, "fp8") == 0;
  if (!fp8 && strcmp(text, "bf16") != 0) {
    argp_error(state, "--kv: '%s' is not a form of the KV cache; there are bf16 and fp8", text);
    exit(MK_ERR_USAGE);
  }
  return fp8 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16;
}

const char *mk_kv_name(mk_dtype kv) { return kv == MK_DTYPE_E4M3 ? "fp8" : "bf16"; }

uint32_t mk_threads(struct argp_state *state, const char *text) {
  return (uint32_t)mk_number(state, "--threads", text, 1, MK_CPU_MOST_THREADS);
}

uint32_t mk_deadline(struct argp_state *state, const char *text) {
  enum { LOW = 100, HIGH = 50 * 60 * 1000 }; /* a machine's clock for waits is 32 bits of microseconds */
  return (uint32_t)mk_number(state, "--deadline", text, LOW, HIGH);
}

const char *mk_device(struct argp_state *state, const char *text) {
  bool good = strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0;
  if (strncmp(text, "cuda:", 5) == 0) {
    const size_t length = strlen(text + 5), digits = strspn(text + 5, "0123456789");
    good = digits >= 1 && digits <= 3 && strspn(text + 5, "0123456789-,") == length; /* the engine looks at lists */
  }
  if (!good) {
    argp_error(state, "--device: '%s' is not a device; devices are cpu, cuda, cuda:N and cuda:N-M", text);
    exit(MK_ERR_USAGE);
  }
  return text;
}

bool mk_is_cuda(const char *device) { return device != NULL && strncmp(device, "cuda", 4) == 0; }

uint32_t mk_cuda_index(const char *device) {
  return strncmp(device, "cuda:", 5) == 0 ? (uint32_t)strtoul(device + 5, NULL, 10) : 0;
}

void mk_driver_version(char *out, size_t size) {
  char line[256] = "";
  FILE *file = fopen("/proc/driver/nvidia/version", "re");
  const char *read = file == NULL ? NULL : fgets(line, sizeof line, file);
  if (file != NULL) {
    (void)fclose(file);
  }
  /* The first word that is a number with dots: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  ..." */
  for (char *rest = NULL, *word = strtok_r(line, " \t\n", &rest); read != NULL && word != NULL;
       word = strtok_r(NULL, " \t\n", &rest)) {
    if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.') != NULL) {
      snprintf(out, size, "%s", word);
      return;
    }
  }
}

static const char *human(double value, double base, const char *const *units, size_t count) {
  static char texts[4][32];
  static unsigned next;
  char *text = texts[next++ % 4];
  size_t unit = 0;
  while (value >= base && unit + 1 < count) {
    value /= base;
    unit++;
  }
  snprintf(text, sizeof texts[0], unit == 0 ? "%.0f%s" : "%.2f%s", value, units[unit]);
  return text;
}

const char *mk_human_bytes(uint64_t bytes) {
  static const char *const units[] = {" bytes", " KiB", " MiB", " GiB", " TiB"};
  return human((double)bytes, 1024, units, sizeof units / sizeof units[0]);
}

const char *mk_human_count(uint64_t count) {
  static const char *const units[] = {"", " thousand", " million", " billion"};
  return human((double)count, 1000, units, sizeof units / sizeof units[0]);
}

static mk_status output_error(void) {
  return mk_error(MK_ERR_RUNTIME, "standard output cannot be written: %s", strerror(errno));
}

mk_status mk_print(const char *text, size_t length) {
  if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0) {
    return output_error();
  }
  return MK_OK;
}

mk_status mk_print_done(void) { return fflush(stdout) != 0 || ferror(stdout) ? output_error() : MK_OK; }

int mk_finish(const char *title, mk_status status) {
  if (status != MK_OK) {
    fprintf(stderr, "%s: %s\n", title, mk_error_message());
  }
  return (int)status;
}

void mk_progress(const char *what, uint64_t done, uint64_t total) {
  static int shown = -1;
  if (!isatty(STDERR_FILENO)) {
    return;
  }
  int percent = total == 0 ? 100 : (int)((double)done * 100 / (double)total);
  if (done >= total) {
    fprintf(stderr, "\r%*s\r", (int)strlen(what) + 6, "");
    shown = -1;
  } else if (percent != shown) {
    fprintf(stderr, "\r%s %3d%%", what, percent);
    shown = percent;
  }
  (void)fflush(stderr);
}
