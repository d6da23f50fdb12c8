/* The checker of MLA work lists: every list that is broken is refused, with its place; changes at random are refused,
 * or compute the same bits. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/effort.h"
#include "tests/support/numbers.h"
#include "tools/lib/mla.h"

enum { SMS = 5, SEQUENCES = 4 };

static const uint32_t lengths[SEQUENCES] = {700, 64, 0, 333};

typedef struct fixture {
  mk_mla_session *session;
  uint32_t *good; /* the list */
  size_t bytes;
} fixture;

static fixture start(uint32_t heads) {
  mk_mla_shape shape = {.heads = heads,
                        .new_tokens = 1,
                        .max_sequences = SEQUENCES + 1,
                        .max_pages = 12,
                        .pool_pages = 40,
                        .scale = 0.07f};
  fixture f;
  cr_assert_eq(mk_mla_session_new(&shape, SMS, &(mk_cpu_options){.seed = 0}, &f.session), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(mk_mla_session_load(f.session, lengths, SEQUENCES, 1), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_mla_session_schedule(f.session, MK_MLA_MAKESPAN, NULL), MK_OK, "%s", mk_error_message());
  f.bytes = f.session->program->buffers[f.session->geometry.work].bytes;
  cr_assert_eq(mk_alloc(1, f.bytes, &f.good), MK_OK);
  memcpy(f.good, f.session->work, f.bytes);
  return f;
}

static void stop(fixture *f) {
  mk_free(f->good);
  mk_mla_session_free(f->session);
}

static uint32_t *row(const fixture *f, uint32_t sm) {
  return f->session->work + (size_t)sm * f->session->geometry.list_words;
}
static uint32_t *entry(const fixture *f, uint32_t sm, uint32_t index) {
  return row(f, sm) + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * index;
}
static mk_status check(const fixture *f) {
  return mk_mla_check_list(f->session->checker, f->session->work, f->session->sequences);
}

/* The first item (or reduction) with a slot; its SM and index. */
static uint32_t *find(const fixture *f, bool reduction, bool direct, uint32_t *sm) {
  for (*sm = 0; *sm < SMS; ++*sm) {
    uint32_t *head = row(f, *sm);
    for (uint32_t i = reduction ? head[0] : 0; i < (reduction ? head[0] + head[1] : head[0]); i++) {
      if (reduction || (entry(f, *sm, i)[3] == MK_MLA_OUT) == direct) {
        return entry(f, *sm, i);
      }
    }
  }
  cr_assert_fail("no such entry");
  return NULL;
}

static void expect(fixture *f, const char *words) {
  cr_assert_eq(check(f), MK_ERR_REJECTED, "it is taken, and `%s` is due", words);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  memcpy(f->session->work, f->good, f->bytes);
  cr_assert_eq(check(f), MK_OK, "%s", mk_error_message());
}

Test(mla_check, each_fault_by_itself) {
  fixture f = start(16);
  uint32_t sm;
  row(&f, 1)[0] = 0xffffffff;
  expect(&f, "SM 1 has 4294967295 items");
  row(&f, 1)[1] = f.session->geometry.capacity;
  expect(&f, "SM 1 has");
  row(&f, 2)[3] = 1;
  expect(&f, "then zeros");
  find(&f, false, false, &sm)[0] = SEQUENCES;
  expect(&f, "block is 4; the batch has 4");
  find(&f, false, false, &sm)[0] = 0xffffffff;
  expect(&f, "block is 4294967295");
  find(&f, false, false, &sm)[1] = 12;
  expect(&f, "pages 12 to");
  find(&f, false, false, &sm)[2] = 13;
  expect(&f, "they must rise, within the 12");
  find(&f, false, false, &sm)[2] = find(&f, false, false, &sm)[1];
  expect(&f, "they must rise");
  find(&f, false, false, &sm)[3] = f.session->geometry.slots;
  expect(&f, "slot is 10; the program has 10");
  find(&f, false, false, &sm)[3]++;
  expect(&f, "slot 1 is also filled");
  find(&f, false, false, &sm)[3] = 0xfffffffe;
  expect(&f, "slot is 4294967294");
  find(&f, false, false, &sm)[3] = MK_MLA_OUT;
  expect(&f, "only one item with all pages may");
  find(&f, false, true, &sm)[1] = 1;
  expect(&f, "only one item with all pages may");
  find(&f, false, true, &sm)[2] = 4;
  expect(&f, "only one item with all pages may");
  find(&f, false, true, &sm)[3] = f.session->geometry.slots - 1;
  expect(&f, "units are written");
  find(&f, true, false, &sm)[0] = 0xffffffff;
  expect(&f, "block is 4294967295; the batch has");
  find(&f, true, false, &sm)[1] = 0xffffffff;
  expect(&f, " from 4294967295 on; the program has 10");
  find(&f, true, false, &sm)[2] = 0xffffffff;
  expect(&f, "slots: 4294967295 from ");
  find(&f, true, false, &sm)[2] = 0;
  expect(&f, "slots: 0 from ");
  find(&f, true, false, &sm)[2]--;
  expect(&f, "");
  find(&f, true, false, &sm)[3] = 64;
  expect(&f, "units: 0 from 64 on; it has 64");
  find(&f, true, false, &sm)[3] = 64 | 1u << 16;
  expect(&f, "units: 1 from 64 on; it has 64");
  find(&f, true, false, &sm)[3] = 0xffffffff;
  expect(&f, "units: 65535 from 65535 on");
  find(&f, true, false, &sm)[3] += 1u << 16;
  expect(&f, "");
  stop(&f);
}

/* By hand: 64 units in a block; sequence 0 in two slots, the others whole. */
static void write_list(const fixture *f, uint32_t sm, uint32_t items, uint32_t reductions, const uint32_t *words) {
  uint32_t head[MK_MLA_LIST_HEAD] = {items, reductions};
  memcpy(row(f, sm), head, sizeof head);
  if (items + reductions != 0) {
    memcpy(entry(f, sm, 0), words, (items + reductions) * sizeof(uint32_t) * MK_MLA_ENTRY);
  }
}

Test(mla_check, faults_by_hand) {
  enum { REST = 0xffffffff, ALL = 64u << 16 };
  fixture f = start(16);
  const uint32_t items[] = {0, 0, 4, 7, 0, 4, REST, 8, 1, 0, REST, REST, 2, 0, REST, REST, 3, 0, REST, REST};
  for (uint32_t sm = 2; sm < SMS; sm++) {
    write_list(&f, sm, 0, 0, NULL);
  }
  write_list(&f, 0, 5, 0, items);
  write_list(&f, 1, 0, 1, (const uint32_t[]){0, 7, 2, ALL});
  memcpy(f.good, f.session->work, f.bytes);
  cr_assert_eq(check(&f), MK_OK, "%s", mk_error_message());
  write_list(&f, 2, 1, 0, (const uint32_t[]){0, 0, REST, 2});
  expect(&f, "items fill 3 slots, reductions read 2");
  write_list(&f, 2, 1, 0, (const uint32_t[]){1, 0, 1, 2});
  expect(&f, "items fill 3 slots, reductions read 2");
  write_list(&f, 2, 1, 1, (const uint32_t[]){1, 0, REST, 2, 1, 2, 1, ALL});
  expect(&f, "block 1 is written by an item alone");
  write_list(&f, 2, 1, 0, (const uint32_t[]){0, 0, REST, REST});
  expect(&f, "SM 1 reduction 0: block 0 is written by an item alone");
  write_list(&f, 1, 0, 2, (const uint32_t[]){0, 7, 2, 32u << 16, 0, 8, 1, 32 | 32u << 16});
  expect(&f, "slots: 1 from 8 on; another reduction of it has 2 from 7 on");
  write_list(&f, 1, 0, 2, (const uint32_t[]){0, 7, 2, 33u << 16, 0, 7, 2, 32 | 32u << 16});
  expect(&f, "units: 32 from 32 on; another reduction writes some of them");
  write_list(&f, 1, 0, 2, (const uint32_t[]){0, 7, 2, 31u << 16, 0, 7, 2, 32 | 32u << 16});
  expect(&f, "block 0 of sequence 0: 63 of its 64 units");
  write_list(&f, 1, 0, 1, (const uint32_t[]){0, 7, 3, ALL});
  expect(&f, "no item of it fills slot 9");
  entry(&f, 0, 0)[2] = 5;
  expect(&f, "slot 8 begins at page 4, the one before it ends at 5");
  entry(&f, 0, 1)[2] = 12;
  expect(&f, "its last slot ends at page 12 and takes not the rest");
  entry(&f, 0, 0)[2] = REST;
  expect(&f, "slot 8 begins at page 4, the one before it ends at 4294967295");
  entry(&f, 0, 0)[1] = 1;
  expect(&f, "slot 7 begins at page 1, the one before it ends at 0");
  write_list(&f, 1, 0, 1, (const uint32_t[]){0, 8, 2, ALL});
  expect(&f, "");
  write_list(&f, 0, 4, 0, items);
  expect(&f, "block 0 of sequence 3: 0 of its 64 units");
  stop(&f);
}

Test(mla_check, batches) {
  fixture f = start(8);
  const mk_mla_geometry *g = &f.session->geometry;
  uint32_t words = MK_MLA_SEQUENCE_HEAD + g->max_pages, *batch = f.session->batch;
  cr_assert_eq(mk_mla_check_batch(f.session->checker, batch, SEQUENCES), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_mla_check_batch(f.session->checker, batch, SEQUENCES + 2), MK_ERR_REJECTED);
  cr_assert_eq(mk_mla_check_list(f.session->checker, f.session->work, SEQUENCES + 2), MK_ERR_REJECTED);
  cr_assert_eq(mk_mla_check_list(f.session->checker, f.session->work, SEQUENCES + 1), MK_ERR_REJECTED,
               "a sequence that nobody attends over");
  cr_assert_eq(mk_mla_check_list(f.session->checker, f.session->work, SEQUENCES - 1), MK_ERR_REJECTED);
  const struct {
    uint32_t word, value;
    const char *message;
  } faults[] = {{0, 12 * 64 + 1, "length 769"},
                {0, 0xffffffff, "length 4294967295"},
                {words + 2, 1, "then zeros"},
                {MK_MLA_SEQUENCE_HEAD + 10, 40, "sequence 0: page 10 is page 40 of the cache, which has 40"},
                {words + MK_MLA_SEQUENCE_HEAD, 0xffffffff, "sequence 1: page 0"}};
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    uint32_t was = batch[faults[i].word];
    batch[faults[i].word] = faults[i].value;
    cr_assert_eq(mk_mla_check_batch(f.session->checker, batch, SEQUENCES), MK_ERR_REJECTED);
    cr_assert_not_null(strstr(mk_error_message(), faults[i].message), "%s", mk_error_message());
    batch[faults[i].word] = was;
  }
  batch[words + MK_MLA_SEQUENCE_HEAD + 3] = 0xffffffff; /* a page after the last one in use may be anything */
  cr_assert_eq(mk_mla_check_batch(f.session->checker, batch, SEQUENCES), MK_OK);
  stop(&f);
}

