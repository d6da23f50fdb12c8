/* Programs in memory and in files: layout, round trips, and every way a file can be malformed. */
#include "vm/program/program.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAD = 24, HEAD = 184, TABLES = LEAD + HEAD };

static uint16_t add(mk_program *program, mk_buffer buffer, const char *name) {
  uint16_t index = 0;
  snprintf(buffer.name, sizeof buffer.name, "%s", name);
  buffer.scope = MK_SCOPE_GPU;
  buffer.proxy = MK_PROXY_GENERIC;
  cr_assert_eq(mk_program_add_buffer(program, &buffer, &index), MK_OK, "%s", mk_error_message());
  return index;
}

/* Two SMs, four buffers of different stores, one counter, three instructions. */
static mk_program *small_program(void) {
  mk_machine machine = mk_machine_latency(2);
  mk_program *program;
  cr_assert_eq(mk_program_new(&machine, &program), MK_OK);
  program->ranges.position.high = 700;
  program->ranges.token.high = 299;
  program->ranges.block.high = 15;
  program->ranges.batch = (mk_range){1, 1};
  strcpy(program->model, "a small model");
  program->config_hash = 0x1234;
  add(program,
      (mk_buffer){.kind = MK_KIND_WEIGHT,
                  .dtype = MK_DTYPE_BF16,
                  .store = MK_STORE_TILES,
                  .rows = 100,
                  .cols = 600,
                  .tile_rows = 16,
                  .tile_cols = 16},
      "w");
  add(program,
      (mk_buffer){.kind = MK_KIND_ACTIVATION,
                  .dtype = MK_DTYPE_BF16,
                  .store = MK_STORE_STAMPED,
                  .rows = 1,
                  .cols = 600,
                  .tile_rows = 1,
                  .tile_cols = 16},
      "x");
  add(program,
      (mk_buffer){.kind = MK_KIND_ACTIVATION,
                  .dtype = MK_DTYPE_F32,
                  .store = MK_STORE_STAMPED,
                  .rows = 1,
                  .cols = 100,
                  .tile_rows = 1,
                  .tile_cols = 16},
      "y");
  add(program,
      (mk_buffer){.kind = MK_KIND_KV,
                  .dtype = MK_DTYPE_BF16,
                  .store = MK_STORE_BLOCKS,
                  .rows = 2,
                  .cols = 3,
                  .tile_rows = 1,
                  .tile_cols = 1,
                  .head_dim = 128,
                  .block_tokens = 64,
                  .span_tokens = 256,
                  .blocks = 16},
      "kv");
  uint16_t counter;
  cr_assert_eq(mk_program_add_counter(program, "done", MK_COUNTER_RELEASE, &counter), MK_OK);
  program->counters[counter].total = 2;
  cr_assert_eq(mk_alloc(3, sizeof(mk_instruction), &program->instructions), MK_OK);
  program->instruction_capacity = program->instruction_count = 3;
  for (uint32_t i = 0; i < 3; i++) {
    program->instructions[i] = (mk_instruction){.opcode = MK_OP_LINEAR_PART,
                                                .version = MK_INSTRUCTION_VERSION,
                                                .uid = i + 1,
                                                .layer = MK_NO_LAYER,
                                                .operands = {{.buffer = 1, .rows = 1, .cols = 38},
                                                             {.buffer = 0, .row = (uint16_t)i, .rows = 2, .cols = 38},
                                                             {.buffer = 2, .rows = 1, .cols = 2, .col = (uint16_t)i}}};
  }
  program->queues[0].count = 2;
  program->queues[1] = (mk_queue){.first = 2, .count = 1};
  return program;
}

static void small_file(unsigned char **bytes, size_t *length) {
  mk_program *program = small_program();
  void *data;
  cr_assert_eq(mk_program_serialize(program, &data, length), MK_OK);
  *bytes = data;
  mk_program_free(program);
}

static void seal(unsigned char *bytes, size_t length) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325), size = length;
  memcpy(bytes + 8, &size, 8);
  for (size_t i = LEAD; i < length; i++) {
    hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  }
  memcpy(bytes + 16, &hash, 8);
}

