/* What fuzzing has found, one test for each. */
#include <criterion/criterion.h>

#include "text/tokenizer.h"
#include "vm/cpu/machine.h"
#include "vm/program/asm.h"
#include "vm/verify/verify.h"

/* A program without instructions is accepted, and its table of instructions has no address to add to. */
Test(findings, program_without_instructions_runs) {
  static const char text[] = "mkvm-program 1\nmachine sms=2\n";
  mk_program *program;
  mk_cpu *cpu;
  const mk_cpu_options options = {.check_races = true};
  cr_assert_eq(mk_assemble(text, sizeof text - 1, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cpu_new(program, &options, &cpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cpu_run(cpu, 3), MK_OK, "%s", mk_error_message());
  mk_cpu_free(cpu);
  mk_program_free(program);
}

/* A vocabulary whose first piece is empty, and a merge of empty pieces. */
Test(findings, empty_piece_in_the_vocabulary) {
  static const char text[] =
      "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\":0,\"a\":1},\"merges\":[[\"\",\"\"]]}}";
  mk_tokenizer *tokenizer;
  mk_tokens tokens = {0};
  mk_status status = mk_tokenizer_parse(text, sizeof text - 1, &tokenizer);
  cr_assert(status == MK_OK || status == MK_ERR_FILE, "%s", mk_error_message());
  if (status == MK_OK) {
    cr_assert_eq(mk_tokenizer_encode(tokenizer, "ba", 2, false, &tokens), MK_OK, "%s", mk_error_message());
    cr_assert_eq(tokens.count, 1);
    cr_assert_eq(tokens.ids[0], 1);
  }
  mk_tokens_free(&tokens);
  mk_tokenizer_free(tokenizer);
}