/* Changes at random. */

static uint32_t *any_entry(const fixture *f, uint64_t *seed, uint32_t *sm, uint32_t *index) {
  do {
    *sm = test_random_below(seed, SMS);
  } while (row(f, *sm)[0] + row(f, *sm)[1] == 0);
  *index = test_random_below(seed, row(f, *sm)[0] + row(f, *sm)[1]);
  return entry(f, *sm, *index);
}

static bool is_item(const fixture *f, uint32_t sm, uint32_t index) { return index < row(f, sm)[0]; }

static void drop(const fixture *f, uint32_t sm, uint32_t index) {
  uint32_t *head = row(f, sm), all = head[0] + head[1];
  uint32_t kind = is_item(f, sm, index) ? 0 : 1;
  memmove(entry(f, sm, index), entry(f, sm, index + 1), (all - index - 1) * sizeof(uint32_t) * MK_MLA_ENTRY);
  head[kind]--;
}

static void insert(const fixture *f, uint32_t sm, uint32_t index, uint32_t kind, const uint32_t *words) {
  uint32_t *head = row(f, sm), all = head[0] + head[1];
  memmove(entry(f, sm, index + 1), entry(f, sm, index), (all - index) * sizeof(uint32_t) * MK_MLA_ENTRY);
  memcpy(entry(f, sm, index), words, sizeof(uint32_t) * MK_MLA_ENTRY);
  head[kind]++;
}

