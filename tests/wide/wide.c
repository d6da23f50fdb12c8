/* An instruction of 10 operands and 8 parameters (opcodes.def): through text, file and verifier, and on the CPU
 * machine. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vm/cpu/machine.h"
#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

TestSuite(wide, .timeout = MK_HANG_SECONDS);

enum { WIDTH = 16, EXPERTS = 4, UID = 7 };

/* The token loop of tests/vm/data/two_sms.mks, with the wide instruction between the product and the residual. */
#define WIDE_LINE                                                                                               \
  "#7 wide x=q[0:1,0:1] first_gain=gain second_gain=other_gain expert=router[0:1,1:2] bias=bias scales=scales " \
  "zeros=zeros experts=experts spare=bias out=w[0:1,0:1] a=0.5 index=3 b=-2 c=1.25 stride=16 d=3 modulus=5 e=0.0625\n"
static const char text[] =
    "mkvm-program 1\n"
    "machine sms=2\n"
    "range position=0..63 token=0..31 block=0..0 batch=1..1\n"
    "buffer embedding   kind=weight dtype=bf16 store=tiles shape=32x16 tile=16x16\n"
    "buffer square      kind=weight dtype=bf16 store=tiles shape=16x16 tile=16x16\n"
    "buffer gain        kind=weight dtype=bf16 store=plain shape=1x16 tile=1x16\n"
    "buffer other_gain  kind=weight dtype=bf16 store=plain shape=1x16 tile=1x16\n"
    "buffer frequencies kind=weight dtype=f32 store=plain shape=1x32 tile=1x16\n"
    "buffer bias        kind=weight dtype=f32 store=plain shape=1x16 tile=1x16\n"
    "buffer scales      kind=weight dtype=f32 store=plain shape=1x16 tile=1x8\n"
    "buffer zeros       kind=weight dtype=f32 store=plain shape=1x16 tile=1x16\n"
    "buffer experts     kind=weight dtype=f32 store=plain shape=1x64 tile=1x16\n"
    "buffer router      kind=input dtype=u32 store=plain shape=1x8 tile=1x4\n"
    "buffer plan        kind=input dtype=u32 store=plain shape=1x256 tile=1x16\n"
    "buffer token_ring  kind=output dtype=u32 store=plain shape=1x65 tile=1x16\n"
    "buffer logits      kind=output dtype=f32 store=plain shape=1x32 tile=1x16\n"
    "buffer q           kind=activation dtype=f32 store=stamped shape=1x16 tile=1x16\n"
    "buffer w           kind=activation dtype=f32 store=stamped shape=1x16 tile=1x16\n"
    "buffer s           kind=activation dtype=bf16 store=stamped shape=1x16 tile=1x16\n"
    "buffer residual    kind=activation dtype=f32 store=plain shape=1x16 tile=1x16\n"
    "buffer candidates  kind=activation dtype=u32 store=stamped shape=2x2 tile=1x2\n"
    "queue 0:\n"
    "#1 qkv x=embedding@token gain=gain weight=square inv_freq=frequencies out=q eps=1e-5 width=16 head_dim=64\n"
    "#2 head x=s gain=gain weight=embedding[0:1,0:1] logits=logits[0:1,0:1] candidate=candidates[0:1,0:1] eps=1e-5 "
    "width=16 vocab=32\n"
    "#3 next candidates=candidates plan=plan ring=token_ring\n"
    "queue 1:\n" WIDE_LINE
    "#4 reduce_add parts=w residual_in=embedding@token residual_out=residual out=s\n"
    "#5 head x=s gain=gain weight=embedding[1:2,0:1] logits=logits[0:1,1:2] candidate=candidates[1:2,0:1] eps=1e-5 "
    "width=16 vocab=32\n"
    "#6 next candidates=candidates plan=plan\n";

static mk_program *assemble(const char *from, size_t length) {
  mk_program *program;
  cr_assert_eq(mk_assemble(from, length, &program), MK_OK, "%s", mk_error_message());
  return program;
}

static mk_instruction *wide_of(mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].uid == UID) {
      return &program->instructions[i];
    }
  }
  cr_assert_fail("the program has no instruction #%d", UID);
  return NULL;
}

