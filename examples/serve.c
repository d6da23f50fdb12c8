/* Answers lines from standard input while others are being answered: serve MODEL_DIRECTORY. The main thread makes the
 * engine work; another one reads, and submits. A line that begins with ! goes before the others. Built like
 * generate.c. */
#include <mkvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct question {
  char *answer;
  size_t length;
  char line[256];
} question;

/* In the thread that serves. */
static int keep(void *user, const mkvm_token *token) {
  question *q = user;
  char *more = realloc(q->answer, q->length + token->length + 1);
  if (more == NULL) {
    return 1; /* cancels it */
  }
  memcpy(more + q->length, token->text, token->length);
  q->answer = more;
  q->length += token->length;
  return 0;
}

static void tell(void *user, const mkvm_end *end) {
  question *q = user;
  printf("%s -> %.*s\n", q->line, (int)q->length, q->length == 0 ? "" : q->answer);
  fprintf(stderr, "request %llu: %zu tokens after %zu (%zu known), waited %.3f s %s\n",
          (unsigned long long)end->request, end->tokens, end->prompt_tokens, end->cached_tokens, end->queue_seconds,
          end->message);
  free(q->answer);
  free(q);
}

static mkvm_status ask(mkvm_engine *engine, question *q) {
  mkvm_request request;
  mkvm_request_init(&request);
  request.text = q->line[0] == '!' ? q->line + 1 : q->line;
  request.text_length = strlen(request.text);
  request.priority = q->line[0] == '!' ? -1 : 0;
  request.max_tokens = 40;
  request.total_seconds = 60;
  request.on_token = keep;
  request.on_end = tell;
  request.user = q;
  return mkvm_submit(engine, &request, NULL);
}

static void *read_lines(void *user) {
  for (question *q = calloc(1, sizeof *q); q != NULL; q = calloc(1, sizeof *q)) {
    if (fgets(q->line, sizeof q->line, stdin) == NULL) {
      free(q);
      break;
    }
    q->line[strcspn(q->line, "\n")] = '\0';
    if (ask(user, q) != MKVM_OK) { /* MKVM_ERR_BUSY, for one: too many wait */
      fprintf(stderr, "serve: %s\n", mkvm_message());
      free(q);
    }
  }
  mkvm_shutdown(user, MKVM_DRAIN);
  return NULL;
}

int main(int argc, char **argv) {
  mkvm_options options;
  mkvm_engine *engine;
  pthread_t reader;
  mkvm_options_init(&options);
  options.max_batch = 8;
  mkvm_status status = argc == 2 ? mkvm_open(argv[1], &options, &engine) : MKVM_ERR_USAGE;
  if (status != MKVM_OK || pthread_create(&reader, NULL, read_lines, engine) != 0) {
    fprintf(stderr, "serve: %s\n", argc == 2 ? mkvm_message() : "usage: serve MODEL_DIRECTORY");
    return status != MKVM_OK ? (int)status : MKVM_ERR_RUNTIME;
  }
  status = mkvm_serve(engine);
  if (status != MKVM_OK) {
    fprintf(stderr, "serve: %s\n", mkvm_message());
    exit((int)status); /* the other one reads on */
  }
  pthread_join(reader, NULL);
  return (int)mkvm_close(engine);
}
