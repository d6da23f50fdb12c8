/* A headless Chromium, driven through its debugging pipe: two file descriptors with JSON messages that end with a zero
 * byte.
 *
 * Ownership: test_browser_start's result goes to test_browser_stop; values are json_decref'd by the caller. One thread.
 * Failure: NULL or false, and test_browser_error says why. Every wait has a deadline. */
#ifndef MK_TEST_BROWSER_H
#define MK_TEST_BROWSER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct test_browser test_browser;

/* The path of a Chromium; NULL: there is none here. */
const char *test_browser_path(void);

/* One empty page of that many CSS pixels; `scale` device pixels each. */
test_browser *test_browser_start(int width, int height, double scale);
void test_browser_stop(test_browser *browser); /* NULL is fine */
const char *test_browser_error(const test_browser *browser);

/* Loads a page and waits until it has drawn. `path` may carry a fragment; it is absolute. */
bool test_browser_open(test_browser *browser, const char *path);
/* The same of a server's page, once it is loaded; it may ask its own server for more. */
bool test_browser_visit(test_browser *browser, const char *url);

/* The value of a script's expression, promises awaited. */
json_t *test_browser_value(test_browser *browser, const char *expression);
/* The same as a number, NAN when it is none; as a truth value. */
double test_browser_number(test_browser *browser, const char *expression);
bool test_browser_true(test_browser *browser, const char *expression);

/* Input as a person makes it, in CSS pixels of the window; returns when the page has handled it and drawn again. */
bool test_browser_click(test_browser *browser, double x, double y);
bool test_browser_drag(test_browser *browser, double x, double y, double to_x, double to_y);
bool test_browser_wheel(test_browser *browser, double x, double y, double amount);
bool test_browser_touch(test_browser *browser, double x, double y);
bool test_browser_pinch(test_browser *browser, double x, double y, double from, double to);
bool test_browser_key(test_browser *browser, const char *key); /* "a", "ArrowLeft", "Enter" */
bool test_browser_type(test_browser *browser, const char *text);

/* "prefers-color-scheme: dark" or light; width, height and scale of another device. */
bool test_browser_scheme(test_browser *browser, const char *scheme);
bool test_browser_resize(test_browser *browser, int width, int height, double scale, bool touch);

/* Writes a PNG of the window. */
bool test_browser_picture(test_browser *browser, const char *path);

/* What went wrong or out since the start: errors and warnings of the console, exceptions, dialogs; requests for
 * anything but the page's own file or server. Each a line. */
const char *test_browser_complaints(const test_browser *browser);
const char *test_browser_requests(const test_browser *browser);

#endif
