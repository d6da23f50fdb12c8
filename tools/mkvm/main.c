/* The mkvm command: picks the subcommand, reports its error, and returns its status as the exit code. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mk_version.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

static const struct {
  const char *heading; /* of this command and those after it; NULL: the same as before */
  const char *name, *summary;
  mk_status (*run)(int argc, char **argv);
} commands[] = {
    {"Generate and measure", "run", "generate from a prompt", mk_command_run},
    {NULL, "serve", "answer over HTTP as OpenAI's API does", mk_command_serve},
    {NULL, "bench", "measure tokens per second, and the share of the read bandwidth reached", mk_command_bench},
    {NULL, "trace", "show what every SM did, from a file of run's or bench's --trace", mk_command_trace},
    {"Programs (.mkp files)", "compile", "turn a model's configuration into a program", mk_command_compile},
    {NULL, "verify", "prove a program sound, or say what is wrong with it", mk_command_verify},
    {NULL, "disasm", "print a program as text", mk_command_disasm},
    {NULL, "asm", "turn such a text into a program", mk_command_asm},
    {NULL, "isa", "print the manual of all instructions", mk_command_isa},
    {"Models", "info", "say whether a model is supported and what it needs; alone: build and GPUs", mk_command_info},
    {NULL, "quantize", "write a model directory once more with fp8 or int4 weights", mk_command_quantize},
    {NULL, "synth", "write a model directory of a known shape with made-up weights", mk_command_synth},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static const char help[] =
    "Usage: mkvm COMMAND [OPTION...]\n"
    "\n"
    "Runs Llama models as verified instruction programs: a compiler turns a Hugging Face\n"
    "model directory into a program for an interpreter, a verifier proves that the program\n"
    "can neither race nor hang, and a machine executes it.\n";

static const char help_end[] =
    "\n"
    "General:\n"
    "  -h, --help     show this help; `mkvm COMMAND --help' or `mkvm help COMMAND' shows a\n"
    "                 command's options\n"
    "  -V, --version  show the version\n"
    "\n"
    "Exit codes:\n"
    "  0  done\n"
    "  1  run time: out of memory, input or output failed\n"
    "  2  usage: a wrong flag or argument\n"
    "  3  a model, tokenizer or program file is bad, malformed or not supported\n"
    "  4  a well-formed program was rejected by the verifier\n"
    "  5  the machine faulted or ran into a deadline\n"
    "\n"
    "Examples:\n"
    "  mkvm run -m models/demo -p \"Once upon a time\" -n 200\n"
    "  mkvm bench --like llama-3.2-1b -n 128 -d 64,4000\n"
    "  mkvm info -m ~/models/Llama-3.2-1B\n"
    "  mkvm compile -m ~/models/Llama-3.2-1B -o llama.mkp && mkvm verify llama.mkp\n";

static int print_help(void) {
  fputs(help, stdout);
  for (size_t i = 0; i < COMMANDS; i++) {
    if (commands[i].heading != NULL) {
      printf("\n%s:\n", commands[i].heading);
    }
    printf("  %-8s %s\n", commands[i].name, commands[i].summary);
  }
  fputs(help_end, stdout);
  return mk_finish("mkvm", mk_print_done());
}

static int print_version(void) {
  puts("mkvm " MK_VERSION_FULL);
  return mk_finish("mkvm", mk_print_done());
}

/* A standard descriptor that is closed would be that of the next file opened, which then gets the text meant for it.
 * What stands in its place is open the wrong way: its use is an error, as before. */
static void hold_standard_descriptors(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) < 0) {
      (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

int main(int argc, char **argv) {
  static char title[32] = "mkvm";
  hold_standard_descriptors();
  mk_signals_begin(title);
  argp_err_exit_status = MK_ERR_USAGE;
  if (argc < 2) {
    fprintf(stderr, "mkvm: no command given; `mkvm --help' lists them\n");
    return MK_ERR_USAGE;
  }
  const char *name = argv[1];
  char help_flag[] = "--help";
  char *help_arguments[] = {NULL, NULL, help_flag, NULL};
  if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0 || (strcmp(name, "help") == 0 && argc == 2)) {
    return print_help();
  }
  if (strcmp(name, "-V") == 0 || strcmp(name, "--version") == 0) {
    return print_version();
  }
  if (strcmp(name, "help") == 0) {
    name = argv[2];
    argc = 3;
    argv = help_arguments;
  }
  for (size_t i = 0; i < COMMANDS; i++) {
    if (strcmp(name, commands[i].name) == 0) {
      snprintf(title, sizeof title, "mkvm %s", name);
      argv[1] = title;
      return mk_finish(title, commands[i].run(argc - 1, argv + 1));
    }
  }
  fprintf(stderr, "mkvm: '%s' is not a command; `mkvm --help' lists them\n", name);
  return MK_ERR_USAGE;
}
