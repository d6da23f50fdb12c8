/* Terminal sessions of a Markdown page: indented blocks in which a line that begins with "$ " is a command, and the
 * lines after it are what it prints, but for line breaks and seconds.
 *
 * Failure fails the running test. One thread. */
#ifndef MK_TEST_SESSION_H
#define MK_TEST_SESSION_H

#include <stddef.h>

/* Makes a new folder under /tmp and goes there: `mkvm` is the command at that path; models and docs are the project's.
 */
void test_session_enter(const char *mkvm);
/* Removes that folder. */
void test_session_leave(void);

/* Types all commands of the page (a path in the project); each must print what the page says. How many there were.
 * begin (may be NULL): gets all indented lines before the first command. */
size_t test_session_run(const char *page, void (*begin)(const char *text));

/* One space for all white space, none at the end, and S for every number before " s". */
void test_session_normalize(char *text);

#endif
