/* See texts.h. */
#define _GNU_SOURCE /* fopencookie */
#include "tools/profiler/texts.h"

#include <stdio.h>

#include "vm/program/disasm.h"

static ssize_t take(void *bytes, const char *text, size_t length) {
  mk_bytes_put(bytes, text, length);
  return ((mk_bytes *)bytes)->status == MK_OK ? (ssize_t)length : 0;
}

mk_status mk_instruction_texts(const mk_program *program, mk_bytes *out) {
  FILE *file = fopencookie(out, "w", (cookie_io_functions_t){.write = take});
  if (file == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory: the instructions could not be printed");
  }
  mk_status status = MK_OK;
  for (size_t i = 0; status == MK_OK && i < program->instruction_count; i++) {
    status = mk_disassemble_instruction(program, &program->instructions[i], file);
    fputc('\n', file);
  }
  (void)fclose(file);
  return out->status != MK_OK ? out->status : status;
}
