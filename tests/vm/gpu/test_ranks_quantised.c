/* Quantised weights and a KV cache in fp8 of several ranks, over a driver without a GPU (tests/fake_cuda): where a
 * kernel would look for strips and blocks, by its word and its table of buffers, each rank has what one GPU has there,
 * and nothing lies on two of them. The same of weights by the tensor maps of wide steps, of one rank, too. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"
#include "vm/gpu/machine_internal.h"
#include "vm/gpu/upload.h"
#include "vm/program/strips.h"

FAKE_GPU_IMAGE

enum { ROOM = 1000 }; /* of an upload: pieces end within strips */

static const struct {
  const char *name;
  mk_codes codes;
  uint32_t group;
  mk_tensor_dtype scale;
  bool zeros;
} forms[] = {
    {"fp8", MK_CODES_E4M3, 0, MK_TENSOR_BF16, false},
    {"fp8, groups of 64", MK_CODES_E4M3, 64, MK_TENSOR_F16, false},
    {"int8", MK_CODES_INT8, 0, MK_TENSOR_F32, false},
    {"int4", MK_CODES_INT4, 128, MK_TENSOR_BF16, false},
    {"int4 with zeros", MK_CODES_INT4, 128, MK_TENSOR_F16, true},
    {"int4 with zeros, groups of 32", MK_CODES_INT4, 32, MK_TENSOR_F32, true},
};

typedef struct rig {
  char name[96];
  mk_program *program, *program_of_one;
  mk_gpu *gpu, *one;
  bool wide;
} rig;

/* Wide steps have a cache of bf16 here; those of SHARED rows are of several sequences. */
enum { SHARED = 64 };
static mk_program *compile(const mk_config *config, uint32_t ranks, uint32_t rows) {
  mk_graph *graph;
  mk_program *program;
  const bool wide = rows > MK_MAX_ROWS;
  const mk_compile_options options = {.sms = rows == SHARED ? 8 : 4, /* enough for units of two row tiles */
                                      .ranks = ranks,
                                      .max_seq = 256,
                                      .rows = rows,
                                      .slots = rows == SHARED ? rows : wide,
                                      .kv = wide ? MK_DTYPE_BF16 : MK_DTYPE_E4M3};
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

/* Byte `at` of a buffer, wherever it lies. */
static uint8_t byte_of(size_t buffer, uint64_t at) { return (uint8_t)(at * 7 + at / 251 + at / 65003 + buffer * 13); }

static void upload_all(mk_gpu *gpu, const mk_program *program) {
  mk_gpu_upload *upload;
  cr_assert_eq(mk_gpu_upload_new(gpu, ROOM, &upload), MK_OK, "%s", mk_error_message());
  for (size_t b = 0; b < program->buffer_count; b++) {
    const uint64_t bytes = program->buffers[b].kind == MK_KIND_WEIGHT ? program->buffers[b].bytes : 0;
    for (uint64_t at = 0, count; at < bytes; at += count) {
      void *memory;
      count = bytes - at < ROOM ? bytes - at : ROOM;
      cr_assert_eq(mk_gpu_upload_begin(upload, &memory), MK_OK, "%s", mk_error_message());
      for (uint64_t i = 0; i < count; i++) {
        ((uint8_t *)memory)[i] = byte_of(b, at + i);
      }
      cr_assert_eq(mk_gpu_upload_bytes(upload, b, at, (size_t)count), MK_OK, "%s", mk_error_message());
    }
  }
  cr_assert_eq(mk_gpu_upload_end(upload), MK_OK, "%s", mk_error_message());
  mk_gpu_upload_free(upload);
}

static void write_caches(mk_gpu *gpu, const mk_program *program) {
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->kind == MK_KIND_KV) {
      uint8_t *bytes;
      cr_assert_eq(mk_alloc(buffer->bytes, 1, &bytes), MK_OK);
      for (uint64_t i = 0; i < buffer->bytes; i++) {
        bytes[i] = byte_of(b, i);
      }
      cr_assert_eq(mk_gpu_write(gpu, b, 0, bytes, buffer->bytes), MK_OK, "%s", mk_error_message());
      mk_free(bytes);
    }
  }
}

/* A descriptor as the kernel finds it. */
static mk_gpu_buffer descriptor(const mk_gpu *gpu, uint32_t number) {
  mk_gpu_buffer b;
  memcpy(&b, (const uint8_t *)gpu->params.buffers + number * sizeof b, sizeof b);
  return b;
}

static const uint8_t *address(uint64_t at) { return (const uint8_t *)(uintptr_t)at; }

