/* Random valid programs: the verifier accepts every one, and the CPU machine ends with the same bits in every
 * interleaving. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/mutation/generated.h"
#include "tests/support/effort.h"
#include "tests/support/generate.h"
#include "tests/support/text.h"
#include "vm/verify/verify.h"

enum { INTERLEAVINGS = 6, ACCESS_INTERLEAVINGS = 40, EPOCHS = 4 };

static uint32_t programs(void) { return test_effort(80, 300); }

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return hash;
}

static uint32_t start_of(const mk_program *p, uint64_t seed) {
  uint32_t low = p->ranges.position.low, span = p->ranges.position.high - EPOCHS - low;
  return low + (uint32_t)(seed * 40503u % span);
}

/* Everything in memory that is not constant, after a few epochs. */
static uint64_t bits_after(const mk_program *p, mk_cpu_options options, uint64_t program) {
  mk_cpu *cpu = test_machine(p, &options);
  cr_assert_eq(test_sequence_steps(cpu, 1, start_of(p, program), EPOCHS), MK_OK, "program %llu, interleaving %llu: %s",
               (unsigned long long)program, (unsigned long long)options.seed, mk_error_message());
  uint64_t hash = 14695981039346656037u;
  for (size_t b = 0; b < p->buffer_count; b++) {
    bool constant = p->buffers[b].kind == MK_KIND_WEIGHT || p->buffers[b].kind == MK_KIND_INPUT;
    hash = constant ? hash : hash_bytes(hash, mk_cpu_memory(cpu, b), p->buffers[b].bytes);
  }
  mk_cpu_free(cpu);
  return hash;
}

Test(generated, programs_are_accepted) {
  for (uint64_t seed = 1; seed <= 4 * programs(); seed++) {
    mk_program *p;
    cr_assert_eq(test_generate(seed, &p), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_verify(p, NULL), MK_OK, "program %llu: %s", (unsigned long long)seed, mk_error_message());
    mk_program_free(p);
  }
}

Test(generated, every_interleaving_gives_the_same_bits) {
  for (uint64_t seed = 1; seed <= programs(); seed++) {
    mk_program *p;
    cr_assert_eq(test_generate(seed, &p), MK_OK, "%s", mk_error_message());
    uint64_t want = bits_after(p, (mk_cpu_options){.seed = 0}, seed);
    for (uint64_t i = 1; i <= INTERLEAVINGS; i++) {
      mk_cpu_options options = {.seed = seed * INTERLEAVINGS + i, .adversarial = i % 2 != 0, .check_races = true};
      cr_assert_eq(bits_after(p, options, seed), want, "program %llu, interleaving %llu", (unsigned long long)seed,
                   (unsigned long long)i);
    }
    mk_program_free(p);
  }
}

/* Many more interleavings, without arithmetic: the words, which are hashes of all that went into them, come out the
 * same. */
static uint64_t words_after(mk_cpu *cpu, const mk_program *p, uint64_t program) {
  uint64_t hash = 14695981039346656037u;
  cr_assert_eq(test_sequence_steps(cpu, 1, start_of(p, program), EPOCHS), MK_OK, "program %llu: %s",
               (unsigned long long)program, mk_error_message());
  for (size_t b = 0; b < p->buffer_count; b++) {
    const mk_buffer *buffer = &p->buffers[b];
    uint64_t tiles = (uint64_t)mk_buffer_grid_rows(buffer) * mk_buffer_grid_cols(buffer);
    const uint8_t *words = mk_cpu_memory(cpu, b);
    hash = words == NULL ? hash : hash_bytes(hash, words, tiles * 8);
  }
  return hash;
}

Test(generated, every_interleaving_passes_the_same_values) {
  for (uint64_t seed = 1; seed <= programs(); seed++) {
    mk_program *p;
    uint64_t want = 0;
    cr_assert_eq(test_generate(seed, &p), MK_OK, "%s", mk_error_message());
    for (uint64_t i = 1; i <= ACCESS_INTERLEAVINGS; i++) {
      mk_cpu *cpu;
      mk_cpu_options options = {.seed = seed * ACCESS_INTERLEAVINGS + i,
                                .adversarial = i % 2 != 0,
                                .check_races = true,
                                .accesses_only = true};
      cr_assert_eq(mk_cpu_new(p, &options, &cpu), MK_OK);
      uint64_t have = words_after(cpu, p, seed);
      want = i == 1 ? have : want;
      cr_assert_eq(have, want, "program %llu, interleaving %llu", (unsigned long long)seed, (unsigned long long)i);
      mk_cpu_free(cpu);
    }
    mk_program_free(p);
  }
}

/* Valid programs of other kinds. */
Test(generated, programs_of_every_kind_are_accepted) {
  static const test_recipe recipes[] = {{.rows = 1, .small = true},
                                        {.rows = 1, .sampling = true, .small = true},
                                        {.rows = 1, .sampling = true},
                                        {.rows = 2, .small = true},
                                        {.rows = 16, .small = true},
                                        {.rows = 64, .small = true},
                                        {.rows = 2, .sampling = true},
                                        {.rows = 4, .sampling = true, .small = true},
                                        {.rows = 16, .sampling = true, .small = true}};
  for (uint64_t seed = 1; seed <= programs(); seed++) {
    mk_program *p;
    const test_recipe *recipe = &recipes[seed % (sizeof recipes / sizeof recipes[0])];
    cr_assert_eq(test_generate_recipe(seed, recipe, &p), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_verify(p, NULL), MK_OK, "program %llu: %s", (unsigned long long)seed, mk_error_message());
    mk_program_free(p);
  }
}

/* The campaign of tools/mutate --generate, in small; its output names the seeds of what fails. */
Test(generated, what_is_accepted_after_edits_never_fails, .timeout = MK_HANG_SECONDS) {
  cr_assert(generated_run(&(generated_campaign){.jobs = 2, .programs = test_effort(400, 1500), .seed = 2}));
}
