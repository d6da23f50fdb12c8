/* The command as a user types it: shell commands with $MKVM, the program under test, and $DEMO, the demo model.
 *
 * Failure fails the running test. One thread: what is printed stays valid until the next call. */
#ifndef MK_TEST_SHELL_H
#define MK_TEST_SHELL_H

/* Of the last command: what it printed, of standard error only what the command leads into its output. */
extern char test_output[1 << 18];

/* Runs it without a GPU; its exit code. `mkvm`: MK_COMMAND. */
int test_shell(const char *mkvm, const char *command);
/* Runs it; it must end with this code and print this text. */
void test_shell_expect(const char *mkvm, const char *command, int code, const char *text);
/* Makes a new folder under /tmp and goes there: a tiny model m, its program p.mkp, the text p.mks, a trace
 * t.mktrace. */
void test_shell_enter(const char *mkvm);
/* Removes that folder. */
void test_shell_leave(void);

#endif
