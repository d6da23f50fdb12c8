/* See prompts.h. */
#include "tests/support/prompts.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "vm/program/strips.h"

mk_program *test_prompt_program(const mk_config *config, uint32_t sms, uint32_t context, uint32_t rows) {
  mk_config copy = *config;
  mk_graph *graph;
  mk_program *program;
  mk_config_set_context(&copy, context);
  cr_assert_eq(mk_llama_graph(&copy, &graph), MK_OK, "%s", mk_error_message());
  const mk_compile_options options = {.sms = sms, .max_seq = context, .rows = rows, .slots = 1};
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

/* Random strips for weight number b, which have scales of bf16: codes that are numbers in each form, and zeros. */
static void fill_strips(const mk_buffer *buffer, size_t b, uint8_t *memory) {
  const uint32_t bytes = mk_strip_bytes(buffer), zeros = mk_strip_codes(buffer) + mk_strip_scales(buffer);
  const uint16_t unit = (uint16_t)(mk_float_param(buffer->dtype == MK_DTYPE_I4 ? 0x1p-6f : 0x1p-10f) >> 16);
  cr_assert_eq(buffer->scale, MK_SCALE_BF16);
  for (uint64_t strip = 0; strip * bytes < buffer->bytes; strip++) {
    uint8_t *to = memory + strip * bytes;
    for (uint32_t i = 0; i < bytes; i++) { /* 0x7f and 0xff of e4m3 are no numbers */
      to[i] = (uint8_t)(((strip * bytes + i) * 2654435761u + b * 40503u) >> 13 & (i < zeros ? 0xf7 : 0x0f));
    }
    for (uint32_t i = mk_strip_codes(buffer); i < zeros; i += 2) {
      const uint16_t scale = (uint16_t)(unit + (strip * 31 + i * 3) % 128);
      memcpy(to + i, &scale, sizeof scale);
    }
  }
}

/* Random numbers for weight number b: matrices about 0, gains about 1, frequencies from 0 to 1. */
static void fill_weight(const mk_buffer *buffer, size_t b, uint8_t *memory) {
  const bool wide = buffer->dtype == MK_DTYPE_F32;
  for (uint64_t i = 0; i < buffer->bytes / (wide ? 4 : 2); i++) {
    const float value = (float)((i * 2654435761u + b * 40503u) % 1021) / 510.0f - 1;
    if (wide) {
      ((float *)(void *)memory)[i] = fabsf(value);
    } else if (buffer->rows == 1) {
      ((uint16_t *)(void *)memory)[i] = (uint16_t)(mk_float_param(1 + value / 4) >> 16);
    } else {
      ((uint16_t *)(void *)memory)[i] = (uint16_t)(mk_float_param(value / 8) >> 16);
    }
  }
}

static mk_plan_buffers buffers_of(const mk_program *program) {
  mk_plan_buffers buffers;
  cr_assert_eq(mk_plan_find(program, &buffers), MK_OK, "%s", mk_error_message());
  return buffers;
}

mk_cpu *test_prompt_machine(const mk_program *program, const mk_cpu_options *options) {
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(program, options, &cpu), MK_OK, "%s", mk_error_message());
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (mk_dtype_is_quantised(program->buffers[b].dtype) && program->buffers[b].kind == MK_KIND_WEIGHT) {
      fill_strips(&program->buffers[b], b, mk_cpu_memory(cpu, b));
    } else if (program->buffers[b].kind == MK_KIND_WEIGHT) {
      fill_weight(&program->buffers[b], b, mk_cpu_memory(cpu, b));
    } else if (program->buffers[b].kind == MK_KIND_KV) { /* what is not written is no number */
      memset(mk_cpu_memory(cpu, b), 0xff, program->buffers[b].bytes);
    }
  }
  const mk_plan_buffers buffers = buffers_of(program);
  uint32_t *table = mk_cpu_memory(cpu, buffers.table), blocks = program->buffers[buffers.table].cols;
  for (uint32_t i = 0; i < blocks; i++) { /* the odd ones from the end, then the even ones */
    table[i] = i < blocks / 2 ? blocks / 2 * 2 - 1 - 2 * i : 2 * (i - blocks / 2);
    table[i] = mk_program_rows(program) == 1 ? table[i] : blocks - 1 - table[i];
  }
  return cpu;
}

