/* The constants of the cost model, measured. See mla_time.h. */
#include <string.h>

#include "tools/lib/mla_time.h"
#include "vm/gpu/extra.h"

enum { SHORT = 8, LONG = 24, ROWS = 64, FEW_ROWS = 8, PARTS = 128 };

/* Lists of the measurements, all SMs alike where nothing else is said. */
typedef enum list_kind {
  WHOLE, /* every sequence one item on SM sequence % sms */
  HALVED, /* items of two pages on one SM, their reduction on another, since a part that is there would be kept (mk_mla_folds) */
  CUT,      /* the same with items of one page */
  GATHERED, /* one sequence in parts of a page, each on its SM, reduced on SM 0 */
  SPREAD,   /* the same, reduced by all that have a part */
} list_kind;

static void add_item(const mk_mla_session *s, uint32_t sm, mk_mla_item item) {
  uint32_t *row = s->work + (size_t)sm * s->geometry.list_words;
  memcpy(row + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * row[0]++, &item, sizeof item);
}

/* Behind all items of the SM. */
static void add_reduction(const mk_mla_session *s, uint32_t sm, mk_mla_reduction reduction) {
  uint32_t *row = s->work + (size_t)sm * s->geometry.list_words;
  memcpy(row + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * (row[0] + row[1]++), &reduction, sizeof reduction);
}

static void add_parts(const mk_mla_session *s, uint32_t sequence, uint32_t first_slot, uint32_t pages, list_kind kind) {
  uint32_t sms = s->geometry.sms, parts = kind == HALVED ? pages / 2 : pages, size = pages / parts;
  uint32_t units = s->geometry.rows * MK_MLA_ROW_UNITS;
  bool apart = kind == GATHERED || kind == SPREAD;
  for (uint32_t i = 0; i < parts; i++) {
    uint32_t end = i + 1 == parts ? MK_MLA_REST : (i + 1) * size;
    add_item(s, (apart ? i : sequence) % sms, (mk_mla_item){sequence, i * size, end, first_slot + i});
  }
  uint32_t pieces = kind != SPREAD ? 1 : parts < units ? parts : units;
  for (uint32_t i = 0; i < pieces; i++) {
    uint32_t first = i * units / pieces, count = (i + 1) * units / pieces - first;
    add_reduction(s, (apart ? i : sequence + sms / 2) % sms,
                  (mk_mla_reduction){sequence, first_slot, parts, first | count << 16});
  }
}

static void write_list(const mk_mla_session *s, list_kind kind) {
  for (uint32_t sm = 0; sm < s->geometry.sms; sm++) {
    memset(s->work + (size_t)sm * s->geometry.list_words, 0, MK_MLA_LIST_HEAD * sizeof *s->work);
  }
  for (uint32_t q = 0, slot = 0; q < s->sequences; q++) {
    uint32_t pages = mk_mla_pages_of(s->lengths[q]);
    if (kind == WHOLE) {
      add_item(s, q % s->geometry.sms, (mk_mla_item){q, 0, MK_MLA_REST, MK_MLA_OUT});
    } else {
      add_parts(s, q, slot, pages, kind);
      slot += kind == HALVED ? pages / 2 : pages;
    }
  }
}

/* Nanoseconds of a launch with this list. */
static mk_status time_list(mk_mla_session *s, list_kind kind, double *ns) {
  mk_mla_time time;
  write_list(s, kind);
  MK_TRY(mk_mla_session_run(s)); /* checks it, too */
  MK_TRY(mk_mla_session_time(s, MK_MLA_WARM, 1, &time));
  *ns = time.us * 1e3;
  return MK_OK;
}

/* A batch of `count` sequences of so many pages. */
static mk_status load(mk_mla_session *s, uint32_t count, uint32_t pages) {
  uint32_t *lengths;
  MK_TRY(mk_alloc(count, sizeof *lengths, &lengths));
  for (uint32_t q = 0; q < count; q++) {
    lengths[q] = pages * MK_MLA_PAGE_TOKENS;
  }
  mk_status status = mk_mla_session_load(s, lengths, count, 1);
  mk_free(lengths);
  return status;
}

