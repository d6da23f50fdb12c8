/* See mla_time.h. */
#include "tools/lib/mla_time.h"

#include <time.h>

#include "tools/lib/clock.h"
#include "tools/lib/quantile.h"

enum { TIMES = 31, LAUNCHES = 20, FEW_LAUNCHES = 5, MOST_GROUPS = 256, MOST_REPEATS = 9, IDLE_NS = 500000000 };
static const double kBurstFrom = 3e-3, kBurstUntil = 20e-3, kSustainedFrom = 0.15, kSustainedUntil = 0.2; /* seconds */
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

static double median(double *values, uint32_t count) { return mk_quantile(values, count, 0.5); }

/* Launches without a pause, of which those from `from` seconds on until `until` count. */
static mk_status time_groups(const mk_mla_session *s, double from, double until, mk_mla_time *out) {
  double times[MOST_GROUPS], clocks[MOST_GROUPS], start = mk_seconds(), us;
  uint32_t count = 0;
  while (mk_seconds() - start < from) {
    MK_TRY(mk_gpu_repeat(s->gpu, FEW_LAUNCHES, &us));
  }
  do {
    MK_TRY(mk_gpu_repeat(s->gpu, LAUNCHES, &us));
    times[count] = us / LAUNCHES;
    clocks[count++] = mk_gpu_clock_mhz(s->gpu);
  } while (count < MOST_GROUPS && mk_seconds() - start < until);
  *out = (mk_mla_time){median(times, count), median(clocks, count)};
  return MK_OK;
}

static void be_idle(void) { nanosleep(&(struct timespec){.tv_nsec = IDLE_NS}, NULL); }

static mk_status time_bursts(const mk_mla_session *s, uint32_t repeats, mk_mla_time *out) {
  double times[MOST_REPEATS], clocks[MOST_REPEATS];
  if (repeats == 0) {
    return time_groups(s, kBurstFrom, kBurstUntil, out);
  }
  repeats = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
  for (uint32_t i = 0; i < repeats; i++) {
    be_idle();
    MK_TRY(time_groups(s, kBurstFrom, kBurstUntil, out));
    times[i] = out->us;
    clocks[i] = out->mhz;
  }
  *out = (mk_mla_time){median(times, repeats), median(clocks, repeats)};
  return MK_OK;
}

mk_status mk_mla_session_time(const mk_mla_session *s, mk_mla_timing timing, uint32_t repeats, mk_mla_time *out) {
  double times[TIMES];
  if (timing == MK_MLA_WARM) {
    return time_bursts(s, repeats, out);
  }
  if (timing == MK_MLA_SUSTAINED) {
    return time_groups(s, kSustainedFrom, kSustainedUntil, out);
  }
  mk_gpu_before before = timing == MK_MLA_ALONE     ? MK_GPU_BEFORE_NOTHING
                         : timing == MK_MLA_WRITTEN ? MK_GPU_BEFORE_WRITTEN
                                                    : MK_GPU_BEFORE_READ;
  if (repeats != 0) {
    be_idle();
  }
  MK_TRY(mk_gpu_time_each(s->gpu, before, timing == MK_MLA_EMPTY, TIMES, times));
  *out = (mk_mla_time){median(times, TIMES), timing == MK_MLA_EMPTY ? 0 : mk_gpu_clock_mhz(s->gpu)};
  return MK_OK;
}
