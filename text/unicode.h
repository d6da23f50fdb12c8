/* UTF-8, white space, and the byte alphabet of byte-level BPE.
 *
 * Pure functions on (pointer, length) and constant tables; nothing is owned, nothing fails, any thread may call. */
#ifndef MK_UNICODE_H
#define MK_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mk_utf8_kind {
  MK_UTF8_VALID,      /* *length bytes are one character */
  MK_UTF8_INVALID,    /* *length bytes are a maximal ill-formed part: one U+FFFD stands for them */
  MK_UTF8_INCOMPLETE, /* the *length bytes that are there may still become a character */
} mk_utf8_kind;

/* Classifies the start of text[0, size), size > 0: Unicode's Table 3-7, as Python's errors="replace" reads it. */
mk_utf8_kind mk_utf8_step(const uint8_t *text, size_t size, size_t *length);

/* The bytes at the start of text that are well-formed and complete. */
size_t mk_utf8_valid_prefix(const uint8_t *text, size_t size);

/* Copies text to out, U+FFFD in place of what is ill-formed; out has room for 3 * size bytes. Unless `final`, an
 * incomplete character at the end is left alone. Gives the bytes written and, in *consumed, the bytes of text dealt
 * with. */
size_t mk_utf8_replace(const uint8_t *text, size_t size, bool final, uint8_t *out, size_t *consumed);

/* The length of the white space (Unicode White_Space) that text[0, size), well-formed, starts or ends with. */
size_t mk_utf8_leading_space(const uint8_t *text, size_t size);
size_t mk_utf8_trailing_space(const uint8_t *text, size_t size);

/* Byte-level BPE writes each byte as a printable character: itself where Latin-1 has one, else U+0100 upwards.
 * mk_byte_to_utf8 writes one or two bytes and gives how many. */
size_t mk_byte_to_utf8(uint8_t byte, uint8_t out[2]);

/* The bytes that a well-formed string of such characters stands for, into out (room for size bytes); false when a
 * character is not one of the 256. */
bool mk_utf8_to_bytes(const uint8_t *text, size_t size, uint8_t *out, size_t *written);

#endif
