/* The oracle, and one mutant's trial. See mutation.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/mutation/mutation.h"
#include "tests/support/sequence.h"
#include "vm/cpu/machine.h"
#include "vm/verify/verify.h"

enum { EPOCHS = 4, STARTS = 4, MACHINES = 4 };

/* Runs begin where they go over the border of a span, at the lowest position, and where they reach the highest. */
static uint32_t start_of(const mk_program *p, uint32_t which, uint64_t *random) {
  const mk_range *position = &p->ranges.position;
  uint32_t span = 1, last = position->high < EPOCHS ? 0 : position->high - (EPOCHS - 1), start = position->low;
  for (size_t b = 0; b < p->buffer_count; b++) {
    span = p->buffers[b].kind == MK_KIND_KV ? p->buffers[b].span_tokens : span;
  }
  if (which == 1) {
    start = last;
  } else if (which >= 2 && span > 1) {
    start = (1 + mutation_draw(random, last / span + 1)) * span - 2;
  }
  return start > last || start < position->low ? position->low : start;
}

static uint64_t tiles_of(const mk_buffer *b) { return (uint64_t)mk_buffer_grid_rows(b) * mk_buffer_grid_cols(b); }

/* After a run that ended with `generation`: outputs are written, counters are where they must be. */
static mk_status check_end(const mk_program *p, mk_cpu *cpu, uint32_t generation) {
  for (size_t b = 0; b < p->buffer_count; b++) {
    const uint64_t *words = mk_cpu_memory(cpu, b);
    for (uint64_t t = 0; p->buffers[b].kind == MK_KIND_OUTPUT && t < tiles_of(&p->buffers[b]); t++) {
      if (words[t] >> 32 != generation) {
        return mk_error(MK_ERR_DEVICE, "output: tile %" PRIu64 " of %s is not written in the last epoch", t,
                        p->buffers[b].name);
      }
    }
  }
  for (size_t c = 0; c < p->counter_count; c++) {
    if (mk_cpu_counter(cpu, c) != generation * p->counters[c].total) {
      return mk_error(MK_ERR_DEVICE, "counter: %s drifts away from its epochs: %u after %u of them, total %u",
                      p->counters[c].name, mk_cpu_counter(cpu, c), generation, p->counters[c].total);
    }
  }
  return MK_OK;
}

/* What has been passed along, whatever the number of the generation. */
static uint64_t values(const mk_program *p, mk_cpu *cpu) {
  uint64_t hash = 14695981039346656037u;
  for (size_t b = 0; b < p->buffer_count; b++) {
    const uint64_t *words = mk_cpu_memory(cpu, b);
    for (uint64_t t = 0; words != NULL && t < tiles_of(&p->buffers[b]); t++) {
      hash = (hash ^ (uint32_t)words[t]) * 1099511628211u;
    }
  }
  return hash;
}

static void clear(const mk_program *p, mk_cpu *cpu) {
  for (size_t b = 0; b < p->buffer_count; b++) {
    if (mk_cpu_memory(cpu, b) != NULL) {
      memset(mk_cpu_memory(cpu, b), 0, tiles_of(&p->buffers[b]) * sizeof(uint64_t));
    }
  }
}

static mk_status run_many(const mk_program *p, mk_cpu *cpu, uint32_t runs, const uint32_t *starts, uint64_t *want,
                          bool *known) {
  for (uint32_t run = 0; run < runs; run++) {
    uint32_t which = run % STARTS;
    clear(p, cpu);
    test_sequence sequence = {.token = p->ranges.token.low, .position = starts[which]};
    MK_TRY(test_sequence_run(&sequence, cpu, EPOCHS, NULL, NULL));
    MK_TRY(check_end(p, cpu, (run + 1) * EPOCHS));
    uint64_t have = values(p, cpu);
    want[which] = known[which] ? want[which] : have;
    known[which] = true;
    if (have != want[which]) {
      return mk_error(MK_ERR_DEVICE, "values: two interleavings from position %u pass different ones", starts[which]);
    }
  }
  return MK_OK;
}

mk_status mutation_oracle(const mk_program *program, uint64_t seed, uint32_t interleavings) {
  uint64_t want[STARTS] = {0};
  uint32_t starts[STARTS];
  bool known[STARTS] = {false};
  MK_TRY(mutation_footprint(program));
  for (uint32_t i = 0; i < STARTS; i++) {
    starts[i] = start_of(program, i, &seed);
  }
  for (uint32_t i = 0; i < MACHINES; i++) {
    mk_cpu *cpu;
    mk_cpu_options options = {.seed = seed * MACHINES + i + 1,
                              .adversarial = i % 2 == 0,
                              .check_races = true,
                              .accesses_only = true,
                              .unchecked_plans = true};
    MK_TRY(mk_cpu_new(program, &options, &cpu));
    mk_status status = run_many(program, cpu, (interleavings + MACHINES - 1) / MACHINES, starts, want, known);
    mk_cpu_free(cpu);
    MK_TRY(status);
  }
  return MK_OK;
}

static void count_rule(mutation_counts *counts, const char *rule, bool fails) {
  uint32_t i = 0;
  while (i < MUTATION_RULES - 1 && counts->rules[i].rule[0] != '\0' && strcmp(counts->rules[i].rule, rule) != 0) {
    i++;
  }
  snprintf(counts->rules[i].rule, sizeof counts->rules[i].rule, "%s", rule);
  counts->rules[i].rejected++;
  counts->rules[i].never_failing += !fails;
}

static mk_status mutant_of(mutation_class kind, uint64_t *random, mk_program **out) {
  for (;;) {
    MK_TRY(mutation_base(random, out));
    if (mutation_apply(*out, kind, random)) {
      return MK_OK;
    }
    mk_program_free(*out);
  }
}

mk_status mutation_try(mutation_class kind, uint64_t *random, uint32_t interleavings, mutation_counts *counts) {
  mk_program *program;
  mk_verify_report report;
  MK_TRY(mutant_of(kind, random, &program));
  mk_status verdict = mk_verify(program, &report);
  if (verdict != MK_OK && verdict != MK_ERR_REJECTED) {
    mk_program_free(program);
    return verdict;
  }
  mk_status found = mutation_oracle(program, *random, interleavings);
  bool fails = found == MK_ERR_DEVICE;
  if (verdict == MK_OK) {
    counts->accepted++;
    counts->accepted_failing += fails;
  } else if (fails || found == MK_OK) {
    counts->rejected++;
    counts->never_failing += !fails;
    counts->failing_in_a_run += fails && mutation_footprint(program) == MK_OK;
    count_rule(counts, report.rule, fails);
    found = MK_OK;
  }
  mk_program_free(program);
  return found;
}
