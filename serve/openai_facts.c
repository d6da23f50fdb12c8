/* The endpoints that say what there is: models, tokenizer, version; and the ids of a text. See openai_write.h. */
#include "serve/json_write.h"
#include "serve/openai_write.h"

static void put_model(mk_json_writer *w, const mk_openai_served *model) {
  mk_put(w, "{\"id\":");
  mk_put_text(w, model->id);
  mk_put(w, ",\"object\":\"model\",\"created\":");
  mk_put_int(w, model->created);
  mk_put(w, ",\"owned_by\":\"mkvm\",\"root\":");
  mk_put_text(w, model->root);
  mk_put(w, ",\"parent\":null,\"max_model_len\":");
  mk_put_uint(w, model->max_context);
  mk_put(w, "}");
}

mk_status mk_openai_write_model(mk_bytes *out, const mk_openai_served *model) {
  mk_json_writer w = mk_json_begin(out);
  put_model(&w, model);
  return mk_json_end(&w);
}

mk_status mk_openai_write_models(mk_bytes *out, const mk_openai_served *models, size_t count) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "{\"object\":\"list\",\"data\":[");
  for (size_t i = 0; i < count; i++) {
    mk_put(&w, i > 0 ? "," : "");
    put_model(&w, &models[i]);
  }
  mk_put(&w, "]}");
  return mk_json_end(&w);
}

static void put_ids(mk_json_writer *w, const uint32_t *ids, size_t count) {
  mk_put(w, "[");
  for (size_t i = 0; i < count; i++) {
    mk_put(w, i > 0 ? "," : "");
    mk_put_uint(w, ids[i]);
  }
  mk_put(w, "]");
}

mk_status mk_openai_write_tokens(mk_bytes *out, const uint32_t *tokens, size_t count, uint32_t max_context) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "{\"count\":");
  mk_put_uint(&w, count);
  mk_put(&w, ",\"max_model_len\":");
  mk_put_uint(&w, max_context);
  mk_put(&w, ",\"tokens\":");
  put_ids(&w, tokens, count);
  mk_put(&w, "}");
  return mk_json_end(&w);
}

mk_status mk_openai_write_detokenized(mk_bytes *out, const char *text, size_t length) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "{\"prompt\":");
  mk_put_string(&w, text, length);
  mk_put(&w, "}");
  return mk_json_end(&w);
}

mk_status mk_openai_write_version(mk_bytes *out, const char *version) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "{\"version\":");
  mk_put_text(&w, version);
  mk_put(&w, "}");
  return mk_json_end(&w);
}

mk_status mk_openai_write_tokenizer(mk_bytes *out, const mk_openai_tokenizer *t) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "{\"tokenizer_class\":");
  mk_put_text(&w, t->tokenizer_class);
  mk_put(&w, ",\"bos_token\":");
  mk_put_text(&w, t->bos_token);
  mk_put(&w, ",\"eos_token\":");
  mk_put_text(&w, t->eos_token);
  mk_put(&w, ",\"eos_token_ids\":");
  put_ids(&w, t->eos_ids, t->eos_count);
  mk_put(&w, ",\"vocab_size\":");
  mk_put_uint(&w, t->vocabulary);
  mk_put(&w, ",\"model_max_length\":");
  mk_put_uint(&w, t->max_context);
  mk_put(&w, ",\"chat_template\":");
  mk_put_text(&w, t->chat_template);
  mk_put(&w, "}");
  return mk_json_end(&w);
}
