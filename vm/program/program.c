/* Building a program, the sizes of its buffers, and what an instruction takes from the machine. See program.h. */
#include "vm/program/program.h"

#include <string.h>

#include "vm/program/program_internal.h"
#include "vm/program/strips.h"

enum { ARENA_ALIGNMENT = 256 };

mk_machine mk_machine_latency(uint32_t sms) {
  /* 227 KiB of shared memory per block, of which 3 KiB hold the barriers and the instruction ring. */
  enum { SHARED_BYTES = 227 * 1024, RESERVED_BYTES = 3 * 1024, PAGE_BYTES = 16384, RING_PAGES = 12 };
  return (mk_machine){
      .sms = sms,
      .page_bytes = PAGE_BYTES,
      .ring_pages = RING_PAGES,
      .resident_bytes = SHARED_BYTES - RESERVED_BYTES - RING_PAGES * PAGE_BYTES,
      .copy_bytes = 4096,
      .consumer_warps = 16,
      .loader_warps = 1,
      .instruction_ring = 8,
      .result_slots = 2,
      .ranks = 1,
  };
}

mk_machine mk_machine_prompt(uint32_t sms) {
  mk_machine machine = mk_machine_latency(sms);
  machine.ring_pages = 8;
  machine.consumer_warps = 8;
  return machine;
}

mk_machine mk_machine_wide(uint32_t sms) {
  mk_machine machine = mk_machine_latency(sms);
  machine.consumer_warps = 8;
  return machine;
}

mk_status mk_machine_check(const mk_machine *machine) {
  const struct {
    const char *name;
    uint32_t value, most;
  } fields[] = {
      {"sms", machine->sms, MK_MAX_COORDINATE},
      {"page_bytes", machine->page_bytes, 1U << 24},
      {"ring_pages", machine->ring_pages, MK_MAX_COORDINATE},
      {"resident_bytes", machine->resident_bytes, 1U << 30},
      {"copy_bytes", machine->copy_bytes, machine->page_bytes},
      {"consumer_warps", machine->consumer_warps, 64},
      {"loader_warps", machine->loader_warps, 64},
      {"instruction_ring", machine->instruction_ring, MK_MAX_COORDINATE},
      {"result_slots", machine->result_slots, MK_MAX_COORDINATE},
      {"ranks", machine->ranks, MK_MAX_RANKS},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value < 1 || fields[i].value > fields[i].most) {
      return mk_error(MK_ERR_FILE, "machine: %s is %u; it must be from 1 to %u", fields[i].name, fields[i].value,
                      fields[i].most);
    }
  }
  if (machine->page_bytes % MK_STEP_BYTES != 0) {
    return mk_error(MK_ERR_FILE, "machine: page_bytes is %u; it must be a multiple of %d, one step of a weight tile",
                    machine->page_bytes, MK_STEP_BYTES);
  }
  return MK_OK;
}

mk_status mk_program_new(const mk_machine *machine, mk_program **out) {
  *out = NULL;
  MK_TRY(mk_machine_check(machine));
  mk_program *program;
  MK_TRY(mk_alloc(1, sizeof *program, &program));
  program->machine = *machine;
  size_t queues = (size_t)machine->sms * machine->ranks;
  mk_status status = mk_alloc(queues, sizeof *program->queues, &program->queues);
  if (status != MK_OK) {
    mk_program_free(program);
    return status;
  }
  program->queue_count = queues;
  for (size_t q = 0; q < queues; q++) {
    program->queues[q].rank = (uint32_t)(q / machine->sms);
  }
  *out = program;
  return MK_OK;
}

void mk_program_free(mk_program *program) {
  if (program == NULL) {
    return;
  }
  mk_free(program->buffers);
  mk_free(program->counters);
  mk_free(program->queues);
  mk_free(program->instructions);
  mk_free(program);
}

/* Names appear bare in the text form, so they hold nothing that its grammar uses. */
static bool name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || c == '/' || c == ':';
}

bool mk_name_valid(const char *name, size_t size) {
  const char *end = memchr(name, 0, size);
  if (end == NULL || end == name) {
    return false;
  }
  for (const char *c = name; c < end; c++) {
    if (!name_character(*c)) {
      return false;
    }
  }
  for (const char *c = end; c < name + size; c++) {
    if (*c != 0) {
      return false;
    }
  }
  return true;
}

