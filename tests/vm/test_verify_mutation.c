/* Mutations of compiled programs. Whatever the verifier accepts must run on the CPU machine without a deadlock or an unordered
 * access, and give the same bits in every interleaving; the CPU machine's detector shares no code with the verifier. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "vm/cpu/machine.h"
#include "vm/verify.h"

enum { SMS = 3, EPOCHS = 5, POSITION = 254, MUTANTS = 500, SEEDS = 3 };

static uint64_t state;
static uint32_t draw(uint32_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((state >> 33) % below);
}

static mk_program *compiled(void) {
  mk_config config = {.hidden = 64,
                      .intermediate = 96,
                      .layers = 2,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .vocab = 100,
                      .max_position = 600,
                      .rms_eps = 1e-5f,
                      .rope_theta = 10000};
  mk_compile_options options = {.sms = SMS, .max_seq = 600};
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

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
  MK_TRY(mk_cpu_new(p, &options, &cpu));
  fill(cpu, p);
  mk_cpu_set_state(cpu, 7, POSITION, 0);
  mk_status status = mk_cpu_run(cpu, EPOCHS, NULL, NULL);
  *hash = 14695981039346656037u;
  for (size_t b = 0; b < p->buffer_count; b++) {
    const uint8_t *memory = mk_cpu_memory(cpu, b);
    for (uint64_t i = 0; p->buffers[b].kind != MK_KIND_WEIGHT && i < p->buffers[b].bytes; i++) {
      *hash = (*hash ^ memory[i]) * 1099511628211u;
    }
  }
  mk_cpu_free(cpu);
  return status;
}

/* What recorded totals, thresholds and resources must be after a change that is not about them. */
static void reseal(mk_program *p) {
  for (size_t c = 0; c < p->counter_count; c++) {
    p->counters[c].total = 0;
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t k = 0; k < in->signal_count; k++) {
      p->counters[in->signals[k].counter].total += in->signals[k].amount;
    }
    in->pages = mk_instruction_pages(p, in);
    in->resident = (uint16_t)(mk_instruction_resident(p, in) / MK_RESIDENT_UNIT);
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t k = 0; k < in->wait_count; k++) {
      uint32_t total = p->counters[in->waits[k].counter].total;
      if (in->waits[k].threshold > total) {
        in->waits[k].threshold = (uint16_t)total;
      }
    }
  }
}

static void swap(mk_instruction *a, mk_instruction *b) {
  mk_instruction c = *a;
  *a = *b;
  *b = c;
}

/* Takes instruction `from` out of its queue and puts it at a random place of another. */
static void move(mk_program *p, uint32_t from) {
  uint32_t source = 0, queue = draw(SMS);
  while (from >= p->queues[source].first + p->queues[source].count) {
    source++;
  }
  mk_instruction in = p->instructions[from];
  memmove(&p->instructions[from], &p->instructions[from + 1], (p->instruction_count - from - 1) * sizeof in);
  p->queues[source].count--;
  p->queues[queue].count++;
  for (uint32_t q = 1; q < SMS; q++) {
    p->queues[q].first = p->queues[q - 1].first + p->queues[q - 1].count;
  }
  uint32_t to = p->queues[queue].first + draw(p->queues[queue].count);
  memmove(&p->instructions[to + 1], &p->instructions[to], (p->instruction_count - to - 1) * sizeof in);
  p->instructions[to] = in;
}

