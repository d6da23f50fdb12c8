/* See compile.h. */
#include "scheduler/compile.h"

#include <stdio.h>
#include <string.h>

#include "scheduler/lower.h"

enum {
  SPLIT_ROW_TILES = 96,   /* fewer row tiles than this leave SMs idle: split K */
  SPLIT_MIN_COLS = 256,   /* but not into parts smaller than this */
  SPLIT_MAX_COLS = 14336, /* and always into parts whose activation fits the resident area, where there is one */
  MAX_BLOCKS = 1 << 24,
  ATTENTION_UNITS = 128, /* of a rank, KV heads x splits: about one attention instruction per SM and layer */
};

uint32_t mk_split_k(uint32_t rows, uint32_t cols) {
  uint32_t tiles = mk_divide_up(rows, MK_TILE);
  uint32_t for_rows = mk_divide_up(SPLIT_ROW_TILES, tiles), most = cols / SPLIT_MIN_COLS;
  uint32_t parts = for_rows < most ? for_rows : most;
  uint32_t least = mk_divide_up(cols, SPLIT_MAX_COLS);
  return parts > least ? parts : least;
}

uint32_t mk_span_tokens(uint32_t slots) { return slots > 1 ? MK_ROWS_SPAN_TOKENS : MK_SPAN_TOKENS; }

uint32_t mk_split_attention(uint32_t kv_heads, uint32_t max_seq, uint32_t slots, uint32_t ranks) {
  uint32_t splits = ATTENTION_UNITS * ranks / kv_heads, wanted = slots * mk_divide_up(max_seq, mk_span_tokens(slots));
  splits = splits < 1 ? 1 : splits > MK_MAX_UNITS ? MK_MAX_UNITS : splits;
  return splits < wanted ? splits : wanted;
}

uint32_t mk_spans_of_split(uint32_t splits, uint32_t max_seq, uint32_t slots) {
  return mk_divide_up(mk_divide_up(max_seq, mk_span_tokens(slots)), splits);
}

static uint64_t fold(uint64_t hash, uint64_t value) {
  for (uint32_t i = 0; i < 8; i++) {
    hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

static uint64_t double_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* Folds what sets a configuration apart from a plain Llama into the hash. A plain Llama's hash stays as it is. */
static uint64_t fold_differences(uint64_t hash, const mk_config *c) {
  const uint64_t fields[] = {c->kind,
                             c->qkv_bias,
                             c->o_bias,
                             c->mlp_bias,
                             c->fused,
                             c->norm_after,
                             c->qk_norm,
                             c->rotary,
                             double_bits(c->embedding_multiplier),
                             double_bits(c->residual_multiplier),
                             double_bits(c->attention_multiplier),
                             double_bits(c->logits_scaling),
                             double_bits(c->rope_attention),
                             double_bits(c->rope_beta_fast),
                             double_bits(c->rope_beta_slow),
                             c->rope_no_truncate,
                             c->rope_is_long,
                             c->rope_attention != 0 ? c->rope_original_max_position : 0,
                             c->quant.codes,
                             c->quant.codes != MK_CODES_NONE ? c->quant.scale + 1U : 0,
                             c->quant.codes != MK_CODES_NONE ? mk_quant_scale_cols(&c->quant) : 0,
                             c->quant.zeros,
                             c->quant.head,
                             c->norm_around,
                             c->norm_plus_one,
                             c->gelu,
                             double_bits(c->rope_local_theta)};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    hash = fields[i] != 0 ? fold(fold(hash, i), fields[i]) : hash;
  }
  for (size_t i = 0; i < sizeof c->unrotated; i++) {
    hash = c->unrotated[i] != 0 ? fold(fold(hash, i), c->unrotated[i]) : hash;
  }
  for (size_t i = 0; i < sizeof c->windowed && (c->window != 0 || c->rope_local_theta != 0); i++) {
    hash = c->windowed[i] != 0 ? fold(fold(fold(hash, i), c->windowed[i]), c->window) : hash;
  }
  for (size_t i = 0; i < c->layers && c->quant.codes != MK_CODES_NONE; i++) {
    hash = fold(fold(hash, i), (uint64_t)c->quant.ordered[i] << 16 | c->quant.modules[i]);
  }
  const size_t pairs = c->head_dim == 256 ? 128 : 64;
  for (size_t i = 0; i < pairs && c->rope_type == MK_ROPE_LONGROPE; i++) {
    hash = fold(hash, (uint64_t)mk_float_param(c->rope_short[i]) << 32 | mk_float_param(c->rope_long[i]));
  }
  return hash;
}

uint64_t mk_config_hash(const mk_config *c) {
  const bool llama3 = c->rope_type == MK_ROPE_LLAMA3;
  const uint64_t fields[] = {c->hidden,
                             c->intermediate,
                             c->layers,
                             c->heads,
                             c->kv_heads,
                             c->head_dim,
                             c->vocab,
                             mk_float_param(c->rms_eps),
                             double_bits(c->rope_theta),
                             c->tied,
                             c->rope_type,
                             c->rope_type != MK_ROPE_DEFAULT ? double_bits(c->rope_factor) : 0,
                             llama3 ? double_bits(c->rope_low_freq_factor) : 0,
                             llama3 ? double_bits(c->rope_high_freq_factor) : 0,
                             llama3 ? c->rope_original_max_position : 0};
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    hash = fold(hash, fields[i]);
  }
  return fold_differences(hash, c);
}

