/* See http.h. Where in a request evhttp is: it takes a request line by line, and a chunk's data in one go, so the bytes
 * that are about to be taken are at the beginning of its input, and are looked at before. That is for chunks: evhttp
 * ends requests whose chunks have extensions, with the same answer as to a body that is too large, and reads sizes as
 * strtoll does ("0x5", "+5", "5 of them"), so that a proxy before us may see another end than it. */
#include <string.h>
#include <strings.h>

#include "serve/http_internal.h"

enum { SIZE_LINE = 4096 }; /* bytes of a chunk's size and extensions */

static void refuse(mk_http_connection *c, const char *fault) {
  c->fault = fault;
  c->place = MK_HTTP_NOWHERE;
  mk_http_look_soon(c);
}

static void malformed(mk_http_connection *c) { refuse(c, "The chunks of the body are malformed."); }

/* "5", "5 ;name=value" or "5;name": a size and whatever its extensions are, which nobody here knows. Returns the number
 * of its digits; 0: it is malformed. */
static size_t read_size(const char *line, size_t length, size_t *size) {
  static const char hex[] = "0123456789abcdefABCDEF";
  const size_t digits = strspn(line, hex), blank = strspn(line + digits, " \t");
  *size = 0;
  for (size_t i = 0; i < digits; i++) {
    const size_t at = (size_t)(strchr(hex, line[i]) - hex), most = SIZE_MAX >> 5;
    *size = *size > most ? *size : *size << 4 | (at < 16 ? at : at - 6); /* a size that large is refused as too large */
  }
  bool good = digits > 0 && (line[digits + blank] == '\0' || line[digits + blank] == ';');
  for (size_t i = digits; good && i < length; i++) {
    good = (unsigned char)line[i] >= ' ' ? line[i] != 127 : line[i] == '\t';
  }
  return good ? digits : 0;
}

/* evhttp passes over what follows a size, if a space comes first: so a space is put there. */
static void hide_extensions(struct evbuffer *input, size_t digits) {
  struct evbuffer_ptr at;
  struct evbuffer_iovec part;
  if (evbuffer_ptr_set(input, &at, digits, EVBUFFER_PTR_SET) == 0 && evbuffer_peek(input, 1, &at, &part, 1) > 0) {
    *(char *)part.iov_base = ' ';
  }
}

static void look_at_size(mk_http_connection *c, struct evbuffer *input, size_t length) {
  char line[SIZE_LINE + 1];
  size_t size, digits = 0;
  if (length <= SIZE_LINE) {
    (void)evbuffer_copyout(input, line, length);
    line[length] = '\0';
    digits = read_size(line, length, &size);
  }
  if (digits == 0) {
    malformed(c);
    return;
  }
  if (digits < length) {
    hide_extensions(input, digits);
  }
  c->ahead += size;
  c->place = size == 0 ? MK_HTTP_NOWHERE : MK_HTTP_AT_CHUNK_END;
}

/* Whether a line has a NUL, at which evhttp would end it, as a C string. */
static bool has_nul(struct evbuffer *input, const struct evbuffer_ptr *end) {
  return evbuffer_search_range(input, "", 1, NULL, end).pos >= 0;
}

/* Whether the input cannot be HTTP, such as a TLS handshake, which may never have a line in it. */
static bool is_binary(struct evbuffer *input) {
  unsigned char first = 'G';
  (void)evbuffer_copyout(input, &first, 1);
  return first != '\r' && first != '\n' && (first < ' ' || first > '~');
}

/* A line at the beginning of the input, which evhttp takes next. end: of how many bytes its end is; only lines of a
 * head may end with a bare LF. */
static void look_at_line(mk_http_connection *c, struct evbuffer *input, size_t length, size_t end) {
  static const char encoding[] = "Transfer-Encoding:";
  char name[sizeof encoding] = "";
  c->ahead = length + end;
  switch (c->place) {
    case MK_HTTP_AT_FIRST:
      c->place = MK_HTTP_AT_HEAD;
      return;
    case MK_HTTP_AT_HEAD:
      (void)evbuffer_copyout(input, name, sizeof encoding - 1);
      c->chunks = c->chunks || strcasecmp(name, encoding) == 0;
      c->place = length == 0 ? MK_HTTP_AT_BODY : MK_HTTP_AT_HEAD;
      return;
    case MK_HTTP_AT_CHUNK:
      if (end == 2) {
        look_at_size(c, input, length);
        return;
      }
      break;
    default: /* MK_HTTP_AT_CHUNK_END */
      if (end == 2 && length == 0) {
        c->place = MK_HTTP_AT_CHUNK;
        return;
      }
  }
  malformed(c);
}

void mk_http_follow(mk_http_connection *c, size_t taken) {
  struct evbuffer *input = bufferevent_get_input(c->bev);
  c->taken += taken;
  c->ahead -= taken < c->ahead ? taken : c->ahead;
  if (c->ahead > 0) {
    return;
  }
  if (c->place == MK_HTTP_AT_BODY) {
    c->head_over = true;
    c->place = c->chunks ? MK_HTTP_AT_CHUNK : MK_HTTP_NOWHERE;
  }
  if (c->place == MK_HTTP_NOWHERE) {
    return;
  }
  size_t end;
  const struct evbuffer_ptr found = evbuffer_search_eol(input, NULL, &end, EVBUFFER_EOL_CRLF);
  const size_t held = evbuffer_get_length(input);
  if (c->place == MK_HTTP_AT_FIRST && is_binary(input)) {
    refuse(c, "This is not HTTP; for TLS, put a proxy before the server.");
  } else if (found.pos >= 0 && c->place <= MK_HTTP_AT_HEAD && has_nul(input, &found)) {
    refuse(c, "The request line or a header has a NUL in it.");
  } else if (found.pos >= 0) {
    look_at_line(c, input, (size_t)found.pos, end);
  } else if ((c->place == MK_HTTP_AT_CHUNK && held > SIZE_LINE) || (c->place == MK_HTTP_AT_CHUNK_END && held > 1)) {
    malformed(c);
  }
}
