/* See mla_schedule.h. A plan is the parts of all blocks, then their places, then reductions. Several are made for their
 * makespan alone; the best one is made once more to write it out. */
#include "scheduler/mla_schedule.h"

#include <string.h>

#define NO_PART UINT32_MAX

typedef struct part { /* a run of pages of a block */
  uint32_t block, index, first, pages;
  uint32_t sm; /* known from the start with FILL, else when the part is placed */
} part;

typedef struct sm_state {
  uint64_t time; /* when the SM is free; UINT64_MAX: its row of the list is full */
  uint32_t sm;
} sm_state;

typedef enum shape_of_plan { EVEN_PARTS, FILL, NAIVE_PARTS } shape_of_plan;

typedef struct plan {
  shape_of_plan shape;
  uint64_t size; /* EVEN_PARTS: most pages of a part; FILL: most nanoseconds of an SM */
} plan;

struct mk_mla_scheduler {
  mk_mla_geometry g;
  mk_mla_costs costs;
  uint32_t sequences, longest; /* of the batch; pages */
  uint64_t all_pages;          /* of all its blocks */
  uint32_t *pages;             /* by sequence */
  uint32_t *order;             /* sequences, longest first */
  uint32_t *by_pages;          /* where what has so many pages goes */
  part *parts;
  uint32_t part_count, part_capacity;
  uint32_t *sorted;      /* numbers of parts */
  uint32_t *part_counts; /* by block, as the three below */
  uint32_t *first_slot;
  uint64_t *ready;        /* when its last part is done */
  bool *folded;           /* its reductions are placed */
  sm_state *heap;         /* the SM that is free first on top */
  uint32_t *entries;      /* by SM */
  uint32_t *last;         /* by SM: the part placed last there, or NO_PART */
  uint32_t *reductions;   /* by SM */
  sm_state **state;       /* by SM: its place in the heap, while reductions are placed where parts are */
  uint32_t *work;         /* NULL: only the makespan is asked for */
  mk_mla_summary summary; /* of the plan at hand */
};

static mk_status allocate(mk_mla_scheduler *s) {
  size_t blocks = (size_t)s->g.sequences * s->g.blocks;
  s->part_capacity = (uint32_t)blocks + s->g.slots;
  MK_TRY(mk_alloc(s->g.sequences, sizeof *s->pages, &s->pages));
  MK_TRY(mk_alloc(s->g.sequences, sizeof *s->order, &s->order));
  MK_TRY(mk_alloc(s->g.max_pages + 2, sizeof *s->by_pages, &s->by_pages));
  MK_TRY(mk_alloc(s->part_capacity, sizeof *s->parts, &s->parts));
  MK_TRY(mk_alloc(s->part_capacity, sizeof *s->sorted, &s->sorted));
  MK_TRY(mk_alloc(blocks, sizeof *s->part_counts, &s->part_counts));
  MK_TRY(mk_alloc(blocks, sizeof *s->first_slot, &s->first_slot));
  MK_TRY(mk_alloc(blocks, sizeof *s->ready, &s->ready));
  MK_TRY(mk_alloc(blocks, sizeof *s->folded, &s->folded));
  MK_TRY(mk_alloc(s->g.sms, sizeof *s->last, &s->last));
  MK_TRY(mk_alloc(s->g.sms, sizeof *s->reductions, &s->reductions));
  MK_TRY(mk_alloc(s->g.sms, sizeof(sm_state *), &s->state));
  MK_TRY(mk_alloc(s->g.sms, sizeof *s->heap, &s->heap));
  return mk_alloc(s->g.sms, sizeof *s->entries, &s->entries);
}

mk_status mk_mla_scheduler_new(const mk_program *program, const mk_mla_costs *costs, mk_mla_scheduler **out) {
  mk_mla_scheduler *s;
  mk_mla_geometry g;
  *out = NULL;
  if (!mk_mla_geometry_of(program, &g)) {
    return mk_error(MK_ERR_USAGE, "the program has no mla_part, hence no work list to write");
  }
  if (costs != NULL && costs->page == 0) {
    return mk_error(MK_ERR_USAGE, "costs: a page takes 0 ns; it must be above 0");
  }
  MK_TRY(mk_alloc(1, sizeof *s, &s));
  s->g = g;
  s->costs = costs == NULL ? mk_mla_default_costs : *costs;
  mk_status status = allocate(s);
  if (status != MK_OK) {
    mk_mla_scheduler_free(s);
    return status;
  }
  *out = s;
  return MK_OK;
}