typedef enum change { SWAP, DROP, DUPLICATE, SHIFT, MOVE, SCRIBBLE, CHANGES } change;

static void apply(const fixture *f, change what, uint64_t *seed) {
  uint32_t sm, index, other_sm, other, copy[MK_MLA_ENTRY];
  uint32_t *at = any_entry(f, seed, &sm, &index), *to = any_entry(f, seed, &other_sm, &other);
  uint32_t kind = is_item(f, sm, index) ? 0 : 1;
  memcpy(copy, at, sizeof copy);
  switch (what) {
    case SWAP:
      memcpy(at, to, sizeof copy);
      memcpy(to, copy, sizeof copy);
      break;
    case DROP:
      drop(f, sm, index);
      break;
    case DUPLICATE:
      insert(f, other_sm, kind == 0 ? 0 : row(f, other_sm)[0], kind, copy);
      break;
    case SHIFT:
      at[test_random_below(seed, MK_MLA_ENTRY)] += test_random_below(seed, 2) == 0 ? 1 : 0xffffffff;
      break;
    case MOVE:
      drop(f, sm, index);
      insert(f, other_sm, kind == 0 ? 0 : row(f, other_sm)[0] + row(f, other_sm)[1], kind, copy);
      break;
    case SCRIBBLE:
      at[test_random_below(seed, MK_MLA_ENTRY)] =
          test_random_below(seed, 3) == 0 ? (uint32_t)test_random(seed) : test_random_below(seed, 16);
      break;
    case CHANGES:
      break;
  }
}

