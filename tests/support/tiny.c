/* See tiny.h. */
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/numbers.h"

static uint16_t add(test_tiny *tiny, const char *name, mk_buffer buffer) {
  uint16_t index;
  snprintf(buffer.name, sizeof buffer.name, "%s", name);
  buffer.scope = MK_SCOPE_GPU;
  buffer.proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC;
  cr_assert_eq(mk_program_add_buffer(tiny->program, &buffer, &index), MK_OK, "%s", mk_error_message());
  return index;
}

static uint16_t vector(test_tiny *tiny, const char *name, mk_buffer_kind kind, mk_dtype dtype, mk_store store,
                       uint32_t rows, uint32_t cols, uint32_t tile) {
  return add(tiny, name,
             (mk_buffer){.kind = (uint8_t)kind,
                         .dtype = (uint8_t)dtype,
                         .store = (uint8_t)store,
                         .rows = rows,
                         .cols = cols,
                         .tile_rows = 1,
                         .tile_cols = tile});
}

static uint16_t weight(test_tiny *tiny, const char *name, uint32_t rows) {
  return add(tiny, name,
             (mk_buffer){.kind = MK_KIND_WEIGHT,
                         .dtype = MK_DTYPE_BF16,
                         .store = MK_STORE_TILES,
                         .rows = rows,
                         .cols = 16,
                         .tile_rows = MK_TILE,
                         .tile_cols = MK_TILE});
}

void test_tiny_start(test_tiny *tiny, uint32_t sms) {
  mk_machine machine = mk_machine_latency(sms);
  cr_assert_eq(mk_program_new(&machine, &tiny->program), MK_OK);
  tiny->program->ranges = (mk_step_ranges){.position = {0, TINY_CONTEXT - 1},
                                           .token = {0, TINY_VOCAB - 1},
                                           .block = {0, TINY_CONTEXT / TINY_BLOCK - 1},
                                           .batch = {1, 1}};
  tiny->embedding = weight(tiny, "embedding", TINY_VOCAB);
  tiny->square = weight(tiny, "square", 16);
  tiny->wide = weight(tiny, "wide", 48);
  tiny->gain = vector(tiny, "gain", MK_KIND_WEIGHT, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, 16, 16);
  tiny->frequencies = vector(tiny, "frequencies", MK_KIND_WEIGHT, MK_DTYPE_F32, MK_STORE_PLAIN, 1, 16, 16);
  tiny->plan = vector(tiny, "plan", MK_KIND_INPUT, MK_DTYPE_U32, MK_STORE_PLAIN, 1, TINY_CONTEXT * MK_ROW_WORDS, 16);
  tiny->table =
      vector(tiny, "block_table", MK_KIND_INPUT, MK_DTYPE_U32, MK_STORE_PLAIN, 1, TINY_CONTEXT / TINY_BLOCK, 16);
  tiny->ring = vector(tiny, "token_ring", MK_KIND_OUTPUT, MK_DTYPE_U32, MK_STORE_PLAIN, 1, TINY_CONTEXT, 16);
  tiny->logits = vector(tiny, "logits", MK_KIND_OUTPUT, MK_DTYPE_F32, MK_STORE_PLAIN, 1, TINY_VOCAB, 16);
  tiny->candidates = vector(tiny, "candidates", MK_KIND_ACTIVATION, MK_DTYPE_U32, MK_STORE_STAMPED, sms, 2, 2);
}

void test_tiny_stop(test_tiny *tiny) { mk_program_free(tiny->program); }

uint16_t test_tiny_floats(test_tiny *tiny, const char *name, uint32_t cols, uint32_t tile) {
  return vector(tiny, name, MK_KIND_ACTIVATION, MK_DTYPE_F32, MK_STORE_STAMPED, 1, cols, tile);
}

uint16_t test_tiny_halves(test_tiny *tiny, const char *name) {
  return vector(tiny, name, MK_KIND_ACTIVATION, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, 16, 16);
}

uint16_t test_tiny_plain(test_tiny *tiny, const char *name) {
  return vector(tiny, name, MK_KIND_ACTIVATION, MK_DTYPE_F32, MK_STORE_PLAIN, 1, 16, 16);
}