void mk_mla_scheduler_free(mk_mla_scheduler *s) {
  if (s == NULL) {
    return;
  }
  mk_free(s->pages);
  mk_free(s->order);
  mk_free(s->by_pages);
  mk_free(s->parts);
  mk_free(s->sorted);
  mk_free(s->part_counts);
  mk_free(s->first_slot);
  mk_free(s->ready);
  mk_free(s->folded);
  mk_free(s->last);
  mk_free(s->reductions);
  mk_free(s->state);
  mk_free(s->heap);
  mk_free(s->entries);
  mk_free(s);
}

/* The heap of SMs. */

static bool before(const sm_state *a, const sm_state *b) {
  return a->time != b->time ? a->time < b->time : a->sm < b->sm;
}

/* Restores the heap after the SM at `at` has got a later time. */
static void sink(mk_mla_scheduler *s, uint32_t at) {
  uint32_t count = s->g.sms;
  sm_state moved = s->heap[at];
  for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    child += child + 1 < count && before(&s->heap[child + 1], &s->heap[child]);
    if (!before(&s->heap[child], &moved)) {
      break;
    }
    s->heap[at] = s->heap[child];
    at = child;
  }
  s->heap[at] = moved;
}

/* Makes a heap of SMs whose times are in any order. */
static void make_heap(mk_mla_scheduler *s) {
  for (uint32_t at = s->g.sms / 2; at-- != 0;) {
    sink(s, at);
  }
}

static uint32_t all_blocks(const mk_mla_scheduler *s) { return s->sequences * s->g.blocks; }

static uint64_t item_cost(const mk_mla_scheduler *s, uint32_t pages, bool direct) {
  return mk_mla_item_cost(&s->costs, s->g.rows, pages, direct);
}

/* Parts. Every function that makes parts lists those of a block in the order of its pages, and returns false when there
 * are too many. */

static bool add_part(mk_mla_scheduler *s, uint32_t block, uint32_t first, uint32_t pages, uint32_t sm) {
  if (s->part_count == s->part_capacity) {
    return false;
  }
  s->parts[s->part_count++] =
      (part){.block = block, .index = s->part_counts[block]++, .first = first, .pages = pages, .sm = sm};
  return true;
}

static bool add_equal_parts(mk_mla_scheduler *s, uint32_t sequence, uint32_t count) {
  /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a sequence has a part at least, on one of the SMs */
  uint32_t least = s->pages[sequence] / count, extra = s->pages[sequence] % count;
  for (uint32_t b = sequence * s->g.blocks; b < (sequence + 1) * s->g.blocks; b++) {
    for (uint32_t i = 0, first = 0; i < count; i++) {
      uint32_t pages = least + (i < extra);
      if (!add_part(s, b, first, pages, 0)) {
        return false;
      }
      first += pages;
    }
  }
  return true;
}

/* How many parts a sequence of `pages` pages has when no part may have more than `size` pages. */
static uint32_t parts_of_size(const mk_mla_scheduler *s, uint32_t pages, uint32_t size) {
  uint32_t parts = pages / size + (pages % size != 0);
  return parts == 0 ? 1 : parts < s->g.sms ? parts : s->g.sms;
}

static bool make_even_parts(mk_mla_scheduler *s, uint32_t size) {
  for (uint32_t q = 0; q < s->sequences; q++) {
    if (!add_equal_parts(s, q, parts_of_size(s, s->pages[q], size))) {
      return false;
    }
  }
  return true;
}

/* Cuts every block into `parts` parts, or into as many as it has pages. */
static bool make_naive_parts(mk_mla_scheduler *s, uint32_t parts) {
  for (uint32_t q = 0; q < s->sequences; q++) {
    uint32_t pages = s->pages[q] == 0 ? 1 : s->pages[q];
    if (!add_equal_parts(s, q, parts < pages ? parts : pages)) {
      return false;
    }
  }
  return true;
}

