/* See host.h. */
#include "tests/mutation/host.h"

#include <math.h>
#include <string.h>

#include "instructions/mla.h"
#include "instructions/sampling_host.h"
#include "tests/mutation/mutation.h"

static uint32_t draw(host *h, uint32_t below) { return below == 0 ? 0 : mutation_draw(&h->random, below); }

mk_status host_patch_of(host *h, uint32_t launch, uint16_t buffer, uint32_t **words) {
  host_launch *l = &h->launches[launch];
  for (uint32_t i = 0; i < l->patch_count; i++) {
    if (l->patches[i].buffer == buffer) {
      *words = l->patches[i].words;
      return MK_OK;
    }
  }
  if (l->patch_count == HOST_PATCHES) {
    return mk_error(MK_ERR_USAGE, "host: more inputs than a launch has patches");
  }
  MK_TRY(mk_alloc(1, h->program->buffers[buffer].bytes, words));
  l->patches[l->patch_count++] = (host_patch){.buffer = buffer, .words = *words};
  return MK_OK;
}

/* Roles. */

static mk_status give_role(host *h, uint16_t buffer, host_role role) {
  const mk_buffer *b = &h->program->buffers[buffer];
  if (h->roles[buffer] != HOST_NUMBERS && h->roles[buffer] != role) {
    return mk_error(MK_ERR_USAGE, "host: buffer %s is read as two things; no host fills both", b->name);
  }
  if (b->kind == MK_KIND_WEIGHT) {
    return mk_error(MK_ERR_USAGE, "host: buffer %s is a weight, and read as what a host writes", b->name);
  }
  h->roles[buffer] = (uint8_t)role;
  return MK_OK;
}

static mk_status find_roles(host *h) {
  for (size_t i = 0; i < h->program->instruction_count; i++) {
    const mk_instruction *in = &h->program->instructions[i];
    const mk_operand *o = in->operands;
    const int table = mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_TABLE);
    MK_TRY(table >= 0 ? give_role(h, o[table].buffer, HOST_TABLE) : MK_OK);
    switch (in->opcode) {
      case MK_OP_NEXT:
        MK_TRY(give_role(h, o[MK_SLOT_NEXT_plan].buffer, HOST_PLAN));
        break;
      case MK_OP_SCORE:
        MK_TRY(give_role(h, o[MK_SLOT_SCORE_sampling].buffer, HOST_SAMPLING));
        break;
      case MK_OP_SIFT:
      case MK_OP_DRAW:
        MK_TRY(give_role(h, o[MK_SLOT_SIFT_sampling].buffer, HOST_SAMPLING));
        break;
      case MK_OP_MLA_PART:
        MK_TRY(give_role(h, o[MK_SLOT_MLA_PART_sequences].buffer, HOST_BATCH));
        MK_TRY(give_role(h, o[MK_SLOT_MLA_PART_work].buffer, HOST_LIST));
        break;
      default:
        break;
    }
  }
  return MK_OK;
}

/* Numbers. */

static bool is_constant(const mk_buffer *b) { return b->kind == MK_KIND_WEIGHT || b->kind == MK_KIND_INPUT; }