static uint32_t tiles(uint32_t elements, uint32_t tile) {
  return tile == 0 ? 0 : elements / tile + (elements % tile != 0);
}

uint32_t mk_buffer_grid_rows(const mk_buffer *buffer) { return tiles(buffer->rows, buffer->tile_rows); }
uint32_t mk_buffer_grid_cols(const mk_buffer *buffer) { return tiles(buffer->cols, buffer->tile_cols); }

/* Product of count factors; UINT64_MAX when it does not fit. */
static uint64_t product(const uint64_t *factors, size_t count) {
  uint64_t result = 1;
  for (size_t i = 0; i < count; i++) {
    if (__builtin_mul_overflow(result, factors[i], &result)) {
      return UINT64_MAX;
    }
  }
  return result;
}
#define PRODUCT(...) \
  product((const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Whether what a buffer says of scales is what its dtype and store ask for. */
static bool scales_fit(const mk_buffer *b) {
  if (!mk_dtype_is_quantised(b->dtype)) {
    return b->scale == MK_SCALE_NONE && b->scale_cols == 0 && b->zeros == 0;
  }
  if (b->store == MK_STORE_BLOCKS) {
    return b->scale == MK_SCALE_BF16 && b->scale_cols == b->head_dim && b->zeros == 0;
  }
  return b->scale > MK_SCALE_NONE && b->scale < MK_SCALE_COUNT &&
         (b->scale_cols == 32 || b->scale_cols == 64 || b->scale_cols == 128) &&
         b->zeros <= (b->dtype == MK_DTYPE_I4 ? 1 : 0);
}

/* Strips that tile columns [col, col + cols) are in. */
static uint64_t count_strips(uint32_t col, uint32_t cols) {
  const uint64_t end = (uint64_t)col + cols;
  return cols == 0 ? 0 : (end + MK_STRIP_STEPS - 1) / MK_STRIP_STEPS - col / MK_STRIP_STEPS;
}

uint64_t mk_tiles_bytes(const mk_buffer *buffer, uint32_t rows, uint32_t col, uint32_t cols) {
  return mk_dtype_is_quantised(buffer->dtype) ? PRODUCT(rows, count_strips(col, cols), mk_strip_bytes(buffer))
                                              : PRODUCT(rows, cols, MK_STEP_BYTES);
}

/* What may be quantised: weights in tiles, and a KV cache, as e4m3. */
static bool may_be_quantised(const mk_buffer *b) {
  return b->store == MK_STORE_TILES ? b->kind == MK_KIND_WEIGHT
                                    : b->store == MK_STORE_BLOCKS && b->dtype == MK_DTYPE_E4M3;
}

uint64_t mk_buffer_bytes(const mk_buffer *buffer) {
  const bool quantised = mk_dtype_is_quantised(buffer->dtype);
  if (buffer->dtype >= MK_DTYPE_COUNT || !scales_fit(buffer) || (quantised && !may_be_quantised(buffer))) {
    return 0;
  }
  bool bf16 = buffer->dtype == MK_DTYPE_BF16;
  switch (buffer->store) {
    case MK_STORE_PLAIN:
      return PRODUCT(buffer->rows, buffer->cols, bf16 ? 2 : 4);
    case MK_STORE_STAMPED:
      return PRODUCT(buffer->rows, bf16 ? ((uint64_t)buffer->cols + 1) / 2 : buffer->cols, 8);
    case MK_STORE_TILES:
      return bf16 || quantised ? mk_tiles_bytes(buffer, mk_buffer_grid_rows(buffer), 0, mk_buffer_grid_cols(buffer))
                               : 0;
    case MK_STORE_BLOCKS:
      return bf16 || quantised ? PRODUCT(buffer->blocks, buffer->cols, mk_pair_bytes(buffer)) : 0;
    default:
      return 0;
  }
}

static mk_status check_shape(const mk_buffer *buffer) {
  if (buffer->rows == 0 || buffer->cols == 0 || buffer->tile_rows == 0 || buffer->tile_cols == 0) {
    return mk_error(MK_ERR_FILE, "shape is %ux%u in tiles of %ux%u; no side may be 0", buffer->rows, buffer->cols,
                    buffer->tile_rows, buffer->tile_cols);
  }
  if (buffer->store == MK_STORE_TILES && (buffer->tile_rows != MK_TILE || buffer->tile_cols != MK_TILE)) {
    return mk_error(MK_ERR_FILE, "tile is %ux%u; weight tiles are %dx%d", buffer->tile_rows, buffer->tile_cols, MK_TILE,
                    MK_TILE);
  }
  if (buffer->store == MK_STORE_BLOCKS) {
    if (buffer->tile_rows != 1 || buffer->tile_cols != 1) {
      return mk_error(MK_ERR_FILE, "tile is %ux%u; a KV cache has tiles of 1x1 (one split, one head)",
                      buffer->tile_rows, buffer->tile_cols);
    }
    if (buffer->head_dim == 0 || buffer->block_tokens == 0 || buffer->blocks == 0 || buffer->span_tokens == 0 ||
        buffer->span_tokens % buffer->block_tokens != 0 || buffer->head_dim % MK_TILE != 0 ||
        buffer->block_tokens % mk_block_unit(buffer) != 0) {
      return mk_error(MK_ERR_FILE,
                      "head_dim %u, block_tokens %u, span_tokens %u, blocks %u: none may be 0, a span is whole blocks, "
                      "head_dim and block_tokens are multiples of %d, and block_tokens of %s ones of %u",
                      buffer->head_dim, buffer->block_tokens, buffer->span_tokens, buffer->blocks, MK_TILE,
                      mk_dtype_name(buffer->dtype), mk_block_unit(buffer));
    }
  } else if (buffer->head_dim != 0 || buffer->block_tokens != 0 || buffer->span_tokens != 0 || buffer->blocks != 0) {
    return mk_error(MK_ERR_FILE,
                    "head_dim %u, block_tokens %u, span_tokens %u, blocks %u: all must be 0 unless the store is blocks",
                    buffer->head_dim, buffer->block_tokens, buffer->span_tokens, buffer->blocks);
  }
  uint32_t grid_rows = mk_buffer_grid_rows(buffer), grid_cols = mk_buffer_grid_cols(buffer);
  if (grid_rows > MK_MAX_COORDINATE || grid_cols > MK_MAX_COORDINATE) {
    return mk_error(MK_ERR_FILE, "%u x %u tiles; an operand addresses at most %d a side, so use larger tiles",
                    grid_rows, grid_cols, MK_MAX_COORDINATE);
  }
  return MK_OK;
}

static mk_status check_attributes(const mk_program *program, const mk_buffer *buffer) {
  const struct {
    const char *name;
    uint32_t value, count;
  } fields[] = {{"kind", buffer->kind, MK_KIND_COUNT},
                {"dtype", buffer->dtype, MK_DTYPE_COUNT},
                {"store", buffer->store, MK_STORE_COUNT},
                {"scope", buffer->scope, MK_SCOPE_COUNT},
                {"rank", mk_rank_name(buffer->rank) != NULL ? 0U : buffer->rank, program->machine.ranks}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value >= fields[i].count) {
      return mk_error(MK_ERR_FILE, "%s is %u; it must be below %u", fields[i].name, fields[i].value, fields[i].count);
    }
  }
  if (buffer->proxy == 0 || (buffer->proxy & ~(MK_PROXY_GENERIC | MK_PROXY_ASYNC)) != 0) {
    return mk_error(MK_ERR_FILE, "proxy is %u; it must be generic (1), async (2) or both (3)", buffer->proxy);
  }
  return scales_fit(buffer)
             ? MK_OK
             : mk_error(MK_ERR_FILE,
                        "scale %u of %u columns, zeros %u do not go with dtype %s; i8, i4 and e4m3 have scales of 32, "
                        "64 or 128 columns, i4 may have zeros, a KV cache of e4m3 has bf16 scales of head_dim columns, "
                        "and nothing else has any",
                        buffer->scale, buffer->scale_cols, buffer->zeros, mk_dtype_name(buffer->dtype));
}

static mk_status check_buffer(const mk_program *program, const mk_buffer *buffer) {
  MK_TRY(check_attributes(program, buffer));
  MK_TRY(check_shape(buffer));
  uint64_t bytes = mk_buffer_bytes(buffer);
  if (bytes == 0) {
    return mk_dtype_is_quantised(buffer->dtype)
               ? mk_error(MK_ERR_FILE,
                          "dtype %s in a buffer of kind %s, stored as %s; it is of weights in tiles alone, and e4m3 of "
                          "KV caches in blocks",
                          mk_dtype_name(buffer->dtype), mk_kind_name(buffer->kind), mk_store_name(buffer->store))
               : mk_error(MK_ERR_FILE, "dtype %s cannot be stored as %s; %s holds bf16%s alone",
                          mk_dtype_name(buffer->dtype), mk_store_name(buffer->store), mk_store_name(buffer->store),
                          buffer->store == MK_STORE_TILES ? " and quantised weights" : "");
  }
  if (bytes > MK_MAX_ARENA) {
    return mk_error(MK_ERR_FILE, "shape %ux%u takes more than 2^48 bytes", buffer->rows, buffer->cols);
  }
  return MK_OK;
}

mk_status mk_program_append_buffer(mk_program *program, const mk_buffer *buffer, uint16_t *index) {
  if (!mk_name_valid(buffer->name, sizeof buffer->name)) {
    return mk_error(MK_ERR_FILE, "buffer %zu: name must be 1 to 47 of the characters A-Z a-z 0-9 _ . - / :, then zeros",
                    program->buffer_count);
  }
  if (program->buffer_count >= MK_MAX_COORDINATE) {
    return mk_error(MK_ERR_FILE, "buffer %s: a program has at most %d buffers", buffer->name, MK_MAX_COORDINATE);
  }
  mk_status status = check_buffer(program, buffer);
  if (status != MK_OK) {
    return mk_error_prefix(status, "buffer %s", buffer->name);
  }
  uint64_t *arena = buffer->kind == MK_KIND_WEIGHT ? &program->weight_bytes : &program->work_bytes;
  uint64_t bytes = mk_buffer_bytes(buffer);
  uint64_t offset = (*arena + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
  if (offset + bytes > MK_MAX_ARENA) {
    return mk_error(MK_ERR_FILE, "buffer %s: with %llu bytes its arena grows beyond 2^48 bytes", buffer->name,
                    (unsigned long long)bytes);
  }
  MK_TRY(mk_grow(&program->buffers, &program->buffer_capacity, program->buffer_count + 1, sizeof *program->buffers));
  mk_buffer *added = &program->buffers[program->buffer_count];
  *added = *buffer;
  added->offset = offset;
  added->bytes = bytes;
  *arena = offset + bytes;
  *index = (uint16_t)program->buffer_count++;
  return MK_OK;
}

mk_status mk_program_add_buffer(mk_program *program, const mk_buffer *buffer, uint16_t *index) {
  if (mk_name_valid(buffer->name, sizeof buffer->name) && mk_program_find_buffer(program, buffer->name) >= 0) {
    return mk_error(MK_ERR_FILE, "buffer %s: the program has a buffer of that name; names are unique", buffer->name);
  }
  return mk_program_append_buffer(program, buffer, index);
}

int mk_program_find_buffer(const mk_program *program, const char *name) {
  for (size_t i = 0; i < program->buffer_count; i++) {
    if (strcmp(program->buffers[i].name, name) == 0) {
      return (int)i;
    }
  }
  return -1;
}

int mk_program_find_shared(const mk_program *program, const mk_buffer *b) {
  int index = mk_program_find_buffer(program, b->name);
  if (index < 0) {
    return -1;
  }
  const mk_buffer *other = &program->buffers[index];
  bool same = other->kind == b->kind && other->store == b->store && other->dtype == b->dtype &&
              other->scale == b->scale && other->scale_cols == b->scale_cols && other->zeros == b->zeros &&
              other->head_dim == b->head_dim && other->block_tokens == b->block_tokens &&
              (b->kind == MK_KIND_KV ? other->cols == b->cols && other->blocks >= b->blocks
                                     : other->rows == b->rows && other->cols == b->cols);
  return same ? index : -1;
}

int mk_program_find_operand(const mk_program *program, uint32_t opcode, uint32_t slot) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (in->opcode == opcode && in->operands[slot].rows != 0 && in->operands[slot].cols != 0) {
      return in->operands[slot].buffer;
    }
  }
  return -1;
}

