/* The oracle of generated programs. See generated.h. */
#include <inttypes.h>
#include <string.h>

#include "instructions/mla.h"
#include "tests/mutation/generated.h"
#include "tests/mutation/host.h"

enum { CANARY = 0xc5 };

static bool is_constant(const mk_buffer *b) { return b->kind == MK_KIND_WEIGHT || b->kind == MK_KIND_INPUT; }

/* Stamps included: machines that have run the same launches have the same. */
static uint64_t hash_buffer(const mk_program *p, mk_cpu *cpu, size_t b) {
  uint64_t hash = 14695981039346656037u;
  const uint8_t *bytes = mk_cpu_memory(cpu, b);
  uint64_t size = is_constant(&p->buffers[b]) ? 0 : p->buffers[b].bytes, i = 0, word;
  for (; i + sizeof word <= size; i += sizeof word) {
    memcpy(&word, bytes + i, sizeof word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  for (; i < size; i++) {
    hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return hash;
}

/* hashes: of buffers, as the greedy machine, the first one, leaves them. */
static mk_status compare_bits(const mk_program *p, mk_cpu *cpu, uint64_t *hashes, bool first) {
  for (size_t b = 0; b < p->buffer_count; b++) {
    uint64_t hash = hash_buffer(p, cpu, b);
    if (!first && hash != hashes[b]) {
      return mk_error(MK_ERR_DEVICE, "bits: buffer %s ends with others than in the greedy run", p->buffers[b].name);
    }
    hashes[b] = hash;
  }
  return MK_OK;
}

typedef enum expected { NOTHING, RING, CHOSEN, ACTIVE, ALL } expected;

/* What a launch writes of a buffer. */
static expected expect_of(const host *h, uint32_t buffer) {
  for (size_t i = 0; i < h->program->instruction_count; i++) {
    const mk_instruction *in = &h->program->instructions[i];
    if (in->opcode == MK_OP_NEXT && in->operands[MK_SLOT_NEXT_ring].rows != 0 &&
        in->operands[MK_SLOT_NEXT_ring].buffer == buffer) {
      return RING;
    }
    if (in->opcode == MK_OP_SCORE && in->operands[MK_SLOT_SCORE_counts].buffer == buffer) {
      return NOTHING; /* counts go on from launch to launch */
    }
    if (in->opcode == MK_OP_HEAD && in->operands[MK_SLOT_HEAD_logits].buffer == buffer) {
      return CHOSEN;
    }
  }
  mk_mla_geometry g;
  bool parts = mk_mla_geometry_of(h->program, &g) && buffer == g.parts; /* slots that no item fills */
  return parts ? NOTHING : h->listed || h->rows == 1 ? ALL : ACTIVE;
}

static void spoil_outputs(const host *h, mk_cpu *cpu) {
  const mk_program *p = h->program;
  for (uint32_t b = 0; b < p->buffer_count; b++) {
    if (p->buffers[b].kind == MK_KIND_OUTPUT && expect_of(h, b) != NOTHING) {
      memset(mk_cpu_memory(cpu, b), CANARY, p->buffers[b].bytes);
    }
  }
}

/* Whether some step of the launch has the line active, or choosing. */
static bool line_has(const host *h, const host_launch *l, uint32_t line, uint32_t flag) {
  bool has = h->rows == 1;
  for (uint32_t step = 0; l->plan != NULL && step < l->epochs; step++) {
    has |= (l->plan[(size_t)step * h->rows + line].flags & flag) != 0;
  }
  return has;
}

static mk_status check_row(const mk_buffer *b, const uint8_t *bytes, uint64_t row, uint64_t size) {
  static const uint8_t canary[8] = {CANARY, CANARY, CANARY, CANARY, CANARY, CANARY, CANARY, CANARY};
  uint64_t row_bytes = b->bytes / b->rows;
  for (uint64_t i = 0; i + size <= row_bytes; i += size) {
    if (memcmp(bytes + row * row_bytes + i, canary, size) == 0) {
      return mk_error(MK_ERR_DEVICE, "output: element %" PRIu64 " of row %" PRIu64 " of %s is not written", i / size,
                      row, b->name);
    }
  }
  return MK_OK;
}

/* After a launch before which outputs were spoilt. */
static mk_status check_outputs(const host *h, mk_cpu *cpu, uint32_t launch) {
  const host_launch *l = &h->launches[launch];
  mk_mla_geometry g = {0};
  (void)mk_mla_geometry_of(h->program, &g);
  for (uint32_t index = 0; index < h->program->buffer_count; index++) {
    const mk_buffer *b = &h->program->buffers[index];
    const uint8_t *bytes = mk_cpu_memory(cpu, index);
    expected what = b->kind == MK_KIND_OUTPUT ? expect_of(h, index) : NOTHING;
    if (what == NOTHING) {
      continue;
    }
    if (what == RING) {
      for (uint32_t i = 0; i < l->epochs * h->rows; i++) {
        mk_buffer one = *b;
        one.rows = b->cols;
        one.bytes = (uint64_t)b->cols * sizeof(uint32_t);
        MK_TRY(check_row(&one, bytes, i, sizeof(uint32_t)));
      }
      continue;
    }
    uint64_t rows = h->listed && index == g.out ? (uint64_t)l->sequences * g.blocks : b->rows;
    uint64_t size = b->store == MK_STORE_STAMPED ? 8 : b->dtype == MK_DTYPE_BF16 ? 2 : 4;
    for (uint64_t row = 0; row < rows; row++) {
      uint32_t flag = what == CHOSEN ? MK_ROW_CHOOSES : MK_ROW_ACTIVE;
      if (what == ALL || line_has(h, l, (uint32_t)(row % h->rows), flag)) {
        MK_TRY(check_row(b, bytes, row, size));
      }
    }
  }
  return MK_OK;
}

typedef struct candidate {
  float value;
  uint32_t token;
} candidate;

static candidate better_of(candidate a, candidate b) {
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}

/* The best one of an operand's rows. */
static candidate best_of(const mk_program *p, mk_cpu *cpu, const mk_operand *from) {
  const mk_buffer *b = &p->buffers[from->buffer];
  const uint64_t *words = mk_cpu_memory(cpu, from->buffer);
  candidate best = {0};
  for (uint32_t row = from->row; row < (uint32_t)from->row + from->rows; row++) {
    const uint64_t *pair = words + (size_t)row * b->cols + (size_t)from->col * b->tile_cols;
    candidate c = {.value = mk_param_float((uint32_t)pair[0]), .token = (uint32_t)pair[1] & MK_CANDIDATE_NONE};
    best = row == from->row ? c : better_of(best, c);
  }
  return best;
}

/* The token that the `next` came to in the last step of a launch, by what it had before it. */
static uint32_t chosen_by(const host *h, mk_cpu *cpu, const host_launch *l, const mk_instruction *next) {
  return (l->plan[l->epochs - 1].flags & MK_ROW_CHOOSES) != 0
             ? best_of(h->program, cpu, &next->operands[MK_SLOT_NEXT_candidates]).token
             : MK_CANDIDATE_NONE;
}

/* Checks that, where nothing is sampled, a `next` takes no less than the best of all heads. */
static mk_status check_best(const mk_program *p, mk_cpu *cpu, const mk_instruction *next) {
  candidate chosen = best_of(p, cpu, &next->operands[MK_SLOT_NEXT_candidates]);
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_DRAW) {
      return MK_OK;
    }
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_HEAD && best_of(p, cpu, &in->operands[MK_SLOT_HEAD_candidate]).value > chosen.value) {
      return mk_error(MK_ERR_DEVICE,
                      "choice: instruction %u has a better candidate than the one that instruction %u took", in->uid,
                      next->uid);
    }
  }
  return MK_OK;
}

