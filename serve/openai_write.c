/* See openai_write.h. */
#include "serve/openai_write.h"

#include "serve/json_write.h"
#include "serve/openai_logprobs.h"

static void put_usage(mk_json_writer *w, const mk_openai_usage *usage) {
  if (usage == NULL) {
    mk_put(w, "null");
    return;
  }
  mk_put(w, "{\"prompt_tokens\":");
  mk_put_uint(w, usage->prompt_tokens);
  mk_put(w, ",\"completion_tokens\":");
  mk_put_uint(w, usage->completion_tokens);
  mk_put(w, ",\"total_tokens\":");
  mk_put_uint(w, usage->prompt_tokens + usage->completion_tokens);
  mk_put(w, ",\"prompt_tokens_details\":{\"cached_tokens\":");
  mk_put_uint(w, usage->cached_tokens);
  mk_put(w, "}}");
}

static void put_head(mk_json_writer *w, const mk_openai_reply *reply, bool stream) {
  mk_put(w, "{\"id\":");
  mk_put_text(w, reply->id);
  mk_put(w, !reply->chat ? ",\"object\":\"text_completion\""
            : stream     ? ",\"object\":\"chat.completion.chunk\""
                         : ",\"object\":\"chat.completion\"");
  mk_put(w, ",\"created\":");
  mk_put_int(w, reply->created);
  mk_put(w, ",\"model\":");
  mk_put_text(w, reply->model);
  mk_put(w, ",\"choices\":[");
}

/* Writes the rest of a choice, from its log-probabilities on. */
static void put_rest(mk_json_writer *w, const mk_openai_reply *reply, const mk_openai_choice *choice, bool logprobs,
                     const char *finish_reason) {
  mk_put(w, ",\"logprobs\":");
  if (!logprobs) {
    mk_put(w, "null");
  } else if (reply->chat) {
    mk_put_chat_logprobs(w, choice);
  } else {
    mk_put_text_logprobs(w, choice);
  }
  mk_put(w, ",\"finish_reason\":");
  mk_put_text(w, finish_reason);
  mk_put(w, "}");
}

static void put_choice(mk_json_writer *w, const mk_openai_reply *reply, const mk_openai_choice *choice) {
  const char *text = choice->text == NULL ? "" : choice->text;
  mk_put(w, "{\"index\":");
  mk_put_uint(w, choice->index);
  mk_put(w, reply->chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":");
  mk_put_string(w, text, choice->text == NULL ? 0 : choice->length);
  mk_put(w, reply->chat ? ",\"refusal\":null}" : "");
  put_rest(w, reply, choice, reply->logprobs, choice->finish_reason);
}

mk_status mk_openai_write_response(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_choice *choices,
                                   size_t count, const mk_openai_usage *usage) {
  mk_json_writer w = mk_json_begin(out);
  put_head(&w, reply, false);
  for (size_t i = 0; i < count; i++) {
    mk_put(&w, i > 0 ? "," : "");
    put_choice(&w, reply, &choices[i]);
  }
  mk_put(&w, "],\"usage\":");
  put_usage(&w, usage);
  mk_put(&w, "}");
  return mk_json_end(&w);
}

typedef enum event { EVENT_ROLE, EVENT_TEXT, EVENT_END } event;

static void put_delta(mk_json_writer *w, const mk_openai_reply *reply, const mk_openai_choice *choice, event what) {
  if (!reply->chat) {
    mk_put(w, ",\"text\":");
    mk_put_string(w, what == EVENT_TEXT ? choice->text : "", what == EVENT_TEXT ? choice->length : 0);
    return;
  }
  mk_put(w, ",\"delta\":{");
  if (what == EVENT_ROLE) {
    mk_put(w, "\"role\":\"assistant\",\"content\":null");
  } else if (what == EVENT_TEXT) {
    mk_put(w, "\"content\":");
    mk_put_string(w, choice->text, choice->length);
  }
  mk_put(w, "}");
}

static void put_event(mk_json_writer *w, const mk_openai_reply *reply, const mk_openai_choice *choice, event what) {
  mk_put(w, "data: ");
  put_head(w, reply, true);
  mk_put(w, "{\"index\":");
  mk_put_uint(w, choice->index);
  put_delta(w, reply, choice, what);
  const bool ends = what == EVENT_END || (what == EVENT_TEXT && !reply->chat);
  put_rest(w, reply, choice, reply->logprobs && what == EVENT_TEXT, ends ? choice->finish_reason : NULL);
  mk_put(w, "]");
  if (choice->usage != NULL || reply->include_usage) {
    mk_put(w, ",\"usage\":");
    put_usage(w, choice->usage);
  }
  mk_put(w, "}\n\n");
}

mk_status mk_openai_write_chunk(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_choice *choice) {
  mk_json_writer w = mk_json_begin(out);
  if (choice->first && reply->chat) {
    put_event(&w, reply, choice, EVENT_ROLE);
  }
  if (choice->text != NULL) {
    put_event(&w, reply, choice, EVENT_TEXT);
  }
  if (choice->finish_reason != NULL && (reply->chat || choice->text == NULL)) {
    put_event(&w, reply, choice, EVENT_END);
  }
  return mk_json_end(&w);
}

mk_status mk_openai_write_usage(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_usage *usage) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "data: ");
  put_head(&w, reply, true);
  mk_put(&w, "],\"usage\":");
  put_usage(&w, usage);
  mk_put(&w, "}\n\n");
  return mk_json_end(&w);
}

mk_status mk_openai_write_done(mk_bytes *out) { return mk_bytes_append(out, "data: [DONE]\n\n", 14); }

static void put_error(mk_json_writer *w, const mk_serve_error *error) {
  mk_put(w, "{\"error\":{\"message\":");
  mk_put_text(w, error->message);
  mk_put(w, ",\"type\":");
  mk_put_text(w, error->type);
  mk_put(w, ",\"param\":");
  mk_put_text(w, error->param[0] == '\0' ? NULL : error->param);
  mk_put(w, ",\"code\":");
  mk_put_text(w, error->code);
  mk_put(w, "}}");
}

mk_status mk_openai_write_error(mk_bytes *out, const mk_serve_error *error) {
  mk_json_writer w = mk_json_begin(out);
  put_error(&w, error);
  return mk_json_end(&w);
}

mk_status mk_openai_write_error_event(mk_bytes *out, const mk_serve_error *error) {
  mk_json_writer w = mk_json_begin(out);
  mk_put(&w, "data: ");
  put_error(&w, error);
  mk_put(&w, "\n\n");
  return mk_json_end(&w);
}