static void change_at_random(uint32_t heads, uint32_t rounds) {
  fixture f = start(heads);
  size_t bytes = f.session->program->buffers[f.session->geometry.out].bytes;
  uint8_t *out = mk_cpu_memory(f.session->cpu, f.session->geometry.out), *want;
  uint64_t seed = heads;
  uint32_t taken[CHANGES] = {0};
  cr_assert_eq(mk_alloc(1, bytes, &want), MK_OK);
  cr_assert_eq(mk_mla_session_run(f.session), MK_OK, "%s", mk_error_message());
  memcpy(want, out, bytes);
  for (uint32_t round = 0; round < rounds; round++) {
    memcpy(f.session->work, f.good, f.bytes);
    change what = (change)(round % CHANGES);
    apply(&f, what, &seed);
    if (check(&f) != MK_OK) {
      continue;
    }
    taken[what] += memcmp(f.session->work, f.good, f.bytes) != 0;
    cr_assert_eq(mk_mla_session_run(f.session), MK_OK, "round %u: %s", round, mk_error_message());
    cr_assert_eq(memcmp(out, want, bytes), 0, "round %u, change %d: other bits", round, (int)what);
  }
  cr_assert_eq(taken[DROP] + taken[DUPLICATE] + taken[SHIFT], 0, "%u dropped, %u doubled, %u shifted", taken[DROP],
               taken[DUPLICATE], taken[SHIFT]);
  cr_assert_gt(taken[SWAP], 0, "entries may change places");
  cr_assert_gt(taken[MOVE], 0, "and go to other SMs");
  mk_free(want);
  stop(&f);
}

Test(mla_check, changes_at_random, .timeout = MK_HANG_SECONDS) { change_at_random(8, test_effort(1500, 6000)); }
Test(mla_check, changes_at_random_with_two_blocks, .timeout = MK_HANG_SECONDS) {
  change_at_random(128, test_effort(150, 600));
}

/* The machine's race detector, which shares no code with the checker, sees what goes wrong under a list that was not
 * checked. */
Test(mla_check, the_race_detector_agrees) {
  mk_mla_shape shape = {
      .heads = 8, .new_tokens = 1, .max_sequences = 1, .max_pages = 12, .pool_pages = 12, .scale = 0.1f};
  mk_mla_session *s;
  uint32_t races = 0;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    mk_cpu_options options = {.seed = seed, .check_races = true};
    cr_assert_eq(mk_mla_session_new(&shape, 2, &options, &s), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_mla_session_load(s, lengths, 1, 1), MK_OK);
    const uint32_t list[] = {1, 0, 0, 0, 0, 0, MK_MLA_REST, MK_MLA_OUT};
    memcpy(s->work, list, sizeof list); /* both SMs write block 0 */
    memcpy(s->work + s->geometry.list_words, list, sizeof list);
    cr_assert_eq(mk_mla_check_list(s->checker, s->work, 1), MK_ERR_REJECTED);
    races += mk_cpu_run(s->cpu, 1) == MK_ERR_DEVICE &&
             strstr(mk_error_message(), "buffer out: overwrites the unordered write") != NULL;
    mk_mla_session_free(s);
  }
  cr_assert_eq(races, 20, "seen %u times: %s", races, mk_error_message());
}

/* A slot that nobody fills, which the checker refuses, is a deadlock. */
Test(mla_check, a_slot_that_nobody_fills) {
  fixture f = start(8);
  uint32_t sm;
  (void)find(&f, false, false, &sm);
  drop(&f, sm, 0);
  cr_assert_eq(check(&f), MK_ERR_REJECTED);
  cr_assert_eq(mk_cpu_run(f.session->cpu, 1), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "deadlock"), "%s", mk_error_message());
  stop(&f);
}

Test(mla_check, programs_without_a_list) {
  mk_program *program;
  mk_mla_checker *checker;
  mk_machine machine = mk_machine_latency(2);
  cr_assert_eq(mk_program_new(&machine, &program), MK_OK);
  cr_assert_eq(mk_mla_checker_new(program, &checker), MK_ERR_USAGE);
  mk_program_free(program);
}