/* With several rows: where each `next` takes the choices of its own SM, they are alike on all, for every row of the
 * last step. */
static mk_status check_rows(const host *h, mk_cpu *cpu, const host_launch *l) {
  const mk_operand *first = NULL;
  for (size_t i = 0; i < h->program->instruction_count; i++) {
    const mk_instruction *in = &h->program->instructions[i];
    const mk_operand *own = &in->operands[MK_SLOT_NEXT_candidates];
    if (in->opcode != MK_OP_NEXT || own->rows != 1) {
      continue;
    }
    first = first == NULL ? own : first;
    for (uint32_t line = 0; line < h->rows; line++) {
      const uint64_t *a = (const uint64_t *)mk_cpu_memory(cpu, first->buffer) + 2 * (first->row * h->rows + line);
      const uint64_t *b = (const uint64_t *)mk_cpu_memory(cpu, own->buffer) + 2 * (own->row * h->rows + line);
      bool active = (l->plan[(l->epochs - 1) * h->rows + line].flags & MK_ROW_ACTIVE) != 0;
      if (active && (a[0] != b[0] || a[1] != b[1])) {
        return mk_error(MK_ERR_DEVICE, "choice: instruction %u goes on with another token in row %u", in->uid, line);
      }
    }
  }
  return MK_OK;
}

