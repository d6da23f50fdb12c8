/* A line of JSON for each request. See server_internal.h. */
#include <time.h>

#include "serve/json_write.h"
#include "serve/server_internal.h"

static void put_time(mk_json_writer *w) {
  struct timespec now;
  struct tm utc;
  char text[40];
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &utc);
  size_t used = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(text + used, sizeof text - used, ".%03dZ", (int)(now.tv_nsec / 1000000));
  mk_put_text(w, text);
}

static void put_milliseconds(mk_json_writer *w, const char *name, uint64_t ns) {
  if (ns != 0) {
    char text[40];
    snprintf(text, sizeof text, "%s%llu.%03u", name, (unsigned long long)(ns / 1000000), (unsigned)(ns / 1000 % 1000));
    mk_put(w, text);
  }
}

static void put_tokens(mk_json_writer *w, const mk_request_note *note) {
  if (note->prompt_tokens != 0) {
    mk_put(w, ",\"prompt_tokens\":");
    mk_put_uint(w, note->prompt_tokens);
    mk_put(w, ",\"cached_tokens\":");
    mk_put_uint(w, note->cached_tokens);
    mk_put(w, ",\"tokens\":");
    mk_put_uint(w, note->tokens);
  }
}

void mk_log_request(mk_server *server, const mk_request_note *note) {
  mk_bytes line = {0};
  mk_json_writer w = mk_json_begin(&line);
  if (server->options.log == NULL) {
    return;
  }
  mk_put(&w, "{\"time\":");
  put_time(&w);
  mk_put(&w, ",\"id\":");
  mk_put_text(&w, note->id);
  mk_put(&w, ",\"peer\":");
  mk_put_text(&w, note->peer);
  mk_put(&w, ",\"path\":");
  mk_put_text(&w, note->path);
  mk_put(&w, ",\"status\":");
  mk_put_int(&w, note->status);
  put_tokens(&w, note);
  if (note->reason != NULL) {
    mk_put(&w, ",\"reason\":");
    mk_put_text(&w, note->reason);
  }
  put_milliseconds(&w, ",\"queue_ms\":", note->queue_ns);
  put_milliseconds(&w, ",\"first_ms\":", note->first_ns);
  put_milliseconds(&w, ",\"total_ms\":", note->total_ns);
  if (note->prompt != NULL) {
    mk_put(&w, ",\"prompt\":");
    mk_put_string(&w, note->prompt, note->prompt_length);
    mk_put(&w, ",\"answer\":");
    mk_put_string(&w, note->answer, note->answer_length);
  }
  mk_put(&w, "}\n");
  if (mk_json_end(&w) == MK_OK) {
    (void)fwrite(line.bytes, 1, line.length, server->options.log); /* a log that fails ends no request */
    (void)fflush(server->options.log);
  }
  mk_free(line.bytes);
}