static uint64_t next_number(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

/* Columns and rows beyond the weight's own are zero in its last tiles. */
static void clear_padding(const mk_buffer *b, uint16_t *elements) {
  uint32_t rows = mk_buffer_grid_rows(b) * MK_TILE, cols = mk_buffer_grid_cols(b) * MK_TILE;
  for (uint32_t r = 0; r < rows; r++) {
    for (uint32_t c = r < b->rows ? b->cols : 0; c < cols; c++) {
      elements[mk_tile_offset(cols / MK_TILE, r, c)] = 0;
    }
  }
}

/* A random weight between -0.13 and 0.13; weights of vectors, which scale, are above zero. */
static mk_status fill_numbers(host *h, size_t buffer) {
  const mk_buffer *b = &h->program->buffers[buffer];
  bool wide = b->dtype != MK_DTYPE_BF16, scales = b->store == MK_STORE_PLAIN && b->kind == MK_KIND_WEIGHT;
  MK_TRY(mk_alloc(1, b->bytes, &h->numbers[buffer]));
  uint64_t count = b->bytes / (wide ? 4 : 2), state = buffer * 40503u + 1;
  for (uint64_t i = 0; i < count; i++) {
    float value = (float)(int32_t)(next_number(&state) >> 40 & 0xfff) * 0x1p-14f - 0.125f;
    value = scales ? fabsf(value) + 0.5f : value;
    if (b->dtype == MK_DTYPE_U32) {
      ((uint32_t *)(void *)h->numbers[buffer])[i] = (uint32_t)state % 16;
    } else if (wide) {
      ((float *)(void *)h->numbers[buffer])[i] = value;
    } else {
      ((uint16_t *)(void *)h->numbers[buffer])[i] = (uint16_t)(mk_float_param(value) >> 16);
    }
  }
  if (b->store == MK_STORE_TILES) {
    clear_padding(b, (uint16_t *)(void *)h->numbers[buffer]);
  }
  return MK_OK;
}

/* Launches of programs of one row. */

/* Every block at most once, as far as the range goes. */
static void fill_table(host *h, uint32_t *words, uint64_t count) {
  const mk_range *range = &h->program->ranges.block;
  uint64_t blocks = (uint64_t)(range->high - range->low) + 1;
  for (uint64_t i = 0; i < count; i++) {
    words[i] = range->low + (uint32_t)(i % blocks);
  }
  for (uint64_t i = count < blocks ? count : blocks; i > 1; i--) {
    uint32_t other = draw(h, (uint32_t)i), kept = words[i - 1];
    words[i - 1] = words[other];
    words[other] = kept;
  }
}

static void fill_sampling(host *h, uint32_t *words) {
  static const double temperatures[] = {1, 0.7, 0, 5}, ps[] = {1, 0.9, 0.5}, ms[] = {0, 0, 0.1, 0.5};
  static const uint32_t ks[] = {0, 0, 1, 3, 20};
  mk_sampling s = MK_SAMPLING_OFF;
  s.seed = draw(h, UINT32_MAX);
  s.temperature = temperatures[draw(h, 4)];
  s.top_k = ks[draw(h, 5)];
  s.top_p = ps[draw(h, 3)];
  s.min_p = ms[draw(h, 4)];
  if (draw(h, 3) == 0) {
    s.repetition = 1.3;
    s.presence = 0.5;
    s.frequency = 0.25;
  }
  mk_sampling_words(&s, h->program->ranges.token.high + 1, words);
}

static mk_status fill_inputs(host *h, uint32_t launch) {
  const mk_program *p = h->program;
  uint32_t *words;
  for (uint16_t b = 0; b < p->buffer_count; b++) {
    uint64_t count = p->buffers[b].bytes / sizeof(uint32_t);
    if (h->roles[b] == HOST_TABLE && h->rows == 1 && (launch == 0 || draw(h, 3) == 0)) {
      MK_TRY(host_patch_of(h, launch, b, &words));
      fill_table(h, words, count);
    } else if (h->roles[b] == HOST_SAMPLING) {
      MK_TRY(host_patch_of(h, launch, b, &words));
      for (uint64_t row = 0; row + MK_SAMPLING_WORDS <= count; row += MK_SAMPLING_WORDS) {
        fill_sampling(h, words + row);
      }
    }
  }
  return MK_OK;
}

/* The lowest position, the border of a span, the highest position, any. */
static uint32_t start_of(host *h, uint32_t launch, uint32_t last) {
  const mk_program *p = h->program;
  uint32_t span = 0, low = p->ranges.position.low, start = low;
  for (size_t b = 0; b < p->buffer_count; b++) {
    span = p->buffers[b].kind == MK_KIND_KV ? p->buffers[b].span_tokens : span;
  }
  if (launch == 1 && span > 2) {
    start = (1 + draw(h, last / span + 1)) * span - 2;
  } else if (launch == 2) {
    start = last;
  } else if (launch == 3) {
    start = low + draw(h, last - low + 1);
  }
  return start < low || start > last ? low : start;
}

static mk_status plan_launches(host *h) {
  const mk_range *position = &h->program->ranges.position, *token = &h->program->ranges.token;
  for (uint32_t i = 0; i < HOST_LAUNCHES; i++) {
    host_launch *l = &h->launches[i];
    uint32_t most = position->high - position->low + 1;
    l->epochs = most < HOST_EPOCHS ? most : HOST_EPOCHS;
    uint32_t start = start_of(h, i, position->high + 1 - l->epochs), given[HOST_EPOCHS];
    for (uint32_t k = 0; k < l->epochs; k++) {
      given[k] = token->low + draw(h, token->high - token->low + 1);
    }
    /* The last launch is all choices, so that all logits are written. */
    uint32_t count = i + 1 < HOST_LAUNCHES && draw(h, 3) == 0 ? 1 + draw(h, l->epochs) : 1;
    MK_TRY(mk_alloc(l->epochs, sizeof *l->plan, &l->plan));
    mk_plan_sequence(l->plan, l->epochs, start, given, count, draw(h, 2) == 0 ? (uint32_t)MK_ROW_PROMPT : 0);
    MK_TRY(fill_inputs(h, i));
  }
  h->launch_count = HOST_LAUNCHES;
  return MK_OK;
}

static mk_status build(host *h) {
  const mk_program *p = h->program;
  MK_TRY(mk_alloc(p->buffer_count, sizeof *h->roles, &h->roles));
  MK_TRY(mk_alloc(p->buffer_count, sizeof *h->numbers, &h->numbers));
  MK_TRY(find_roles(h));
  for (size_t b = 0; b < p->buffer_count; b++) {
    if (is_constant(&p->buffers[b]) && h->roles[b] == HOST_NUMBERS) {
      MK_TRY(fill_numbers(h, b));
    }
  }
  if (h->listed || h->rows == 1) {
    return h->listed ? host_lists(h) : plan_launches(h);
  }
  MK_TRY(host_plan(h));
  for (uint32_t i = 0; i < h->launch_count; i++) {
    MK_TRY(fill_inputs(h, i));
  }
  return MK_OK;
}

mk_status host_new(const mk_program *program, uint64_t seed, host *out) {
  *out = (host){.program = program,
                .random = seed * 0x9e3779b97f4a7c15u + 5,
                .rows = mk_program_rows(program),
                .listed = mk_program_listed(program)};
  mk_status status = build(out);
  if (status != MK_OK) {
    host_free(out);
  }
  return status;
}

void host_free(host *h) {
  for (size_t b = 0; h->numbers != NULL && b < h->program->buffer_count; b++) {
    mk_free(h->numbers[b]);
  }
  mk_free(h->numbers);
  mk_free(h->roles);
  for (uint32_t i = 0; i < HOST_LAUNCHES; i++) {
    for (uint32_t k = 0; k < h->launches[i].patch_count; k++) {
      mk_free(h->launches[i].patches[k].words);
    }
    mk_free(h->launches[i].plan);
  }
  *h = (host){0};
}

void host_fill(const host *h, mk_cpu *cpu) {
  for (size_t b = 0; b < h->program->buffer_count; b++) {
    if (h->numbers[b] != NULL) {
      memcpy(mk_cpu_memory(cpu, b), h->numbers[b], h->program->buffers[b].bytes);
    }
  }
}

mk_status host_run(const host *h, mk_cpu *cpu, uint32_t launch) {
  const host_launch *l = &h->launches[launch];
  for (uint32_t i = 0; i < l->patch_count; i++) {
    memcpy(mk_cpu_memory(cpu, l->patches[i].buffer), l->patches[i].words,
           h->program->buffers[l->patches[i].buffer].bytes);
  }
  if (l->plan != NULL) {
    return mk_cpu_run_plan(cpu, l->plan, l->epochs, NULL, NULL);
  }
  return mk_cpu_run(cpu, l->epochs);
}
