/* Values that nobody wrote in this step: the CPU machine reports the first element that is read, whatever lies in
 * memory there. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/text.h"
#include "tests/support/tiny.h"

static const mk_cpu_options ways[] = {
    {.check_races = true}, {.adversarial = true}, {.seed = 5, .check_races = true}, {.seed = 6, .adversarial = true}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void expect(mk_status status, const char *words) {
  cr_assert_eq(status, MK_ERR_DEVICE, "status %d", status);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

static void expect_program(const char *name, const test_edit *edits, const char *words) {
  mk_program *program = test_assemble(name, edits);
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]);
    expect(test_sequence_steps(cpu, 1, 0, 3), words);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* Stamped bf16 of an odd width: words hold two, and the last element is in none. */
Test(cpu_written, odd_last_element_is_never_published) {
  expect_program("attack/odd17.mks", NULL,
                 "(head): operand x reads element (0, 16) of buffer s, which nobody has ever written");
}

Test(cpu_written, plain_activation_that_nobody_writes) {
  expect_program(
      "two_sms.mks",
      (const test_edit[]){
          {"buffer candidates ",
           "buffer spare kind=activation dtype=f32 store=plain shape=1x16 tile=1x16\nbuffer candidates "},
          {"#4 reduce_add parts=q residual_in=embedding@token", "#4 reduce_add parts=q residual_in=spare"},
          {NULL, NULL}},
      "SM 1, instruction 4 (reduce_add): operand residual_in reads element (0, 0) of buffer spare, which nobody");
}

/* A gain that is no weight: what the verifier's S08 rejects. */
Test(cpu_written, constant_that_is_none) {
  expect_program(
      "two_sms.mks",
      (const test_edit[]){{"buffer gain        kind=weight", "buffer gain        kind=activation"}, {NULL, NULL}},
      "operand gain reads element (0, 0) of buffer gain, which nobody has ever written");
}

/* SM 0 leaves a vector in `shared` and adds to it after that. */
static void chain(test_tiny *tiny) {
  test_tiny_start(tiny, 1);
  uint16_t q = test_tiny_floats(tiny, "q", 16, 16), s0 = test_tiny_halves(tiny, "s0"),
           s1 = test_tiny_halves(tiny, "s1");
  uint16_t shared = test_tiny_plain(tiny, "shared"), sum = test_tiny_plain(tiny, "sum");
  test_tiny_qkv(tiny, 0, q);
  test_tiny_reduce(tiny, 0, q, MK_NONE_BUFFER, shared, s0);
  test_tiny_reduce(tiny, 0, q, shared, sum, s1);
}

/* The first of both writes somewhere else from the second run on: what lies in `shared` is of the step before. */
Test(cpu_written, value_of_an_earlier_step) {
  for (size_t way = 0; way < WAYS; way++) {
    test_tiny tiny;
    chain(&tiny);
    mk_cpu *cpu = test_tiny_machine(&tiny, &ways[way]);
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 1), MK_OK, "%s", mk_error_message());
    mk_operand *out = &tiny.program->instructions[1].operands[MK_SLOT_REDUCE_ADD_residual_out];
    mk_operand good = *out;
    *out = tiny.program->instructions[2].operands[MK_SLOT_REDUCE_ADD_residual_out];
    expect(
        test_sequence_steps(cpu, 1, 0, 1),
        "instruction 103 (reduce_add): operand residual_in reads element (0, 0) of buffer shared, which was written in "
        "generation 1, not in this one, 2");
    *out = good; /* a failed run leaves nothing that counts as written */
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 1), MK_OK, "%s", mk_error_message());
    mk_cpu_free(cpu);
    test_tiny_stop(&tiny);
  }
}

/* Half of a vector. */
Test(cpu_written, one_element_too_few) {
  for (size_t way = 0; way < WAYS; way++) {
    test_tiny tiny;
    chain(&tiny);
    mk_buffer *shared = &tiny.program->buffers[mk_program_find_buffer(tiny.program, "shared")];
    tiny.program->instructions[1].operands[MK_SLOT_REDUCE_ADD_residual_out].cols = 1;
    shared->tile_cols = 8;
    tiny.program->instructions[2].operands[MK_SLOT_REDUCE_ADD_residual_in].cols = 2;
    mk_cpu *cpu = test_tiny_machine(&tiny, &ways[way]);
    expect(test_sequence_steps(cpu, 1, 0, 1), "element (0, 8) of buffer shared");
    mk_cpu_free(cpu);
    test_tiny_stop(&tiny);
  }
}
