/* mkvm info: is a model supported and what does it need; alone, what this build is. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/prompt.h"
#include "mk_version.h"
#include "models/directory.h"
#include "models/generation.h"
#include "models/json.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "text/template_chat.h"
#include "text/tokenizer.h"
#include "tools/mkvm/command.h"
#include "vm/gpu/extra.h"
#include "vm/gpu/image.h"
#include "vm/program/program.h"

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
    printf("image     none: built without device code, so that cuda devices cannot be used\n");
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
  printf("models   ");
  for (int kind = 0; kind < MK_MODEL_KINDS; kind++) {
    printf("%s %s", kind == 0 ? "" : ",", mk_model_title((mk_model_kind)kind));
  }
  printf(" in Hugging Face layout; bf16, fp16 or fp32 safetensors, or quantised ones\n");
  printf("programs  instruction version %d, %d opcodes; by default for %u SMs with %u pages of %s each\n",
         MK_INSTRUCTION_VERSION, MK_OP_COUNT - 1, machine.sms, machine.ring_pages, mk_human_bytes(machine.page_bytes));
  return mk_print_done();
}

static bool has_file(const char *directory, const char *name) {
  char path[4096];
  int used = snprintf(path, sizeof path, "%s/%s", directory, name);
  return used > 0 && (size_t)used < sizeof path && mk_file_is_there(path);
}

/* The weights of the directory, as far as they are there; the caller closes it. */
static mk_status open_directory(const char *path, mk_directory *out) {
  return mk_directory_open(path, mk_checkpoint_is_other(path) ? MK_WEIGHTS_NEEDED : MK_WEIGHTS_IF_THERE, NULL, out);
}

static mk_status check_tokenizer(const char *directory, const mk_config *config, bool *there) {
  *there = has_file(directory, "tokenizer.json");
  if (*there) {
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

static mk_status compile(mk_config *config, uint32_t context, mk_program **program) {
  mk_graph *graph;
  mk_config_set_context(config, context);
  MK_TRY(mk_llama_graph(config, &graph));
  const mk_compile_options choice = {.sms = MK_DEFAULT_SMS, .max_seq = context};
  mk_status status = mk_compile(graph, &choice, program);
  mk_graph_free(graph);
  return status;
}

/* The bytes of all caches, as the program has them, or (fp8) as one compiled with --kv fp8 would. */
static uint64_t kv_bytes(const mk_program *program, bool fp8) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < program->buffer_count; i++) {
    mk_buffer buffer = program->buffers[i];
    if (fp8) {
      buffer.dtype = MK_DTYPE_E4M3;
      buffer.scale = MK_SCALE_BF16;
      buffer.scale_cols = (uint8_t)buffer.head_dim;
    }
    bytes += buffer.kind == MK_KIND_KV ? mk_buffer_bytes(&buffer) : 0;
  }
  return bytes;
}

static void print_rope(const mk_config *c) {
  printf("positions   %u, rope theta %g", c->max_position, c->rope_theta);
  switch (c->rope_type) {
    case MK_ROPE_DEFAULT:
      break;
    case MK_ROPE_LLAMA3:
      printf(", llama3 scaling by %g from %u", c->rope_factor, c->rope_original_max_position);
      break;
    case MK_ROPE_LINEAR:
      printf(", linear scaling by %g", c->rope_factor);
      break;
    case MK_ROPE_DYNAMIC:
      printf(", dynamic scaling by %g, without effect up to %u tokens, which are the most", c->rope_factor,
             c->max_position);
      break;
    case MK_ROPE_YARN:
      printf(", yarn scaling by %g from %u", c->rope_factor, c->rope_original_max_position);
      break;
    case MK_ROPE_LONGROPE:
      printf(", longrope from %u: contexts above it rotate by other frequencies", c->rope_original_max_position);
      break;
  }
  if (c->rope_local_theta != 0) {
    printf(", theta %g where there is a window", c->rope_local_theta);
  }
  if (c->rotary != 0) {
    printf(", %u of a head's %u dims rotated", c->rotary, c->head_dim);
  }
  printf("\n");
}

static void print_windows(const mk_config *c) {
  uint32_t layers = 0;
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    layers += mk_config_window(c, layer) != 0;
  }
  if (layers != 0) {
    printf("windows     %u tokens in %u of %u layers; with a context of up to %u tokens there are none\n", c->window,
           layers, c->layers, c->window);
  }
}

static void print_ignored(const mk_config *c) {
  for (uint32_t i = 0; i < c->ignored_count && i < MK_MAX_IGNORED; i++) {
    printf("%s%s %" PRId64, i == 0 ? "ids         ignored, since no token has them: " : ", ", c->ignored[i].key,
           c->ignored[i].id);
  }
  if (c->ignored_count > MK_MAX_IGNORED) {
    printf(" and %u more", c->ignored_count - MK_MAX_IGNORED);
  }
  fputs(c->ignored_count != 0 ? "\n" : "", stdout);
}

