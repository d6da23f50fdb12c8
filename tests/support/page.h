/* A page under docs/ that a test carries out: its indented blocks, one after the other. In a block whose lines begin
 * with $ these are commands, each followed by what it prints; any other block is text that the test puts somewhere.
 *
 * Failure fails the running test. One thread. */
#ifndef MK_TEST_PAGE_H
#define MK_TEST_PAGE_H

#include <stdbool.h>
#include <stddef.h>

/* Takes a block of text, without its indentation. before: the last line of the paragraph above the block. */
typedef void (*test_page_fn)(const char *before, const char *text, void *user);

/* Carries out the page in the current folder; the number of commands. Commands must print what the page says, but for
 * white space and seconds. `runs`: false: no command is run. */
size_t test_page_follow(const char *path, bool runs, test_page_fn block, void *user);

/* One space for all white space, and S for every number before " s". */
void test_page_normalize(char *text);

#endif
