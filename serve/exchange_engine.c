/* What libmkvm tells of an exchange, in the engine's thread. Tokens of a stream go from here to its socket when they
 * may (exchange_internal.h), since waking the loop takes longer than that; anything else becomes an event for the loop.
 * */
#include "serve/exchange_internal.h"

static mk_status tell(mk_choice *c, mk_event event) {
  mk_exchange *a = c->exchange;
  mk_server *server = a->server;
  bool first;
  event.to = c;
  atomic_fetch_add_explicit(&a->told, 1, memory_order_relaxed);
  mk_status status = mk_events_put(&server->events, &event, &first);
  if (status != MK_OK) {
    atomic_fetch_sub_explicit(&a->told, 1, memory_order_relaxed);
  } else if (first) { /* by now the loop may have freed the exchange, if this was its end */
    mk_http_wake(server->http);
  }
  return status;
}

static void count_step(mk_server *server, const mkvm_token *token) {
  mk_engine_side *side = &server->side;
  if (token->token == MKVM_NO_TOKEN) {
    return;
  }
  if (token->step != side->step && side->tokens != 0) {
    mk_metrics_observe(&server->metrics, MK_ITERATION_TOKENS, side->tokens);
    side->tokens = 0;
  }
  side->step = token->step;
  side->tokens++;
}

static bool may_push(const mk_exchange *a) {
  return a->request.stream && atomic_load_explicit(&a->told, memory_order_acquire) == 0 && a->lent != NULL;
}

static mk_status push_token(mk_choice *c, const mkvm_token *token, uint64_t now) {
  mk_exchange *a = c->exchange;
  mk_bytes *piece = &a->server->side.piece;
  piece->length = 0;
  MK_TRY(mk_choice_take_token(c, token, now, piece));
  if (piece->length == 0) {
    return MK_OK;
  }
  if (!mk_http_push(a->lent, piece->bytes, piece->length)) {
    return tell(c, (mk_event){.kind = MK_EVENT_UNSENT});
  }
  mk_metrics_observe(&a->server->metrics, MK_TOKEN_WRITE, mk_now_ns() - now);
  return MK_OK;
}

int mk_choice_on_token(void *choice, const mkvm_token *token) {
  mk_choice *c = choice;
  const uint64_t now = mk_now_ns();
  count_step(c->exchange->server, token);
  mk_status status = may_push(c->exchange)
                         ? push_token(c, token, now)
                         : tell(c, (mk_event){.kind = MK_EVENT_TOKEN, .time_ns = now, .token = *token});
  return status != MK_OK;
}

void mk_choice_on_prompt(void *choice, const mkvm_token *token) {
  (void)tell(choice, (mk_event){.kind = MK_EVENT_PROMPT, .token = *token});
}

void mk_choice_on_end(void *choice, const mkvm_end *end) {
  while (tell(choice, (mk_event){.kind = MK_EVENT_END, .end = *end}) != MK_OK) {
    /* Without this event the reply would never end; meanwhile the loop frees memory. */
  }
}