static void expect_refused(const unsigned char *bytes, size_t length, const char *words) {
  mk_program *program = (mk_program *)1;
  mk_status status = mk_program_parse(bytes, length, &program);
  cr_assert_eq(status, MK_ERR_FILE, "accepted where `%s` was expected", words);
  cr_assert_null(program);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

Test(program, machine_fits_shared_memory) {
  mk_machine machine = mk_machine_latency(132);
  cr_assert_eq(machine.sms, 132);
  cr_assert_eq(machine.resident_bytes, 232448 - 196608 - 3072);
  cr_assert_eq(machine.ring_pages * machine.page_bytes, 12 * 16384);
}

Test(program, opcode_table) {
  cr_assert_null(mk_opcode_lookup(MK_OP_NONE));
  cr_assert_null(mk_opcode_lookup(MK_OP_COUNT));
  for (uint32_t op = 1; op < MK_OP_COUNT; op++) {
    const mk_opcode_info *info = mk_opcode_lookup(op);
    cr_assert_not_null(info->name);
    cr_assert_not_null(info->semantics);
    for (uint32_t i = 0; i < MK_MAX_OPERANDS; i++) {
      cr_assert_eq(info->operands[i].name != NULL, i < info->operand_count, "%s operand %u", info->name, i);
    }
    for (uint32_t i = 0; i < MK_MAX_PARAMS; i++) {
      cr_assert_eq(info->params[i].name != NULL, i < info->param_count, "%s parameter %u", info->name, i);
    }
  }
  const mk_opcode_info *qkv = mk_opcode_lookup(MK_OP_QKV);
  cr_assert_str_eq(qkv->operands[MK_SLOT_QKV_weight].name, "weight");
  cr_assert_eq(qkv->operands[MK_SLOT_QKV_weight].role, MK_ROLE_LOADER);
  cr_assert_eq(qkv->operands[MK_SLOT_QKV_x].store, MK_OPERAND_STORE_INPUT);
  cr_assert(qkv->params[MK_PARAM_QKV_eps].is_float);
  cr_assert_not(qkv->params[MK_PARAM_QKV_width].is_float);
  cr_assert_eq(mk_opcode_lookup(MK_OP_NEXT)->state, MK_STATE_WRITE);
  cr_assert_eq(mk_opcode_lookup(MK_OP_NEXT)->param_count, 0);
  const mk_instruction glu = {.opcode = MK_OP_GLU, .params[MK_PARAM_GLU_gelu] = 3};
  cr_assert(mk_param_named(&glu, "gelu") == 3 && mk_param_named(&glu, "window") == 0);
}

/* Facts that stand in lines of their own fit the columns, and each other. */
Test(program, opcode_facts) {
  uint32_t advances = 0, fused = 0;
  for (uint32_t op = 1; op < MK_OP_COUNT; op++) {
    const mk_opcode_info *info = mk_opcode_lookup(op);
    bool listed = false, reads = false;
    for (uint32_t i = 0; i < info->operand_count; i++) {
      const mk_operand_info *o = &info->operands[i];
      bool written = false, read = false;
      for (uint32_t other = 1; other < MK_OP_COUNT; other++) {
        written |= mk_opcode_writes(mk_opcode_lookup(other), o->content) >= 0;
        read |= mk_opcode_reads(mk_opcode_lookup(other), o->content) >= 0;
      }
      bool constant = o->content == MK_CONTENT_GAIN || o->content == MK_CONTENT_TABLE || o->content == MK_CONTENT_WORK;
      cr_expect(read && written == !constant, "%s.%s: who writes or reads content %d?", info->name, o->name,
                o->content);
      cr_expect(!constant || o->when == MK_WHEN_EARLY, "%s.%s", info->name, o->name);
      listed |= o->when == MK_WHEN_LISTED;
      reads |= o->access == MK_ACCESS_READ && o->role == MK_ROLE_CONSUMER;
    }
    cr_expect_eq(listed, info->entries != MK_ENTRIES_NONE, "%s: listed operands, and entries of the list", info->name);
    cr_expect(!info->streams || reads || mk_opcode_finisher(info) == MK_ROLE_STORER, "%s streams what?", info->name);
    const bool adds = mk_opcode_slot(info, "residual_in") >= 0;
    const bool norms = info->sums == MK_SUMS_NORMED || info->sums == MK_SUMS_SCALED;
    const bool sums = mk_opcode_is_product(info) ? !adds : norms && adds;
    cr_expect_eq(info->sums != MK_SUMS_PLAIN, sums, "%s: what becomes of its sums?", info->name);
    advances += info->state == MK_STATE_WRITE;
    if (info->fusion != MK_FUSION_NONE) {
      const mk_operand_info *taken = &info->operands[info->fused_slot];
      const mk_operand_info *made = &mk_opcode_lookup(info->fused_into)->operands[info->fused_made];
      cr_expect(taken->access == MK_ACCESS_READ && made->access == MK_ACCESS_WRITE && taken->content == made->content &&
                    taken->store == made->store && taken->dtype == made->dtype,
                "%s takes %s, which is not what %s leaves in %s", info->name, taken->name,
                mk_opcode_lookup(info->fused_into)->name, made->name);
      fused++;
    }
  }
  cr_expect_eq(advances, 1);
  cr_expect_eq(fused, 2);
}

Test(program, buffer_layout) {
  mk_program *program = small_program();
  const mk_buffer *b = program->buffers;
  cr_assert_eq(b[0].bytes, 7 * 38 * 512);
  cr_assert_eq(b[0].offset, 0);
  cr_assert_eq(b[1].bytes, 600 / 2 * 8);
  cr_assert_eq(b[1].offset, 0);
  cr_assert_eq(b[2].bytes, 100 * 8);
  cr_assert_eq(b[2].offset, (2400 + 255) / 256 * 256);
  cr_assert_eq(b[3].bytes, 16 * 3 * 2 * 64 * 128 * 2);
  cr_assert_eq(program->weight_bytes, b[0].bytes);
  cr_assert_eq(program->work_bytes, b[3].offset + b[3].bytes);
  cr_assert_eq(mk_program_find_buffer(program, "kv"), 3);
  cr_assert_eq(mk_program_find_buffer(program, "none"), -1);
  mk_buffer odd = {
      .dtype = MK_DTYPE_BF16, .store = MK_STORE_STAMPED, .rows = 3, .cols = 5, .tile_rows = 1, .tile_cols = 1};
  cr_assert_eq(mk_buffer_bytes(&odd), 3 * 3 * 8);
  odd.store = MK_STORE_BLOCKS, odd.blocks = UINT32_MAX, odd.block_tokens = UINT32_MAX, odd.head_dim = 2;
  cr_assert_eq(mk_buffer_bytes(&odd), UINT64_MAX);
  odd.dtype = MK_DTYPE_F32;
  cr_assert_eq(mk_buffer_bytes(&odd), 0);
  mk_program_free(program);
}

static void expect_buffer_refused(mk_buffer buffer, const char *words) {
  mk_program *program = small_program();
  uint16_t index;
  if (buffer.name[0] == 0) {
    strcpy(buffer.name, "new");
  }
  size_t count = program->buffer_count;
  cr_assert_eq(mk_program_add_buffer(program, &buffer, &index), MK_ERR_FILE, "accepted where `%s` was expected", words);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  cr_assert_eq(program->buffer_count, count);
  mk_program_free(program);
}

Test(program, illegal_buffers) {
  const mk_buffer good = {.dtype = MK_DTYPE_F32, .proxy = 1, .rows = 4, .cols = 8, .tile_rows = 1, .tile_cols = 1};
  mk_buffer bad;
#define BAD(words, ...) (bad = good, __VA_ARGS__, expect_buffer_refused(bad, words))
  BAD("names are unique", memcpy(bad.name, "kv", 3));
  BAD("name must be", memcpy(bad.name, "a b", 4));
  BAD("name must be", memset(bad.name, 'a', sizeof bad.name));
  BAD("name must be", memcpy(bad.name, "a\0b", 4));
  BAD("kind is 9", bad.kind = 9);
  BAD("dtype is 9", bad.dtype = 9);
  BAD("store is 9", bad.store = 9);
  BAD("scope is 9", bad.scope = 9);
  BAD("rank is 1", bad.rank = 1);
  BAD("proxy is 0", bad.proxy = 0);
  BAD("proxy is 4", bad.proxy = 4);
  BAD("scale 1 of 0 columns, zeros 0 do not go with dtype", bad.scale = 1);
  BAD("zeros 1 do not go with dtype", bad.zeros = 1);
  BAD("no side may be 0", bad.rows = 0);
  BAD("no side may be 0", bad.tile_cols = 0);
  BAD("65536 x 8 tiles", bad.rows = 65536);
  BAD("4 x 70000 tiles", bad.cols = 70000);
  BAD("weight tiles are 16x16", bad.store = MK_STORE_TILES);
  BAD("cannot be stored", bad.store = MK_STORE_TILES, bad.tile_rows = bad.tile_cols = 16);
  BAD("tiles of 1x1", bad.store = MK_STORE_BLOCKS, bad.tile_cols = 2);
  BAD("whole blocks", bad.store = MK_STORE_BLOCKS, bad.blocks = 1, bad.head_dim = 64, bad.block_tokens = 64,
      bad.span_tokens = 96);
  BAD("multiples of 16", bad.store = MK_STORE_BLOCKS, bad.blocks = 1, bad.head_dim = 64, bad.block_tokens = 8,
      bad.span_tokens = 32);
  BAD("multiples of 16", bad.store = MK_STORE_BLOCKS, bad.blocks = 1, bad.head_dim = 24, bad.block_tokens = 16,
      bad.span_tokens = 32);
  BAD("must be 0 unless", bad.head_dim = 64);
  BAD("2^48", bad.rows = bad.cols = UINT32_MAX, bad.tile_rows = bad.tile_cols = 1 << 20);
}

Test(program, illegal_counters_and_machines) {
  mk_program *program = small_program();
  uint16_t index;
  cr_assert_eq(mk_program_add_counter(program, "done", MK_COUNTER_RELAXED, &index), MK_ERR_FILE);
  cr_assert_eq(mk_program_add_counter(program, "", MK_COUNTER_RELAXED, &index), MK_ERR_FILE);
  cr_assert_eq(mk_program_add_counter(program, "a b", MK_COUNTER_RELAXED, &index), MK_ERR_FILE);
  cr_assert_eq(mk_program_add_counter(program, "a", (mk_counter_kind)7, &index), MK_ERR_FILE);
  cr_assert_eq(
      mk_program_add_counter(program, "a23456789b123456789c123456789d123456789e12345678", MK_COUNTER_RELAXED, &index),
      MK_ERR_FILE);
  mk_program_free(program);
  mk_machine machine = mk_machine_latency(0);
  cr_assert_eq(mk_program_new(&machine, &program), MK_ERR_FILE);
  cr_assert_null(program);
  machine = mk_machine_latency(1);
  machine.page_bytes = 1000;
  machine.copy_bytes = 500;
  cr_assert_eq(mk_program_new(&machine, &program), MK_ERR_FILE);
}

Test(program, pages) {
  mk_program *program = small_program();
  mk_instruction linear = program->instructions[0];
  /* 2 row tiles of 38 steps of 512 bytes: two pages each. */
  cr_assert_eq(mk_instruction_pages(program, &linear), 4);
  linear.operands[1].cols = 32;
  cr_assert_eq(mk_instruction_pages(program, &linear), 2);
  linear.operands[1].buffer = 99;
  cr_assert_eq(mk_instruction_pages(program, &linear), 0);
  mk_instruction attention = {.opcode = MK_OP_ATTENTION};
  mk_operand *kv = &attention.operands[MK_SLOT_ATTENTION_kv];
  *kv = (mk_operand){.buffer = 3, .rows = 1, .cols = 1};
  /* Positions 0..700 are 11 blocks: spans of four, rows 0 and 1 in turn: 4 + 3 and 4. A block of head_dim 128 is two
   * pages. */
  cr_assert_eq(mk_instruction_pages(program, &attention), 14);
  kv->row = 1;
  cr_assert_eq(mk_instruction_pages(program, &attention), 8);
  kv->row = 0, kv->rows = 2;
  cr_assert_eq(mk_instruction_pages(program, &attention), 22);
  kv->rows = 1;
  for (uint32_t high = 0; high < 2000; high++) { /* against a count of the blocks */
    program->ranges.position.high = high;
    uint32_t blocks[2] = {0, 0};
    for (uint32_t block = 0; block <= high / 64; block++) {
      blocks[block / 4 % 2]++;
    }
    for (uint16_t row = 0; row < 2; row++) {
      kv->row = row;
      cr_assert_eq(mk_instruction_pages(program, &attention), blocks[row] * 2, "row %u, position %u", row, high);
    }
  }
  program->ranges.position.high = UINT32_MAX;
  cr_assert_eq(mk_instruction_pages(program, &attention), (1U << 26) / 2 * 2);
  mk_program_free(program);
}

Test(program, resident) {
  mk_program *program = small_program();
  mk_instruction linear = program->instructions[0];
  cr_assert_eq(mk_instruction_resident(program, &linear), 38 * 16 * 2);
  linear.operands[0].cols = 1;
  cr_assert_eq(mk_instruction_resident(program, &linear), 64);
  mk_instruction qkv = {.opcode = MK_OP_QKV};
  /* A token's row of a weight buffer: one row, whichever tiles may hold it. */
  qkv.operands[MK_SLOT_QKV_x] = (mk_operand){.flags = MK_OPERAND_TOKEN_ROW, .buffer = 0, .rows = 7, .cols = 38};
  cr_assert_eq(mk_instruction_resident(program, &qkv), 38 * 16 * 2);
  mk_instruction attention = {.opcode = MK_OP_ATTENTION};
  for (int i = 0; i < 3; i++) {
    attention.operands[i] = (mk_operand){.buffer = 2, .rows = 1, .cols = 4};
  }
  cr_assert_eq(mk_instruction_resident(program, &attention), 3 * 64 * 4);
  mk_instruction reduce = {.opcode = MK_OP_REDUCE_ADD, .operands = {{.buffer = 2, .rows = 1, .cols = 4}}};
  cr_assert_eq(mk_instruction_resident(program, &reduce), 0);
  mk_program_free(program);
}

Test(program, round_trip) {
  mk_program *program = small_program(), *again;
  void *first, *second;
  size_t length, length_again;
  cr_assert_eq(mk_program_serialize(program, &first, &length), MK_OK);
  cr_assert_eq(mk_program_parse(first, length, &again), MK_OK, "%s", mk_error_message());
  cr_assert_eq(memcmp(&again->machine, &program->machine, sizeof again->machine), 0);
  cr_assert_eq(memcmp(again->instructions, program->instructions, 3 * sizeof(mk_instruction)), 0);
  cr_assert_str_eq(again->model, "a small model");
  cr_assert_str_eq(again->counters[0].name, "done");
  cr_assert_eq(again->config_hash, 0x1234);
  cr_assert_eq(mk_program_serialize(again, &second, &length_again), MK_OK);
  cr_assert_eq(length, length_again);
  cr_assert_eq(memcmp(first, second, length), 0);
  mk_free(first);
  mk_free(second);
  mk_program_free(program);
  mk_program_free(again);
}

Test(program, every_truncation_is_refused) {
  unsigned char *bytes;
  size_t length;
  small_file(&bytes, &length);
  for (size_t n = 0; n < length; n++) {
    unsigned char *part = malloc(n + 1); /* exact size, so that a read past the end is seen */
    part = realloc(part, n == 0 ? 1 : n);
    memcpy(part, bytes, n);
    mk_program *program;
    cr_assert_eq(mk_program_parse(part, n, &program), MK_ERR_FILE, "%zu bytes", n);
    if (n >= TABLES) { /* the same with a header that admits the length */
      seal(part, n);
      cr_assert_eq(mk_program_parse(part, n, &program), MK_ERR_FILE, "%zu bytes, sealed", n);
    }
    free(part);
  }
  mk_free(bytes);
}

Test(program, every_bit_flip_is_refused) {
  unsigned char *bytes;
  size_t length;
  small_file(&bytes, &length);
  for (size_t bit = 0; bit < length * 8; bit++) {
    mk_program *program;
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    cr_assert_eq(mk_program_parse(bytes, length, &program), MK_ERR_FILE, "bit %zu", bit);
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
  mk_free(bytes);
}

/* With a right checksum a changed file is refused or is another well-formed program; either way nothing breaks, and
 * what is accepted comes back byte for byte. */
Test(program, mutations_under_the_checksum) {
  unsigned char *bytes;
  size_t length, accepted = 0, refused = 0;
  small_file(&bytes, &length);
  uint64_t random = 12345;
  for (int round = 0; round < 20000; round++) {
    unsigned char saved[8];
    size_t at[8];
    random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
    int changes = 1 + (int)(random >> 60) % 3;
    for (int i = 0; i < changes; i++) {
      random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
      at[i] = LEAD + (size_t)(random >> 33) % (length - LEAD);
      saved[i] = bytes[at[i]];
      bytes[at[i]] = (unsigned char)(random >> 20);
    }
    seal(bytes, length);
    mk_program *program;
    mk_status status = mk_program_parse(bytes, length, &program);
    cr_assert(status == MK_OK || status == MK_ERR_FILE);
    if (status == MK_OK) {
      void *again;
      size_t length_again;
      cr_assert_eq(mk_program_serialize(program, &again, &length_again), MK_OK);
      cr_assert(length_again == length && memcmp(again, bytes, length) == 0);
      for (size_t i = 0; i < program->instruction_count; i++) {
        mk_instruction_pages(program, &program->instructions[i]);
        mk_instruction_resident(program, &program->instructions[i]);
      }
      mk_free(again);
      accepted++;
    } else {
      refused++;
    }
    mk_program_free(program);
    while (changes-- > 0) {
      bytes[at[changes]] = saved[changes];
    }
  }
  cr_assert_gt(accepted, 100);
  cr_assert_gt(refused, 100);
  mk_free(bytes);
}

Test(program, random_bytes_are_refused) {
  unsigned char bytes[2000];
  uint64_t random = 99;
  for (int round = 0; round < 2000; round++) {
    for (size_t i = 0; i < sizeof bytes; i++) {
      random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
      bytes[i] = (unsigned char)(random >> 56);
    }
    size_t length = (size_t)(random >> 33) % sizeof bytes;
    if (round % 2 == 1 && length >= LEAD) {
      memcpy(bytes, "MKPF\2\0\0", 8);
      seal(bytes, length);
    }
    mk_program *program;
    cr_assert_eq(mk_program_parse(bytes, length, &program), MK_ERR_FILE);
  }
}

typedef struct malformation {
  const char *words; /* in the message */
  size_t at;
  uint32_t value;
  size_t bytes;
} malformation;

Test(program, malformations) {
  const size_t machine = LEAD, ranges = machine + 40, model = ranges + 40, counts = model + 72, buffers = TABLES;
  const size_t counter = buffers + 4 * 104, queues = counter + 56, instruction = queues + 2 * 12;
  const malformation list[] = {
      {"magic", 0, 'X', 1},
      {"version is 1; this build reads versions 3 and 4, so compile the program again", 4, 1, 4},
      {"version is 5", 4, 5, 4},
      {"sms is 0", machine, 0, 4},
      {"2 queues; 3 SMs", machine, 3, 4},
      {"page_bytes is 16385", machine + 4, 16385, 4},
      {"ring_pages is 0", machine + 8, 0, 4},
      {"copy_bytes is 16385", machine + 16, 16385, 4},
      {"ranks is 0", machine + 36, 0, 4},
      {"2 queues; 2 SMs on each of 2 ranks", machine + 36, 2, 4},
      {"position is 701 to 700", ranges, 701, 4},
      {"batch is 2 to 1", ranges + 24, 2, 4},
      {"slot is 1 to 0", ranges + 32, 1, 4},
      {"model is not printable", model, 7, 1},
      {"model is not printable", model + 63, 'a', 1},
      {"4294967295 buffers", counts, UINT32_MAX, 4},
      {"3 buffers", counts, 3, 4},
      {"2 counters", counts + 4, 2, 4},
      {"header: 3 queues", counts + 8, 3, 4},
      {"4294967295 instructions", counts + 12, UINT32_MAX, 4},
      {"67108864 instructions make", counts + 12, 1 << 26, 4},
      {"arenas", counts + 16, 1, 4},
      {"arenas", counts + 28, 1, 4},
      {"buffer 0: name", buffers, ' ', 1},
      {"buffer 1: name", buffers + 104 + 47, 'a', 1},
      {"buffer y: two of them", buffers + 104, 'y', 1},
      {"buffer w: kind is 5", buffers + 48, 5, 1},
      {"buffer w: scope is 3", buffers + 51, 3, 1},
      {"buffer w: scale 1 of 0 columns", buffers + 53, 1, 1},
      {"at offset 256", buffers + 88, 256, 4},
      {"buffer w: 1 bytes", buffers + 96, 1, 4},
      {"counter 0: name", counter, 0, 1},
      {"counter done: kind 2", counter + 48, 2, 1},
      {"counter done: kind 1, scope 3", counter + 49, 3, 1},
      {"rank 1", counter + 50, 1, 1},
      {"queue 0: first is 1", queues, 1, 4},
      {"queue 1: first is 2", queues + 4, 1, 4},
      {"queue 1: rank is 1", queues + 20, 1, 4},
      {"queues: they hold 4 instructions", queues + 16, 2, 4},
      {"queues: they hold 4294967297 instructions", queues + 16, UINT32_MAX, 4},
      {"instruction 0: version is 1; this build knows 3", instruction + 1, 1, 1},
      {"instruction 0: opcode is 0", instruction, 0, 1},
      {"instruction 1: opcode is 200", instruction + 128, 200, 1},
      {"instruction 0: 5 waits", instruction + 2, 5, 1},
      {"instruction 0: 0 waits, 3 signals", instruction + 2, 0x30, 1},
      {"flags 0x2", instruction + 3, 2, 1},
      {"instruction 0: bytes 76 and 77 of linear_part are 0x0001; nothing is there", instruction + 76, 1, 1},
      {"instruction 2: bytes 126 and 127 of linear_part are 0x8000", instruction + 2 * 128 + 127, 0x80, 1},
  };
  unsigned char *bytes;
  size_t length;
  small_file(&bytes, &length);
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    unsigned char *copy = malloc(length);
    memcpy(copy, bytes, length);
    memcpy(copy + list[i].at, &list[i].value, list[i].bytes);
    seal(copy, length);
    expect_refused(copy, length, list[i].words);
    free(copy);
  }
  bytes[LEAD + 5] ^= 1;
  expect_refused(bytes, length, "checksum");
  mk_free(bytes);
}

static void path_in(char *path, size_t size, const char *directory, const char *name) {
  snprintf(path, size, "%s/%s", directory, name);
}

Test(program, files) {
  char directory[] = "/tmp/mk-program-XXXXXX", path[128];
  cr_assert_not_null(mkdtemp(directory));
  mk_program *program = small_program(), *again;

  path_in(path, sizeof path, directory, "a.mkp");
  cr_assert_eq(mk_program_save(program, path), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_save(program, path), MK_OK, "over an older file: %s", mk_error_message());
  cr_assert_eq(mk_program_load(path, &again), MK_OK, "%s", mk_error_message());
  cr_assert_eq(again->instruction_count, 3);
  mk_program_free(again);
  cr_assert_eq(truncate(path, 300), 0);
  cr_assert_eq(mk_program_load(path, &again), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), path), "%s", mk_error_message());
  cr_assert_eq(truncate(path, 0), 0);
  cr_assert_eq(mk_program_load(path, &again), MK_ERR_FILE);
  cr_assert_eq(truncate(path, INT64_C(1) << 40), 0); /* sparse: refused without memory for it */
  mk_alloc_fail_at(0, false);
  cr_assert_eq(mk_program_load(path, &again), MK_ERR_FILE);
  cr_assert_eq(mk_alloc_calls(), 0);
  unlink(path);
  cr_assert_eq(mk_program_load(path, &again), MK_ERR_FILE);
  cr_assert_eq(mk_program_load(directory, &again), MK_ERR_FILE);
  cr_assert_eq(mk_program_save(program, directory), MK_ERR_RUNTIME);
  cr_assert_eq(mk_program_save(program, "/dev/full"), MK_ERR_RUNTIME);
  cr_assert_eq(mkfifo(path, 0600), 0);
  cr_assert_eq(mk_program_load(path, &again), MK_ERR_FILE);
  cr_assert_eq(mk_program_save(program, path), MK_ERR_RUNTIME);
  unlink(path);
  path_in(path, sizeof path, directory, "no/such/folder.mkp");
  cr_assert_eq(mk_program_save(program, path), MK_ERR_RUNTIME);
  cr_assert_eq(rmdir(directory), 0, "a temporary file was left");
  mk_program_free(program);
}

Test(program, allocation_failures_unwind) {
  unsigned char *bytes;
  size_t length;
  small_file(&bytes, &length);
  for (uint64_t n = 1;; n++) {
    mk_program *program;
    mk_alloc_fail_at(n, false);
    mk_status status = mk_program_parse(bytes, length, &program);
    uint64_t calls = mk_alloc_calls();
    mk_alloc_fail_at(0, false);
    if (calls < n) {
      cr_assert_eq(status, MK_OK);
      cr_assert_gt(n, 5);
      mk_program_free(program);
      break;
    }
    cr_assert_eq(status, MK_ERR_RUNTIME);
    cr_assert_null(program);
  }
  mk_program *program = small_program();
  char path[] = "/tmp/mk-program-oom-XXXXXX";
  close(mkstemp(path));
  for (uint64_t n = 1; n <= 2; n++) {
    mk_alloc_fail_at(n, true);
    cr_assert_eq(mk_program_save(program, path), MK_ERR_RUNTIME);
  }
  mk_alloc_fail_at(0, false);
  unlink(path);
  mk_program_free(program);
  mk_free(bytes);
}