uint16_t test_tiny_cache(test_tiny *tiny, const char *name) {
  return add(tiny, name,
             (mk_buffer){.kind = MK_KIND_KV,
                         .dtype = MK_DTYPE_BF16,
                         .store = MK_STORE_BLOCKS,
                         .rows = 1,
                         .cols = 1,
                         .tile_rows = 1,
                         .tile_cols = 1,
                         .head_dim = 16,
                         .block_tokens = TINY_BLOCK,
                         .span_tokens = TINY_SPAN,
                         .blocks = TINY_CONTEXT / TINY_BLOCK});
}

uint16_t test_tiny_counter(test_tiny *tiny, const char *name, mk_counter_kind kind) {
  uint16_t index;
  cr_assert_eq(mk_program_add_counter(tiny->program, name, kind, &index), MK_OK, "%s", mk_error_message());
  return index;
}

static mk_instruction *append(test_tiny *tiny, uint32_t sm, mk_opcode opcode) {
  mk_program *p = tiny->program;
  cr_assert_eq(mk_grow(&p->instructions, &p->instruction_capacity, p->instruction_count + 1, sizeof(mk_instruction)),
               MK_OK);
  if (p->queues[sm].count == 0) {
    p->queues[sm].first = (uint32_t)p->instruction_count;
  }
  cr_assert_eq(p->queues[sm].first + p->queues[sm].count, p->instruction_count, "instructions are added SM by SM");
  p->queues[sm].count++;
  mk_instruction *in = &p->instructions[p->instruction_count++];
  *in = (mk_instruction){.opcode = (uint8_t)opcode,
                         .version = MK_INSTRUCTION_VERSION,
                         .uid = 100 + (uint32_t)p->instruction_count,
                         .pages = 1};
  return in;
}

static mk_operand whole(const test_tiny *tiny, uint16_t buffer) { return mk_operand_whole(tiny->program, buffer); }

static mk_operand token_row(const test_tiny *tiny) {
  mk_operand operand = whole(tiny, tiny->embedding);
  operand.flags = MK_OPERAND_TOKEN_ROW;
  return operand;
}

static mk_instruction *qkv(test_tiny *tiny, uint32_t sm, uint16_t rows, uint16_t out, uint32_t rope_tiles) {
  mk_instruction *in = append(tiny, sm, MK_OP_QKV);
  in->operands[MK_SLOT_QKV_x] = token_row(tiny);
  in->operands[MK_SLOT_QKV_gain] = whole(tiny, tiny->gain);
  in->operands[MK_SLOT_QKV_weight] = whole(tiny, rows);
  in->operands[MK_SLOT_QKV_inv_freq] = whole(tiny, tiny->frequencies);
  in->operands[MK_SLOT_QKV_out] = whole(tiny, out);
  in->params[MK_PARAM_QKV_eps] = mk_float_param(1);
  in->params[MK_PARAM_QKV_width] = 16;
  in->params[MK_PARAM_QKV_rope_tiles] = rope_tiles;
  in->params[MK_PARAM_QKV_head_dim] = 16;
  return in;
}

mk_instruction *test_tiny_qkv(test_tiny *tiny, uint32_t sm, uint16_t out) {
  return qkv(tiny, sm, tiny->square, out, 0);
}

mk_instruction *test_tiny_qkv_heads(test_tiny *tiny, uint32_t sm, uint16_t out) {
  return qkv(tiny, sm, tiny->wide, out, 2);
}

mk_instruction *test_tiny_reduce(test_tiny *tiny, uint32_t sm, uint16_t parts, uint16_t residual_in,
                                 uint16_t residual_out, uint16_t out) {
  mk_instruction *in = append(tiny, sm, MK_OP_REDUCE_ADD);
  in->operands[MK_SLOT_REDUCE_ADD_parts] = whole(tiny, parts);
  in->operands[MK_SLOT_REDUCE_ADD_residual_in] =
      residual_in == MK_NONE_BUFFER ? token_row(tiny) : whole(tiny, residual_in);
  in->operands[MK_SLOT_REDUCE_ADD_residual_out] = whole(tiny, residual_out);
  in->operands[MK_SLOT_REDUCE_ADD_out] = whole(tiny, out);
  return in;
}

