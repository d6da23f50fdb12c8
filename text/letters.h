/* Letters, digits and the case of characters, exactly as Python's str has them.
 *
 * The tables (letters_tables.h) are written by make_letters.py from Python's own; text/unicode.h has what needs none.
 * Pure functions on code points and constant tables; nothing is owned, nothing fails, any thread may call. */
#ifndef MK_LETTERS_H
#define MK_LETTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mk_letter_flag {
  MK_LETTER_ALPHA = 1,       /* isalpha() */
  MK_LETTER_DECIMAL = 2,     /* isdecimal() */
  MK_LETTER_DIGIT = 4,       /* isdigit() */
  MK_LETTER_NUMERIC = 8,     /* isnumeric() */
  MK_LETTER_LOWER = 16,      /* islower() of the character alone */
  MK_LETTER_UPPER = 32,      /* isupper() of the character alone */
  MK_LETTER_TITLE = 64,      /* in title case, such as U+01C5 */
  MK_LETTER_PRINTABLE = 128, /* isprintable() */
  MK_LETTER_CASED = 256,
  MK_LETTER_IGNORABLE = 512, /* does not end a word where the form of a sigma is decided */
  MK_LETTER_ALNUM = 15,
} mk_letter_flag;

/* All flags of a character. */
unsigned mk_letter_flags(uint32_t character);

typedef enum mk_letter_case { MK_CASE_UPPER, MK_CASE_LOWER, MK_CASE_TITLE, MK_CASE_FOLD } mk_letter_case;

/* The character in another case, as one to three characters in out; gives how many. Without a context: a sigma is never
 * final. */
size_t mk_letter_to_case(uint32_t character, mk_letter_case to, uint32_t out[3]);

#endif