mk_status mk_program_add_counter(mk_program *program, const char *name, mk_counter_kind kind, uint16_t *index) {
  const bool alone = program->machine.ranks == 1;
  mk_counter counter = {
      .kind = (uint8_t)kind, .scope = alone ? MK_SCOPE_GPU : MK_SCOPE_SYS, .rank = alone ? 0 : MK_RANK_EACH};
  size_t length = strlen(name);
  if (length >= sizeof counter.name) {
    return mk_error(MK_ERR_FILE, "counter %s: a name has at most %zu characters", name, sizeof counter.name - 1);
  }
  memcpy(counter.name, name, length);
  if (!mk_name_valid(counter.name, sizeof counter.name)) {
    return mk_error(MK_ERR_FILE, "counter %zu: name must be 1 to 47 of the characters A-Z a-z 0-9 _ . - / :",
                    program->counter_count);
  }
  if (kind < 0 || kind >= MK_COUNTER_KIND_COUNT) {
    return mk_error(MK_ERR_FILE, "counter %s: kind is %d; it must be relaxed (0) or release (1)", name, (int)kind);
  }
  for (size_t i = 0; i < program->counter_count; i++) {
    if (strcmp(program->counters[i].name, name) == 0) {
      return mk_error(MK_ERR_FILE, "counter %s: the program has a counter of that name; names are unique", name);
    }
  }
  if (program->counter_count >= MK_MAX_COORDINATE) {
    return mk_error(MK_ERR_FILE, "counter %s: a program has at most %d counters", name, MK_MAX_COORDINATE);
  }
  MK_TRY(mk_grow(&program->counters, &program->counter_capacity, program->counter_count + 1, sizeof counter));
  program->counters[program->counter_count] = counter;
  *index = (uint16_t)program->counter_count++;
  return MK_OK;
}

