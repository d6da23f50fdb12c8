/* docs/ISA.md is what the opcode table says today. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/isa_doc.h"
#include "vm/program/program.h"

Test(isa_doc, file_is_current) {
  char *want, *have = NULL;
  size_t want_length, have_length = 0;
  FILE *out = open_memstream(&want, &want_length);
  cr_assert_eq(mk_isa_write(out), MK_OK);
  fclose(out);
  FILE *in = fopen(MK_SOURCE_DIR "/docs/ISA.md", "r");
  cr_assert_not_null(in, "docs/ISA.md is missing; run `mkvm isa > docs/ISA.md`");
  have = calloc(1, want_length + 2);
  have_length = fread(have, 1, want_length + 1, in);
  fclose(in);
  cr_assert(have_length == want_length && memcmp(have, want, want_length) == 0,
            "docs/ISA.md is stale; run `mkvm isa > docs/ISA.md`");
  free(have);
  free(want);
}

Test(isa_doc, everything_in_the_table_is_described) {
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  cr_assert_eq(mk_isa_write(out), MK_OK);
  fclose(out);
  for (char *at = text; (at = strchr(at, '\n')) != NULL;) { /* the page breaks lines where the table has a space */
    *at = ' ';
  }
  cr_assert_null(strstr(text, "| ? |"), "a column has a value that tools/lib/isa_doc.c does not name");
  for (uint32_t op = 1; op < MK_OP_COUNT; op++) {
    const mk_opcode_info *info = mk_opcode_lookup(op);
    cr_assert_not_null(strstr(text, info->semantics), "%s", info->name);
    for (uint32_t i = 0; i < info->param_count; i++) {
      cr_assert_not_null(mk_isa_param_meaning(info->params[i].name), "%s.%s has no meaning in tools/lib/isa_doc.c",
                         info->name, info->params[i].name);
    }
  }
  free(text);
}
