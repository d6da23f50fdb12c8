/* See signals.h. */
#include "tools/mkvm/signals.h"

#include <string.h>
#include <unistd.h>

#include "vm/draft.h"

volatile sig_atomic_t mk_interrupted;

static const char *beginning = "mkvm";
static bool terminal;          /* standard error is one: what it shows of progress has no end of line */
static struct sigaction usual; /* what SIGINT does while it is not caught */

/* What a Ctrl-C does once it is caught. */
enum { NOTED, NOTED_ONCE, KILLS };
static volatile sig_atomic_t next_interrupt;

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) {
    return; /* nobody is left to be told */
  }
}

/* Ends the process as the signal would have done, so that a shell sees which one it was. */
static void die(int signal_number) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigset_t this_one;
  sigaction(signal_number, &action, NULL);
  sigemptyset(&this_one);
  sigaddset(&this_one, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &this_one, NULL);
  kill(getpid(), signal_number);
}

static void end(int signal_number) {
  mk_drafts_abandon();
  say(terminal ? "\n" : "");
  say(beginning);
  say(signal_number == SIGINT    ? ": ended by SIGINT"
      : signal_number == SIGTERM ? ": ended by SIGTERM"
                                 : ": ended by SIGHUP");
  say("; nothing unfinished remains\n");
  die(signal_number);
}

/* The reader of what is written has gone (`| head`): then any program ends, without a word. */
static void end_quietly(int signal_number) {
  mk_drafts_abandon();
  die(signal_number);
}

static void on_interrupt(int signal_number) {
  if (next_interrupt == KILLS) {
    end(signal_number);
  }
  mk_interrupted = 1;
  next_interrupt = next_interrupt == NOTED ? NOTED : KILLS;
}

void mk_catch_interrupt(bool once) {
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = once ? (int)SA_RESTART : 0};
  next_interrupt = once ? NOTED_ONCE : NOTED;
  sigaction(SIGINT, &action, NULL);
}

void mk_release_interrupt(void) { sigaction(SIGINT, &usual, NULL); }

void mk_signals_begin(const char *title) {
  static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  struct sigaction action, before;
  beginning = title;
  terminal = isatty(STDERR_FILENO);
  for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
    if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
      action = (struct sigaction){.sa_handler = ending[i] == SIGPIPE ? end_quietly : end};
      sigfillset(&action.sa_mask);
      sigaction(ending[i], &action, NULL);
    }
  }
  sigaction(SIGINT, NULL, &usual);
  (void)signal(SIGXFSZ, SIG_IGN);
}
