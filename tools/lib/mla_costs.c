/* The constants of the cost model, measured: batches of several shapes under lists that cut blocks differently, each a
 * call by itself, since warm ones overlap where SMs are idle. See mla_time.h and scheduler/mla_fit.h. */
#include <string.h>

#include "models/synth.h"
#include "scheduler/mla_fit.h"
#include "tools/lib/mla_time.h"

enum { MOST_SEQUENCES = 132, MOST_TOKENS = 30000, POOL_PAGES = 4096, MOST_LISTS = 19 };

typedef struct batch_kind { /* sequences of `low` to `high` tokens */
  uint32_t count, low, high;
} batch_kind;

static const batch_kind kBatches[] = {
    {1, 3000, 3000},  {1, 8192, 8192}, {1, 30000, 30000}, {4, 1000, 1000},  {8, 4096, 4096}, {16, 2000, 2000},
    {32, 1024, 1024}, {64, 512, 512},  {20, 6000, 6000},  {40, 3000, 3000}, {64, 256, 1024}, {48, 16, 2048},
    {16, 100, 8000},  {30, 200, 4000}, {100, 100, 3000},  {132, 500, 1500}, {8, 1000, 30000}};

static const struct { uint32_t heads, new_tokens; } kShapes[] = {{8, 1}, {16, 2}, {16, 4}, {128, 1}};

enum { BATCHES = sizeof kBatches / sizeof kBatches[0], SHAPES = sizeof kShapes / sizeof kShapes[0] };

typedef struct gathering {
  mk_mla_session *session; /* of the shape at hand */
  mk_mla_geometry geometry[SHAPES];
  uint32_t *lengths[BATCHES];
  mk_mla_sample *samples;
  size_t count, capacity;
  double launch_us;
  void (*progress)(uint32_t done, uint32_t total);
} gathering;

/* The list at hand, timed: with what a call before has left in the L2, and without. */
static mk_status add_sample(gathering *all, const mk_mla_geometry *g, const uint32_t *lengths, uint32_t batch) {
  mk_mla_time alone, flushed;
  uint32_t *work;
  MK_TRY(mk_mla_session_run(all->session)); /* checks it, too */
  MK_TRY(mk_mla_session_time(all->session, MK_MLA_ALONE, 0, &alone));
  MK_TRY(mk_mla_session_time(all->session, MK_MLA_FLUSHED, 0, &flushed));
  MK_TRY(mk_grow(&all->samples, &all->capacity, all->count + 1, sizeof *all->samples));
  size_t words = (size_t)g->sms * g->list_words;
  MK_TRY(mk_alloc(words, sizeof *work, &work));
  memcpy(work, all->session->work, words * sizeof *work);
  all->samples[all->count++] = (mk_mla_sample){
      .geometry = g, .work = work, .lengths = lengths, .batch = batch, .us = (alone.us + flushed.us) / 2};
  return MK_OK;
}

static bool same(const mk_mla_summary *a, const mk_mla_summary *b) {
  return a->items == b->items && a->slots == b->slots && a->reductions == b->reductions;
}

/* Lists of the batch at hand by costs of many kinds, and the naive one: those that differ in what they count. */
static mk_status time_lists(gathering *all, const mk_mla_geometry *g, const uint32_t *lengths, uint32_t batch) {
  static const uint32_t pages[] = {600, 1500, 4000}, items[] = {500, 3000, 12000}, reductions[] = {1, 6000};
  mk_mla_summary seen[MOST_LISTS];
  uint32_t count = 0;
  for (uint32_t i = 0; i < MOST_LISTS; i++) {
    const mk_mla_costs costs = {.item = items[i / 3 % 3],
                                .page = pages[i % 3],
                                .out_row = 10,
                                .slot_row = 60,
                                .reduction = reductions[i / 9 % 2],
                                .unit = 20};
    MK_TRY(mk_mla_session_set_costs(all->session, &costs));
    MK_TRY(mk_mla_session_schedule(all->session, i + 1 == MOST_LISTS ? MK_MLA_NAIVE : MK_MLA_MAKESPAN, &seen[count]));
    bool is_new = true;
    for (uint32_t j = 0; j < count; j++) {
      is_new = is_new && !same(&seen[j], &seen[count]);
    }
    if (is_new) {
      count++;
      MK_TRY(add_sample(all, g, lengths, batch));
    }
  }
  return MK_OK;
}

static mk_status make_lengths(gathering *all) {
  for (uint32_t b = 0; b < BATCHES; b++) {
    const batch_kind *kind = &kBatches[b];
    MK_TRY(mk_alloc(kind->count, sizeof *all->lengths[b], &all->lengths[b]));
    for (uint32_t q = 0; q < kind->count; q++) {
      all->lengths[b][q] = kind->low + (uint32_t)(mk_synth_mix((uint64_t)b << 32 | q) % (kind->high - kind->low + 1));
    }
  }
  return MK_OK;
}

static mk_status time_batches(gathering *all, uint32_t shape) {
  mk_mla_time launch;
  all->geometry[shape] = all->session->geometry;
  for (uint32_t b = 0; b < BATCHES; b++) {
    MK_TRY(mk_mla_session_load(all->session, all->lengths[b], kBatches[b].count, 1));
    MK_TRY(time_lists(all, &all->geometry[shape], all->lengths[b], shape * BATCHES + b));
    all->progress(shape * BATCHES + b + 1, SHAPES * BATCHES);
  }
  MK_TRY(mk_mla_session_time(all->session, MK_MLA_EMPTY, 0, &launch));
  all->launch_us = launch.us;
  return MK_OK;
}

static mk_status time_shapes(gathering *all, const mk_gpu_options *options) {
  MK_TRY(make_lengths(all));
  for (uint32_t i = 0; i < SHAPES; i++) {
    const mk_mla_shape shape = {.heads = kShapes[i].heads,
                                .new_tokens = kShapes[i].new_tokens,
                                .max_sequences = MOST_SEQUENCES,
                                .max_pages = mk_mla_pages_of(MOST_TOKENS),
                                .pool_pages = POOL_PAGES,
                                .scale = 0.07f};
    MK_TRY(mk_mla_session_new_gpu(&shape, options, &all->session));
    mk_status status = time_batches(all, i);
    mk_mla_session_free(all->session);
    MK_TRY(status);
  }
  return MK_OK;
}

mk_status mk_mla_measure_costs(const mk_gpu_options *options, void (*progress)(uint32_t done, uint32_t total),
                               mk_mla_costs *out) {
  gathering all = {.progress = progress};
  *out = mk_mla_default_costs;
  mk_status status = time_shapes(&all, options);
  if (status == MK_OK) {
    status = mk_mla_fit(all.samples, all.count, all.launch_us, out);
  }
  for (size_t i = 0; i < all.count; i++) {
    mk_free((void *)all.samples[i].work);
  }
  for (uint32_t b = 0; b < BATCHES; b++) {
    mk_free(all.lengths[b]);
  }
  mk_free(all.samples);
  return status;
}
