/* See chat.h. */
#define _GNU_SOURCE /* strptime, ppoll */
#include "tools/mkvm/chat.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "text/unicode.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

mk_status mk_conversation_begin(const char *directory, const char *system, const char *date, const char *variables,
                                mk_conversation *out) {
  *out = (mk_conversation){0};
  time_t seconds = time(NULL);
  localtime_r(&seconds, &out->now);
  if (date != NULL) {
    struct tm day = {0};
    const char *end = strptime(date, "%Y-%m-%d", &day);
    if (end == NULL || *end != 0) {
      return mk_error(MK_ERR_USAGE, "--date: '%s' is not a date such as 2026-01-31", date);
    }
    out->now = day;
  }
  MK_TRY(mk_chat_variables(variables, variables == NULL ? 0 : strlen(variables), &out->variables));
  MK_TRY(mk_chat_load(directory, &out->chat));
  if (out->chat == NULL) {
    return mk_error(MK_ERR_FILE,
                    "%s: there is no chat template, neither chat_template.jinja nor chat_template in "
                    "tokenizer_config.json; take a model that is made for conversations, or leave out --chat",
                    directory);
  }
  out->messages = json_array();
  if (out->messages == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  return system == NULL ? MK_OK : mk_chat_add(out->messages, "system", system, strlen(system));
}

void mk_conversation_end(mk_conversation *conversation) {
  mk_chat_free(conversation->chat);
  json_decref(conversation->messages);
  json_decref(conversation->variables);
}

mk_status mk_conversation_ask(mk_conversation *c, const char *said, size_t length, char **text, size_t *text_length) {
  MK_TRY(mk_chat_add(c->messages, "user", said, length));
  return mk_chat_render(c->chat, c->messages, c->variables, &c->now, text, text_length);
}

mk_status mk_conversation_answered(mk_conversation *c, const char *answer, size_t length) {
  return mk_chat_add(c->messages, "assistant", answer, length);
}

/* Where lines come from. */
typedef struct source {
  EditLine *edit; /* NULL: no terminal */
  History *history;
  char *line; /* of a pipe or file */
  size_t capacity;
} source;

static const char *prompt(EditLine *edit) {
  (void)edit;
  return "> ";
}

/* One character for the line editor, whose own reading would go on after a Ctrl-C. That is let through only while
 * waiting, so that none comes between a look at mk_interrupted and the wait. */
static int read_character(EditLine *edit, wchar_t *out) {
  uint8_t bytes[4];
  size_t have = 0, length;
  sigset_t waiting;
  (void)edit;
  sigprocmask(SIG_BLOCK, NULL, &waiting);
  sigdelset(&waiting, SIGINT);
  do {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = ppoll(&input, 1, NULL, &waiting);
    if (mk_interrupted) {
      return -1;
    }
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    ssize_t got = read(STDIN_FILENO, bytes + have, 1);
    if (got <= 0) {
      return (int)got;
    }
    have += bytes[have] != 0; /* a NUL is a Ctrl-D that came before the editor took over the terminal */
  } while (have == 0 || mk_utf8_step(bytes, have, &length) == MK_UTF8_INCOMPLETE);
  mbstate_t state = {0};
  if (mbrtowc(out, (const char *)bytes, have, &state) > have) {
    *out = L'?';
  }
  return 1;
}

static void open_source(source *s) {
  HistEvent event;
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
    return;
  }
  (void)setlocale(LC_CTYPE, "C.UTF-8"); /* of the editor: the terminal shows UTF-8, as everything here is */
  s->edit = el_init("mkvm", stdin, stdout, stderr);
  s->history = history_init();
  if (s->edit == NULL || s->history == NULL) {
    return;
  }
  history(s->history, &event, H_SETSIZE, 1000);
  el_set(s->edit, EL_PROMPT, prompt);
  el_set(s->edit, EL_EDITOR, "emacs");
  el_wset(s->edit, EL_GETCFN, read_character);
  el_set(s->edit, EL_HIST, history, s->history);
  el_source(s->edit, NULL);
}

static void close_source(source *s) {
  if (s->edit != NULL) {
    el_end(s->edit);
  }
  if (s->history != NULL) {
    history_end(s->history);
  }
  mk_free(s->line);
}

/* *line is NULL when there are no more. */
static mk_status read_piped_line(source *s, const char **line, size_t *length) {
  int c = getc(stdin);
  while (c != EOF) {
    if (*length == MK_PROMPT_BYTES) {
      return mk_error(MK_ERR_USAGE, "standard input: a line has more than %d bytes; shorten it", MK_PROMPT_BYTES);
    }
    MK_TRY(mk_grow(&s->line, &s->capacity, *length + 1, 1));
    s->line[(*length)++] = (char)c;
    *line = s->line;
    c = c == '\n' ? EOF : getc(stdin);
  }
  return MK_OK;
}

/* *line, without its end, is valid until the next call; NULL: there are no more. *interrupted: Ctrl-C came instead. */
static mk_status read_line(source *s, const char **line, size_t *length, bool *interrupted) {
  HistEvent event;
  *interrupted = false;
  *line = NULL;
  *length = 0;
  if (s->edit != NULL) {
    int count = 0;
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    mk_interrupted = 0;
    mk_catch_interrupt(false);
    const char *typed = el_gets(s->edit, &count);
    *interrupted = mk_interrupted != 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (*interrupted) {
      return MK_OK;
    }
    if (typed != NULL && count > 0) {
      *line = typed;
      *length = (size_t)count;
    }
  } else {
    mk_release_interrupt();
    MK_TRY(read_piped_line(s, line, length));
  }
  if (*line == NULL && ferror(stdin)) {
    return mk_error(MK_ERR_RUNTIME, "standard input: cannot be read: %s", strerror(errno));
  }
  while (*line != NULL && *length > 0 && ((*line)[*length - 1] == '\n' || (*line)[*length - 1] == '\r')) {
    --*length;
  }
  if (s->edit != NULL && *line != NULL && *length > 0) {
    history(s->history, &event, H_ENTER, *line);
  }
  return MK_OK;
}

static mk_status turn(mk_conversation *c, const char *line, size_t length, mk_answer_fn answer, void *user) {
  char *text = NULL;
  size_t text_length;
  const char *said = "";
  size_t said_length = 0;
  MK_TRY(mk_conversation_ask(c, line, length, &text, &text_length));
  mk_catch_interrupt(true);
  mk_status status = answer(user, text, text_length, &said, &said_length);
  mk_free(text);
  MK_TRY(status);
  return mk_conversation_answered(c, said, said_length);
}

static mk_status take_turns(mk_conversation *c, source *s, mk_answer_fn answer, void *user) {
  bool before = false; /* the last thing that came was a Ctrl-C */
  for (;;) {
    const char *line;
    size_t length;
    bool interrupted;
    MK_TRY(read_line(s, &line, &length, &interrupted));
    if (interrupted ? before : line == NULL) {
      return s->edit == NULL ? MK_OK : mk_print("\n", 1);
    }
    if (interrupted) {
      fputs("\n(Ctrl-C again or Ctrl-D ends)\n", stderr);
      el_reset(s->edit);
      before = true;
      continue;
    }
    before = false;
    if (length > 0) {
      MK_TRY(turn(c, line, length, answer, user));
      before = mk_interrupted != 0;
    }
  }
}

mk_status mk_conversation_run(mk_conversation *c, mk_answer_fn answer, void *user) {
  source s = {0};
  open_source(&s);
  mk_status status = take_turns(c, &s, answer, user);
  close_source(&s);
  mk_release_interrupt();
  return status;
}
