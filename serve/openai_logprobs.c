/* See openai_logprobs.h. */
#include "serve/openai_logprobs.h"

/* The only place that writes one: clients compare the chosen token's with the greatest of the list, for equality. */
static void put_logprob(mk_json_writer *w, float logprob) {
  const float least = -9999;
  mk_put_float(w, logprob >= least && logprob <= 3.4e38f ? logprob : least);
}

static void put_candidate(mk_json_writer *w, const mk_openai_candidate *c) {
  mk_put(w, "{\"token\":");
  mk_put_string(w, c->text, c->length);
  mk_put(w, ",\"logprob\":");
  put_logprob(w, c->logprob);
  mk_put(w, ",\"bytes\":[");
  for (size_t i = 0; i < c->length; i++) {
    mk_put(w, i > 0 ? "," : "");
    mk_put_uint(w, (uint8_t)c->text[i]);
  }
  mk_put(w, "]");
}

void mk_put_chat_logprobs(mk_json_writer *w, const mk_openai_choice *choice) {
  mk_put(w, "{\"content\":[");
  for (size_t i = 0; i < choice->token_count; i++) {
    const mk_openai_token *token = &choice->tokens[i];
    mk_put(w, i > 0 ? "," : "");
    put_candidate(w, &token->chosen);
    mk_put(w, ",\"top_logprobs\":[");
    for (size_t j = 0; j < token->top_count; j++) {
      mk_put(w, j > 0 ? "," : "");
      put_candidate(w, &token->top[j]);
      mk_put(w, "}");
    }
    mk_put(w, "]}");
  }
  mk_put(w, "],\"refusal\":null}");
}

/* Whether text[0, length), members `"key":number` with a comma after each, has this key; quotes are part of a key. */
static bool has_key(const uint8_t *text, size_t length, const uint8_t *key, size_t key_length) {
  for (size_t at = 0, past; at < length; at = past + 1) {
    for (past = at + 1; text[past] != '"'; past++) {
      past += text[past] == '\\';
    }
    if (past + 1 - at == key_length && memcmp(text + at, key, key_length) == 0) {
      return true;
    }
    while (text[past] != ',') {
      past++;
    }
  }
  return false;
}

/* A member "text":logprob of the object whose members begin at byte `start`, unless it has that key: parts of
 * characters look alike (U+FFFD), and the more probable one comes first and stays. */
static void put_member(mk_json_writer *w, size_t start, const mk_openai_candidate *c) {
  const size_t before = w->out->length;
  mk_put(w, before > start ? "," : "");
  const size_t key = w->out->length;
  mk_put_string(w, c->text, c->length);
  if (w->status == MK_OK && has_key(w->out->bytes + start, key - start, w->out->bytes + key, w->out->length - key)) {
    w->out->length = before;
    return;
  }
  mk_put(w, ":");
  put_logprob(w, c->logprob);
}

static void put_top(mk_json_writer *w, const mk_openai_token *token) {
  if (token->unknown) {
    mk_put(w, "null");
    return;
  }
  mk_put(w, "{");
  const size_t start = w->out->length;
  for (size_t i = 0; i < token->top_count; i++) {
    put_member(w, start, &token->top[i]);
  }
  put_member(w, start, &token->chosen); /* always there, whatever its rank */
  mk_put(w, "}");
}

uint64_t mk_openai_characters(const mk_openai_token *tokens, size_t count) {
  uint64_t characters = 0;
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < tokens[i].chosen.length && !tokens[i].unseen; j++) {
      characters += ((uint8_t)tokens[i].chosen.text[j] & 0xc0) != 0x80;
    }
  }
  return characters;
}

void mk_put_text_logprobs(mk_json_writer *w, const mk_openai_choice *choice) {
  mk_put(w, "{\"tokens\":[");
  for (size_t i = 0; i < choice->token_count; i++) {
    mk_put(w, i > 0 ? "," : "");
    mk_put_string(w, choice->tokens[i].chosen.text, choice->tokens[i].chosen.length);
  }
  mk_put(w, "],\"token_logprobs\":[");
  for (size_t i = 0; i < choice->token_count; i++) {
    mk_put(w, i > 0 ? "," : "");
    if (choice->tokens[i].unknown) {
      mk_put(w, "null");
    } else {
      put_logprob(w, choice->tokens[i].chosen.logprob);
    }
  }
  mk_put(w, "],\"top_logprobs\":[");
  for (size_t i = 0; i < choice->token_count; i++) {
    mk_put(w, i > 0 ? "," : "");
    put_top(w, &choice->tokens[i]);
  }
  mk_put(w, "],\"text_offset\":[");
  uint64_t offset = choice->offset;
  for (size_t i = 0; i < choice->token_count; i++) {
    mk_put(w, i > 0 ? "," : "");
    mk_put_uint(w, offset);
    offset += mk_openai_characters(&choice->tokens[i], 1);
  }
  mk_put(w, "]}");
}