mk_instruction *test_tiny_part(test_tiny *tiny, uint32_t sm, uint16_t x, uint16_t out) {
  mk_instruction *in = append(tiny, sm, MK_OP_LINEAR_PART);
  in->operands[MK_SLOT_LINEAR_PART_x] = whole(tiny, x);
  in->operands[MK_SLOT_LINEAR_PART_weight] = whole(tiny, tiny->square);
  in->operands[MK_SLOT_LINEAR_PART_out] = whole(tiny, out);
  return in;
}

mk_instruction *test_tiny_attention(test_tiny *tiny, uint32_t sm, uint16_t qkv_out, uint16_t cache, uint16_t parts) {
  mk_instruction *in = append(tiny, sm, MK_OP_ATTENTION);
  for (uint16_t i = 0; i < 3; i++) {
    in->operands[MK_SLOT_ATTENTION_q + i] = (mk_operand){.buffer = qkv_out, .rows = 1, .col = i, .cols = 1};
  }
  in->operands[MK_SLOT_ATTENTION_kv] = whole(tiny, cache);
  in->operands[MK_SLOT_ATTENTION_table] = whole(tiny, tiny->table);
  in->operands[MK_SLOT_ATTENTION_out] = whole(tiny, parts);
  in->params[MK_PARAM_ATTENTION_scale] = mk_float_param(0.25f);
  in->params[MK_PARAM_ATTENTION_splits] = 1;
  in->params[MK_PARAM_ATTENTION_group] = 1;
  return in;
}

mk_instruction *test_tiny_combine(test_tiny *tiny, uint32_t sm, uint16_t parts, uint16_t out) {
  mk_instruction *in = append(tiny, sm, MK_OP_COMBINE);
  in->operands[MK_SLOT_COMBINE_parts] = whole(tiny, parts);
  in->operands[MK_SLOT_COMBINE_out] = whole(tiny, out);
  in->params[MK_PARAM_COMBINE_span] = TINY_SPAN;
  in->params[MK_PARAM_COMBINE_spans] = 1;
  return in;
}

void test_tiny_boundary(test_tiny *tiny, uint32_t sm, uint16_t x, uint32_t sms) {
  mk_instruction *in = append(tiny, sm, MK_OP_HEAD);
  in->operands[MK_SLOT_HEAD_x] = whole(tiny, x);
  in->operands[MK_SLOT_HEAD_gain] = whole(tiny, tiny->gain);
  in->operands[MK_SLOT_HEAD_weight] =
      (mk_operand){.buffer = tiny->embedding, .row = (uint16_t)sm, .rows = 1, .cols = 1};
  in->operands[MK_SLOT_HEAD_logits] = (mk_operand){.buffer = tiny->logits, .rows = 1, .col = (uint16_t)sm, .cols = 1};
  in->operands[MK_SLOT_HEAD_candidate] =
      (mk_operand){.buffer = tiny->candidates, .row = (uint16_t)sm, .rows = 1, .cols = 1};
  in->params[MK_PARAM_HEAD_eps] = mk_float_param(1);
  in->params[MK_PARAM_HEAD_width] = 16;
  in->params[MK_PARAM_HEAD_vocab] = TINY_VOCAB;
  in = append(tiny, sm, MK_OP_NEXT);
  in->operands[MK_SLOT_NEXT_candidates] = (mk_operand){.buffer = tiny->candidates, .rows = (uint16_t)sms, .cols = 1};
  in->operands[MK_SLOT_NEXT_plan] = whole(tiny, tiny->plan);
  in->operands[MK_SLOT_NEXT_ring] = sm == 0 ? whole(tiny, tiny->ring) : (mk_operand){.buffer = tiny->ring};
}

void test_tiny_loop(test_tiny *tiny, uint32_t sms) {
  test_tiny_start(tiny, 2);
  uint16_t q0 = test_tiny_floats(tiny, "q0", 16, 16), q1 = test_tiny_floats(tiny, "q1", 16, 16);
  uint16_t t1 = test_tiny_floats(tiny, "t1", 16, 16), residual = test_tiny_plain(tiny, "residual");
  uint16_t s0 = test_tiny_halves(tiny, "s0"), s2 = test_tiny_halves(tiny, "s2");
  test_tiny_qkv(tiny, 0, q0);
  test_tiny_reduce(tiny, 0, q0, MK_NONE_BUFFER, residual, s0);
  test_tiny_reduce(tiny, 0, q1, residual, residual, s2);
  test_tiny_boundary(tiny, 0, s2, sms);
  test_tiny_qkv(tiny, 1, q1);
  test_tiny_part(tiny, 1, s0, t1);
  test_tiny_boundary(tiny, 1, s2, 2);
}

