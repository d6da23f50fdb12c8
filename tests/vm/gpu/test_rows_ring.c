/* The ring of pages under an ATTENTION of several rows per step, as a model: a loader that issues pages in order and
 * waits for earlier ones, copies that arrive in any order, four groups of warps that each take their own pages of a
 * slot's pieces and meet nobody between pieces. A barrier tells two fillings of a place apart, not three: so nobody may
 * wait for a page before the one before it in its place has arrived (attention_rows.cuh). The model breaks where the
 * loader, while it is slow, looks at a later page alone, as it once did. */
#include <criterion/criterion.h>
#include <string.h>

#include "vm/gpu/launch.h"

enum {
  GROUPS = 4,
  PIECE_BLOCKS = 4, /* of 64 tokens */
  MOST_PIECES = 5,
  MOST_PAGES = MOST_PIECES * 2 * PIECE_BLOCKS,
  SCHEDULES = 3000,
  NEVER = 1 << 30,
};

typedef enum loader_rule { IN_ORDER, LATER_ALONE } loader_rule;

typedef struct ring_model {
  int pages, per_block, pieces;
  int first[MOST_PIECES], count[MOST_PIECES]; /* pages of each piece, the last tokens first */
  int landed[MOST_PAGES], released[MOST_PAGES];
  int issued, free_at; /* the loader */
  int piece[GROUPS], looked[GROUPS], busy[GROUPS];
  uint64_t random;
} ring_model;

static int below(ring_model *m, int end) {
  m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int)((m->random >> 33) % (uint64_t)end);
}

static void start(ring_model *m, int per_block, uint64_t seed) {
  memset(m, 0, sizeof *m);
  m->random = seed * 2 + 1;
  m->per_block = per_block;
  m->pieces = 2 + below(m, MOST_PIECES - 1);
  for (int i = 0; i < m->pieces;
       i++) { /* of heads of 128 dims the first piece may have half its pages: half its tokens are to come */
    m->first[i] = m->pages;
    m->count[i] = i == 0 && below(m, 2) == 0 ? PIECE_BLOCKS : per_block * PIECE_BLOCKS;
    m->pages += m->count[i];
  }
  for (int i = 0; i < m->pages; i++) {
    m->landed[i] = m->released[i] = NEVER;
  }
}

/* Pages from before the instruction, negative ones, are there. */
static bool has_landed(const ring_model *m, int page, int now) { return page < 0 || m->landed[page] <= now; }

static void load(ring_model *m, loader_rule rule, int slow_of_ten, int now) {
  enum { LESS = MK_GPU_ROWS_PAGES_UNDER_WAY - MK_GPU_ROWS_SLOW_PAGES };
  int page = m->issued, before = page - MK_GPU_RING_PAGES, oldest = page - MK_GPU_ROWS_PAGES_UNDER_WAY;
  if (page == m->pages || m->free_at > now || (before >= 0 && m->released[before] > now)) {
    return;
  }
  bool slow = below(m, 10) < slow_of_ten;
  if ((rule == IN_ORDER || !slow) && !has_landed(m, oldest, now)) {
    return;
  }
  if (slow && !has_landed(m, oldest + LESS, now)) {
    return;
  }
  m->landed[page] = below(m, 4) == 0 ? now : now + 1 + below(m, 40); /* a page without an old token is there at once */
  m->issued++;
  m->free_at = now + below(m, 8);
}

/* False: the group waits for a page whose place's last one is still under way. */
static bool take(ring_model *m, int group, int now) {
  int piece = m->piece[group];
  if (piece == m->pieces || m->busy[group] > now) {
    return true;
  }
  int own = m->per_block * group, pages = m->count[piece] - own;
  pages = pages < 0 ? 0 : pages < m->per_block ? pages : m->per_block;
  while (m->looked[group] < pages) {
    int page = m->first[piece] + own + m->looked[group];
    if (!has_landed(m, page - MK_GPU_RING_PAGES, now)) {
      return false;
    }
    if (!has_landed(m, page, now)) {
      return true;
    }
    m->looked[group]++;
  }
  m->busy[group] = now + below(m, 12);
  for (int i = 0; i < pages; i++) {
    m->released[m->first[piece] + own + i] = m->busy[group];
  }
  m->looked[group] = 0;
  m->piece[group]++;
  return true;
}

/* Of all schedules those in which somebody takes one filling for another. */
static int wrong_schedules(loader_rule rule, int per_block) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < SCHEDULES; seed++) {
    ring_model m;
    start(&m, per_block, seed);
    int slow_of_ten = below(&m, 11);
    bool right = true;
    for (int now = 0, done = 0; right && done < GROUPS; now++) {
      cr_assert_lt(now, 100000, "schedule %llu stands still", (unsigned long long)seed);
      load(&m, rule, slow_of_ten, now);
      done = 0;
      for (int g = 0; g < GROUPS && right; g++) {
        right = take(&m, g, now);
        done += m.piece[g] == m.pieces;
      }
    }
    wrong += !right;
  }
  return wrong;
}

Test(rows_ring, nobody_takes_one_filling_for_another) {
  cr_assert_eq(wrong_schedules(IN_ORDER, 1), 0);
  cr_assert_eq(wrong_schedules(IN_ORDER, 2), 0);
}

Test(rows_ring, the_model_finds_a_loader_that_looks_at_a_later_page_alone) {
  cr_assert_eq(wrong_schedules(LATER_ALONE, 1), 0, "of heads of 64 dims a place always has pages of one group");
  cr_assert_gt(wrong_schedules(LATER_ALONE, 2), 0);
}
