/* Text and ids, conversations, and what an engine says of itself. See include/mkvm.h. */
#include <string.h>
#include <time.h>

#include "lib/internal.h"
#include "lib/prompt.h"

/* Any pointer for "nothing is here": `length` bytes must be somewhere when there are some. */
static mk_status expect_text(const char *what, const char *text, size_t length) {
  return text != NULL || length == 0 ? MK_OK : mk_error(MK_ERR_USAGE, "%s: %zu bytes at no address", what, length);
}

mk_status mkvm_encode(const mkvm_engine *e, const char *text, size_t length, bool conversation, mk_tokens *out) {
  const mk_prompt_limits limits = {.context = e->max_context,
                                   .raisable = e->max_context < mk_engine_config(e->engine)->max_position,
                                   .raise = "open the engine with a larger max_context"};
  MK_TRY(expect_text("the prompt", text, length));
  return mk_prompt_encode(e->tokenizer, text == NULL ? "" : text, length, conversation, &limits, out);
}

mkvm_status mkvm_tokenize(const mkvm_engine *e, const char *text, size_t length, int add_special, uint32_t **tokens,
                          size_t *count) {
  mk_tokens ids = {0};
  if (e == NULL || tokens == NULL || count == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_tokenize: the engine or a place for the tokens is missing"));
  }
  *tokens = NULL;
  *count = 0;
  mk_status status = expect_text("mkvm_tokenize", text, length);
  if (status == MK_OK) {
    status = mk_tokenizer_encode(e->tokenizer, text == NULL ? "" : text, length, add_special != 0, &ids);
  }
  if (status == MK_OK && ids.ids == NULL) { /* handed out all the same: no caller has to look for NULL */
    status = mk_alloc(1, sizeof *ids.ids, &ids.ids);
  }
  if (status != MK_OK) {
    mk_tokens_free(&ids);
    return mkvm_status_of(status);
  }
  *tokens = ids.ids;
  *count = ids.count;
  return MKVM_OK;
}

typedef struct joined {
  char *text;
  size_t length, capacity;
} joined;

static mk_status add(joined *all, const char *text, size_t length) {
  MK_TRY(mk_grow(&all->text, &all->capacity, all->length + length + 1, 1));
  memcpy(all->text + all->length, text, length);
  all->length += length;
  all->text[all->length] = '\0';
  return MK_OK;
}

static mk_status decode(mk_decoder *decoder, const uint32_t *tokens, size_t count, joined *all) {
  const char *text;
  size_t length;
  for (size_t i = 0; i < count; i++) {
    MK_TRY(mk_decoder_push(decoder, tokens[i], &text, &length));
    MK_TRY(add(all, text, length));
  }
  MK_TRY(mk_decoder_finish(decoder, &text, &length));
  return add(all, text, length);
}

mkvm_status mkvm_detokenize(const mkvm_engine *e, const uint32_t *tokens, size_t count, char **text, size_t *length) {
  mk_decoder *decoder = NULL;
  joined all = {0};
  if (e == NULL || text == NULL || length == NULL || (tokens == NULL && count != 0)) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_detokenize: the engine, the tokens or a place is missing"));
  }
  *text = NULL;
  *length = 0;
  mk_status status = mk_decoder_new(e->tokenizer, &decoder);
  if (status == MK_OK) {
    status = decode(decoder, tokens, count, &all);
  }
  mk_decoder_free(decoder);
  if (status != MK_OK) {
    mk_free(all.text);
    return mkvm_status_of(status);
  }
  *text = all.text;
  *length = all.length;
  return MKVM_OK;
}

mkvm_status mkvm_token_bytes(const mkvm_engine *e, uint32_t token, char *bytes, size_t size, size_t *length,
                             int *special) {
  mk_bytes own = {0};
  bool is_special;
  if (e == NULL || length == NULL || (bytes == NULL && size != 0)) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_token_bytes: the engine or a place is missing"));
  }
  mk_status status = mk_tokenizer_bytes(e->tokenizer, token, &own, &is_special);
  if (status == MK_OK) {
    if (size != 0 && own.length != 0) {
      memcpy(bytes, own.bytes, own.length < size ? own.length : size);
    }
    *length = own.length;
    if (special != NULL) {
      *special = is_special;
    }
  }
  mk_free(own.bytes);
  return mkvm_status_of(status);
}

static mk_status add_turns(json_t *messages, const mkvm_turn *turns, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (turns[i].role == NULL) {
      return mk_error(MK_ERR_USAGE, "turn %zu of the conversation has no role", i);
    }
    MK_TRY(expect_text("a turn of the conversation", turns[i].content, turns[i].content_length));
    MK_TRY(mk_chat_add(messages, turns[i].role, turns[i].content == NULL ? "" : turns[i].content,
                       turns[i].content_length));
  }
  return MK_OK;
}

mk_status mkvm_render(const mkvm_engine *e, const mkvm_turn *turns, size_t count, const char *variables,
                      size_t variables_length, char **text, size_t *length) {
  time_t seconds = time(NULL);
  struct tm now;
  json_t *more;
  if (turns == NULL || count == 0) {
    return mk_error(MK_ERR_USAGE, "the conversation has no turns");
  }
  if (e->chat == NULL) {
    return mk_error(MK_ERR_FILE, "%s",
                    e->chat_problem != NULL
                        ? e->chat_problem
                        : "the model has no chat template, neither chat_template.jinja nor chat_template in "
                          "tokenizer_config.json; take a model that is made for conversations");
  }
  MK_TRY(expect_text("the variables of the chat template", variables, variables_length));
  MK_TRY(mk_chat_variables(variables, variables_length, &more));
  localtime_r(&seconds, &now);
  json_t *messages = json_array();
  mk_status status = messages != NULL ? add_turns(messages, turns, count)
                                      : mk_error(MK_ERR_RUNTIME, "out of memory for a conversation");
  if (status == MK_OK) {
    status = mk_chat_render(e->chat, messages, more, &now, text, length);
  }
  json_decref(messages);
  json_decref(more);
  return status;
}

mkvm_status mkvm_chat_text(const mkvm_engine *e, const mkvm_turn *turns, size_t count, char **text, size_t *length) {
  return mkvm_chat_text_with(e, turns, count, NULL, 0, text, length);
}

mkvm_status mkvm_chat_text_with(const mkvm_engine *e, const mkvm_turn *turns, size_t count, const char *variables,
                                size_t variables_length, char **text, size_t *length) {
  if (e == NULL || text == NULL || length == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_chat_text: the engine or a place for the text is missing"));
  }
  *text = NULL;
  *length = 0;
  return mkvm_status_of(mkvm_render(e, turns, count, variables, variables_length, text, length));
}

mkvm_status mkvm_get_info_size(const mkvm_engine *e, mkvm_info *out, size_t size) {
  if (e == NULL || out == NULL || size < sizeof out->size) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_get_info: the engine or the place is missing"));
  }
  const mk_config *config = mk_engine_config(e->engine);
  const mkvm_info info = {.device = mk_engine_device(e->engine),
                          .vocabulary = config->vocab,
                          .max_context = e->max_context,
                          .model_context = config->max_position,
                          .max_batch = e->max_batch,
                          .has_chat_template = e->chat != NULL,
                          .load_seconds = e->load_seconds,
                          .weight_bytes = e->memory.weights,
                          .kv_bytes = e->memory.kv,
                          .end_tokens = config->eos,
                          .end_token_count = config->eos_count};
  mkvm_give_struct(&info, sizeof info, out, size);
  return MKVM_OK;
}