static void expect_same(const mk_program *a, const mk_program *b) {
  cr_assert_eq(a->instruction_count, b->instruction_count);
  cr_assert_eq(memcmp(a->instructions, b->instructions, a->instruction_count * sizeof *a->instructions), 0);
}

Test(wide, has_ten_operands_and_eight_parameters) {
  const mk_opcode_info *info = mk_opcode_lookup(MK_OP_WIDE);
  cr_assert_eq(info->operand_count, 10);
  cr_assert_eq(info->part_count, 3);
  cr_assert_eq(info->param_count, 8);
  mk_program *program = assemble(text, strlen(text));
  const mk_instruction *in = wide_of(program);
  for (uint32_t i = 0; i < 10; i++) {
    cr_assert_eq(in->operands[i].rows, 1, "%s", info->operands[i].name);
  }
  for (uint32_t i = 0; i < 8; i++) {
    cr_assert_neq(in->params[i], 0, "%s", info->params[i].name);
  }
  mk_program_free(program);
}

Test(wide, file) {
  mk_program *program = assemble(text, strlen(text)), *back;
  char path[] = "/tmp/mk-wide-XXXXXX";
  close(mkstemp(path));
  cr_assert_eq(mk_program_save(program, path), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_load(path, &back), MK_OK, "%s", mk_error_message());
  unlink(path);
  expect_same(program, back);
  wide_of(program)->operands[MK_SLOT_WIDE_spare] = (mk_operand){0}; /* absent */
  void *bytes;
  size_t length;
  mk_program_free(back);
  cr_assert_eq(mk_program_serialize(program, &bytes, &length), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_parse(bytes, length, &back), MK_OK, "%s", mk_error_message());
  expect_same(program, back);
  mk_free(bytes);
  mk_program_free(back);
  mk_program_free(program);
}

Test(wide, text) {
  mk_program *program = assemble(text, strlen(text));
  char *printed;
  size_t length;
  FILE *out = open_memstream(&printed, &length);
  cr_assert_eq(mk_disassemble(program, out), MK_OK, "%s", mk_error_message());
  fclose(out);
  const char *line =
      "#7 wide x=q[0:1,0:1] first_gain=gain[0:1,0:1] second_gain=other_gain[0:1,0:1] expert=router[0:1,1:2] "
      "bias=bias[0:1,0:1] scales=scales[0:1,0:2] zeros=zeros[0:1,0:1] experts=experts[0:1,0:4] spare=bias[0:1,0:1] "
      "out=w[0:1,0:1] a=0.5 index=3 b=-2 c=1.25 stride=16 d=3 modulus=5 e=0.0625";
  cr_assert_not_null(strstr(printed, line), "%s", printed);
  mk_program *back = assemble(printed, length);
  expect_same(program, back);
  free(printed);
  mk_program_free(back);
  mk_program_free(program);
}