/* The row tiles of an operand, as kernels read them (vm/gpu/strips.cuh). */
static void expect_strips(const rig *r, const mk_operand *o, const mk_gpu_buffer *own, const mk_gpu_buffer *of_one) {
  const bool plain = own->dtype == MK_DTYPE_BF16;
  const uint64_t unit = plain ? 512 : own->strip_bytes;
  const uint32_t steps = plain ? 1 : MK_STRIP_STEPS;
  const uint64_t pitch = (own->grid_cols + steps - 1) / steps * unit, bytes = (o->cols + steps - 1) / steps * unit;
  const size_t after_address = offsetof(mk_gpu_buffer, rows), end = offsetof(mk_gpu_buffer, scale) + sizeof own->scale;
  cr_assert_eq(memcmp(&own->rows, &of_one->rows, end - after_address), 0, "%s: only the address differs", r->name);
  for (uint32_t row = o->row; row < (uint32_t)o->row + o->rows; row++) {
    const uint64_t at = row * pitch + o->col / steps * unit;
    cr_assert_eq((own->address + at) % 16, 0, "%s: a bulk copy begins there", r->name);
    cr_assert_eq(memcmp(address(own->address + at), address(of_one->address + at), bytes), 0, "%s: row tile %u",
                 r->name, row);
  }
}

static fake_map map_of(const mk_gpu *gpu, uint32_t number) {
  fake_map map;
  const mk_gpu_peers *peers = gpu->params.peers;
  const uint8_t *maps = gpu->ranks > 1 ? address(peers->maps) : (const uint8_t *)gpu->params.maps;
  memcpy(&map, maps + number * sizeof(mk_gpu_tensor_map), sizeof map);
  return map;
}

/* The same strips as the loader for wide steps copies them: of four row tiles at a time, those of the operand and
 * others, or of two, where no operand has more (vm/gpu/wide_copies.cuh). */
static void expect_copies(const rig *r, const mk_gpu *gpu, const mk_operand *o, const mk_gpu_buffer *own,
                          const mk_gpu_buffer *of_one) {
  const fake_map map = map_of(gpu, o->buffer);
  const uint64_t piece = map.box[0] * UINT64_C(8), pieces = mk_wide_gpu_pieces(of_one->dtype);
  const bool plain = of_one->dtype == MK_DTYPE_BF16;
  const uint64_t pitch =
      plain ? of_one->grid_cols * piece : (of_one->grid_cols + MK_STRIP_STEPS - 1) / MK_STRIP_STEPS * pieces * piece;
  cr_assert(map.type == MK_CU_TENSOR_U64 && map.rank == 3 && map.box[1] == pieces, "%s", r->name);
  cr_assert(map.box[2] == own->box_tiles && (own->box_tiles == 4 || o->rows <= own->box_tiles), "%s", r->name);
  cr_assert_eq(piece * pieces, of_one->strip_bytes, "%s", r->name);
  cr_assert_leq(4 * of_one->strip_bytes, MK_GPU_PAGE_BYTES, "%s", r->name);
  for (uint32_t row = o->row; row < (uint32_t)o->row + o->rows; row++) {
    cr_assert_lt(row, map.sizes[2], "%s: row tile %u", r->name, row);
    for (uint32_t step = 0; step < o->cols; step += MK_STRIP_STEPS) {
      const uint64_t first = (o->col + step) * pieces / MK_STRIP_STEPS;
      for (uint64_t i = first; i < first + pieces && i < map.sizes[1]; i++) {
        cr_assert_eq(memcmp((const uint8_t *)map.address + row * map.strides[1] + i * map.strides[0],
                            address(of_one->address + row * pitch + i * piece), piece),
                     0, "%s: row tile %u, piece %u", r->name, row, (uint32_t)i);
      }
    }
  }
}

/* The blocks of an operand's KV head, as kernels find them. */
static void expect_blocks(const rig *r, const mk_operand *o, const mk_gpu_buffer *own, const mk_gpu_buffer *of_one) {
  const uint64_t pair = (uint64_t)2 * MK_GPU_BLOCK_TOKENS * (own->head_dim + 2u);
  cr_assert_eq(own->dtype, MK_DTYPE_E4M3);
  cr_assert_eq(own->blocks, of_one->blocks);
  for (uint64_t block = 0; block < own->blocks; block++) {
    const uint64_t at = own->address + (block * own->cols + o->col) * pair;
    cr_assert_eq(at % 16, 0, "%s: a bulk copy begins there", r->name);
    cr_assert_eq(memcmp(address(at), address(of_one->address + (block * of_one->cols + o->col) * pair), pair), 0,
                 "%s: block %llu of head %u", r->name, (unsigned long long)block, o->col);
  }
}

