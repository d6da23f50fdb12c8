/* mkvm info: is a model supported and what does it need; alone, what this build is. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mk_version.h"
#include "models/checkpoint.h"
#include "models/llama.h"
#include "models/template_chat.h"
#include "models/tokenizer.h"
#include "scheduler/compile.h"
#include "tools/mkvm/command.h"
#include "vm/gpu/extra.h"
#include "vm/gpu/image.h"
#include "vm/program.h"

typedef struct options {
  const char *model;
  uint64_t ctx_size;
} options;

static const struct argp_option option_table[] = {
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout; config.json is enough", 1},
    {"ctx-size", 'c', "L", 0, "Tokens of context to state the memory for (the model's limit, at most 4096)", 1},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      return 0;
    case 'm':
      o->model = text;
      return 0;
    case 'c':
      o->ctx_size = mk_number(state, "--ctx-size", text, 1, UINT32_MAX);
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected; a model is given with --model", text);
      return 0;
    case ARGP_KEY_END:
      if (o->model == NULL && o->ctx_size != 0) {
        argp_error(state, "--ctx-size needs --model DIR");
      }
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static void print_gpu(uint32_t index) {
  mk_gpu_description gpu;
  mk_status status = mk_gpu_describe(index, &gpu);
  if (status != MK_OK) {
    printf("          cuda:%u  cannot be asked: %s\n", index, mk_error_message());
    return;
  }
  printf("          cuda:%u  %s, %d SMs, compute capability %d.%d", index, gpu.name, gpu.sms, gpu.major, gpu.minor);
  if (gpu.memory_bytes != 0) {
    printf(", %s (%s free)", mk_human_bytes(gpu.memory_bytes), mk_human_bytes(gpu.free_bytes));
  }
  if (mk_gpu_usable(index) != MK_OK) {
    printf("; not usable: %s", mk_error_message());
  }
  printf("\n");
}

static void print_devices(void) {
  uint32_t count = 0;
  int cuda = mk_gpu_image_cuda_version();
  if (mk_gpu_image_complete()) {
    printf("image     sm_90a, made by CUDA %d.%d\n", cuda / 1000, cuda % 1000 / 10);
  } else {
    printf("image     none: built without the CUDA toolkit, so that cuda devices cannot be used\n");
  }
  printf("devices   cpu\n");
  if (mk_gpu_count(&count, &cuda) != MK_OK) {
    printf("          no cuda: %s\n", mk_error_message());
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    print_gpu(i);
  }
  printf("driver    runs CUDA up to %d.%d\n", cuda / 1000, cuda % 1000 / 10);
}

static mk_status print_build(void) {
  mk_machine machine = mk_machine_latency(MK_DEFAULT_SMS);
  printf("version   mkvm %s\n", MK_VERSION_FULL);
  print_devices();
  printf("models    Llama 2, 3, 3.1, 3.2 in Hugging Face layout; bf16, fp16 or fp32 safetensors\n");
  printf("programs  instruction version %d, %d opcodes; by default for %u SMs with %u pages of %s each\n",
         MK_INSTRUCTION_VERSION, MK_OP_COUNT - 1, machine.sms, machine.ring_pages, mk_human_bytes(machine.page_bytes));
  return mk_print_done();
}

static bool has_file(const char *directory, const char *name) {
  char path[4096];
  int used = snprintf(path, sizeof path, "%s/%s", directory, name);
  return used > 0 && (size_t)used < sizeof path && access(path, F_OK) == 0;
}

/* The weights and the tokenizer of the directory, as far as they are there. */
static mk_status check_files(const char *directory, const mk_config *config, bool *weights, bool *tokenizer) {
  *weights = has_file(directory, "model.safetensors") || has_file(directory, "model.safetensors.index.json") ||
             has_file(directory, "pytorch_model.bin") || has_file(directory, "pytorch_model.bin.index.json");
  *tokenizer = has_file(directory, "tokenizer.json");
  if (*weights) {
    mk_checkpoint *checkpoint;
    MK_TRY(mk_checkpoint_open(directory, &checkpoint));
    mk_status status = mk_checkpoint_check(checkpoint, config);
    mk_checkpoint_close(checkpoint);
    MK_TRY(status);
  }
  if (*tokenizer) {
    mk_tokenizer *loaded;
    MK_TRY(mk_tokenizer_load(directory, config->vocab, &loaded));
    mk_tokenizer_free(loaded);
  }
  return MK_OK;
}