static void expect_rejected(mk_program *program, const char *rule, const char *words) {
  mk_verify_report report;
  cr_assert_eq(mk_verify(program, &report), MK_ERR_REJECTED, "%s", rule);
  cr_assert_str_eq(report.rule, rule, "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

Test(wide, verifier) {
  mk_program *program = assemble(text, strlen(text));
  mk_instruction *in = wide_of(program);
  const mk_instruction sound = *in;
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  in->operands[MK_SLOT_WIDE_spare] = (mk_operand){0};
  expect_rejected(program, "S06", "#7 wide: spare: 0 x 0 tiles");
  *in = sound;
  in->operands[MK_SLOT_WIDE_out].col = 1;
  expect_rejected(program, "B01", "#7 wide: out: tiles [0:1,1:2] of buffer w, which has 1 x 1");
  *in = sound;
  in->operands[MK_SLOT_WIDE_scales].cols = 1;
  expect_rejected(program, "S13", "#7 wide: scales: tiles [0:1,0:1] of buffer scales");
  *in = sound;
  in->operands[MK_SLOT_WIDE_x].buffer = in->operands[MK_SLOT_WIDE_out].buffer;
  expect_rejected(program, "D01", "deadlock");
  *in = sound;
  in->params[MK_PARAM_WIDE_index] = 4;
  expect_rejected(program, "S09", "index is 4");
  *in = sound;
  in->operands[10].rows = 1;
  expect_rejected(program, "S04", "operand 10 is unused");
  mk_program_free(program);
}

static float any_float(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / (float)(1 << 23) - 1.0f;
}

static void *memory_of(mk_cpu *cpu, const mk_program *program, const char *name) {
  int index = mk_program_find_buffer(program, name);
  cr_assert_geq(index, 0, "%s", name);
  return mk_cpu_memory(cpu, (size_t)index);
}

static void fill(mk_cpu *cpu, const mk_program *program) {
  uint32_t state = 1;
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    void *memory = mk_cpu_memory(cpu, b);
    for (uint64_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes / (buffer->dtype == MK_DTYPE_F32 ? 4 : 2);
         i++) {
      float value = any_float(&state);
      uint32_t bits = mk_float_param(value);
      if (buffer->dtype == MK_DTYPE_F32) {
        ((float *)memory)[i] = value;
      } else {
        ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
      }
    }
  }
  uint32_t *router = memory_of(cpu, program, "router");
  for (uint32_t i = 0; i < 8; i++) {
    router[i] = i % EXPERTS; /* the instruction names words 4 to 7, and of these number 3 */
  }
}

static float stamped(mk_cpu *cpu, const mk_program *program, const char *name, uint32_t i) {
  return mk_param_float((uint32_t)((const uint64_t *)memory_of(cpu, program, name))[i]);
}

static float half(mk_cpu *cpu, const mk_program *program, const char *name, uint32_t i) {
  return mk_param_float((uint32_t)((const uint16_t *)memory_of(cpu, program, name))[i] << 16);
}

static float plain(mk_cpu *cpu, const mk_program *program, const char *name, uint32_t i) {
  return ((const float *)memory_of(cpu, program, name))[i];
}

/* Runs five steps; the sum is then that of the last one's q. */
static void expect_sum(const mk_program *program, const mk_cpu_options *options, float *sums) {
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(program, options, &cpu), MK_OK, "%s", mk_error_message());
  fill(cpu, program);
  const uint32_t first = 3;
  mk_step_row plan[5];
  mk_plan_sequence(plan, 5, 0, &first, 1, MK_ROW_PROMPT);
  cr_assert_eq(mk_cpu_run_plan(cpu, plan, 5, NULL, NULL), MK_OK, "%s", mk_error_message());
  float moved = 0;
  for (uint32_t i = 0; i < WIDTH; i++) {
    float want =
        0.5f * (stamped(cpu, program, "q", i) * half(cpu, program, "gain", i) + plain(cpu, program, "bias", i));
    want += -2.0f * plain(cpu, program, "scales", i);
    want += 1.25f * (plain(cpu, program, "zeros", i) - half(cpu, program, "other_gain", i));
    want += 3.0f * plain(cpu, program, "experts", 3 * WIDTH + i);
    want = want + 0.0625f * (float)(i % 5);
    float got = stamped(cpu, program, "w", i);
    cr_expect(got == want, "element %u is %.9g, not %.9g", i, (double)got, (double)want);
    cr_expect(sums[i] == 0 || sums[i] == got, "element %u is %.9g, and was %.9g in another order", i, (double)got,
              (double)sums[i]);
    sums[i] = got;
    moved += got < 0 ? -got : got;
  }
  cr_expect_gt(moved, 1.0f);
  mk_cpu_free(cpu);
}

Test(wide, cpu_machine) {
  mk_program *program = assemble(text, strlen(text));
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  float sums[WIDTH] = {0};
  expect_sum(program, &(mk_cpu_options){.threads = 1}, sums);
  expect_sum(program, &(mk_cpu_options){.threads = 2}, sums);
  for (uint64_t seed = 1; seed <= 20; seed++) {
    expect_sum(program, &(mk_cpu_options){.seed = seed, .adversarial = seed % 2 == 0, .check_races = true}, sums);
  }
  mk_program_free(program);
}
