/* What is counted of an exchange, and its line of the log. See exchange_internal.h. */
#include "serve/exchange_internal.h"

void mk_choice_note_token(mk_choice *c, uint64_t time_ns) {
  mk_exchange *a = c->exchange;
  mk_metrics *m = &a->server->metrics;
  c->tokens++;
  mk_metrics_add(m, MK_GENERATION_TOKENS, 1);
  if (c->first_ns == 0) {
    c->first_ns = time_ns;
    a->first_ns = a->first_ns == 0 ? time_ns - a->start_ns : a->first_ns;
    mk_metrics_observe(m, MK_TIME_TO_FIRST_TOKEN, time_ns - a->start_ns);
  } else {
    mk_metrics_observe(m, MK_INTER_TOKEN, time_ns - c->last_ns);
  }
  c->last_ns = time_ns;
}

static uint64_t nanoseconds(double seconds) { return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0; }

void mk_choice_note_end(mk_choice *c, const mkvm_end *end) {
  mk_exchange *a = c->exchange;
  mk_metrics *m = &a->server->metrics;
  const uint64_t total = nanoseconds(end->queue_seconds + end->prompt_seconds + end->generate_seconds);
  const mk_counter counter = end->reason == MKVM_END_STOP     ? MK_ENDED_BY_STOP
                             : end->reason == MKVM_END_LENGTH ? MK_ENDED_BY_LENGTH
                             : end->reason == MKVM_END_ERROR  ? MK_ENDED_BY_ERROR
                                                              : MK_ENDED_BY_ABORT;
  mk_metrics_add(m, counter, 1);
  if (c->index % a->request.n == 0) {
    a->usage.prompt_tokens += end->prompt_tokens;
    a->usage.cached_tokens += end->cached_tokens;
  }
  a->usage.completion_tokens += c->tokens;
  a->queue_ns = a->queue_ns == 0 ? nanoseconds(end->queue_seconds) : a->queue_ns;
  if (end->reason != MKVM_END_STOP && end->reason != MKVM_END_LENGTH) {
    return;
  }
  mk_metrics_add(m, MK_PROMPT_TOKENS, end->prompt_tokens);
  mk_metrics_observe(m, MK_REQUEST_TIME, total);
  mk_metrics_observe(m, MK_QUEUE_TIME, nanoseconds(end->queue_seconds));
  mk_metrics_observe(m, MK_PREFILL_TIME, nanoseconds(end->prompt_seconds));
  mk_metrics_observe(m, MK_DECODE_TIME, nanoseconds(end->generate_seconds));
  mk_metrics_observe(m, MK_REQUEST_PROMPT_TOKENS, end->prompt_tokens);
  mk_metrics_observe(m, MK_REQUEST_GENERATION_TOKENS, c->tokens);
  if (c->tokens > 1) {
    mk_metrics_observe(m, MK_TIME_PER_OUTPUT_TOKEN, nanoseconds(end->generate_seconds) / (c->tokens - 1));
  }
}

static const char *path_of(const mk_exchange *a) {
  return a->request.chat ? "/v1/chat/completions" : "/v1/completions";
}

void mk_exchange_log(const mk_exchange *a) {
  const mk_openai_request *r = &a->request;
  const bool prompts = a->server->options.log_prompts;
  mk_request_note note = {.id = a->id,
                          .path = path_of(a),
                          .peer = a->peer,
                          .reason = a->reason,
                          .status = a->status,
                          .prompt_tokens = a->usage.prompt_tokens,
                          .cached_tokens = a->usage.cached_tokens,
                          .tokens = a->usage.completion_tokens,
                          .queue_ns = a->queue_ns,
                          .first_ns = a->first_ns,
                          .total_ns = mk_now_ns() - a->start_ns};
  if (prompts) {
    note.prompt = r->chat ? r->turns[r->turn_count - 1].content : r->prompts[0].text;
    note.prompt_length = r->chat ? r->turns[r->turn_count - 1].content_length : r->prompts[0].length;
    note.prompt = note.prompt == NULL ? "" : note.prompt;
    note.answer = a->choices[0].text.bytes == NULL ? "" : (const char *)a->choices[0].text.bytes;
    note.answer_length = a->choices[0].text.length;
  }
  mk_log_request(a->server, &note);
}
