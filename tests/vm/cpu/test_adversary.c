/* What an adversarial machine shows: SMs and roles that stand still for many epochs, words of one instruction that come
 * tile by tile in any order, and the same run again for the same seed. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/text.h"
#include "tests/support/tiny.h"

enum { EPOCHS = 40, SEEDS = 200, TILES = 3 };

/* SM 0 computes token after token; SM 1 has nothing to do with it, and fills a vector of three tiles for itself. */
typedef struct apart {
  test_tiny tiny;
  mk_cpu *cpu;
  uint16_t alone;
  uint32_t most_late;                 /* epochs that SM 1 was later than SM 0 */
  bool before[TILES][TILES];          /* tile a was seen with a newer stamp than tile b */
  uint32_t stamps[EPOCHS + 1][TILES]; /* as SM 0 ends its steps */
} apart;

static void start(apart *a) {
  *a = (apart){.most_late = 0};
  test_tiny_start(&a->tiny, 2);
  uint16_t q = test_tiny_floats(&a->tiny, "q", 16, 16), residual = test_tiny_plain(&a->tiny, "residual"),
           s = test_tiny_halves(&a->tiny, "s");
  a->alone = test_tiny_floats(&a->tiny, "alone", 16 * TILES, 16);
  test_tiny_qkv(&a->tiny, 0, q);
  test_tiny_reduce(&a->tiny, 0, q, MK_NONE_BUFFER, residual, s);
  test_tiny_boundary(&a->tiny, 0, s, 1);
  test_tiny_qkv_heads(&a->tiny, 1, a->alone);
  test_tiny_qkv(&a->tiny, 1, test_tiny_floats(&a->tiny, "more", 16, 16));
}

static bool look(void *user, uint32_t position, uint32_t token) {
  apart *a = user;
  const uint64_t *words = mk_cpu_memory(a->cpu, a->alone);
  (void)token;
  for (uint32_t t = 0; t < TILES; t++) {
    uint32_t stamp = (uint32_t)(words[(size_t)t * 16] >> 32);
    for (uint32_t i = 0; i < 16; i++) {
      cr_assert_eq(words[(size_t)t * 16 + i] >> 32, stamp, "a tile comes as one");
    }
    a->stamps[position + 1][t] = stamp;
    if (stamp <= position + 1) {
      a->most_late = position + 1 - stamp > a->most_late ? position + 1 - stamp : a->most_late;
    }
  }
  for (uint32_t x = 0; x < TILES; x++) {
    for (uint32_t y = 0; y < TILES; y++) {
      uint32_t first = a->stamps[position + 1][x], second = a->stamps[position + 1][y];
      a->before[x][y] |= first == UINT32_MAX ? false : second == UINT32_MAX && first != second;
    }
  }
  return true;
}

static void run(apart *a, uint64_t seed) {
  a->cpu = test_tiny_machine(&a->tiny, &(mk_cpu_options){.seed = seed, .adversarial = true});
  test_sequence sequence = test_tiny_sequence();
  cr_assert_eq(test_sequence_run(&sequence, a->cpu, EPOCHS, look, a), MK_OK, "%s", mk_error_message());
  const uint64_t *words = mk_cpu_memory(a->cpu, a->alone);
  for (uint32_t i = 0; i < 16 * TILES; i++) {
    cr_assert_eq(words[i] >> 32, EPOCHS, "word %u ends with stamp %u", i, (uint32_t)(words[i] >> 32));
  }
  mk_cpu_free(a->cpu);
}

Test(cpu_adversary, an_sm_lags_for_as_long_as_the_program_lets_it) {
  apart a;
  uint32_t long_lags = 0;
  start(&a);
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    a.most_late = 0;
    run(&a, seed);
    long_lags += a.most_late >= EPOCHS * 3 / 4;
  }
  cr_assert_geq(long_lags, SEEDS / 20, "%u of %d seeds", long_lags, SEEDS);
  test_tiny_stop(&a.tiny);
}