typedef struct timings {
  double one, many;            /* one page, and SHORT sequences of a page, on every SM */
  double whole, longer;        /* a sequence of SHORT and LONG pages */
  double quarter, halved, cut; /* of SHORT, on every fourth SM */
  double gathered, spread;     /* of PARTS */
} timings;

static mk_status time_all(mk_mla_session *s, timings *t) {
  uint32_t sms = s->geometry.sms;
  MK_TRY(load(s, sms, 1));
  MK_TRY(time_list(s, WHOLE, &t->one));
  MK_TRY(load(s, sms * SHORT, 1));
  MK_TRY(time_list(s, WHOLE, &t->many));
  MK_TRY(load(s, sms, LONG));
  MK_TRY(time_list(s, WHOLE, &t->longer));
  MK_TRY(load(s, sms, SHORT));
  MK_TRY(time_list(s, WHOLE, &t->whole));
  MK_TRY(load(s, sms / 4, SHORT)); /* fewer sequences: there are two slots per SM */
  MK_TRY(time_list(s, WHOLE, &t->quarter));
  MK_TRY(time_list(s, HALVED, &t->halved));
  MK_TRY(time_list(s, CUT, &t->cut));
  MK_TRY(load(s, 1, PARTS));
  MK_TRY(time_list(s, GATHERED, &t->gathered));
  return time_list(s, SPREAD, &t->spread);
}

static mk_status measure(uint32_t heads, uint32_t new_tokens, const mk_gpu_options *options, timings *out) {
  mk_gpu_description about;
  mk_mla_session *session;
  MK_TRY(mk_gpu_usable(options->device));
  MK_TRY(mk_gpu_describe(options->device, &about));
  uint32_t sms = (uint32_t)about.sms;
  if (sms < PARTS) {
    return mk_error(MK_ERR_RUNTIME, "%s has %u SMs; costs are measured on %d or more", about.name, sms, PARTS);
  }
  mk_mla_shape shape = {.heads = heads,
                        .new_tokens = new_tokens,
                        .max_sequences = sms * SHORT,
                        .max_pages = PARTS,
                        .pool_pages = sms * LONG,
                        .scale = 0.07f};
  MK_TRY(mk_mla_session_new_gpu(&shape, options, &session));
  mk_status status = time_all(session, out);
  mk_mla_session_free(session);
  return status;
}

static uint32_t nanoseconds(double value) { return value < 1 ? 1 : (uint32_t)(value + 0.5); }

mk_status mk_mla_measure_costs(const mk_gpu_options *options, mk_mla_costs *out) {
  timings most, few;
  MK_TRY(measure(ROWS / 4, 4, options, &most));
  MK_TRY(measure(FEW_ROWS, 1, options, &few));
  double page = (most.longer - most.whole) / (LONG - SHORT);
  double item = (most.many - most.one) / (SHORT - 1) - page, few_item = (few.many - few.one) / (SHORT - 1) - page;
  double out_row = (item - few_item) / (ROWS - FEW_ROWS);
  double units = ROWS * MK_MLA_ROW_UNITS;
  double unit = (most.gathered - most.spread) / (PARTS * (units - units / PARTS));
  /* A part more of the same pages: an item, a slot, and a slot for the reduction. */
  double part = (most.cut - most.halved) / (SHORT / 2), few_part = (few.cut - few.halved) / (SHORT / 2);
  double slot_row = (part - few_part) / (ROWS - FEW_ROWS) - MK_MLA_ROW_UNITS * unit;
  item -= out_row * ROWS;
  double reduction = most.cut - most.quarter - (SHORT - 1) * item -
                     SHORT * (slot_row + MK_MLA_ROW_UNITS * unit) * ROWS + out_row * ROWS;
  *out = (mk_mla_costs){.item = nanoseconds(item),
                        .page = nanoseconds(page),
                        .out_row = nanoseconds(out_row),
                        .slot_row = nanoseconds(slot_row),
                        .reduction = nanoseconds(reduction),
                        .unit = nanoseconds(unit)};
  return MK_OK;
}
