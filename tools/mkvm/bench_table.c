/* See bench_table.h. */
#include "tools/mkvm/bench_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mk_version.h"
#include "tools/mkvm/command.h"

/* An H200 that reads more slowly was disturbed: something else used its memory, or its clocks were held down. */
static const double kLeastH200Bandwidth = 4.55e12;

void mk_bench_test_name(const mk_bench_row *row, char *text, size_t size) {
  int used = snprintf(text, size, "%s%u", row->prompt ? "pp" : "tg", row->result.tokens);
  if (row->depth != 0 && used > 0 && (size_t)used < size) {
    snprintf(text + used, size - (size_t)used, " @ d%u", row->depth);
  }
}

static const char *backend(const mk_bench_about *about) { return about->cuda ? "CUDA" : "CPU"; }

/* "-" for what was not measured. */
static const char *figure(double value, int decimals, char text[32]) {
  if (value > 0) {
    snprintf(text, 32, "%.*f", decimals, value);
  } else {
    snprintf(text, 32, "-");
  }
  return text;
}

static mk_status print_head(void) {
  printf("| %-20s | %10s | %8s | %-7s | %15s | %19s | %8s | %8s | %8s | %8s | %6s | %9s | %6s |\n", "model", "size",
         "params", "backend", "test", "t/s", "ms p50", "ms p99", "launches", "MB/token", "SM MHz", "read TB/s",
         "% read");
  printf("| %.20s | %.9s: | %.7s: | %.7s | %.14s: | %.18s: | %.7s: | %.7s: | %.7s: | %.7s: | %.5s: | %.8s: | %.5s: |\n",
         "--------------------", "---------", "--------", "--------", "---------------", "--------------------",
         "--------", "--------", "--------", "--------", "------", "---------", "-------");
  return mk_print_done();
}

static mk_status print_row(const mk_bench_about *about, const mk_bench_row *row) {
  const mk_bench_result *r = &row->result;
  char test[48], size[32], parameters[32], rate[48], texts[6][32];
  mk_bench_test_name(row, test, sizeof test);
  snprintf(size, sizeof size, "%s", mk_human_bytes(about->weight_bytes));
  bool billions = about->parameters >= 1000000000;
  snprintf(parameters, sizeof parameters, "%.2f %c", (double)about->parameters / (billions ? 1e9 : 1e6),
           billions ? 'B' : 'M');
  snprintf(rate, sizeof rate, "%.2f \u00b1 %.2f", r->rate_mean, r->rate_deviation);
  /* One column wider for each byte of the sign beyond its first. */
  printf("| %-20s | %10s | %8s | %-7s | %15s | %20s | %8s | %8s | %8u | %8s | %6s | %9s | %6s |\n", about->model, size,
         parameters, backend(about), test, rate, figure(r->token_ms_p50, 4, texts[0]),
         figure(r->token_ms_p99, 4, texts[1]), r->launches, figure((r->weight_bytes + r->kv_bytes) / 1e6, 1, texts[2]),
         figure(r->sm_mhz, 0, texts[5]), figure(r->bandwidth / 1e12, 3, texts[3]), figure(100 * r->share, 1, texts[4]));
  return mk_print_done();
}

json_t *mk_bench_real_or_null(bool there, double value) { return there ? json_real(value) : json_null(); }

static json_t *real_or_null(double value) { return mk_bench_real_or_null(value > 0, value); }

json_t *mk_bench_object_or_null(json_t *object, int bad) {
  if (bad != 0) {
    json_decref(object);
    return NULL;
  }
  return object;
}

json_t *mk_bench_about_object(const mk_bench_about *about) {
  json_t *object = json_object();
  int bad = json_object_set_new(object, "build", json_string(MK_VERSION_FULL));
  bad |= json_object_set_new(object, "model", json_string(about->model));
  bad |= json_object_set_new(object, "weights", json_string(about->weights));
  bad |= json_object_set_new(object, "model_size", json_integer((json_int_t)about->weight_bytes));
  bad |= json_object_set_new(object, "model_n_params", json_integer((json_int_t)about->parameters));
  bad |= json_object_set_new(object, "backend", json_string(backend(about)));
  bad |= json_object_set_new(object, "device", json_string(about->device));
  bad |= json_object_set_new(object, "driver", about->driver[0] == '\0' ? json_null() : json_string(about->driver));
  bad |= json_object_set_new(object, "sm_mhz_max", real_or_null(about->gpu.sm_khz * 1e-3));
  bad |= json_object_set_new(object, "memory_mhz_max", real_or_null(about->gpu.memory_khz * 1e-3));
  bad |= json_object_set_new(object, "sms", json_integer(about->sms));
  bad |= json_object_set_new(object, "n_ctx", json_integer(about->context));
  return mk_bench_object_or_null(object, bad);
}

