/* A chat template, and what it makes of a conversation. */
#include <string.h>

#include "tests/fuzz/support.h"
#include "text/template.h"

static const char kVariables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" Be brief. \"}, {\"role\": \"user\", \"content\": \"What is "
    "2 + 2?\\n\"},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"abc123def\", \"function\": {\"name\": "
    "\"add\","
    " \"arguments\": {\"a\": 2, \"b\": 2.5, \"exact\": true}}}]}, {\"role\": \"tool\", \"content\": {\"content\": [4, "
    "\"\\u00e9\"]}},"
    " {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"\\ud83e\\udd80\"}]}], \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\", \"add_generation_prompt\": true, \"tools\": [{\"type\": \"function\"}], \"documents\": "
    "null}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static json_t *variables; /* the same for every input */
  static const struct tm now = {.tm_year = 126, .tm_mday = 5, .tm_wday = 1, .tm_yday = 4};
  mk_template *compiled;
  char *text = NULL;
  size_t length = 0;
  if (variables == NULL) {
    variables = json_loads(kVariables, 0, NULL);
    fuzz_require(variables != NULL, "the variables are not JSON");
  }
  mk_status status = mk_template_compile((const char *)data, size, &compiled);
  fuzz_expect_parsed(status);
  if (status != MK_OK) {
    return 0;
  }
  status = mk_template_render(compiled, variables, &now, &text, &length);
  mk_template_free(compiled);
  if (status == MK_OK) {
    fuzz_require(length <= MK_TEMPLATE_MAX_OUTPUT && text[length] == 0, "%zu bytes", length);
    fuzz_require(fuzz_is_utf8(text, length), "the output is not UTF-8");
  } else {
    fuzz_require(status == MK_ERR_USAGE || status == MK_ERR_FILE, "status %d: %s", (int)status, mk_error_message());
  }
  mk_free(text);
  return 0;
}