/* A word that is written and not yet visible has a stamp that is no generation. */
Test(cpu_adversary, tiles_of_one_instruction_become_visible_in_any_order) {
  apart a;
  start(&a);
  for (uint64_t seed = 1; seed <= 5 * SEEDS; seed++) {
    run(&a, seed);
  }
  for (uint32_t x = 0; x < TILES; x++) {
    for (uint32_t y = 0; y < TILES; y++) {
      cr_assert(x == y || a.before[x][y], "tile %u is never visible before tile %u", x, y);
    }
  }
  test_tiny_stop(&a.tiny);
}

Test(cpu_adversary, the_seed_decides_everything) {
  apart a, b;
  bool differ = false;
  start(&a);
  start(&b);
  for (uint64_t seed = 1; seed <= 10; seed++) {
    run(&a, seed);
    run(&b, seed);
    cr_assert_eq(memcmp(a.stamps, b.stamps, sizeof a.stamps), 0, "seed %d", (int)seed);
    run(&b, seed + 1);
    differ |= memcmp(a.stamps, b.stamps, sizeof a.stamps) != 0;
  }
  cr_assert(differ);
  test_tiny_stop(&a.tiny);
  test_tiny_stop(&b.tiny);
}

/* What a role of an SM has written is there before what it signals; what others have seen of it may be there long
 * before. A third SM takes the early signal of a second one's next step for this one, if a first one stands still
 * between its words and its signal. */
Test(cpu_adversary, words_are_seen_before_the_signal_of_their_instruction) {
  mk_program *program = test_assemble("attack/stamp_before_signal.mks", NULL);
  uint32_t found = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.seed = seed, .adversarial = true, .check_races = true});
    mk_status status = test_sequence_steps(cpu, 1, 0, EPOCHS);
    cr_assert(status == MK_OK || strstr(mk_error_message(), "unordered access") != NULL, "%s", mk_error_message());
    found += status != MK_OK;
    mk_cpu_free(cpu);
  }
  cr_assert_gt(found, SEEDS / 5, "%u of %d", found, SEEDS);
  mk_program_free(program);
}

/* A consumer's words are seen as soon as it has written them, while the storer still stands in front of an earlier
 * instruction. */
typedef struct overtaking {
  mk_cpu *cpu;
  uint16_t out, counter;
  uint32_t seen;
} overtaking;

static bool look_for_overtaking(void *user, uint32_t position, uint32_t token) {
  overtaking *o = user;
  const uint64_t *words = mk_cpu_memory(o->cpu, o->out);
  uint32_t stamp = (uint32_t)(words[0] >> 32);
  (void)position, (void)token;
  o->seen += stamp != UINT32_MAX && stamp > mk_cpu_counter(o->cpu, o->counter);
  return true;
}

Test(cpu_adversary, words_of_a_consumer_do_not_wait_for_the_storer) {
  test_tiny tiny;
  overtaking o = {.seen = 0};
  test_tiny_start(&tiny, 2);
  uint16_t q = test_tiny_floats(&tiny, "q", 16, 16), residual = test_tiny_plain(&tiny, "residual"),
           s = test_tiny_halves(&tiny, "s"), heads = test_tiny_floats(&tiny, "heads", 48, 16),
           parts = test_tiny_floats(&tiny, "parts", 18, 18), slow = test_tiny_floats(&tiny, "slow", 16, 16);
  o.out = test_tiny_halves(&tiny, "out");
  o.counter = test_tiny_counter(&tiny, "stored", MK_COUNTER_RELAXED);
  test_tiny_qkv(&tiny, 0, q);
  test_tiny_reduce(&tiny, 0, q, MK_NONE_BUFFER, residual, s);
  test_tiny_boundary(&tiny, 0, s, 1);
  test_tiny_qkv_heads(&tiny, 1, heads);
  test_tiny_attention(&tiny, 1, heads, test_tiny_cache(&tiny, "cache"), parts);
  test_tiny_signal(&tiny, test_tiny_qkv(&tiny, 1, slow), o.counter);
  test_tiny_combine(&tiny, 1, parts, o.out);
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    o.cpu = test_tiny_machine(&tiny, &(mk_cpu_options){.seed = seed, .adversarial = true});
    test_sequence sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, o.cpu, EPOCHS, look_for_overtaking, &o), MK_OK, "%s", mk_error_message());
    mk_cpu_free(o.cpu);
  }
  cr_assert_gt(o.seen, 0);
  test_tiny_stop(&tiny);
}