/* Fills one SM after another up to the time `limit`; where an SM reaches it, the block at hand is cut. */
static bool make_filling_parts(mk_mla_scheduler *s, uint64_t limit) {
  uint64_t time = 0, fixed = item_cost(s, 0, false);
  uint32_t sm = 0, entries = 0;
  for (uint32_t i = 0; i < all_blocks(s); i++) {
    uint32_t q = s->order[i / s->g.blocks], block = q * s->g.blocks + i % s->g.blocks;
    uint32_t first = 0, left = s->pages[q];
    while (time + item_cost(s, left, first == 0) > limit || entries == s->g.capacity / 2) {
      uint64_t room = time + fixed < limit ? (limit - time - fixed) / s->costs.page : 0;
      uint32_t take = room < left ? (uint32_t)room : left - (left != 0);
      if (take == 0 && time == 0) {
        return false; /* not even a page fits */
      }
      if (take != 0 && entries < s->g.capacity / 2) {
        if (!add_part(s, block, first, take, sm)) {
          return false;
        }
        first += take;
        left -= take;
      }
      if (++sm == s->g.sms) {
        return false;
      }
      time = 0;
      entries = 0;
    }
    if (!add_part(s, block, first, left, sm)) {
      return false;
    }
    time += item_cost(s, left, first == 0);
    entries++;
  }
  return true;
}

static void count_by_pages(mk_mla_scheduler *s, uint32_t most) {
  for (uint32_t pages = most + 1, total = 0; pages-- != 0;) {
    uint32_t count = s->by_pages[pages];
    s->by_pages[pages] = total;
    total += count;
  }
}

/* Sequences, longest first, those of one length in their order. */
static void sort_sequences(mk_mla_scheduler *s) {
  memset(s->by_pages, 0, (s->longest + 1) * sizeof *s->by_pages);
  for (uint32_t q = 0; q < s->sequences; q++) {
    s->by_pages[s->pages[q]]++;
  }
  count_by_pages(s, s->longest);
  for (uint32_t q = 0; q < s->sequences; q++) {
    s->order[s->by_pages[s->pages[q]]++] = q;
  }
}

/* Numbers the slots in the order of blocks; false: there are too few. */
static bool number_slots(mk_mla_scheduler *s) {
  uint32_t next = 0;
  for (uint32_t b = 0; b < all_blocks(s); b++) {
    s->first_slot[b] = next;
    s->ready[b] = 0;
    s->folded[b] = false;
    next += s->part_counts[b] > 1 ? s->part_counts[b] : 0;
  }
  s->summary.slots = next;
  return next <= s->g.slots;
}

/* Places. */

/* Adds an entry of four words to the row of an SM; false: now the row is full. */
static bool add_entry(mk_mla_scheduler *s, uint32_t sm, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if (s->work != NULL) {
    uint32_t *row = s->work + (size_t)sm * s->g.list_words;
    uint32_t *to = row + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * s->entries[sm];
    to[0] = a;
    to[1] = b;
    to[2] = c;
    to[3] = d;
    row[kind]++;
  }
  return ++s->entries[sm] < s->g.capacity;
}

static void finish(mk_mla_scheduler *s, uint64_t time) {
  s->summary.makespan = time > s->summary.makespan ? time : s->summary.makespan;
}

static void place_part(mk_mla_scheduler *s, sm_state *at, part *p) {
  uint32_t count = s->part_counts[p->block], end = p->index + 1 == count ? MK_MLA_REST : p->first + p->pages;
  bool direct = count == 1;
  at->time += item_cost(s, p->pages, direct);
  finish(s, at->time);
  if (!direct && s->ready[p->block] < at->time) {
    s->ready[p->block] = at->time;
  }
  s->summary.items++;
  p->sm = at->sm;
  s->last[at->sm] = (uint32_t)(p - s->parts);
  if (!add_entry(s, at->sm, 0, p->block, p->first, end, direct ? MK_MLA_OUT : s->first_slot[p->block] + p->index)) {
    at->time = UINT64_MAX;
  }
}

