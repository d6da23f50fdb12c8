/* The mkvm command: picks the subcommand, reports its error, and returns its status as the exit code. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "mk_version.h"
#include "tools/lib/isa_doc.h"
#include "tools/mkvm/command.h"

static const char help[] =
    "Usage: mkvm COMMAND [OPTION...]\n"
    "\n"
    "Runs Llama models as verified instruction programs: a compiler turns a Hugging Face\n"
    "model directory into a program for an interpreter, a verifier proves that the program\n"
    "can neither race nor hang, and a machine executes it.\n"
    "\n"
    "Generate and measure:\n"
    "  run      generate from a prompt\n"
    "  bench    measure tokens per second, and the share of the read bandwidth reached\n"
    "  trace    show what every SM did, from a file of run's or bench's --trace\n"
    "\n"
    "Programs (.mkp files):\n"
    "  compile  turn a model's configuration into a program\n"
    "  verify   prove a program sound, or say what is wrong with it\n"
    "  disasm   print a program as text\n"
    "  asm      turn such a text into a program\n"
    "\n"
    "Models:\n"
    "  info     say whether a model is supported and what it needs; alone: build and GPUs\n"
    "  synth    write a model directory of a known shape with made-up weights\n"
    "\n"
    "General:\n"
    "  -h, --help     show this help; `mkvm COMMAND --help' shows a command's options\n"
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

/* Prints the instruction manual; docs/ISA.md is its output. Not listed: it serves the sources. */
static mk_status command_isa(int argc, char **argv) {
  (void)argc;
  (void)argv;
  MK_TRY(mk_isa_write(stdout));
  return mk_print_done();
}

static const struct {
  const char *name, *title;
  mk_status (*run)(int argc, char **argv);
} commands[] = {
    {"run", "mkvm run", mk_command_run},          {"bench", "mkvm bench", mk_command_bench},
    {"trace", "mkvm trace", mk_command_trace},    {"compile", "mkvm compile", mk_command_compile},
    {"verify", "mkvm verify", mk_command_verify}, {"disasm", "mkvm disasm", mk_command_disasm},
    {"asm", "mkvm asm", mk_command_asm},          {"info", "mkvm info", mk_command_info},
    {"synth", "mkvm synth", mk_command_synth},    {"isa", "mkvm isa", command_isa},
};

static int finish(const char *title, mk_status status) {
  if (status != MK_OK) {
    fprintf(stderr, "%s: %s\n", title, mk_error_message());
  }
  return (int)status;
}

static int print_and_finish(const char *text) {
  fputs(text, stdout);
  return finish("mkvm", mk_print_done());
}

int main(int argc, char **argv) {
  /* A closed pipe is then a write error with a message and exit code 1, not a silent death. */
  signal(SIGPIPE, SIG_IGN);
  argp_err_exit_status = MK_ERR_USAGE;
  if (argc < 2) {
    fprintf(stderr, "mkvm: no command given; `mkvm --help' lists them\n");
    return MK_ERR_USAGE;
  }
  const char *name = argv[1];
  char help_flag[] = "--help";
  char *help_arguments[] = {NULL, NULL, help_flag, NULL};
  if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0 || (strcmp(name, "help") == 0 && argc == 2)) {
    return print_and_finish(help);
  }
  if (strcmp(name, "-V") == 0 || strcmp(name, "--version") == 0) {
    return print_and_finish("mkvm " MK_VERSION_FULL "\n");
  }
  if (strcmp(name, "help") == 0) {
    name = argv[2];
    argc = 3;
    argv = help_arguments;
  }
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(name, commands[i].name) == 0) {
      char title[32];
      snprintf(title, sizeof title, "%s", commands[i].title);
      argv[1] = title;
      return finish(title, commands[i].run(argc - 1, argv + 1));
    }
  }
  fprintf(stderr, "mkvm: '%s' is not a command; `mkvm --help' lists them\n", name);
  return MK_ERR_USAGE;
}
