/* Lets a model continue a text: generate MODEL_DIRECTORY PROMPT. Built against an installed libmkvm:
 *   cc -o generate generate.c $(pkg-config --cflags --libs mkvm)
 *
 * or by the CMakeLists.txt beside it. */
#include <mkvm.h>
#include <stdio.h>
#include <string.h>

static int print(void *user, const mkvm_token *token) {
  (void)user;
  fwrite(token->text, 1, token->length, stdout);
  fflush(stdout);
  return ferror(stdout); /* nobody reads: cancel */
}

static void tell(void *user, const mkvm_end *end) {
  *(mkvm_status *)user = end->status;
  if (end->reason == MKVM_END_ERROR) {
    fprintf(stderr, "\ngenerate: %s\n", end->message);
  } else {
    fprintf(stderr, "\n%zu tokens after a prompt of %zu, %.0f tokens/s\n", end->tokens, end->prompt_tokens,
            end->generate_seconds > 0 ? (double)(end->tokens - 1) / end->generate_seconds : 0.0);
  }
}

static mkvm_status generate(mkvm_engine *engine, const char *prompt) {
  mkvm_sampling sampling;
  mkvm_request request;
  mkvm_status status = mkvm_sampling_of_model(engine, &sampling), ended = MKVM_OK;
  mkvm_request_init(&request);
  request.text = prompt;
  request.text_length = strlen(prompt);
  request.max_tokens = 100;
  request.sampling = &sampling;
  request.on_token = print;
  request.on_end = tell;
  request.user = &ended;
  status = status != MKVM_OK ? status : mkvm_submit(engine, &request, NULL);
  status = status != MKVM_OK ? status : mkvm_run(engine);
  if (status != MKVM_OK) {
    fprintf(stderr, "generate: %s\n", mkvm_message());
  }
  return status != MKVM_OK ? status : ended;
}

int main(int argc, char **argv) {
  mkvm_engine *engine;
  if (argc != 3) {
    fprintf(stderr, "usage: generate MODEL_DIRECTORY PROMPT\n");
    return MKVM_ERR_USAGE;
  }
  mkvm_status status = mkvm_open(argv[1], NULL, &engine);
  if (status == MKVM_OK) {
    status = generate(engine, argv[2]);
    mkvm_close(engine);
  } else {
    fprintf(stderr, "generate: %s\n", mkvm_message());
  }
  return (int)status;
}