/* Places parts, the longest first, each on the SM that is free first. */
static void place_longest_first(mk_mla_scheduler *s) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < s->part_count; i++) {
    most = s->parts[i].pages > most ? s->parts[i].pages : most;
  }
  memset(s->by_pages, 0, (most + 1) * sizeof *s->by_pages);
  for (uint32_t i = 0; i < s->part_count; i++) {
    s->by_pages[s->parts[i].pages]++;
  }
  count_by_pages(s, most);
  for (uint32_t i = 0; i < s->part_count; i++) {
    s->sorted[s->by_pages[s->parts[i].pages]++] = i;
  }
  for (uint32_t i = 0; i < s->part_count; i++) {
    place_part(s, &s->heap[0], &s->parts[s->sorted[i]]);
    sink(s, 0);
  }
}

/* Places parts where FILL has put them. On each SM parts of cut blocks come first, so that reductions need not wait. */
static void place_as_filled(mk_mla_scheduler *s) {
  for (uint32_t whole = 0; whole < 2; whole++) {
    for (uint32_t i = 0; i < s->part_count; i++) {
      part *p = &s->parts[i];
      if ((s->part_counts[p->block] == 1) == (whole != 0)) {
        place_part(s, &s->heap[p->sm], p);
      }
    }
  }
  make_heap(s);
}

/* Places a reduction of `count` units of the block, from unit `first` on, on the SM `at`. */
static void place_reduction(mk_mla_scheduler *s, sm_state *at, uint32_t block, uint32_t first, uint32_t count) {
  uint64_t start = at->time > s->ready[block] ? at->time : s->ready[block];
  uint32_t parts = s->part_counts[block], group = 8 * MK_MLA_ROW_UNITS;
  bool folds = s->reductions[at->sm]++ == 0 && s->last[at->sm] != NO_PART && s->parts[s->last[at->sm]].block == block &&
               parts <= MK_MLA_MOST_FOLDED && first % group == 0 && count % group == 0; /* as mk_mla_folds */
  at->time =
      start + (folds ? mk_mla_fold_cost(&s->costs, parts, count) : mk_mla_reduction_cost(&s->costs, parts, count));
  finish(s, at->time);
  s->summary.reductions++;
  if (!add_entry(s, at->sm, 1, block, s->first_slot[block], parts, first | count << 16)) {
    at->time = UINT64_MAX;
  }
}

/* Finds SMs whose last item is a part of the block, at most `most` of them. The block's parts begin with number
 * `first`. */
static uint32_t last_places(const mk_mla_scheduler *s, uint32_t first, uint32_t most, uint32_t *sms) {
  uint32_t count = s->part_counts[s->parts[first].block], found = 0;
  for (uint32_t i = first; count > 1 && count <= MK_MLA_MOST_FOLDED && i < first + count; i++) {
    uint32_t sm = s->parts[i].sm;
    if (s->last[sm] == i && s->state[sm]->time != UINT64_MAX && found < most) {
      sms[found++] = sm;
    }
  }
  return found;
}

/* Folds reductions into items: a block of few parts, whose rows are whole groups of eight, is reduced on the SMs whose
 * last item is one of its parts, some groups on each. A GPU keeps these rows of the part in registers. It is not done
 * where most slots belong to other blocks, since these would then have fewer SMs for their reductions. Returns how many
 * slots the folded blocks have. */
static uint32_t place_folds(mk_mla_scheduler *s) {
  uint32_t group = 8 * MK_MLA_ROW_UNITS, groups = s->g.rows / 8, sms[MK_MLA_MOST_FOLDED], slots = 0;
  for (uint32_t i = 0; i < s->g.sms; i++) {
    s->state[s->heap[i].sm] = &s->heap[i];
  }
  for (uint32_t i = 0, count; i < s->part_count; i += count) {
    count = s->part_counts[s->parts[i].block];
    slots += last_places(s, i, groups, sms) != 0 ? count : 0;
  }
  if (s->g.rows % 8 != 0 || slots < s->summary.slots / 2) {
    return 0;
  }
  for (uint32_t i = 0; i < s->part_count; i += s->part_counts[s->parts[i].block]) {
    uint32_t block = s->parts[i].block, found = last_places(s, i, groups, sms);
    for (uint32_t j = 0; j < found; j++) {
      uint32_t first = j * groups / found, end = (j + 1) * groups / found;
      place_reduction(s, s->state[sms[j]], block, first * group, (end - first) * group);
    }
    s->folded[block] = found != 0;
  }
  make_heap(s);
  return slots;
}