void test_tiny_wait(mk_instruction *in, uint16_t counter, uint32_t threshold) {
  cr_assert_lt(in->wait_count, MK_MAX_WAITS);
  in->waits[in->wait_count++] = (mk_wait){.counter = counter, .threshold = (uint16_t)threshold};
}

void test_tiny_signal(test_tiny *tiny, mk_instruction *in, uint16_t counter) {
  cr_assert_lt(in->signal_count, MK_MAX_SIGNALS);
  in->signals[in->signal_count++] = (mk_signal){.counter = counter, .amount = 1};
  tiny->program->counters[counter].total++;
}

mk_instruction test_any_instruction(const mk_program *program, uint32_t opcode, uint64_t *seed) {
  const mk_opcode_info *info = mk_opcode_lookup(opcode);
  uint32_t words[sizeof(mk_instruction) / 4];
  for (size_t w = 0; w < sizeof words / 4; w++) {
    words[w] = test_random_below(seed, 3) == 0 ? test_random_below(seed, 3) : (uint32_t)test_random(seed);
  }
  mk_instruction in;
  memcpy(&in, words, sizeof in);
  in.opcode = (uint8_t)opcode;
  in.version = MK_INSTRUCTION_VERSION;
  in.flags = (uint8_t)test_random_below(seed, MK_FUSED + 1);
  in.wait_count = (uint8_t)(test_random_below(seed, MK_MAX_WAITS + 1) & 15);
  in.signal_count = (uint8_t)(test_random_below(seed, MK_MAX_SIGNALS + 1) & 15);
  for (uint32_t i = 0; i < MK_MAX_OPERANDS; i++) {
    bool whole = i < info->operand_count && info->operands[i].extent == MK_EXTENT_WHOLE;
    if (i >= info->operand_count || (whole && test_random_below(seed, 4) == 0)) {
      in.operands[i] = (mk_operand){0};
    } else if (whole) {
      in.operands[i] = mk_operand_whole(program, (uint16_t)test_random_below(seed, (uint32_t)program->buffer_count));
    }
  }
  for (uint32_t i = info->param_count; i < MK_MAX_PARAMS; i++) {
    in.params[i] = 0;
  }
  return in;
}

test_sequence test_tiny_sequence(void) {
  static const uint32_t prompt[] = {1, 2, 3};
  return (test_sequence){.token = prompt[0], .prompt = prompt, .prompt_length = 3};
}

mk_cpu *test_tiny_machine(const test_tiny *tiny, const mk_cpu_options *options) {
  mk_cpu *cpu;
  uint64_t seed = 11;
  mk_cpu_options unchecked = *options;
  unchecked.unchecked_plans = true;
  cr_assert_eq(mk_cpu_new(tiny->program, &unchecked, &cpu), MK_OK, "%s", mk_error_message());
  for (size_t b = 0; b < tiny->program->buffer_count; b++) {
    const mk_buffer *buffer = &tiny->program->buffers[b];
    uint16_t *elements = mk_cpu_memory(cpu, b);
    for (size_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes / 2; i++) {
      float value = 2 * test_random_float(&seed); /* an fp32 buffer gets these in its halves: finite numbers too */
      elements[i] = (uint16_t)(mk_float_param(value) >> 16);
    }
  }
  test_shuffle(&seed, mk_cpu_memory(cpu, tiny->table), TINY_CONTEXT / TINY_BLOCK);
  return cpu;
}

mk_status test_tiny_run(const test_tiny *tiny, const mk_cpu_options *options, uint64_t epochs) {
  mk_cpu *cpu = test_tiny_machine(tiny, options);
  test_sequence sequence = test_tiny_sequence();
  mk_status status = test_sequence_run(&sequence, cpu, (uint32_t)epochs, NULL, NULL);
  mk_cpu_free(cpu);
  return status;
}
