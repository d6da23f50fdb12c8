/* See mla_compile.h. */
#include "scheduler/mla_compile.h"

#include <stdio.h>

#include "instructions/mla.h"
#include "scheduler/compile.h"
#include "scheduler/lower_internal.h"

enum {
  SLOTS_PER_SM = 2, /* a batch is seldom worth more parts than that */
  PAGE_BYTES = MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH * 2,
};

mk_machine mk_machine_mla(uint32_t sms) {
  enum { SHARED_BYTES = 227 * 1024, RESERVED_BYTES = 3 * 1024, RING_PAGES = 2 };
  mk_machine machine = mk_machine_latency(sms);
  machine.page_bytes = PAGE_BYTES;
  machine.ring_pages = RING_PAGES;
  machine.resident_bytes = SHARED_BYTES - RESERVED_BYTES - RING_PAGES * PAGE_BYTES; /* the queries of a block: 72 KiB */
  machine.consumer_warps = 8;
  return machine;
}

typedef struct sizes {
  uint32_t rows, blocks, slots, words;
} sizes;

static sizes sizes_of(const mk_mla_shape *shape, uint32_t sms) {
  sizes s = {.rows = mk_mla_block_rows(shape),
             .blocks = mk_mla_blocks(shape) * shape->max_sequences,
             .slots = SLOTS_PER_SM * sms < 8 ? 8 : SLOTS_PER_SM * sms};
  /* Room for every block, slot and reduction there may be, twice over, so that a schedule may be uneven. */
  uint32_t entries = 2 * mk_divide_up(s.blocks + 2 * s.slots + sms, sms) + 8;
  s.words = MK_MLA_LIST_HEAD + MK_MLA_ENTRY * entries;
  return s;
}

static mk_status declare(mk_program *program, const char *name, mk_buffer_kind kind, mk_dtype dtype, mk_store store,
                         uint32_t rows, uint32_t cols, uint32_t tile, uint16_t *index) {
  uint32_t copied = kind == MK_KIND_INPUT ? MK_PROXY_ASYNC : 0;
  return mk_add_vector(program, name,
                       (mk_vector){.kind = kind,
                                   .dtype = dtype,
                                   .store = store,
                                   .extra_proxy = copied,
                                   .rows = rows,
                                   .cols = cols,
                                   .tile = tile},
                       index);
}

/* The cache may have more pages than an operand has tiles: then a tile is several. */
static mk_status declare_cache(mk_program *program, uint32_t pages, uint16_t *index) {
  mk_buffer buffer = {.name = "kv",
                      .kind = MK_KIND_INPUT,
                      .dtype = MK_DTYPE_BF16,
                      .store = MK_STORE_PLAIN,
                      .scope = MK_SCOPE_GPU,
                      .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                      .rows = pages,
                      .cols = MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH,
                      .tile_rows = mk_divide_up(pages, MK_MAX_COORDINATE),
                      .tile_cols = MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH};
  return mk_program_add_buffer(program, &buffer, index);
}

static mk_status declare_all(mk_program *p, const mk_mla_shape *shape, mk_mla_geometry *g) {
  sizes s = sizes_of(shape, p->machine.sms);
  uint32_t query = s.rows * MK_MLA_WIDTH, part = s.rows * MK_MLA_PART_WIDTH;
  uint32_t sequence = MK_MLA_SEQUENCE_HEAD + shape->max_pages;
  MK_TRY(declare(p, "q", MK_KIND_INPUT, MK_DTYPE_BF16, MK_STORE_PLAIN, s.blocks, query, query, &g->q));
  MK_TRY(declare_cache(p, shape->pool_pages, &g->kv));
  MK_TRY(declare(p, "sequences", MK_KIND_INPUT, MK_DTYPE_U32, MK_STORE_PLAIN, shape->max_sequences, sequence, sequence,
                 &g->sequence_buffer));
  MK_TRY(declare(p, "work", MK_KIND_INPUT, MK_DTYPE_U32, MK_STORE_PLAIN, p->machine.sms, s.words, s.words, &g->work));
  MK_TRY(declare(p, "parts", MK_KIND_ACTIVATION, MK_DTYPE_U32, MK_STORE_STAMPED, s.slots, part, part, &g->parts));
  return declare(p, "out", MK_KIND_OUTPUT, MK_DTYPE_BF16, MK_STORE_PLAIN, s.blocks, s.rows * MK_MLA_LATENT, MK_MLA_UNIT,
                 &g->out);
}

static mk_status append(mk_program *p, uint32_t sm, mk_instruction in) {
  MK_TRY(mk_grow(&p->instructions, &p->instruction_capacity, p->instruction_count + 1, sizeof in));
  mk_queue *q = &p->queues[sm];
  q->first = q->count == 0 ? (uint32_t)p->instruction_count : q->first;
  q->count++;
  in.uid = (uint32_t)p->instruction_count + 1;
  in.pages = mk_instruction_pages(p, &in);
  in.resident = (uint16_t)(mk_instruction_resident(p, &in) / MK_RESIDENT_UNIT);
  p->instructions[p->instruction_count++] = in;
  return MK_OK;
}

static mk_status fill(mk_program *p, const mk_mla_shape *shape) {
  mk_mla_geometry g;
  p->ranges = (mk_step_ranges){.batch = {1, 1}}; /* one position: a run is one step */
  snprintf(p->model, sizeof p->model, "mla h%u q%u", shape->heads, shape->new_tokens);
  MK_TRY(declare_all(p, shape, &g));
  for (uint32_t sm = 0; sm < p->machine.sms; sm++) {
    mk_instruction part = MK_START(MLA_PART, MK_NO_LAYER), reduce = MK_START(MLA_REDUCE, MK_NO_LAYER);
    mk_operand row = mk_tiles(g.work, sm, 1, 0, 1);
    part.operands[MK_SLOT_MLA_PART_q] = mk_operand_whole(p, g.q);
    part.operands[MK_SLOT_MLA_PART_kv] = mk_operand_whole(p, g.kv);
    part.operands[MK_SLOT_MLA_PART_sequences] = mk_operand_whole(p, g.sequence_buffer);
    part.operands[MK_SLOT_MLA_PART_work] = reduce.operands[MK_SLOT_MLA_REDUCE_work] = row;
    part.operands[MK_SLOT_MLA_PART_parts] = reduce.operands[MK_SLOT_MLA_REDUCE_parts] = mk_operand_whole(p, g.parts);
    part.operands[MK_SLOT_MLA_PART_out] = reduce.operands[MK_SLOT_MLA_REDUCE_out] = mk_operand_whole(p, g.out);
    part.params[MK_PARAM_MLA_PART_scale] = mk_float_param(shape->scale);
    part.params[MK_PARAM_MLA_PART_tokens] = shape->new_tokens;
    MK_TRY(append(p, sm, part));
    MK_TRY(append(p, sm, reduce));
  }
  return MK_OK;
}

mk_status mk_mla_compile(const mk_mla_shape *shape, uint32_t sms, mk_program **out) {
  *out = NULL;
  MK_TRY(mk_mla_shape_check(shape));
  if (sms < 1 || sms > MK_MAX_SMS) {
    return mk_error(MK_ERR_USAGE, "sms is %u; it must be from 1 to %d", sms, MK_MAX_SMS);
  }
  mk_machine machine = mk_machine_mla(sms);
  mk_program *program;
  MK_TRY(mk_program_new(&machine, &program));
  mk_status status = fill(program, shape);
  if (status != MK_OK) {
    mk_program_free(program);
    return status;
  }
  *out = program;
  return MK_OK;
}