static void mutate(mk_program *p, uint32_t kind) {
  uint32_t index = draw((uint32_t)p->instruction_count);
  mk_instruction *in = &p->instructions[index];
  mk_operand *o = &in->operands[draw(mk_opcode_lookup(in->opcode)->operand_count)];
  const mk_queue *q = &p->queues[draw(SMS)];
  uint32_t a = q->first + draw(q->count), b = q->first + draw(q->count);
  switch (kind) {
    case 0: /* drop a wait */
      if (in->wait_count != 0) {
        in->waits[--in->wait_count] = (mk_wait){0};
      }
      break;
    case 1: /* lower a threshold */
      if (in->wait_count != 0) {
        in->waits[0].threshold--;
      }
      break;
    case 2: /* swap neighbours */
      if (a + 1 < q->first + q->count) {
        swap(&p->instructions[a], &p->instructions[a + 1]);
      }
      break;
    case 3: /* swap any two of a queue */
      swap(&p->instructions[a], &p->instructions[b]);
      break;
    case 4: /* shift an operand */
      o->col = (uint16_t)(o->col + (draw(2) != 0 ? 1 : -1));
      break;
    case 5: /* drop a signal */
      if (in->signal_count != 0) {
        in->signals[--in->signal_count] = (mk_signal){0};
      }
      break;
    case 6: /* change a counter */
      if (in->wait_count != 0) {
        in->waits[0].counter = (uint16_t)draw((uint32_t)p->counter_count);
      }
      break;
    case 7: /* another buffer */
      o->buffer = (uint16_t)draw((uint32_t)p->buffer_count);
      break;
    case 8: /* move to another queue */
      move(p, index);
      break;
    case 9: /* an operand's row or size */
      *(draw(2) != 0 ? &o->rows : &o->cols) += (uint16_t)(draw(2) != 0 ? 1 : -1);
      break;
    default: /* drop an instruction */
      p->instructions[index] = p->instructions[p->queues[SMS - 1].first];
      memmove(&p->instructions[p->queues[SMS - 1].first], &p->instructions[p->queues[SMS - 1].first + 1],
              (p->instruction_count - p->queues[SMS - 1].first - 1) * sizeof *in);
      p->instruction_count--;
      p->queues[SMS - 1].count--;
      break;
  }
  reseal(p);
}

enum { KINDS = 11 };

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

static bool fails_on_the_machine(const mk_program *p, uint32_t mutant) {
  uint64_t hash;
  for (uint32_t seed = 1; seed <= 3 * SEEDS; seed++) {
    if (run(p, (mk_cpu_options){.seed = mutant * 3 * SEEDS + seed, .adversarial = true, .check_races = true}, &hash) !=
        MK_OK) {
      return true;
    }
  }
  return false;
}

Test(verify_mutation, unchanged_program_runs) {
  mk_program *p = compiled();
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  must_run(p, 0);
  mk_program_free(p);
}

/* Any bytes in a program's tables: an answer, no crash. */
Test(verify_mutation, garbage) {
  uint32_t accepted = 0;
  state = 7;
  for (uint32_t round = 0; round < 4000; round++) {
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
  cr_assert_lt(accepted, 2500);
}

Test(verify_mutation, what_is_accepted_runs) {
  uint32_t accepted[KINDS] = {0}, rejected[KINDS] = {0}, fails = 0, unordered = 0;
  state = 20260101;
  for (uint32_t mutant = 1; mutant <= MUTANTS; mutant++) {
    mk_program *p = compiled();
    uint32_t kind = mutant % KINDS;
    mutate(p, kind);
    mk_verify_report report;
    mk_status status = mk_verify(p, &report);
    cr_assert(status == MK_OK || status == MK_ERR_REJECTED, "%s", mk_error_message());
    if (status == MK_OK) {
      must_run(p, mutant);
      accepted[kind]++;
    } else {
      cr_assert_eq(strncmp(mk_error_message(), report.rule, strlen(report.rule)), 0);
      rejected[kind]++;
      if (report.rule[0] == 'D' || report.rule[0] == 'R') {
        unordered++;
        fails += fails_on_the_machine(p, mutant);
      }
    }
    mk_program_free(p);
  }
  if (getenv("SHOW_MESSAGES") != NULL) {
    fprintf(stderr, "rejected for order: %u, of which %u fail on the CPU machine\n", unordered, fails);
    for (uint32_t k = 0; k < KINDS; k++) {
      fprintf(stderr, "kind %u: %u accepted, %u rejected\n", k, accepted[k], rejected[k]);
    }
  }
  /* The oracle has teeth: most of what is rejected for its order does fail there. */
  cr_assert_gt(fails, unordered / 2);
  /* Waits here are hints: without one the program is slower, not wrong. Everything else that changes what is computed where is
   * found. */
  cr_assert_eq(rejected[0], 0);
  cr_assert_gt(rejected[3], MUTANTS / KINDS / 4);
  cr_assert_gt(rejected[4], MUTANTS / KINDS / 2);
  cr_assert_gt(rejected[7], MUTANTS / KINDS / 2);
  cr_assert_gt(rejected[8], MUTANTS / KINDS / 8);
}