/* The operand's buffer, or NULL: an instruction that is not verified yet may name anything. */
static const mk_buffer *operand_buffer(const mk_program *program, const mk_operand *operand) {
  bool empty = operand->rows == 0 || operand->cols == 0;
  return !empty && operand->buffer < program->buffer_count ? &program->buffers[operand->buffer] : NULL;
}

static uint32_t saturate(uint64_t value) { return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value; }

/* How many blocks the spans of KV row `row` have when tokens 0 to `high` exist. */
static uint64_t kv_blocks(const mk_buffer *kv, uint32_t row, uint32_t high) {
  uint64_t tokens = (uint64_t)high + 1, rows = mk_buffer_grid_rows(kv);
  uint64_t last = (tokens - 1) / kv->span_tokens;
  if (row >= rows || last < row) {
    return 0;
  }
  uint64_t spans = (last - row) / rows + 1;
  uint64_t blocks = spans * (kv->span_tokens / kv->block_tokens);
  if (last % rows == row) {
    uint64_t used = tokens - last * kv->span_tokens;
    blocks -= (kv->span_tokens - used) / kv->block_tokens;
  }
  return blocks;
}

static uint64_t operand_pages(const mk_program *program, const mk_operand_info *info, const mk_operand *operand) {
  const mk_buffer *buffer = operand_buffer(program, operand);
  uint64_t page = program->machine.page_bytes;
  if (buffer == NULL) {
    return 0;
  }
  if (info->role == MK_ROLE_LOADER && info->store == MK_OPERAND_STORE_TILES) {
    if (mk_dtype_is_quantised(buffer->dtype) && scales_fit(buffer)) { /* a page has whole strips */
      const uint64_t most = page / mk_strip_bytes(buffer), strips = count_strips(operand->col, operand->cols);
      return most == 0 ? UINT32_MAX : operand->rows * ((strips + most - 1) / most);
    }
    return operand->rows * ((operand->cols * (uint64_t)MK_STEP_BYTES + page - 1) / page);
  }
  bool loads = info->access == MK_ACCESS_UPDATE || info->role == MK_ROLE_LOADER;
  if (!loads || buffer->store != MK_STORE_BLOCKS) {
    return 0;
  }
  uint64_t block_bytes = mk_pair_bytes(buffer);
  if (block_bytes > UINT32_MAX) {
    return UINT32_MAX;
  }
  uint64_t pages = 0;
  uint32_t slots = mk_program_slots(program);
  for (uint32_t i = 0; i < operand->rows * slots && pages <= UINT32_MAX; i++) {
    uint32_t row = operand->row + i / slots, slot = i % slots;
    if (slots > 1 && row < buffer->rows) { /* the split of this slot that the row stands for */
      row = (row + buffer->rows - slot % buffer->rows) % buffer->rows;
    }
    uint64_t blocks = kv_blocks(buffer, row, program->ranges.position.high);
    uint64_t more = PRODUCT(blocks, (block_bytes + page - 1) / page, operand->cols);
    pages = more > UINT32_MAX ? UINT32_MAX : pages + more;
  }
  return pages;
}

