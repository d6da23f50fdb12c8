/* The public library: the bytes of single tokens, and what is told with each token of a request. */
#include "tests/lib/library.h"

TestSuite(tokens, .timeout = MK_HANG_SECONDS);

/* The texts of a text's tokens, one after another, are the text, also where a character is cut in two. */
TEST_WITH_MODEL(tokens, bytes_of_a_text) {
  static const char text[] = "Two words, h\xc3\xa9llo \xf0\x9f\x98\x80.\n";
  mkvm_engine *engine = open_tiny(1);
  uint32_t *ids;
  char all[256], few[1];
  size_t count, used = 0, length;
  int special;
  OK(mkvm_tokenize(engine, text, sizeof text - 1, 0, &ids, &count));
  for (size_t i = 0; i < count; i++) {
    OK(mkvm_token_bytes(engine, ids[i], all + used, sizeof all - used, &length, &special));
    cr_assert(length > 0 && special == 0, "token %u has %zu bytes", ids[i], length);
    used += length;
  }
  cr_assert(used == sizeof text - 1 && memcmp(all, text, used) == 0, "'%.*s'", (int)used, all);
  OK(mkvm_token_bytes(engine, ids[0], NULL, 0, &length, NULL)); /* the length alone */
  cr_assert_geq(length, 1);
  few[0] = '?';
  OK(mkvm_token_bytes(engine, ids[0], few, 1, &length, NULL));
  cr_assert_eq(few[0], 'T');
  mkvm_free(ids);
  OK(mkvm_close(engine));
}

/* A special token has its name; of a longer one than there is room for, no more is written than that. */
TEST_WITH_MODEL(tokens, bytes_of_special_tokens) {
  mkvm_engine *engine = open_tiny(1);
  char whole[64], part[64];
  size_t length, again;
  int special;
  OK(mkvm_token_bytes(engine, config.eos[0], whole, sizeof whole, &length, &special));
  cr_assert(special != 0 && length > 2 && length < sizeof whole && whole[0] == '<', "'%.*s'", (int)length, whole);
  memset(part, '?', sizeof part);
  OK(mkvm_token_bytes(engine, config.eos[0], part, 2, &again, &special));
  cr_assert(again == length && memcmp(part, whole, 2) == 0 && part[2] == '?');
  OK(mkvm_token_bytes(engine, 1u << 30, part, sizeof part, &length, &special)); /* no such token */
  cr_assert(length == 0 && special == 0);
  REFUSED(mkvm_token_bytes(NULL, 0, part, sizeof part, &length, NULL), MKVM_ERR_USAGE, "mkvm_token_bytes");
  REFUSED(mkvm_token_bytes(engine, 0, NULL, 1, &length, NULL), MKVM_ERR_USAGE, "mkvm_token_bytes");
  REFUSED(mkvm_token_bytes(engine, 0, part, 1, NULL, NULL), MKVM_ERR_USAGE, "mkvm_token_bytes");
  OK(mkvm_close(engine));
}

static int count_right(void *user, const mkvm_token *token) {
  *(size_t *)user += token->prompt_tokens == 4;
  return 0;
}

static void count_right_of_prompt(void *user, const mkvm_token *token) { (void)count_right(user, token); }

/* Tokens of the prompt and of the answer say how long the prompt is. */
TEST_WITH_MODEL(tokens, length_of_the_prompt) {
  static const uint32_t four[] = {3, 1, 4, 1};
  mkvm_engine *engine = open_tiny(2);
  size_t right = 0;
  mkvm_request request = request_of(NULL, four, 4, 6);
  request.on_token = count_right;
  request.on_prompt = count_right_of_prompt;
  request.on_end = NULL;
  request.user = &right;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert_geq(right, 3 + 6);
  OK(mkvm_close(engine));
}