/* Places the reductions of all other blocks: about as many as there are SMs, of about the same cost each, each on the
 * SM that is free first. */
static void place_reductions(mk_mla_scheduler *s) {
  uint32_t units = s->g.rows * MK_MLA_ROW_UNITS, slots = s->summary.slots;
  slots -= slots != 0 ? place_folds(s) : 0;
  uint64_t share = ((uint64_t)slots * units + s->g.sms - 1) / s->g.sms;
  for (uint32_t b = 0; slots != 0 && b < all_blocks(s); b++) {
    uint32_t parts = s->part_counts[b];
    if (parts == 1 || s->folded[b]) {
      continue;
    }
    uint64_t fair = (uint64_t)units * parts / share;
    uint32_t pieces = fair < 1 ? 1 : fair < units ? (uint32_t)fair : units;
    for (uint32_t i = 0; i < pieces; i++) {
      uint32_t first = i * units / pieces, end = (i + 1) * units / pieces;
      place_reduction(s, &s->heap[0], b, first, end - first);
      sink(s, 0);
    }
  }
}

/* One SM after another; a block is reduced where its first part is. */
static void place_in_turn(mk_mla_scheduler *s) {
  for (uint32_t i = 0; i < s->part_count; i++) {
    place_part(s, &s->heap[i % s->g.sms], &s->parts[i]);
  }
  for (uint32_t i = 0; i < s->part_count; i++) {
    if (s->parts[i].index == 0 && s->part_counts[s->parts[i].block] > 1) {
      place_reduction(s, &s->heap[i % s->g.sms], s->parts[i].block, 0, s->g.rows * MK_MLA_ROW_UNITS);
    }
  }
}

/* Plans. */

static void clear(mk_mla_scheduler *s) {
  for (uint32_t sm = 0; sm < s->g.sms; sm++) {
    s->heap[sm] = (sm_state){.sm = sm};
    if (s->work != NULL) {
      memset(s->work + (size_t)sm * s->g.list_words, 0, MK_MLA_LIST_HEAD * sizeof *s->work);
    }
  }
  memset(s->entries, 0, s->g.sms * sizeof *s->entries);
  memset(s->reductions, 0, s->g.sms * sizeof *s->reductions);
  memset(s->last, 0xff, s->g.sms * sizeof *s->last);
  memset(s->part_counts, 0, all_blocks(s) * sizeof *s->part_counts);
  s->part_count = 0;
  s->summary = (mk_mla_summary){0};
}

static bool make_parts(mk_mla_scheduler *s, const plan *p) {
  clear(s);
  switch (p->shape) {
    case EVEN_PARTS:
      return make_even_parts(s, (uint32_t)p->size) && number_slots(s);
    case FILL:
      return make_filling_parts(s, p->size) && number_slots(s);
    case NAIVE_PARTS:
      return make_naive_parts(s, (uint32_t)p->size) && number_slots(s);
  }
  return false;
}

static void place(mk_mla_scheduler *s, shape_of_plan shape) {
  if (shape == NAIVE_PARTS) {
    place_in_turn(s);
    return;
  }
  if (shape == FILL) {
    place_as_filled(s);
  } else {
    place_longest_first(s);
  }
  place_reductions(s);
}

/* Makes a plan, and keeps it in *best when it ends before *makespan, which then becomes its end. */
static void consider(mk_mla_scheduler *s, plan p, plan *best, uint64_t *makespan) {
  if (!make_parts(s, &p)) {
    return;
  }
  place(s, p.shape);
  if (s->summary.makespan < *makespan) {
    *makespan = s->summary.makespan;
    *best = p;
  }
}