static void print_model(const mk_config *c, const char *directory) {
  printf("model       %s\n", directory);
  printf("shape       %s, %u layers, hidden %u, intermediate %u, %u heads of %u, %u KV heads\n",
         mk_model_title(c->kind), c->layers, c->hidden, c->intermediate, c->heads, c->head_dim, c->kv_heads);
  print_rope(c);
  print_windows(c);
  print_ignored(c);
}

static const char *head_words(const mk_directory *d) {
  switch (d->head) {
    case MK_HEAD_UNTIED:
      return "untied embeddings, as tie_word_embeddings says";
    case MK_HEAD_TIED:
      return d->checkpoint == NULL ? "tied embeddings, as tie_word_embeddings says"
                                   : "tied embeddings: no lm_head.weight is stored";
    case MK_HEAD_TIED_EQUAL:
      return "tied embeddings: the stored lm_head.weight is the same";
    case MK_HEAD_TIED_DIFFERS:
      break;
  }
  return "untied embeddings";
}

/* What config.json and the weights say together. */
static void print_directory(const mk_directory *d) {
  char line[MK_NOTE_SIZE];
  printf("vocabulary  %u tokens, %s\n", d->config.vocab, head_words(d));
  if (mk_directory_note(d, MK_NOTE_HEAD, line) != NULL) {
    printf("head        %s\n", line);
  }
  const char *rounding = mk_directory_note(d, MK_NOTE_ROUNDING, line);
  printf("precision   bf16 %sKV cache, fp32 sums%s%s\n", d->config.quant.layout == MK_QUANT_NONE ? "weights and " : "",
         rounding == NULL ? "" : "; ", rounding == NULL ? "" : rounding);
  for (mk_note note = MK_NOTE_QUANTISED; note <= MK_NOTE_ORDERED; note++) {
    if (mk_directory_note(d, note, line) != NULL) {
      printf("%s   %s\n", note == MK_NOTE_QUANTISED ? "quantised" : "expanded ", line);
    }
  }
  if (mk_directory_note(d, MK_NOTE_ASIDE, line) != NULL) {
    printf("layers      %s\n", line);
  }
  if (mk_directory_note(d, MK_NOTE_IMAGES, line) != NULL) {
    printf("text        %s\n", line);
  }
  printf("parameters  %" PRIu64 " (%s)\n", mk_family_parameters(&d->config),
         mk_human_count(mk_family_parameters(&d->config)));
}

static void print_memory(const mk_program *program, const mk_config *config, uint32_t context) {
  uint64_t kv = kv_bytes(program, false);
  if (config->quant.layout == MK_QUANT_NONE) {
    printf("weights     %s (bf16, packed)\n", mk_human_bytes(program->weight_bytes));
  } else {
    printf("weights     %s (%s and bf16, packed: %.2f bits a parameter)\n", mk_human_bytes(program->weight_bytes),
           mk_codes_name((mk_codes)config->quant.codes),
           8 * (double)program->weight_bytes / (double)mk_family_parameters(config));
  }
  printf("KV cache    %s at %u tokens, %s a token", mk_human_bytes(kv), context, mk_human_bytes(kv / context));
  if (mk_config_has_kv_fp8(config)) {
    printf(" (with --kv fp8 %s)", mk_human_bytes(kv_bytes(program, true) / context));
  }
  printf("\n");
  printf("memory      %s at %u tokens: weights, KV cache, activations\n",
         mk_human_bytes(program->weight_bytes + program->work_bytes), context);
}

/* Weights, tokenizer and program, in the order in which a model is opened. */
static mk_status examine(const char *model, uint32_t context) {
  mk_directory directory;
  bool tokenizer;
  mk_program *program;
  mk_generation generation;
  MK_TRY(mk_generation_load(model, &generation));
  MK_TRY(open_directory(model, &directory));
  const bool weights = directory.checkpoint != NULL;
  print_directory(&directory);
  mk_directory_close(&directory);
  MK_TRY(check_tokenizer(model, &directory.config, &tokenizer));
  MK_TRY(compile(&directory.config, context, &program));
  print_memory(program, &directory.config, context);
  printf("files       config.json%s%s\n", weights ? ", weights" : " (no weights)",
         tokenizer ? ", tokenizer.json"
         : weights ? " (no tokenizer.json, which text needs)"
                   : "");
  mk_program_free(program);
  return MK_OK;
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
  mk_status status = mk_config_load(o.model, &config);
  if (status == MK_OK) {
    MK_TRY(mk_context_size(o.ctx_size, &config, &context));
    print_model(&config, o.model);
    status = examine(o.model, context);
  }
  if (status == MK_ERR_FILE) {
    printf("supported   no: %s\n", mk_error_message());
    (void)fflush(stdout);
  }
  MK_TRY(status);
  print_chat(o.model);
  printf("supported   yes\n");
  return mk_print_done();
}
