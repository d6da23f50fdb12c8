/* Token ids -> text, one id at a time, through the steps of the file's decoder. See tokenizer.h.
 *
 * Hugging Face passes the whole list of tokens through each step in turn. Here a token goes through all steps at once;
 * a step keeps what it needs to know of the tokens before, so that the concatenation is the same. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

typedef struct step_state {
  size_t seen;    /* METASPACE: tokens; STRIP of the whole: characters dropped, `limit` once there is no more to drop */
  mk_bytes text;  /* what the step gave; BYTE_FALLBACK and BYTE_LEVEL: bytes that are not shown yet */
  mk_bytes valid; /* BYTE_LEVEL: what the step gave */
} step_state;

struct mk_decoder {
  const mk_tokenizer *tokenizer;
  step_state states[MK_STEPS];
  mk_bytes out;
};

mk_status mk_decoder_new(const mk_tokenizer *tokenizer, mk_decoder **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->tokenizer = tokenizer;
  return MK_OK;
}

void mk_decoder_free(mk_decoder *decoder) {
  if (decoder != NULL) {
    for (size_t i = 0; i < MK_STEPS; i++) {
      mk_free(decoder->states[i].text.bytes);
      mk_free(decoder->states[i].valid.bytes);
    }
    mk_free(decoder->out.bytes);
    mk_free(decoder);
  }
}

static bool starts_with(const uint8_t *text, size_t size, const mk_step *step) {
  return size >= step->pattern_length && memcmp(text, step->pattern, step->pattern_length) == 0;
}

/* What is left of text after the step has dropped what it may. */
static void strip(const mk_step *step, step_state *state, const uint8_t **text, size_t *size) {
  state->seen = step->whole ? state->seen : 0;
  while (*size > 0 && state->seen < step->limit) {
    if (!starts_with(*text, *size, step)) {
      state->seen = step->limit;
      break;
    }
    *text += step->pattern_length;
    *size -= step->pattern_length;
    state->seen++;
  }
}

static mk_status metaspace(const mk_step *step, step_state *state, const uint8_t *text, size_t size) {
  const mk_step replace = {.pattern = step->pattern,
                           .pattern_length = step->pattern_length,
                           .content = (uint8_t[]){' '},
                           .content_length = step->limit > 0 && state->seen == 0 ? 0 : 1};
  state->seen++;
  state->text.length = 0;
  return mk_step_replace(&replace, text, size, &state->text);
}

static int hex_digit(uint8_t c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

/* <0xNN>, as Rust's from_str_radix reads two characters: a plus sign may stand first. */
static bool byte_piece(const uint8_t *text, size_t size, uint8_t *byte) {
  if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
    return false;
  }
  const int high = text[3] == '+' ? 0 : hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  *byte = (uint8_t)(high * 16 + low);
  return high >= 0 && low >= 0;
}

/* The bytes of a token of the byte alphabet; a token with other characters stands for itself. */
static mk_status append_bytes(mk_bytes *pending, const uint8_t *text, size_t size) {
  size_t written;
  MK_TRY(mk_grow(&pending->bytes, &pending->capacity, pending->length + size + 1, 1));
  if (mk_utf8_to_bytes(text, size, pending->bytes + pending->length, &written)) {
    pending->length += written;
    return MK_OK;
  }
  return mk_bytes_append(pending, text, size);
}

/* Gives what is complete of the pending bytes; an incomplete character waits unless `final`. */
static mk_status complete(step_state *state, bool final, const uint8_t **text, size_t *size) {
  mk_bytes *pending = &state->text;
  size_t consumed;
  MK_TRY(mk_grow(&state->valid.bytes, &state->valid.capacity, 3 * pending->length + 1, 1));
  *size = mk_utf8_replace(pending->bytes, pending->length, final, state->valid.bytes, &consumed);
  *text = state->valid.bytes;
  pending->length -= consumed;
  memmove(pending->bytes, pending->bytes + consumed, pending->length);
  return MK_OK;
}

static mk_status feed(mk_decoder *d, size_t at, const uint8_t *text, size_t size);

/* Ends a run of <0xNN>: one token if it is UTF-8 as a whole, else a U+FFFD for each byte. */
static mk_status end_run(mk_decoder *d, size_t at) {
  mk_bytes *run = &d->states[at].text;
  const size_t length = run->length;
  run->length = 0;
  if (length == 0) {
    return MK_OK;
  }
  if (mk_utf8_valid_prefix(run->bytes, length) == length) {
    return feed(d, at + 1, run->bytes, length);
  }
  for (size_t i = 0; i < length; i++) {
    MK_TRY(feed(d, at + 1, (const uint8_t *)"\xef\xbf\xbd", 3));
  }
  return MK_OK;
}

/* Takes a token through the steps from `at` on. Each step writes to memory of its own, so that a run that ends in the
 * midst of a token's way disturbs nothing. */