/* A time before which no plan with parts of at most `size` pages ends: all work evenly spread, or the largest part. */
static uint64_t lower_bound(const mk_mla_scheduler *s, uint32_t size) {
  uint64_t total = 0, largest = 0;
  for (uint32_t q = 0; q < s->sequences; q++) {
    uint32_t parts = parts_of_size(s, s->pages[q], size);
    bool direct = parts == 1;
    uint64_t fixed = item_cost(s, 0, direct), reduce = 0;
    uint64_t one = item_cost(s, s->pages[q] / parts + (s->pages[q] % parts != 0), direct);
    if (!direct) {
      reduce = mk_mla_reduction_cost(&s->costs, parts, s->g.rows * MK_MLA_ROW_UNITS);
      one += s->costs.reduction;
    }
    total += (parts * fixed + (uint64_t)s->pages[q] * s->costs.page + reduce) * s->g.blocks;
    largest = one > largest ? one : largest;
  }
  uint64_t even = total / s->g.sms;
  return even > largest ? even : largest;
}

/* Looks for the least limit that a FILL plan can keep to, within 1 %, if that is below *makespan. Does not look where
 * nothing is left to gain. */
static void consider_filling(mk_mla_scheduler *s, plan *best, uint64_t *makespan) {
  uint64_t low = (all_blocks(s) * item_cost(s, 0, true) + s->all_pages * s->costs.page) / s->g.sms;
  uint64_t high = *makespan, found = 0;
  while (high > low + low / 50 && high - low > 1 + low / 100 + s->costs.page / 4) {
    uint64_t middle = low + (high - low) / 2;
    if (make_parts(s, &(plan){FILL, middle})) {
      high = found = middle;
    } else {
      low = middle;
    }
  }
  if (found != 0) {
    consider(s, (plan){FILL, found}, best, makespan);
  }
}

static plan naive_plan(mk_mla_scheduler *s) {
  plan p = {NAIVE_PARTS, all_blocks(s) == 0 ? 1 : s->g.sms / all_blocks(s)};
  p.size = p.size < 1 ? 1 : p.size;
  while (!make_parts(s, &p)) { /* one part each always fits */
    p.size--;
  }
  return p;
}

static plan best_plan(mk_mla_scheduler *s) {
  /* Sizes of a part to try, in eighths of an SM's share of all pages. */
  static const uint32_t eighths[] = {8, 9, 10, 12, 5, 16};
  uint64_t makespan = UINT64_MAX, even = (s->all_pages + s->g.sms - 1) / s->g.sms;
  plan best = {EVEN_PARTS, s->longest == 0 ? 1 : s->longest}; /* no cuts */
  consider(s, best, &best, &makespan);
  consider(s, naive_plan(s), &best, &makespan);
  for (uint32_t i = 0; i < sizeof eighths / sizeof eighths[0]; i++) {
    uint64_t size = (even * eighths[i] + 7) / 8;
    if (size >= 1 && size < s->longest && lower_bound(s, (uint32_t)size) < makespan) {
      consider(s, (plan){EVEN_PARTS, size}, &best, &makespan);
    }
  }
  consider_filling(s, &best, &makespan);
  return best;
}

mk_status mk_mla_schedule(mk_mla_scheduler *s, mk_mla_placement placement, const uint32_t *lengths, uint32_t sequences,
                          uint32_t *work, mk_mla_summary *summary) {
  if (sequences > s->g.sequences) {
    return mk_error(MK_ERR_USAGE, "a batch of %u sequences; the program takes %u", sequences, s->g.sequences);
  }
  s->sequences = sequences;
  s->longest = 0;
  s->all_pages = 0;
  for (uint32_t q = 0; q < sequences; q++) {
    s->pages[q] = mk_mla_pages_of(lengths[q]);
    s->longest = s->pages[q] > s->longest ? s->pages[q] : s->longest;
    s->all_pages += (uint64_t)s->pages[q] * s->g.blocks;
    if (s->pages[q] > s->g.max_pages) {
      return mk_error(MK_ERR_USAGE, "sequence %u has %u tokens; the program takes %u", q, lengths[q],
                      s->g.max_pages * MK_MLA_PAGE_TOKENS);
    }
  }
  sort_sequences(s);
  s->work = NULL;
  plan p = placement == MK_MLA_NAIVE ? naive_plan(s) : best_plan(s);
  s->work = work;
  (void)make_parts(s, &p);
  place(s, p.shape);
  if (summary != NULL) {
    *summary = s->summary;
  }
  return MK_OK;
}
