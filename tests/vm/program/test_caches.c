/* KV caches of e4m3 as buffers: their bytes, what is refused of them, and that files and texts keep them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/program/strips.h"

static const mk_buffer cache = {.name = "kv",
                                .kind = MK_KIND_KV,
                                .dtype = MK_DTYPE_E4M3,
                                .store = MK_STORE_BLOCKS,
                                .scope = MK_SCOPE_GPU,
                                .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                                .scale = MK_SCALE_BF16,
                                .scale_cols = 128,
                                .head_dim = 128,
                                .block_tokens = 64,
                                .span_tokens = 256,
                                .blocks = 16,
                                .rows = 2,
                                .cols = 3,
                                .tile_rows = 1,
                                .tile_cols = 1};

static mk_program *program_of(const mk_buffer *buffer, mk_status *status) {
  const mk_machine machine = mk_machine_latency(2);
  mk_program *program;
  uint16_t index;
  cr_assert_eq(mk_program_new(&machine, &program), MK_OK);
  *status = mk_program_add_buffer(program, buffer, &index);
  return program;
}

/* A byte for each element, and a scale in bf16 for the K and one for the V of each token and head. */
Test(caches, bytes) {
  cr_assert_eq(mk_buffer_bytes(&cache), 16 * 3 * 2 * 64 * (128 + 2));
  cr_assert_eq(mk_pair_bytes(&cache), 16640);
  mk_buffer other = cache;
  other.head_dim = other.scale_cols = 64;
  cr_assert_eq(mk_pair_bytes(&other), 8448);
  other = cache;
  other.dtype = MK_DTYPE_BF16, other.scale = MK_SCALE_NONE, other.scale_cols = 0;
  cr_assert_eq(mk_pair_bytes(&other), 32768);
  other = cache;
  other.blocks = other.block_tokens = UINT32_MAX;
  cr_assert_eq(mk_buffer_bytes(&other), UINT64_MAX);
  other = cache;
  other.scale = MK_SCALE_F32;
  cr_assert_eq(mk_buffer_bytes(&other), 0);
}

static void expect_refused(mk_buffer buffer, const char *words) {
  mk_status status;
  mk_program *program = program_of(&buffer, &status);
  cr_assert_eq(status, MK_ERR_FILE, "accepted where `%s` was expected", words);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  mk_program_free(program);
}

Test(caches, what_is_refused) {
  mk_buffer bad;
#define BAD(words, ...) (bad = cache, __VA_ARGS__, expect_refused(bad, words))
  BAD("scale 0 of 128 columns", bad.scale = 0);
  BAD("a KV cache of e4m3 has bf16 scales of head_dim columns", bad.scale = MK_SCALE_F32);
  BAD("scale 2 of 32 columns", bad.scale_cols = 32);
  BAD("scale 2 of 64 columns", bad.scale_cols = 64);
  BAD("zeros 1", bad.zeros = 1);
  BAD("do not go with dtype bf16", bad.dtype = MK_DTYPE_BF16);
  BAD("and e4m3 of KV caches in blocks", bad.dtype = MK_DTYPE_I8);
  BAD("and block_tokens of e4m3 ones of 32", bad.block_tokens = 48, bad.span_tokens = 96);
}

static void expect_kept(const mk_program *program) {
  mk_buffer want = cache;
  want.bytes = mk_buffer_bytes(&cache);
  cr_assert_eq(program->buffer_count, 1);
  cr_assert_eq(memcmp(&program->buffers[0], &want, sizeof want), 0);
}

Test(caches, files_and_texts_keep_them) {
  mk_status status;
  mk_program *program = program_of(&cache, &status), *other;
  void *bytes;
  char *text;
  size_t length;
  cr_assert_eq(status, MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_serialize(program, &bytes, &length), MK_OK);
  cr_assert_eq(mk_program_parse(bytes, length, &other), MK_OK, "%s", mk_error_message());
  expect_kept(other);
  mk_program_free(other);
  mk_free(bytes);
  FILE *out = open_memstream(&text, &length);
  cr_assert_eq(mk_disassemble(program, out), MK_OK);
  cr_assert_eq(fclose(out), 0);
  cr_assert_eq(mk_assemble(text, length, &other), MK_OK, "%s", mk_error_message());
  expect_kept(other);
  mk_program_free(other);
  free(text);
  mk_program_free(program);
}