/* Checks that all SMs go on with the same token, one of the declared range. */
static mk_status check_choices(const host *h, mk_cpu *cpu, uint32_t launch) {
  uint32_t first = 0, uid = 0;
  if (h->rows > 1) {
    return check_rows(h, cpu, &h->launches[launch]);
  }
  for (size_t i = 0; i < h->program->instruction_count; i++) {
    const mk_instruction *in = &h->program->instructions[i];
    if (in->opcode != MK_OP_NEXT) {
      continue;
    }
    uint32_t token = chosen_by(h, cpu, &h->launches[launch], in);
    if (token == MK_CANDIDATE_NONE &&
        (h->launches[launch].plan[h->launches[launch].epochs - 1].flags & MK_ROW_CHOOSES) == 0) {
      return MK_OK;
    }
    if (uid != 0 && token != first) {
      return mk_error(MK_ERR_DEVICE, "choice: instruction %u goes on with token %u, instruction %u with token %u", uid,
                      first, in->uid, token);
    }
    MK_TRY(check_best(h->program, cpu, in));
    const mk_range *range = &h->program->ranges.token;
    if (token < range->low || token > range->high) {
      return mk_error(MK_ERR_DEVICE, "choice: instruction %u goes on with token %u; tokens are %u to %u", in->uid,
                      token, range->low, range->high);
    }
    first = token;
    uid = in->uid;
  }
  return MK_OK;
}

static mk_status check_counters(const mk_program *p, const mk_cpu *cpu) {
  for (size_t c = 0; c < p->counter_count; c++) {
    uint32_t want = mk_cpu_generation(cpu) * p->counters[c].total;
    if (mk_cpu_counter(cpu, c) != want) {
      return mk_error(MK_ERR_DEVICE, "counter: %s is at %u and not at %u", p->counters[c].name, mk_cpu_counter(cpu, c),
                      want);
    }
  }
  return MK_OK;
}

static mk_status run_launch(const host *h, mk_cpu *cpu, uint32_t launch, uint64_t *hashes, bool first) {
  bool last = launch + 1 == h->launch_count;
  if (last) {
    spoil_outputs(h, cpu);
  }
  MK_TRY(host_run(h, cpu, launch));
  MK_TRY(check_counters(h->program, cpu));
  MK_TRY(check_choices(h, cpu, launch));
  if (last) {
    MK_TRY(check_outputs(h, cpu, launch));
  }
  return compare_bits(h->program, cpu, hashes + launch * h->program->buffer_count, first);
}

static mk_status run_launches(const host *h, mk_cpu *cpu, uint64_t *hashes, bool first) {
  for (uint32_t i = 0; i < h->launch_count; i++) {
    mk_status status = run_launch(h, cpu, i, hashes, first);
    if (status != MK_OK) {
      return mk_error_prefix(status, "launch %u", i);
    }
  }
  return MK_OK;
}

static mk_status run_machine(const host *h, const mk_cpu_options *options, uint64_t *hashes, bool first) {
  mk_cpu *cpu;
  mk_cpu_options unchecked = *options; /* tables that repeat blocks, and programs that no host would run */
  unchecked.unchecked_plans = h->rows == 1;
  MK_TRY(mk_cpu_new(h->program, &unchecked, &cpu));
  host_fill(h, cpu);
  mk_status status = run_launches(h, cpu, hashes, first);
  mk_cpu_free(cpu);
  return status;
}

static mk_status run_machines(const host *h, uint64_t seed, uint32_t machines, uint64_t *hashes) {
  mk_status status = run_machine(h, &(mk_cpu_options){.seed = 0}, hashes, true);
  if (status != MK_OK) {
    return mk_error_prefix(status, "greedy");
  }
  for (uint32_t m = 0; m < machines; m++) {
    mk_cpu_options options = {.seed = seed * 64 + m + 1, .adversarial = m % 4 != 3, .check_races = true};
    status = run_machine(h, &options, hashes, false);
    if (status != MK_OK) {
      return mk_error_prefix(status, "machine %u (seed %" PRIu64 "%s)", m, options.seed,
                             options.adversarial ? ", adversarial" : "");
    }
  }
  return MK_OK;
}

static mk_status run_arithmetic(const host *h, uint64_t seed, uint32_t machines) {
  uint64_t *hashes;
  MK_TRY(mk_alloc(h->program->buffer_count, HOST_LAUNCHES * sizeof *hashes, &hashes));
  mk_status status = run_machines(h, seed, machines, hashes);
  mk_free(hashes);
  return status;
}

mk_status generated_judge(const mk_program *program, uint64_t seed, generated_effort effort) {
  host h;
  MK_TRY(generated_contract(program));
  if (mk_program_rows(program) == 1 && !mk_program_listed(program)) {
    MK_TRY(mutation_oracle(program, seed, effort.accesses));
  }
  MK_TRY(host_new(program, seed, &h));
  mk_status status = run_arithmetic(&h, seed, effort.machines);
  host_free(&h);
  return status;
}
