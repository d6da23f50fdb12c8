/* The assembler: what is accepted prints as text that assembles to the same program, byte for byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/support.h"
#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

static char *disassemble(const mk_program *program, size_t *length) {
  char *text;
  FILE *out = open_memstream(&text, length);
  fuzz_require(out != NULL, "no memory for a stream");
  fuzz_require(mk_disassemble(program, out) == MK_OK, "%s", mk_error_message());
  fclose(out);
  return text;
}

static void expect_same(const mk_program *program, const mk_program *back) {
  void *left, *right, *parsed;
  size_t left_length, right_length;
  fuzz_require(mk_program_serialize(program, &left, &left_length) == MK_OK, "%s", mk_error_message());
  fuzz_require(mk_program_serialize(back, &right, &right_length) == MK_OK, "%s", mk_error_message());
  fuzz_require(left_length == right_length && memcmp(left, right, left_length) == 0, "the programs differ");
  fuzz_require(mk_program_parse(left, left_length, (mk_program **)&parsed) == MK_OK,
               "an assembled program is no good file: %s", mk_error_message());
  mk_program_free(parsed);
  mk_free(left);
  mk_free(right);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_program *program, *back;
  mk_status status = mk_assemble((const char *)data, size, &program);
  fuzz_expect_parsed(status);
  if (status != MK_OK) {
    fuzz_require(program == NULL, "a refused text leaves a program");
    return 0;
  }
  size_t length;
  char *text = disassemble(program, &length);
  fuzz_require(mk_assemble(text, length, &back) == MK_OK, "its own text is refused: %s", mk_error_message());
  expect_same(program, back);
  mk_program_free(back);
  free(text);
  status = mk_verify(program, NULL);
  fuzz_require(status == MK_OK || status == MK_ERR_REJECTED, "%s", mk_error_message());
  if (status == MK_OK) {
    fuzz_run_accepted(program);
  }
  mk_program_free(program);
  return 0;
}