static json_t *row_object(const mk_bench_about *about, const mk_bench_row *row) {
  const mk_bench_result *r = &row->result;
  char test[48];
  mk_bench_test_name(row, test, sizeof test);
  json_t *object = mk_bench_about_object(about);
  int bad = json_object_set_new(object, "test", json_string(test));
  bad |= json_object_set_new(object, "n_prompt", json_integer(row->prompt ? r->tokens : 0));
  bad |= json_object_set_new(object, "n_gen", json_integer(row->prompt ? 0 : r->tokens));
  bad |= json_object_set_new(object, "n_depth", json_integer(row->depth));
  bad |= json_object_set_new(object, "launches", json_integer(r->launches));
  bad |= json_object_set_new(object, "avg_ts", json_real(r->rate_mean));
  bad |= json_object_set_new(object, "stddev_ts", json_real(r->rate_deviation));
  bad |= json_object_set_new(object, "token_ms_p50", real_or_null(r->token_ms_p50));
  bad |= json_object_set_new(object, "token_ms_p99", real_or_null(r->token_ms_p99));
  bad |= json_object_set_new(object, "launch_ms_per_token_p50", json_real(r->launch_ms_p50));
  bad |= json_object_set_new(object, "launch_ms_per_token_p99", json_real(r->launch_ms_p99));
  bad |= json_object_set_new(object, "first_token_ms_p50", json_real(r->first_ms_p50));
  bad |= json_object_set_new(object, "weight_bytes_per_token", json_real(r->weight_bytes));
  bad |= json_object_set_new(object, "kv_bytes_per_token", json_real(r->kv_bytes));
  bad |= json_object_set_new(object, "sm_mhz", real_or_null(r->sm_mhz));
  bad |= json_object_set_new(object, "read_bytes_per_s", real_or_null(r->bandwidth));
  bad |= json_object_set_new(object, "read_share", real_or_null(r->share));
  return mk_bench_object_or_null(object, bad);
}

static void print_csv_text(const char *text) {
  putchar('"');
  for (; *text != '\0'; text++) {
    if (*text == '"') {
      putchar('"');
    }
    putchar(*text);
  }
  putchar('"');
}

static void print_csv(const json_t *object, bool head) {
  const char *key, *comma = "";
  const json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    fputs(comma, stdout);
    comma = ",";
    if (head) {
      fputs(key, stdout);
    } else if (json_is_string(value)) {
      print_csv_text(json_string_value(value));
    } else if (json_is_integer(value)) {
      printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_real(value)) {
      printf("%.9g", json_real_value(value));
    }
  }
  putchar('\n');
}

mk_status mk_bench_list_object(mk_bench_format format, json_t *object, bool first) {
  char *text = object == NULL ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  if (text == NULL) {
    json_decref(object);
    return mk_error(MK_ERR_RUNTIME,
                    "the result could not be made into text: out of memory, or a path or name in it is "
                    "not UTF-8");
  }
  if (format == MK_BENCH_JSON) {
    printf("%s%s", first ? "" : ",\n", text);
  } else {
    if (first) {
      print_csv(object, true);
    }
    print_csv(object, false);
  }
  free(text);
  json_decref(object);
  return mk_print_done();
}

static void print_gpu(const mk_bench_about *about) {
  const mk_gpu_description *gpu = &about->gpu;
  printf(", %d SMs (compiled for %u)", gpu->sms, about->sms);
  if (gpu->memory_bytes != 0) {
    printf(", %s", mk_human_bytes(gpu->memory_bytes));
  }
  if (gpu->sm_khz > 0) {
    printf(", SM clock at most %d MHz", gpu->sm_khz / 1000);
  }
  if (gpu->memory_khz > 0) {
    printf(", memory clock at most %d MHz", gpu->memory_khz / 1000);
  }
  printf(", driver%s%s for CUDA %d.%d", about->driver[0] == '\0' ? "" : " ", about->driver, about->cuda_version / 1000,
         about->cuda_version % 1000 / 10);
}

static mk_status print_notes(const mk_bench_about *about, double bandwidth) {
  printf("\ndevice: %s", about->device);
  if (about->cuda) {
    print_gpu(about);
  }
  printf("\nbuild: mkvm %s; weights: %s; context: %u tokens\n", MK_VERSION_FULL, about->weights, about->context);
  if (!about->cuda) {
    printf("t/s: mean and deviation over the launches, by the host's clock; ms: between two tokens\n");
    return mk_print_done();
  }
  printf(
      "SM MHz: in the slowest launch, by the GPU's own clocks; t/s: mean and deviation over the launches, each from "
      "its first to its last event on the GPU\n"
      "ms: between two tokens as they reach the host, all launches; %% read: bytes per token over the median launch\n"
      "KV cache before a test: hash values in [-1, 1)\n");
  if (bandwidth > 0) {
    printf("read bandwidth: %.3f TB/s, the best of three reads after each test\n", bandwidth * 1e-12);
  }
  if (bandwidth > 0 && bandwidth < kLeastH200Bandwidth && strstr(about->gpu.name, "H200") != NULL) {
    printf("void: an H200 reads at least %.2f TB/s; free the GPU of other work and measure again\n",
           kLeastH200Bandwidth * 1e-12);
  }
  return mk_print_done();
}

mk_status mk_bench_list_begin(mk_bench_format format) { return format == MK_BENCH_JSON ? mk_print("[\n", 2) : MK_OK; }

mk_status mk_bench_list_end(mk_bench_format format, bool objects) {
  return format != MK_BENCH_JSON ? MK_OK : mk_print(objects ? "\n]\n" : "]\n", objects ? 3 : 2);
}

mk_status mk_bench_table_begin(const mk_bench_about *about) {
  return about->format == MK_BENCH_MD ? print_head() : mk_bench_list_begin(about->format);
}

mk_status mk_bench_table_row(const mk_bench_about *about, const mk_bench_row *row, bool first) {
  return about->format == MK_BENCH_MD ? print_row(about, row)
                                      : mk_bench_list_object(about->format, row_object(about, row), first);
}

mk_status mk_bench_table_end(const mk_bench_about *about, double bandwidth, bool rows) {
  return about->format == MK_BENCH_MD ? print_notes(about, bandwidth) : mk_bench_list_end(about->format, rows);
}