/* A template that is not supported concerns --chat alone, and the model is supported without it. */
static void print_chat(const char *directory) {
  mk_chat *chat;
  if (mk_chat_load(directory, &chat) != MK_OK) {
    printf("chat        no: %s\n", mk_error_message());
  } else {
    printf("chat        %s%s\n", chat == NULL ? "no template" : "template in ",
           chat == NULL ? "" : mk_chat_source(chat));
    mk_chat_free(chat);
  }
}

static mk_status compile(const mk_config *config, uint32_t context, mk_program **program) {
  mk_graph *graph;
  MK_TRY(mk_llama_graph(config, &graph));
  const mk_compile_options choice = {.sms = MK_DEFAULT_SMS, .max_seq = context};
  mk_status status = mk_compile(graph, &choice, program);
  mk_graph_free(graph);
  return status;
}

static uint64_t kv_bytes(const mk_program *program) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < program->buffer_count; i++) {
    bytes += program->buffers[i].kind == MK_KIND_KV ? program->buffers[i].bytes : 0;
  }
  return bytes;
}

static void print_model(const mk_config *c, const char *directory) {
  printf("model       %s\n", directory);
  printf("shape       Llama, %u layers, hidden %u, intermediate %u, %u heads of %u, %u KV heads\n", c->layers,
         c->hidden, c->intermediate, c->heads, c->head_dim, c->kv_heads);
  printf("vocabulary  %u tokens, %s embeddings\n", c->vocab, c->tied ? "tied" : "untied");
  printf("positions   %u, rope theta %g", c->max_position, c->rope_theta);
  if (c->rope_llama3) {
    printf(", llama3 scaling by %g from %u", c->rope_factor, c->rope_original_max_position);
  }
  printf("\nparameters  %" PRIu64 " (%s)\n", mk_llama_parameters(c), mk_human_count(mk_llama_parameters(c)));
}

static void print_memory(const mk_program *program, uint32_t context) {
  uint64_t kv = kv_bytes(program);
  printf("weights     %s (bf16, packed)\n", mk_human_bytes(program->weight_bytes));
  printf("KV cache    %s at %u tokens, %s a token\n", mk_human_bytes(kv), context, mk_human_bytes(kv / context));
  printf("memory      %s at %u tokens: weights, KV cache, activations\n",
         mk_human_bytes(program->weight_bytes + program->work_bytes), context);
}

mk_status mk_command_info(int argc, char **argv) {
  static const char doc[] =
      "Says whether a model is supported, or why not, and what it needs: parameters, weights, KV cache and memory at a "
      "context length. Without --model: what this build is, the device image in it, and the GPUs it finds, or why "
      "none.";
  static const struct argp argp = {option_table, parse, "", doc, mk_common_options, mk_help_filter, NULL};
  options o = {0};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  if (o.model == NULL) {
    return print_build();
  }
  mk_config config;
  uint32_t context;
  bool weights = false, tokenizer = false;
  mk_program *program = NULL;
  mk_status status = mk_config_load(o.model, &config);
  if (status == MK_OK) {
    MK_TRY(mk_context_size(o.ctx_size, config.max_position, &context));
    print_model(&config, o.model);
    status = check_files(o.model, &config, &weights, &tokenizer);
  }
  if (status == MK_OK) {
    status = compile(&config, context, &program);
  }
  if (status == MK_ERR_FILE) {
    printf("supported   no: %s\n", mk_error_message());
    fflush(stdout);
  }
  MK_TRY(status);
  print_memory(program, context);
  printf("files       config.json%s%s\n", weights ? ", weights" : " (no weights)", tokenizer ? ", tokenizer.json" : "");
  print_chat(o.model);
  printf("supported   yes\n");
  mk_program_free(program);
  return mk_print_done();
}
