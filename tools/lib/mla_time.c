/* See mla_time.h. */
#include "tools/lib/mla_time.h"

#include <stdlib.h>
#include <time.h>

enum { TIMES = 31, LAUNCHES = 20 };
static const double kBytesPerUs = 4.67e6, kFlopsPerUs = 790e6;

mk_mla_floor mk_mla_session_floor(const mk_mla_session *s) {
  const mk_mla_geometry *g = &s->geometry;
  double tokens = 0, rows = (double)g->rows * g->blocks;
  for (uint32_t q = 0; q < s->sequences; q++) {
    tokens += s->lengths[q];
  }
  mk_mla_floor f = {.bytes = 2 * (tokens * MK_MLA_WIDTH + s->sequences * rows * (MK_MLA_WIDTH + MK_MLA_LATENT)),
                    .flops = 2 * tokens * rows * (MK_MLA_WIDTH + MK_MLA_LATENT)};
  f.us = f.bytes / kBytesPerUs > f.flops / kFlopsPerUs ? f.bytes / kBytesPerUs : f.flops / kFlopsPerUs;
  return f;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

mk_status mk_mla_session_time(const mk_mla_session *s, double warm_up, mk_mla_timing timing, double *us) {
  double times[TIMES];
  uint32_t launches = timing == MK_MLA_WARM ? LAUNCHES : 1;
  for (double start = seconds(); seconds() - start < warm_up;) {
    MK_TRY(mk_gpu_repeat(s->gpu, LAUNCHES, us));
  }
  for (uint32_t i = 0; i < TIMES; i++) {
    if (timing == MK_MLA_FLUSHED || timing == MK_MLA_WRITTEN) {
      MK_TRY(mk_gpu_flush(s->gpu, timing == MK_MLA_WRITTEN));
    }
    MK_TRY(mk_gpu_repeat(s->gpu, launches, &times[i]));
  }
  qsort(times, TIMES, sizeof times[0], by_size);
  *us = times[TIMES / 2] / launches;
  return MK_OK;
}
