/* The page that the server shows at /: a person talks to the model there. Made of serve/page/ by the build
 * (cmake/page.cmake).
 *
 * Constant data: HTML in UTF-8 that asks for nothing but the endpoints of the server it comes from. */
#ifndef MK_SERVE_PAGE_H
#define MK_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char mk_serve_page[];
extern const size_t mk_serve_page_size;

#endif
