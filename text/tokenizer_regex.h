/* Regular expressions of tokenizer.json, which Hugging Face gives to Oniguruma, as patterns of PCRE2 that match the
 * same.
 *
 * Both engines look for the leftmost match and try alternatives in order, but some of what they can be told means
 * something else to each of them, and their tables of characters differ. So a pattern is read here, by a grammar of
 * what is known to mean the same, and written anew: every class spelled out, every character by its number. What the
 * grammar lacks is refused by name. Read: literal characters, ., ^,
 * $, alternatives, groups (...), (?:...), (?i:...), (?>...), looks (?=...), (?!...), (?<=...), (?<!...), a (?i) that
 * the pattern begins with, *, +, ?, {n}, {n,}, {n,m}, {,m}, lazy and possessive forms, \s \S \d \D \w \W \p{..} \P{..}
 * with general categories and some scripts, [...] of characters, ranges and classes, \n \r \t \f \v \a \e \xHH \x{H...}
 * \uHHHH, and \ before what is no letter or digit.
 *
 * Pure functions; `out` belongs to the caller. Failure: MK_ERR_FILE for a pattern that is refused, MK_ERR_RUNTIME for
 * memory. */
#ifndef MK_TOKENIZER_REGEX_H
#define MK_TOKENIZER_REGEX_H

#include "text/tokenizer_internal.h"

/* Appends the pattern, NUL-terminated. `where` names it in messages. *empty: it may match the empty text. */
mk_status mk_regex_translate(const char *where, const char *pattern, size_t length, mk_bytes *out, bool *empty);

/* What stands in brackets for \s and \w. To the latter, Rust's regex adds joiners, and Oniguruma, outside of brackets,
 * numbers of Latin-1. */
#define MK_CLASS_SPACE "\\t-\\r \\x{85}\\p{Z}"
#define MK_CLASS_JOINERS "\\p{Join_Control}"
#define MK_CLASS_LATIN_NUMBERS "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define MK_CLASS_WORD                                                                                         \
  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-\\x{1c8a}"                            \
  "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d6d}"     \
  "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}" \
  "\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"   \
  "\\x{113cc}-\\x{113d3}\\x{113e1}-\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11bc0}-\\x{11be0}\\x{11bf0}-\\x{11bf9}" \
  "\\x{11f00}-\\x{11f10}\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f50}-\\x{11f5a}\\x{1342f}"            \
  "\\x{13440}-\\x{13455}\\x{13460}-\\x{143fa}\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d6c}\\x{16d70}-\\x{16d79}" \
  "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1ccf0}-\\x{1ccf9}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"   \
  "\\x{1e4d0}-\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

/* Appends what stands in brackets for \p{name}; *known: false for a name that is not known to mean the same. */
mk_status mk_class_property(const char *name, size_t length, mk_bytes *out, bool *known);

#endif