uint32_t mk_instruction_pages(const mk_program *program, const mk_instruction *instruction) {
  const mk_opcode_info *info = mk_opcode_lookup(instruction->opcode);
  uint64_t pages = 0;
  for (uint32_t i = 0; info != NULL && i < info->operand_count; i++) {
    pages += operand_pages(program, &info->operands[i], &instruction->operands[i]);
  }
  return saturate(pages);
}

uint32_t mk_instruction_resident(const mk_program *program, const mk_instruction *instruction) {
  const mk_opcode_info *info = mk_opcode_lookup(instruction->opcode);
  uint64_t bytes = 0;
  if (mk_program_rows(program) >
      1) { /* activations of several rows do not fit: they are taken as the weights pass by */
    return 0;
  }
  for (uint32_t i = 0; info != NULL && !info->streams && i < info->operand_count; i++) {
    const mk_operand_info *slot = &info->operands[i];
    const mk_operand *operand = &instruction->operands[i];
    const mk_buffer *buffer = operand_buffer(program, operand);
    bool staged = slot->access == MK_ACCESS_READ && slot->role == MK_ROLE_CONSUMER &&
                  (slot->store == MK_OPERAND_STORE_INPUT || slot->store == MK_OPERAND_STORE_STAMPED ||
                   slot->store == MK_OPERAND_STORE_VALUE);
    if (buffer == NULL || !staged) {
      continue;
    }
    /* Of the tiles that may hold the token's row, one element row is staged. */
    bool token_row = (operand->flags & MK_OPERAND_TOKEN_ROW) != 0;
    uint64_t more = PRODUCT(token_row ? 1 : operand->rows, token_row ? 1 : buffer->tile_rows, operand->cols,
                            buffer->tile_cols, slot->dtype == MK_DTYPE_BF16 ? 2 : 4);
    bytes = more > UINT32_MAX || bytes > UINT32_MAX ? UINT64_C(1) << 32 : bytes + more;
  }
  uint64_t rounded = (bytes + MK_RESIDENT_UNIT - 1) / MK_RESIDENT_UNIT * MK_RESIDENT_UNIT;
  return rounded > UINT32_MAX ? UINT32_MAX - UINT32_MAX % MK_RESIDENT_UNIT : (uint32_t)rounded;
}