static mk_status flatten(mk_lowering *lowering) {
  mk_program *program = lowering->program;
  size_t total = 0;
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    total += lowering->queues[sm].count;
  }
  if (total > UINT32_MAX) {
    return mk_error(MK_ERR_FILE, "the program would have %zu instructions; a program holds at most %u", total,
                    UINT32_MAX);
  }
  MK_TRY(mk_grow(&program->instructions, &program->instruction_capacity, total, sizeof *program->instructions));
  for (uint32_t q = 0; q < program->queue_count; q++) {
    const uint32_t rank = q / program->machine.sms, sm = q % program->machine.sms;
    const mk_queue_builder none = {.instructions = NULL};
    const mk_queue_builder *queue =
        sm < lowering->sms_of_rank ? &lowering->queues[rank * lowering->sms_of_rank + sm] : &none;
    program->queues[q] =
        (mk_queue){.first = (uint32_t)program->instruction_count, .count = (uint32_t)queue->count, .rank = rank};
    if (queue->count != 0) {
      memcpy(program->instructions + program->instruction_count, queue->instructions,
             queue->count * sizeof *queue->instructions);
    }
    program->instruction_count += queue->count;
  }
  return MK_OK;
}

uint32_t mk_compile_slots(const mk_compile_options *options) {
  uint32_t rows = options->rows < 1 ? 1 : options->rows;
  return options->slots != 0 ? options->slots : rows == MK_PROMPT_ROWS ? 1 : rows;
}

static mk_status compile(const mk_graph *graph, const mk_compile_options *options, mk_program *program) {
  const mk_config *c = &graph->config;
  snprintf(program->model, sizeof program->model, "%s %u layers x %u, %u/%u heads of %u", mk_model_type(c->kind),
           c->layers, c->hidden, c->heads, c->kv_heads, c->head_dim);
  program->config_hash = mk_config_hash(c);
  uint32_t rows = options->rows < 1 ? 1 : options->rows;
  program->ranges = (mk_step_ranges){.position = {0, options->max_seq - 1},
                                     .token = {0, c->vocab - 1},
                                     .batch = {1, rows},
                                     .slot = {0, mk_compile_slots(options) - 1}};
  uint32_t whole = mk_program_slots(program) * mk_divide_up(options->max_seq, MK_BLOCK_TOKENS);
  program->ranges.block.high = (options->blocks != 0 ? options->blocks : whole) - 1;
  mk_lowering lowering;
  mk_status status = mk_lowering_init(&lowering, graph, options, program);
  if (status == MK_OK) {
    status = mk_lower(&lowering);
  }
  if (status == MK_OK) {
    status = flatten(&lowering);
  }
  mk_lowering_free(&lowering);
  return status;
}