/* What an instruction of a rank names. seen: of weights in codes, and of caches, one more each. */
static uint32_t halves; /* operands that are copied by two row tiles */
static void expect_instruction(const rig *r, const mk_gpu *gpu, size_t index, uint32_t seen[2]) {
  const mk_instruction *in = &r->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  mk_instruction_word word;
  memcpy(&word, (const uint8_t *)gpu->params.instructions + index * sizeof word, sizeof word);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const mk_buffer *b = &r->program->buffers[o->buffer];
    const bool tiles = info->operands[slot].store == MK_OPERAND_STORE_TILES;
    if (o->rows == 0 || info->operands[slot].extent != MK_EXTENT_PART ||
        (!tiles && (r->wide || b->kind != MK_KIND_KV))) {
      continue;
    }
    const mk_operand *part = &word.parts[info->operands[slot].place];
    const mk_gpu_buffer own = descriptor(gpu, part->buffer),
                        of_one = descriptor(r->one, (uint32_t)mk_program_find_buffer(r->program_of_one, b->name));
    cr_assert(part->row == o->row && part->col == o->col, "%s: tiles keep their numbers", r->name);
    if (!tiles) {
      expect_blocks(r, part, &own, &of_one);
    } else if (r->wide) {
      expect_copies(r, gpu, part, &own, &of_one);
      halves += own.box_tiles == 2;
    } else {
      expect_strips(r, part, &own, &of_one);
    }
    seen[tiles ? 0 : 1] += mk_dtype_is_quantised(b->dtype);
  }
}

/* Each byte of a quantised weight and of a cache is one rank's; with more ranks than KV heads a head has several. */
static void expect_shares(const rig *r) {
  for (size_t b = 0; b < r->program->buffer_count; b++) {
    const mk_buffer *buffer = &r->program->buffers[b];
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < r->gpu->ranks; rank++) {
      bytes += mk_gpu_share_bytes(r->gpu->of_rank[rank], b);
    }
    if (mk_dtype_is_quantised(buffer->dtype)) {
      const bool shared = buffer->kind == MK_KIND_KV && r->gpu->ranks > buffer->cols;
      cr_assert(shared ? bytes >= buffer->bytes : bytes == buffer->bytes, "%s: of %s there are %llu bytes of %llu",
                r->name, buffer->name, (unsigned long long)bytes, (unsigned long long)buffer->bytes);
    }
  }
}

static void expect_bytes_of_one(size_t form, uint32_t ranks, uint32_t rows) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_config config;
  rig r = {.wide = rows > MK_MAX_ROWS};
  snprintf(r.name, sizeof r.name, "%s, %u ranks, %u rows", forms[form].name, ranks, rows);
  cuda->devices = 3; /* a driver is asked for their number once */
  kernel.ranks = ranks;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.layers = 2;
  config.intermediate = 1040; /* whose last strip is not whole, and parts of K */
  if (r.wide && ranks > 1) {  /* units of eight row tiles */
    config.head_dim = 128;
    config.intermediate = 1024;
  }
  mk_synth_quantise(&config, forms[form].codes, forms[form].group, forms[form].scale, forms[form].zeros);
  r.program = compile(&config, ranks, rows);
  r.program_of_one = compile(&config, 1, rows);
  cr_assert_eq(mk_gpu_new(r.program, &(mk_gpu_options){0}, &r.gpu), MK_OK, "%s: %s", r.name, mk_error_message());
  cr_assert_eq(mk_gpu_new(r.program_of_one, &(mk_gpu_options){0}, &r.one), MK_OK, "%s: %s", r.name, mk_error_message());
  for (size_t b = 0; b < r.program->buffer_count; b++) { /* byte_of goes by numbers */
    const mk_buffer *buffer = &r.program->buffers[b];
    cr_assert(!mk_gpu_is_dealt(r.gpu, b) || buffer->kind == MK_KIND_OUTPUT ||
              mk_program_find_buffer(r.program_of_one, buffer->name) == (int)b);
  }
  upload_all(r.gpu, r.program);
  upload_all(r.one, r.program_of_one);
  write_caches(r.gpu, r.program);
  write_caches(r.one, r.program_of_one);
  if (ranks > 1) {
    expect_shares(&r);
  }
  for (size_t q = 0; q < r.program->queue_count; q++) {
    const mk_queue *queue = &r.program->queues[q];
    const mk_gpu *gpu = ranks > 1 ? r.gpu->of_rank[mk_queue_rank(r.program, q)] : r.gpu;
    uint32_t seen[2] = {0};
    for (size_t i = queue->first; i < (size_t)queue->first + queue->count; i++) {
      expect_instruction(&r, gpu, i, seen);
    }
    cr_assert_neq(seen[0], 0, "%s: queue %zu reads no codes", r.name, q);
    cr_assert(r.wide || q % r.program->machine.sms != 0 || seen[1] != 0, "%s: a rank has no KV head", r.name);
  }
  mk_gpu_free(r.one);
  mk_gpu_free(r.gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(r.program_of_one);
  mk_program_free(r.program);
}

Test(gpu_ranks_quantised, have_the_bytes_of_one_gpu) {
  for (size_t form = 0; form < sizeof forms / sizeof forms[0]; form++) {
    expect_bytes_of_one(form, 2, 1);
    expect_bytes_of_one(form, 2, 16);
    expect_bytes_of_one(form, 1, 128);
    cr_assert_eq(halves, 0, "of one sequence");
    expect_bytes_of_one(form, 1, SHARED);
    cr_assert_neq(halves, 0);
    halves = 0;
    expect_bytes_of_one(form, 2, 128);
    expect_bytes_of_one(form, 3, 4); /* more ranks than KV heads: rows of q, k and v lie by ranges of the shape */
  }
}
