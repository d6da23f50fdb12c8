/* Mutants of valid programs (tests/mutation): none that the verifier accepts fails on the CPU machine, whose race
 * detector shares no code with the verifier. tools/mutate runs many more of them. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/mutation/mutation.h"
#include "tests/support/effort.h"
#include "tests/support/generate.h"
#include "tests/support/model.h"
#include "tests/support/sequence.h"
#include "tests/support/text.h"
#include "vm/cpu/machine.h"
#include "vm/verify/verify.h"

enum { SMS = 3, EPOCHS = 5, POSITION = 254, SEEDS = 3, INTERLEAVINGS = 200, BASES = 40, MOST = 400 };

static uint64_t state;
static uint32_t draw(uint32_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((state >> 33) % below);
}

static mk_program *compiled(void) { return test_small_program(SMS, 600, 1); }

/* Numbers that neither vanish nor overflow; every block in its own place. */
static void fill(mk_cpu *cpu, const mk_program *p) {
  for (size_t b = 0; b < p->buffer_count; b++) {
    const mk_buffer *buffer = &p->buffers[b];
    uint8_t *memory = mk_cpu_memory(cpu, b);
    if (strcmp(buffer->name, "block_table") == 0) {
      for (uint32_t i = 0; i < buffer->cols; i++) {
        ((uint32_t *)(void *)memory)[i] = i;
      }
    } else if (buffer->kind == MK_KIND_WEIGHT) {
      bool wide = buffer->dtype == MK_DTYPE_F32;
      for (uint64_t i = 0; i < buffer->bytes / (wide ? 4 : 2); i++) {
        float value = ((float)((i * 2654435761u + b * 40503u) % 1021) - 510.0f) / 4096.0f;
        if (wide) {
          ((float *)(void *)memory)[i] = fabsf(value);
        } else {
          ((uint16_t *)(void *)memory)[i] = (uint16_t)(mk_float_param(value) >> 16);
        }
      }
    }
  }
}

/* Runs over the border between two attention spans; gives a hash of all that the host and later steps can see. */
static mk_status run(const mk_program *p, mk_cpu_options options, uint64_t *hash) {
  mk_cpu *cpu;
  options.unchecked_plans = true;
  MK_TRY(mk_cpu_new(p, &options, &cpu));
  fill(cpu, p);
  mk_status status = test_sequence_steps(cpu, 7, POSITION, EPOCHS);
  *hash = test_memory_hash(cpu, p);
  mk_cpu_free(cpu);
  return status;
}

static void must_run(const mk_program *p, uint32_t mutant) {
  uint64_t want = 0, have;
  for (uint32_t seed = 0; seed < SEEDS; seed++) {
    mk_cpu_options options = {
        .seed = seed == 0 ? 0 : mutant * SEEDS + seed, .adversarial = seed != 0, .check_races = true};
    mk_status status = run(p, options, &have);
    if (status != MK_OK && strstr(mk_error_message(), "NaN") != NULL) {
      return;
    }
    cr_assert_eq(status, MK_OK, "mutant %u was accepted; seed %u: %s", mutant, seed, mk_error_message());
    want = seed == 0 ? have : want;
    cr_assert_eq(have, want, "mutant %u was accepted; seed %u gives other bits", mutant, seed);
  }
}

Test(verify_mutation, unchanged_program_runs) {
  mk_program *p = compiled();
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  must_run(p, 0);
  mk_program_free(p);
}

/* Any bytes in a program's tables: an answer, no crash. */
Test(verify_mutation, garbage) {
  uint32_t accepted = 0, rounds = test_effort(1000, 4000);
  state = 7;
  for (uint32_t round = 0; round < rounds; round++) {
    mk_program *p = compiled();
    struct {
      void *bytes;
      size_t size;
    } parts[] = {{p->instructions, p->instruction_count * sizeof *p->instructions},
                 {p->buffers, p->buffer_count * sizeof *p->buffers},
                 {p->counters, p->counter_count * sizeof *p->counters},
                 {p->queues, p->queue_count * sizeof *p->queues},
                 {&p->ranges, sizeof p->ranges}};
    for (uint32_t change = draw(3) + 1; change > 0; change--) {
      uint32_t part = draw(8) < 4 ? 0 : draw(5);
      uint8_t *byte = (uint8_t *)parts[part].bytes + draw((uint32_t)parts[part].size);
      uint32_t flipped = draw(2) != 0 ? draw(256) : *byte ^ 1u << draw(8);
      *byte = (uint8_t)flipped;
    }
    mk_verify_report report;
    mk_status status = mk_verify(p, &report);
    cr_assert(status == MK_OK || status == MK_ERR_REJECTED, "%s", mk_error_message());
    cr_assert_eq(status == MK_OK, report.rule[0] == 0);
    accepted += status == MK_OK;
    mk_program_free(p);
  }
  cr_assert_lt(accepted, rounds * 5 / 8);
}