uint32_t test_prompt_token(const mk_program *program, uint32_t i) {
  return (uint32_t)((i * UINT64_C(2654435761) >> 7) % (program->ranges.token.high + 1));
}

mk_status test_prompt_run(const mk_program *program, mk_cpu *cpu, uint32_t first, uint32_t count, mk_step_fn fn,
                          void *user) {
  const uint32_t rows = mk_program_rows(program), steps = (count + rows - 1) / rows;
  mk_step_row *plan;
  MK_TRY(mk_alloc((size_t)steps * rows, sizeof *plan, &plan));
  for (uint32_t i = 0; i < count; i++) {
    plan[i] = (mk_step_row){.position = first + i,
                            .token = test_prompt_token(program, first + i),
                            .flags = MK_ROW_ACTIVE | (i + 1 == count || rows == 1 ? (uint32_t)MK_ROW_CHOOSES : 0)};
  }
  mk_status status = mk_cpu_run_plan(cpu, plan, steps, fn, user);
  mk_free(plan);
  return status;
}

const float *test_prompt_logits(const mk_program *program, mk_cpu *cpu, uint32_t count) {
  const size_t buffer = (size_t)MK_OPERAND_BUFFER(program, HEAD, logits);
  const float *logits = mk_cpu_memory(cpu, buffer);
  return logits + (size_t)((count - 1) % mk_program_rows(program)) * program->buffers[buffer].cols;
}

static const uint16_t *cached(const mk_buffer *kv, const uint16_t *memory, const uint32_t *table, uint32_t token,
                              uint32_t head) {
  const uint64_t pair = (uint64_t)table[token / kv->block_tokens] * kv->cols + head;
  return memory + pair * 2 * kv->block_tokens * kv->head_dim;
}

void test_prompt_expect_cache(const mk_program *a, mk_cpu *on_a, const mk_program *b, mk_cpu *on_b, uint32_t count) {
  const uint32_t *table_of_a = mk_cpu_memory(on_a, buffers_of(a).table);
  const uint32_t *table_of_b = mk_cpu_memory(on_b, buffers_of(b).table);
  uint32_t caches = 0;
  for (size_t i = 0; i < a->buffer_count; i++) {
    const mk_buffer *kv = &a->buffers[i];
    if (kv->kind != MK_KIND_KV) {
      continue;
    }
    const int other = mk_program_find_buffer(b, kv->name);
    cr_assert_geq(other, 0, "there is no %s", kv->name);
    const mk_buffer *other_kv = &b->buffers[other];
    const uint16_t *in_a = mk_cpu_memory(on_a, i), *in_b = mk_cpu_memory(on_b, (size_t)other);
    caches++;
    for (uint32_t t = 0; t < count; t++) {
      for (uint32_t at = 0; at < kv->cols * 2 * kv->head_dim; at++) {
        const uint32_t dim = at % kv->head_dim, which = at / kv->head_dim % 2, head = at / kv->head_dim / 2;
        const uint64_t offset = mk_block_offset(kv->block_tokens, kv->head_dim, which, t % kv->block_tokens, dim);
        const uint16_t have = cached(kv, in_a, table_of_a, t, head)[offset];
        const uint16_t want = cached(other_kv, in_b, table_of_b, t, head)[offset];
        cr_assert_eq(have, want, "%s: %c of token %u, head %u, dim %u: 0x%x, not 0x%x", kv->name,
                     which == 0 ? 'K' : 'V', t, head, dim, have, want);
      }
    }
  }
  cr_assert_gt(caches, 0);
}