/* Relaxed counters are hints, which a machine need not heed. */
static bool uses_release(const mk_program *program, const mk_instruction *in) {
  for (uint32_t i = 0; i < (uint32_t)in->wait_count + in->signal_count; i++) {
    uint32_t counter = i < in->wait_count ? in->waits[i].counter : in->signals[i - in->wait_count].counter;
    if (program->counters[counter].kind == MK_COUNTER_RELEASE) {
      return true;
    }
  }
  return false;
}

uint32_t mk_instruction_lines(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const uint32_t rows = mk_program_rows(program), tile = mk_line_tile(rows);
  for (uint32_t slot = 0; tile != rows && slot < info->operand_count; slot++) {
    const mk_operand *operand = &in->operands[slot];
    const mk_buffer *buffer = &program->buffers[operand->buffer];
    if (operand->rows == 1 && buffer->tile_rows == tile && buffer->rows == rows) {
      return operand->row;
    }
  }
  return MK_ALL_LINES;
}

uint32_t mk_row_tile_lines(const mk_program *program, uint32_t lines, const mk_buffer *buffer, uint32_t row) {
  const uint32_t rows = mk_program_rows(program), tile = mk_line_tile(rows);
  if (tile == rows || buffer->tile_rows != tile) {
    return MK_ALL_LINES;
  }
  return lines != MK_ALL_LINES ? lines : row % (rows / tile);
}

/* COMBINEs make one buffer of another one (rule R05), and whoever has all that a line uses of it can do that line, on
 * any SM; but counters are waited for and signalled at the COMBINE's own turn, so none may order anything. A SCORE is
 * done where what it takes was left, by the instruction before it. No machine fuses in programs for prompts. */
bool mk_fuses(const mk_program *program, const mk_instruction *before, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  switch (info->fusion) {
    case MK_FUSION_ALONE:
      return !mk_program_is_for_prompts(program) && !uses_release(program, in);
    case MK_FUSION_ALWAYS:
      return before != NULL && before->opcode == info->fused_into &&
             memcmp(&in->operands[info->fused_slot], &before->operands[info->fused_made], sizeof(mk_operand)) == 0;
    default:
      return false;
  }
}
