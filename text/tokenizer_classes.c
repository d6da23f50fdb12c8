/* Classes of characters, as what stands in the brackets of a PCRE2 pattern. See tokenizer_regex.h.
 *
 * The reference compiles patterns with Oniguruma, whose classes are those of Unicode 16. PCRE2's may be those of
 * Unicode 14 (Debian 12), so what has become a character since then is listed; adding what a newer PCRE2 has already
 * changes nothing. One character has left its category (U+1171E is no longer in Mn), so that Mn cannot be said, nor can
 * what is said of characters that are none yet (C, Cn). */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_regex.h"

static const struct newer {
  uint32_t first, last;
  char category[3];
} newer[] = {{0x897, 0x897, "Mn"},     {0xcf3, 0xcf3, "Mc"},     {0xece, 0xece, "Mn"},     {0x1b4e, 0x1b4f, "Po"},
             {0x1b7f, 0x1b7f, "Po"},   {0x1c89, 0x1c89, "Lu"},   {0x1c8a, 0x1c8a, "Ll"},   {0x2427, 0x2429, "So"},
             {0x2ffc, 0x2fff, "So"},   {0x31e4, 0x31e5, "So"},   {0x31ef, 0x31ef, "So"},   {0xa7cb, 0xa7cc, "Lu"},
             {0xa7cd, 0xa7cd, "Ll"},   {0xa7da, 0xa7da, "Lu"},   {0xa7db, 0xa7db, "Ll"},   {0xa7dc, 0xa7dc, "Lu"},
             {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo"}, {0x10d4e, 0x10d4e, "Lm"},
             {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"}, {0x10d69, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"},
             {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"}, {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo"},
             {0x10efc, 0x10eff, "Mn"}, {0x1123f, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"},
             {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"}, {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"},
             {0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"}, {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"},
             {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"}, {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"},
             {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"}, {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"},
             {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"}, {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd"},
             {0x1171e, 0x1171e, "Mc"}, {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"}, {0x11be1, 0x11be1, "Po"},
             {0x11bf0, 0x11bf9, "Nd"}, {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"}, {0x11f03, 0x11f03, "Mc"},
             {0x11f04, 0x11f10, "Lo"}, {0x11f12, 0x11f33, "Lo"}, {0x11f34, 0x11f35, "Mc"}, {0x11f36, 0x11f3a, "Mn"},
             {0x11f3e, 0x11f3f, "Mc"}, {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"},
             {0x11f43, 0x11f4f, "Po"}, {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo"},
             {0x13439, 0x1343f, "Cf"}, {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"},
             {0x13460, 0x143fa, "Lo"}, {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"}, {0x1612a, 0x1612c, "Mc"},
             {0x1612d, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"}, {0x16d43, 0x16d6a, "Lo"},
             {0x16d6b, 0x16d6c, "Lm"}, {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo"},
             {0x1b132, 0x1b132, "Lo"}, {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"}, {0x1ccf0, 0x1ccf9, "Nd"},
             {0x1cd00, 0x1ceb3, "So"}, {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"}, {0x1e030, 0x1e06d, "Lm"},
             {0x1e08f, 0x1e08f, "Mn"}, {0x1e4d0, 0x1e4ea, "Lo"}, {0x1e4eb, 0x1e4eb, "Lm"}, {0x1e4ec, 0x1e4ef, "Mn"},
             {0x1e4f0, 0x1e4f9, "Nd"}, {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"},
             {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"}, {0x1f774, 0x1f776, "So"},
             {0x1f77b, 0x1f77f, "So"}, {0x1f7d9, 0x1f7d9, "So"}, {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"},
             {0x1fa75, 0x1fa77, "So"}, {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"}, {0x1faad, 0x1faaf, "So"},
             {0x1fabb, 0x1fabf, "So"}, {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"}, {0x1fada, 0x1fadc, "So"},
             {0x1fadf, 0x1fadf, "So"}, {0x1fae8, 0x1fae9, "So"}, {0x1faf7, 0x1faf8, "So"}, {0x1fbcb, 0x1fbef, "So"},
             {0x2b739, 0x2b739, "Lo"}, {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"}};

/* Scripts, likewise. */
static const struct script {
  const char *name, *newer;
} scripts[] = {
    {"Arabic", "\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
    {"Cyrillic", "\\x{1c89}-\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"Greek", ""},
    {"Han", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"Hangul", ""},
    {"Hebrew", ""},
    {"Hiragana", "\\x{1b132}"},
    {"Katakana", "\\x{1b155}"},
    {"Latin", "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"Thai", ""},
};

static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mc", "Me", "N",  "Nd",
                                         "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",
                                         "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

static mk_status append(mk_bytes *out, const char *text) { return mk_bytes_append(out, text, strlen(text)); }

static mk_status append_category(const char *name, mk_bytes *out) {
  char text[32];
  snprintf(text, sizeof text, "\\p{%s}", name);
  MK_TRY(append(out, text));
  for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++) {
    if (strncmp(newer[i].category, name, strlen(name)) == 0) {
      snprintf(text, sizeof text, newer[i].first == newer[i].last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", newer[i].first,
               newer[i].last);
      MK_TRY(append(out, text));
    }
  }
  return MK_OK;
}

mk_status mk_class_property(const char *name, size_t length, mk_bytes *out, bool *known) {
  *known = true;
  for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
    if (strlen(categories[i]) == length && memcmp(categories[i], name, length) == 0) {
      return append_category(categories[i], out);
    }
  }
  for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
    if (strlen(scripts[i].name) == length && memcmp(scripts[i].name, name, length) == 0) {
      MK_TRY(append(out, "\\p{sc:"));
      MK_TRY(append(out, scripts[i].name));
      MK_TRY(append(out, "}"));
      return append(out, scripts[i].newer);
    }
  }
  *known = false;
  return MK_OK;
}
