/* The results of `mkvm bench` on standard output: a Markdown table, CSV or JSON, row by row as they come.
 * Owns nothing; texts stay the caller's. One thread. Failure: MK_ERR_RUNTIME (memory, standard output). */
#ifndef MK_BENCH_TABLE_H
#define MK_BENCH_TABLE_H

#include <jansson.h>

#include "tools/lib/bench.h"
#include "vm/gpu/extra.h"

typedef enum mk_bench_format { MK_BENCH_MD, MK_BENCH_CSV, MK_BENCH_JSON } mk_bench_format;

/* Results as a list of objects, in csv or json: before the first one, for each, and after the last one. The object
 * becomes the callee's; NULL: out of memory, or a text that is not UTF-8. */
mk_status mk_bench_list_begin(mk_bench_format format);
mk_status mk_bench_list_object(mk_bench_format format, json_t *object, bool first);
mk_status mk_bench_list_end(mk_bench_format format, bool objects);

/* Of their making: a number, or null where there is none; and the object, unless `bad` says that something went wrong
 * with it: then NULL. */
json_t *mk_bench_real_or_null(bool there, double value);
json_t *mk_bench_object_or_null(json_t *object, int bad);

/* What all rows have in common. */
typedef struct mk_bench_about {
  mk_bench_format format;
  const char *model, *weights, *device;
  uint64_t weight_bytes, parameters; /* as the model states them: tied embeddings once, no padding */
  uint32_t context, sms;
  bool cuda;
  mk_gpu_description gpu; /* with cuda */
  int cuda_version;
  char driver[32]; /* "" when the system does not tell */
} mk_bench_about;

/* What all rows have in common, as a new object; names that llama-bench has too mean the same here. NULL: out of
 * memory, or a path that is not UTF-8. */
json_t *mk_bench_about_object(const mk_bench_about *about);

typedef struct mk_bench_row {
  bool prompt;
  uint32_t depth;
  mk_bench_result result;
} mk_bench_row;

/* "pp512", "tg128 @ d4096" */
void mk_bench_test_name(const mk_bench_row *row, char *text, size_t size);

mk_status mk_bench_table_begin(const mk_bench_about *about);
mk_status mk_bench_table_row(const mk_bench_about *about, const mk_bench_row *row, bool first);
/* bandwidth: the best of all rows; 0: none. */
mk_status mk_bench_table_end(const mk_bench_about *about, double bandwidth, bool rows);

#endif