mk_status mk_compile(const mk_graph *graph, const mk_compile_options *options, mk_program **out) {
  *out = NULL;
  if (options->sms < 1 || options->sms > MK_MAX_SMS) {
    return mk_error(MK_ERR_USAGE, "%u SMs: a program has 1 to %d queues%s", options->sms, MK_MAX_SMS,
                    options->ranks > 1 ? " for each rank" : "");
  }
  if (options->ranks > MK_MAX_RANKS) {
    return mk_error(MK_ERR_USAGE, "%u ranks: a program has at most %d", options->ranks, MK_MAX_RANKS);
  }
  if (options->max_seq < 1 || options->max_seq > graph->config.max_position) {
    return mk_error(MK_ERR_USAGE, "a context of %u tokens: this model has 1 to %u (max_position_embeddings)",
                    options->max_seq, graph->config.max_position);
  }
  if (options->rows > MK_MOST_ROWS || (options->rows & (options->rows - 1)) != 0) {
    return mk_error(MK_ERR_USAGE, "%u rows per step: a program has 1, 2, 4, 8, ... or %d", options->rows, MK_MOST_ROWS);
  }
  if (options->rows > MK_MOST_SHARED_ROWS && !mk_is_wide(graph, options)) {
    return mk_error(MK_ERR_USAGE,
                    "%u rows per step: at most %d, but of one sequence, greedily, and of a model of Llama's shape",
                    options->rows, MK_MOST_SHARED_ROWS);
  }
  if (options->slots > options->rows && options->slots > 1) {
    return mk_error(MK_ERR_USAGE, "%u sequences share a step of %u rows: at most as many as rows can", options->slots,
                    options->rows);
  }
  if (options->sampling &&
      (options->rows > MK_MOST_DRAWING_ROWS || (options->rows > MK_MAX_ROWS && mk_compile_slots(options) == 1))) {
    return mk_error(MK_ERR_USAGE,
                    "%u rows per step, %u sequences: a program of so many chooses greedily; one that samples has 1, 2, "
                    "4, ... or %d rows, and more than %d of several sequences alone",
                    options->rows, mk_compile_slots(options), MK_MOST_DRAWING_ROWS, MK_MAX_ROWS);
  }
  if (options->kv != MK_DTYPE_BF16 && options->kv != MK_DTYPE_E4M3) {
    return mk_error(MK_ERR_USAGE, "a KV cache of %s: it is of bf16 or e4m3", mk_dtype_name(options->kv));
  }
  if (options->kv != MK_DTYPE_BF16 && !mk_config_has_kv_fp8(&graph->config)) {
    return mk_error(MK_ERR_USAGE, "a KV cache of %s with heads of 256: those of 64 and 128 alone have it; use bf16",
                    mk_dtype_name(options->kv));
  }
  if (options->blocks > MAX_BLOCKS) {
    return mk_error(MK_ERR_USAGE, "%u KV blocks: a program has at most %d", options->blocks, MAX_BLOCKS);
  }
  mk_machine machine = mk_is_wide(graph, options)                            ? mk_machine_wide(options->sms)
                       : options->rows > 1 && mk_compile_slots(options) == 1 ? mk_machine_prompt(options->sms)
                                                                             : mk_machine_latency(options->sms);
  machine.ranks = options->ranks > 1 ? options->ranks : 1;
  mk_program *program;
  MK_TRY(mk_program_new(&machine, &program));
  mk_status status = compile(graph, options, program);
  if (status != MK_OK) {
    mk_program_free(program);
    return status;
  }
  *out = program;
  return MK_OK;
}