/* All classes, every program a new one. Of some classes the verifier accepts most mutants: those go on until one of
 * them fails. */
Test(verify_mutation, what_is_accepted_never_fails) {
  uint64_t random = 20260101;
  uint32_t rejected = 0, never_failing = 0, share = test_effort(160, 500) / MUTATION_CLASSES + 1;
  for (mutation_class kind = 0; kind < MUTATION_CLASSES; kind++) {
    mutation_counts counts = {0};
    for (uint32_t i = 0; i < share || (counts.rejected == counts.never_failing && i < MOST); i++) {
      uint64_t before = random;
      cr_assert_eq(mutation_try(kind, &random, INTERLEAVINGS, &counts), MK_OK, "%s, state %llu: %s",
                   mutation_infos[kind].name, (unsigned long long)before, mk_error_message());
    }
    rejected += counts.rejected;
    never_failing += counts.never_failing;
    cr_assert_gt(counts.rejected - counts.never_failing, 0, "%s: no mutant fails", mutation_infos[kind].name);
  }
  cr_assert_leq(100 * never_failing, 15 * rejected, "%u of %u rejected mutants never fail", never_failing, rejected);
}

/* The programs that are changed are good ones, by both judges. */
Test(verify_mutation, what_is_not_changed_is_accepted) {
  uint64_t random = 7;
  for (uint32_t i = 0; i < BASES; i++) {
    mk_program *p;
    cr_assert_eq(mutation_base(&random, &p), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mutation_oracle(p, i, INTERLEAVINGS / 4), MK_OK, "%s", mk_error_message());
    mk_program_free(p);
  }
}

/* Programs with opcodes that look at more than they write, or write what nobody waits for: there what the verifier
 * rejects, the CPU machine shows more seldom, since it begins an instruction when all of its inputs are there. */
static bool shows_less(const mk_program *p) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    const uint32_t opcode = p->instructions[i].opcode;
    if (opcode == MK_OP_OFFSET || opcode == MK_OP_NORM_ADD || opcode == MK_OP_NORM_HEADS || opcode == MK_OP_NORM ||
        opcode == MK_OP_APPEND || opcode == MK_OP_SQUARES || opcode == MK_OP_ADD_NORMED) {
      return true;
    }
  }
  return false;
}

/* An instruction that nobody waits for, moved after the `head` of its SM: the candidate does not tell any more that
 * it has read, so in some programs the next epoch may overwrite its input. Of what the verifier rejects the oracle
 * sees at least half fail: on a GPU an instruction may write one tile before the inputs of another one are there,
 * and the CPU machine begins when all are. */
Test(verify_mutation, read_after_the_token_boundary) {
  uint32_t rejected = 0, failing = 0;
  for (uint64_t seed = 1; seed <= test_effort(400, 1200); seed++) {
    mk_program *p;
    cr_assert_eq(test_generate(seed, &p), MK_OK, "%s", mk_error_message());
    const mk_queue *q = &p->queues[seed % p->queue_count];
    mk_instruction *in = &p->instructions[q->first], *head = in + q->count - 2;
    if (q->count > 2 && head->opcode == MK_OP_HEAD && head[-1].opcode == MK_OP_LINEAR_PART && !shows_less(p)) {
      mk_instruction kept = *head;
      head[0] = head[-1];
      head[-1] = kept;
      for (size_t i = 0; i < p->instruction_count; i++) { /* else rule N06 asks for more than is read */
        p->instructions[i].flags = 0;
      }
      mk_status verdict = mk_verify(p, NULL), found = mutation_oracle(p, seed, INTERLEAVINGS);
      cr_assert(verdict != MK_OK || found == MK_OK, "program %llu: %s", (unsigned long long)seed, mk_error_message());
      rejected += verdict != MK_OK;
      failing += found != MK_OK;
    }
    mk_program_free(p);
  }
  cr_assert_gt(failing, 0);
  cr_assert_leq(rejected - failing, failing, "%u of %u rejected programs fail", failing, rejected);
}
