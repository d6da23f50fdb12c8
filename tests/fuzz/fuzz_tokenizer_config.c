/* tokenizer_config.json beside a small tokenizer.json, as special_tokens_map.json too: what it makes of the added
 * tokens is a file that the tokenizer accepts, or refuses by name. */
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "tests/fuzz/support.h"
#include "text/template_tokens.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"

static const char small[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":\"<x>\",\"lstrip\":true}]"
    ","
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]}}";

static void use(const json_t *root) {
  static const char text[] = " ab<s> <x>b<|endoftext|></s>[PAD]<unk>";
  mk_tokenizer *tokenizer;
  mk_tokens tokens = {0};
  char *json = json_dumps(root, JSON_COMPACT);
  mk_status status = mk_tokenizer_parse(json, strlen(json), &tokenizer);
  free(json);
  fuzz_expect_parsed(status);
  if (status == MK_OK) {
    fuzz_require(mk_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &tokens) == MK_OK, "%s",
                 mk_error_message());
    for (size_t i = 0; i < tokens.count; i++) {
      fuzz_require(tokens.ids[i] < mk_tokenizer_vocab(tokenizer), "id %u", tokens.ids[i]);
    }
    mk_tokens_free(&tokens);
    mk_tokenizer_free(tokenizer);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *config, *root, *named = json_object();
  mk_status status = mk_json_parse((const char *)data, size, &config);
  fuzz_expect_parsed(status);
  if (status == MK_OK) {
    root = json_loads(small, 0, NULL);
    fuzz_require(root != NULL, "the small file is not JSON");
    status = mk_special_tokens("/nonexistent", config, config, named);
    fuzz_expect_parsed(status);
    status = status == MK_OK ? mk_tokenizer_add(root, config, named, config) : status;
    fuzz_expect_parsed(status);
    if (status == MK_OK) {
      use(root);
    }
    json_decref(root);
    json_decref(config);
  }
  json_decref(named);
  return 0;
}
