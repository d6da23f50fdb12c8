/* What a reply says of tokens and ends. See exchange_internal.h. */
#include "serve/exchange_internal.h"

bool mk_exchange_only_echoes(const mk_exchange *a) { return a->request.has_max_tokens && a->request.max_tokens == 0; }

const mk_echo *mk_choice_echo(const mk_choice *c) {
  const mk_exchange *a = c->exchange;
  return a->echoes == NULL ? NULL : &a->echoes[c->index / a->request.n];
}

/* ---- Tokens ---- */

static mk_openai_candidate candidate_of(const mk_server *server, uint32_t token, double logprob) {
  const mk_token_text text = mk_token_text_of(&server->tokens, token);
  return (mk_openai_candidate){.token = token, .text = text.bytes, .length = text.length, .logprob = (float)logprob};
}

/* top: [MKVM_MOST_LOGPROBS] */
static mk_openai_token token_of(const mk_server *server, const mkvm_token *token, mk_openai_candidate *top) {
  for (uint32_t i = 0; i < token->top_count; i++) {
    top[i] = candidate_of(server, token->top[i].token, token->top[i].logprob);
  }
  return (mk_openai_token){.chosen = candidate_of(server, token->token, token->logprob),
                           .top = top,
                           .top_count = token->top_count,
                           .unknown = token->rank == 0,
                           .unseen = mk_token_text_of(&server->tokens, token->token).special};
}

static void drop_kept(mk_choice *c) {
  for (size_t i = 0; i < c->kept_count; i++) {
    mk_free((void *)(uintptr_t)c->kept[i].top);
  }
  c->kept_count = 0;
}

mk_status mk_choice_keep(mk_choice *c, const mkvm_token *token) {
  mk_openai_candidate *top = NULL;
  MK_TRY(mk_grow(&c->kept, &c->kept_capacity, c->kept_count + 1, sizeof *c->kept));
  if (token->top_count != 0) {
    MK_TRY(mk_alloc(token->top_count, sizeof *top, &top));
  }
  c->kept[c->kept_count++] = token_of(c->exchange->server, token, top);
  return MK_OK;
}

void mk_choice_free(mk_choice *c) {
  drop_kept(c);
  mk_free(c->kept);
  mk_free(c->text.bytes);
}

/* ---- Streams ---- */

/* Appends a part of a stream: text, tokens, or an end. */
static mk_status put_part(mk_choice *c, mk_openai_choice part, mk_bytes *out) {
  const mk_exchange *a = c->exchange;
  const mk_openai_usage usage = {.prompt_tokens = c->prompt_tokens, .completion_tokens = c->tokens};
  part.index = c->index;
  part.first = !c->begun;
  part.offset = c->offset;
  part.usage = a->request.continuous_usage ? &usage : NULL;
  MK_TRY(mk_openai_write_chunk(out, &a->reply, &part));
  c->begun = true;
  c->offset += mk_openai_characters(part.tokens, part.token_count);
  return MK_OK;
}

/* Appends, before anything else of a choice, the prompt, with what is known of its tokens. */
static mk_status put_echo(mk_choice *c, mk_bytes *out) {
  const mk_exchange *a = c->exchange;
  const mk_echo *e = mk_choice_echo(c);
  if (c->begun || e == NULL) {
    return MK_OK;
  }
  if (!a->request.stream || a->server->options.log_prompts) {
    MK_TRY(mk_bytes_append(&c->text, e->text, e->length));
  }
  if (a->request.stream) {
    const mk_openai_choice part = {
        .text = e->text, .length = e->length, .tokens = c->kept, .token_count = c->kept_count};
    MK_TRY(put_part(c, part, out));
    drop_kept(c);
  }
  c->begun = true;
  return MK_OK;
}

static mk_status put_token(mk_choice *c, const mkvm_token *token, mk_bytes *out) {
  const mk_exchange *a = c->exchange;
  const bool told = a->request.logprobs && token->token != MKVM_NO_TOKEN;
  mk_openai_candidate top[MKVM_MOST_LOGPROBS];
  MK_TRY(put_echo(c, out));
  if (!a->request.stream || a->server->options.log_prompts) {
    MK_TRY(mk_bytes_append(&c->text, token->text, token->length));
  }
  if (!a->request.stream) {
    return told ? mk_choice_keep(c, token) : MK_OK;
  }
  if (token->length == 0 && !told && (c->begun || !a->request.chat)) {
    return MK_OK;
  }
  const mk_openai_token one = told ? token_of(a->server, token, top) : (mk_openai_token){.unknown = true};
  const mk_openai_choice part = {
      .text = token->text, .length = token->length, .tokens = told ? &one : NULL, .token_count = told};
  return put_part(c, part, out);
}

mk_status mk_choice_take_token(mk_choice *c, const mkvm_token *token, uint64_t time_ns, mk_bytes *out) {
  if (mk_exchange_only_echoes(c->exchange)) {
    return MK_OK;
  }
  c->prompt_tokens = token->prompt_tokens;
  if (token->token != MKVM_NO_TOKEN) {
    mk_choice_note_token(c, time_ns);
  }
  return put_token(c, token, out);
}

mk_status mk_choice_put_end(mk_choice *c, mk_bytes *out) {
  MK_TRY(put_echo(c, out));
  return c->exchange->request.stream ? put_part(c, (mk_openai_choice){.finish_reason = c->reason}, out) : MK_OK;
}

/* ---- A reply of one piece ---- */

mk_status mk_exchange_put_response(const mk_exchange *a, mk_bytes *out) {
  mk_openai_choice *choices;
  MK_TRY(mk_alloc(a->count, sizeof *choices, &choices));
  for (size_t i = 0; i < a->count; i++) {
    const mk_choice *c = &a->choices[i];
    choices[i] = (mk_openai_choice){.index = c->index,
                                    .text = c->text.bytes == NULL ? "" : (const char *)c->text.bytes,
                                    .length = c->text.length,
                                    .tokens = c->kept,
                                    .token_count = c->kept_count,
                                    .finish_reason = c->reason};
  }
  mk_status status = mk_openai_write_response(out, &a->reply, choices, a->count, &a->usage);
  mk_free(choices);
  return status;
}
