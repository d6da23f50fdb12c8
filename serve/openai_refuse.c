/* Fields that are known and not done. Whoever asks for what they do hears so, by name; a field that asks for nothing
 * (null, false, an empty text, list or object, or its harmless value) is passed over, as clients write those. Others
 * ask with false, since true is what is done anyway. */
#include <string.h>

#include "models/json.h"
#include "serve/openai_internal.h"

enum { CHAT = 1, TEXT = 2, BOTH = CHAT | TEXT };

typedef struct refused {
  const char *name;
  int where;
  const char *harmless; /* this text, or a list of this text, asks for nothing; NULL: no text does; or is_done */
  const char *instead;  /* what to do */
} refused;

static const char is_done[] = "true"; /* true, and not false, asks for nothing */

static const refused list[] = {
    {"tools", CHAT, NULL, "tools are not supported"},
    {"tool_choice", CHAT, "none", "tools are not supported"},
    {"functions", CHAT, NULL, "functions are not supported"},
    {"function_call", CHAT, "none", "functions are not supported"},
    {"audio", CHAT, NULL, "only text is supported"},
    {"modalities", CHAT, "text", "only text is supported"},
    {"prediction", CHAT, NULL, "predicted outputs are not supported"},
    {"web_search_options", CHAT, NULL, "web search is not supported"},
    {"echo", CHAT, NULL, "it belongs to /v1/completions"},
    {"chat_template", CHAT, NULL, "the model's own chat template is used"},
    {"continue_final_message", CHAT, NULL, "an answer is always a message of its own"},
    {"documents", CHAT, NULL, "write them into a message"},
    {"add_generation_prompt", CHAT, is_done, "an answer is always a message of its own"},
    {"add_special_tokens", CHAT, NULL, "the model's chat template has them"},
    {"add_special_tokens", TEXT, is_done, "send token ids of /tokenize as 'prompt'"},
    {"suffix", TEXT, NULL, "text cannot be inserted; leave it out"},
    {"prompt_embeds", TEXT, NULL, "send text or token ids as 'prompt'"},
    {"structured_outputs", BOTH, NULL, "structured output is not supported"},
    {"guided_json", BOTH, NULL, "structured output is not supported"},
    {"guided_regex", BOTH, NULL, "structured output is not supported"},
    {"guided_choice", BOTH, NULL, "structured output is not supported"},
    {"guided_grammar", BOTH, NULL, "structured output is not supported"},
    {"grammar", BOTH, NULL, "structured output is not supported"},
    {"json_schema", BOTH, NULL, "structured output is not supported"},
    {"use_beam_search", BOTH, NULL, "beam search is not supported"},
    {"prompt_logprobs", BOTH, NULL, "use 'echo' and 'logprobs' of /v1/completions"},
    {"stop_token_ids", BOTH, NULL, "use 'stop'"},
    {"skip_special_tokens", BOTH, is_done, "use 'logprobs' to see them"},
    {"return_token_ids", BOTH, NULL, "use 'logprobs'"},
    {"return_tokens_as_token_ids", BOTH, NULL, "tokens are shown as text"},
    {"logits_processors", BOTH, NULL, "use 'logit_bias'"},
    {"include_stop_str_in_output", BOTH, NULL, "the text ends before what stopped it"},
    {"bad_words", BOTH, NULL, "use 'logit_bias'"},
    {"allowed_token_ids", BOTH, NULL, "use 'logit_bias'"},
    {"truncate_prompt_tokens", BOTH, NULL, "shorten the prompt before it is sent"},
};

static bool is_text(const json_t *value, const char *text) {
  return text != NULL && json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static bool asks_for_nothing(const json_t *value, const char *harmless) {
  if (harmless == is_done) {
    return value == NULL || json_is_true(value);
  }
  return value == NULL || json_is_false(value) || is_text(value, "") || is_text(value, harmless) ||
         (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0) ||
         (json_array_size(value) == 1 && is_text(json_array_get(value, 0), harmless));
}

static mk_status refuse(const mk_fields *f, const char *name, const char *instead) {
  char shown[MK_JSON_SHOWN];
  return mk_serve_fail(f->error, 400, name, "unsupported_parameter", "Unsupported parameter: '%s' is %s; %s.", name,
                       mk_json_show(json_object_get(f->body, name), shown), instead);
}

mk_status mk_openai_refuse(const mk_fields *f, bool chat) {
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    if ((list[i].where & (chat ? CHAT : TEXT)) != 0 &&
        !asks_for_nothing(mk_json_get(f->body, list[i].name), list[i].harmless)) {
      return refuse(f, list[i].name, list[i].instead);
    }
  }
  const json_t *format = mk_json_get(f->body, "response_format");
  if (format != NULL && !is_text(json_object_get(format, "type"), "text")) {
    return refuse(f, "response_format", "only {\"type\":\"text\"} is supported");
  }
  return MK_OK;
}