static mk_status feed(mk_decoder *d, size_t at, const uint8_t *text, size_t size) {
  const mk_steps *steps = &d->tokenizer->decoder;
  for (; at < steps->count; at++) {
    const mk_step *step = &steps->list[at];
    step_state *state = &d->states[at];
    uint8_t byte;
    switch (step->kind) {
      case MK_STEP_REPLACE:
        state->text.length = 0;
        MK_TRY(mk_step_replace(step, text, size, &state->text));
        text = state->text.bytes;
        size = state->text.length;
        break;
      case MK_STEP_METASPACE:
        MK_TRY(metaspace(step, state, text, size));
        text = state->text.bytes;
        size = state->text.length;
        break;
      case MK_STEP_STRIP:
        strip(step, state, &text, &size);
        break;
      case MK_STEP_BYTE_FALLBACK:
        if (byte_piece(text, size, &byte)) {
          return mk_bytes_append(&state->text, &byte, 1);
        }
        MK_TRY(end_run(d, at));
        break;
      case MK_STEP_BYTE_LEVEL:
        MK_TRY(append_bytes(&state->text, text, size));
        MK_TRY(complete(state, false, &text, &size));
        break;
      case MK_STEP_FUSE:
      case MK_STEP_PREPEND: /* this one and those below are of normalisers */
      case MK_STEP_REPLACE_REGEX:
      case MK_STEP_NORMAL_FORM:
      case MK_STEP_LOWERCASE:
      case MK_STEP_TRIM:
        break;
    }
  }
  return mk_bytes_append(&d->out, text, size);
}

static mk_status give(mk_decoder *d, const char **text, size_t *length) {
  MK_TRY(mk_bytes_append(&d->out, "", 1));
  *text = (const char *)d->out.bytes;
  *length = d->out.length - 1;
  return MK_OK;
}

mk_status mk_decoder_push(mk_decoder *decoder, uint32_t id, const char **text, size_t *length) {
  const mk_tokenizer *t = decoder->tokenizer;
  decoder->out.length = 0;
  if (id < t->count && t->pieces[id].present && !t->pieces[id].hidden) {
    MK_TRY(feed(decoder, 0, t->arena + t->pieces[id].shown, t->pieces[id].shown_length));
  }
  return give(decoder, text, length);
}

mk_status mk_decoder_finish(mk_decoder *decoder, const char **text, size_t *length) {
  const mk_steps *steps = &decoder->tokenizer->decoder;
  decoder->out.length = 0;
  for (size_t at = 0; at < steps->count; at++) {
    if (steps->list[at].kind == MK_STEP_BYTE_FALLBACK) {
      MK_TRY(end_run(decoder, at));
    } else if (steps->list[at].kind == MK_STEP_BYTE_LEVEL && decoder->states[at].text.length > 0) {
      const uint8_t *rest;
      size_t size;
      MK_TRY(complete(&decoder->states[at], true, &rest, &size));
      MK_TRY(feed(decoder, at + 1, rest, size));
    }
  }
  return give(decoder, text, length);
}

/* Steps that know of the tokens before it take it for one with some. */
static mk_status bytes_through(const mk_steps *steps, const uint8_t *text, size_t size, mk_bytes *from, mk_bytes *to) {
  MK_TRY(mk_bytes_append(from, text, size));
  for (size_t at = 0; at < steps->count; at++) {
    const mk_step *step = &steps->list[at];
    step_state state = {.seen = 1, .text = *to};
    uint8_t byte;
    mk_status status = MK_OK;
    state.text.length = 0;
    if (step->kind == MK_STEP_REPLACE) {
      status = mk_step_replace(step, from->bytes, from->length, &state.text);
    } else if (step->kind == MK_STEP_METASPACE) {
      status = metaspace(step, &state, from->bytes, from->length);
    } else if (step->kind == MK_STEP_BYTE_FALLBACK && byte_piece(from->bytes, from->length, &byte)) {
      status = mk_bytes_append(&state.text, &byte, 1);
    } else if (step->kind == MK_STEP_BYTE_LEVEL) {
      status = append_bytes(&state.text, from->bytes, from->length);
    } else {
      continue;
    }
    *to = *from;
    *from = state.text;
    MK_TRY(status);
  }
  return MK_OK;
}

mk_status mk_tokenizer_bytes(const mk_tokenizer *t, uint32_t id, mk_bytes *out, bool *special) {
  mk_bytes from = {0}, to = {0};
  *special = id < t->count && t->pieces[id].hidden;
  if (id >= t->count || !t->pieces[id].present) {
    return MK_OK;
  }
  const mk_piece *p = &t->pieces[id];
  if (*special) {
    return mk_bytes_append(out, t->arena + p->text, p->length);
  }
  mk_status status = bytes_through(&t->decoder, t->arena + p->shown, p->shown_length, &from, &to);
  status = status == MK_OK ? mk_bytes_append(out, from.bytes, from.length) : status;
  mk_free(from.bytes);
  mk_free(to.bytes);
  return status;
}
