/* What signals do to the command, in one place. One thread; the handlers need not run on it. */
#ifndef MK_SIGNALS_H
#define MK_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* 1 after a Ctrl-C that was caught. */
extern volatile sig_atomic_t mk_interrupted;

/* Once, at the start. From here on SIGINT, SIGTERM and SIGHUP remove the files that are being written, say so in one
 * line that begins with `title`, which the caller keeps, and kill; SIGPIPE, of a reader who has had enough, does so
 * without a line. A signal that was ignored (nohup) stays ignored. A file that may not grow (SIGXFSZ) is an error of
 * the write and no signal. */
void mk_signals_begin(const char *title);

/* From here on a Ctrl-C sets mk_interrupted. With `once` a second Ctrl-C kills, should the first go unheard, and a
 * write during which the first comes goes on, since a slow reader is no error. Without `once` a Ctrl-C ends a wait. */
void mk_catch_interrupt(bool once);

/* From here on the first Ctrl-C kills. */
void mk_release_interrupt(void);

#endif
