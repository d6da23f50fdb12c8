/* The normal forms of Unicode, and lower case, of well-formed UTF-8, as Hugging Face tokenizers has them.
 *
 * utf8proc has the tables (Unicode 15 in Debian 12). The reference's normal forms are those of Unicode 9: what has come
 * since is left as it is. Its lower case is that of Unicode 17, character by character. Pure functions that append to
 * `out`, which is the caller's; n log n time at most. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_NORMAL_FORM_H
#define MK_NORMAL_FORM_H

#include "text/bytes.h"

typedef enum mk_normal_form { MK_NFC, MK_NFD, MK_NFKC, MK_NFKD } mk_normal_form;

mk_status mk_normal_form_append(mk_normal_form form, const uint8_t *text, size_t size, mk_bytes *out);
mk_status mk_lowercase_append(const uint8_t *text, size_t size, mk_bytes *out);

#endif
