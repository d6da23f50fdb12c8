/* What the scheduler makes of a graph: every tile computed once, operands inside their buffers, counters that add up,
 * the same bytes every time, bytes balanced over the SMs, and what it refuses. */
#include "scheduler/compile.h"
#include "vm/verify/verify.h"

#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "tests/support/model.h"

static mk_program *compile(const mk_config *config, uint32_t sms, uint32_t max_seq, mk_placement placement) {
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = sms, .max_seq = max_seq, .placement = placement};
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

/* The weight slot of an opcode that computes with one, else -1. */
static int weight_slot(const mk_opcode_info *info) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (strcmp(info->operands[slot].name, "weight") == 0) {
      return (int)slot;
    }
  }
  return -1;
}

static int slot_named(const mk_opcode_info *info, const char *name) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (strcmp(info->operands[slot].name, name) == 0) {
      return (int)slot;
    }
  }
  return -1;
}

static void expect_structure(const mk_program *program) {
  uint8_t *uids;
  uint32_t next = 0;
  cr_assert_eq(mk_alloc(program->instruction_count + 1, 1, &uids), MK_OK);
  for (size_t q = 0; q < program->queue_count; q++) {
    cr_assert_eq(program->queues[q].first, next, "queue %zu does not begin where the one before it ends", q);
    next += program->queues[q].count;
  }
  cr_assert_eq(next, program->instruction_count);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    cr_assert_not_null(info);
    cr_assert(in->uid >= 1 && in->uid <= program->instruction_count && uids[in->uid]++ == 0, "uid %u", in->uid);
    cr_assert_eq(in->pages, mk_instruction_pages(program, in));
    cr_assert_eq((uint32_t)in->resident * MK_RESIDENT_UNIT, mk_instruction_resident(program, in));
    cr_assert_leq((uint32_t)in->resident * MK_RESIDENT_UNIT, program->machine.resident_bytes);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const mk_operand *operand = &in->operands[slot];
      cr_assert_lt(operand->buffer, program->buffer_count);
      const mk_buffer *buffer = &program->buffers[operand->buffer];
      cr_assert((uint32_t)operand->row + operand->rows <= mk_buffer_grid_rows(buffer) &&
                    (uint32_t)operand->col + operand->cols <= mk_buffer_grid_cols(buffer),
                "instruction %u (%s), operand %s lies outside of %s", in->uid, info->name, info->operands[slot].name,
                buffer->name);
    }
  }
  mk_free(uids);
}

static void expect_counters(const mk_program *program) {
  uint32_t *totals;
  cr_assert_eq(mk_alloc(program->counter_count + 1, sizeof *totals, &totals), MK_OK);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    for (uint32_t s = 0; s < in->signal_count; s++) {
      totals[in->signals[s].counter] += in->signals[s].amount;
    }
  }
  for (size_t c = 0; c < program->counter_count; c++) {
    cr_assert_eq(program->counters[c].total, totals[c], "counter %s", program->counters[c].name);
    cr_assert_gt(totals[c], 0);
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    for (uint32_t w = 0; w < in->wait_count; w++) {
      cr_assert_eq(in->waits[w].threshold, totals[in->waits[w].counter], "instruction %u waits for a part", in->uid);
    }
  }
  mk_free(totals);
}

enum { MOST_PARTS = 64 };
typedef struct part { /* a range of K steps, and how often each row tile is computed over it */
  uint32_t first, steps;
  uint8_t *count;
} part;

/* A row tile is computed in one piece or in `most` parts. */
static void expect_parts_cover(const mk_buffer *weight, const part *parts, uint32_t count, uint32_t most) {
  for (uint32_t row = 0; row < mk_buffer_grid_rows(weight); row++) {
    uint32_t covered = 0, pieces = 0;
    for (uint32_t p = 0; p < count; p++) {
      cr_assert_leq(parts[p].count[row], 1, "%s: row tile %u is computed %u times over part %u", weight->name, row,
                    parts[p].count[row], p);
      covered += parts[p].count[row] * parts[p].steps;
      pieces += parts[p].count[row];
      for (uint32_t q = 0; q < p && parts[p].count[row] != 0; q++) {
        cr_assert(parts[q].count[row] == 0 || parts[p].first >= parts[q].first + parts[q].steps ||
                      parts[q].first >= parts[p].first + parts[p].steps,
                  "%s: row tile %u: K parts overlap", weight->name, row);
      }
    }
    cr_assert_eq(covered, mk_buffer_grid_cols(weight), "%s: row tile %u: %u of %u K steps are computed", weight->name,
                 row, covered, mk_buffer_grid_cols(weight));
    cr_assert(pieces == most || (most == 1 && pieces == 2), "%s: row tile %u is computed in %u parts", weight->name,
              row, pieces);
  }
}

typedef struct weight_parts {
  part parts[MOST_PARTS];
  uint32_t count;
} weight_parts;

static void note_part(const mk_program *program, weight_parts *weights, const mk_operand *operand) {
  weight_parts *weight = &weights[operand->buffer];
  uint32_t p = 0;
  while (p < weight->count && (weight->parts[p].first != operand->col || weight->parts[p].steps != operand->cols)) {
    p++;
  }
  if (p == weight->count) {
    cr_assert_lt(p, MOST_PARTS);
    weight->parts[p] = (part){.first = operand->col, .steps = operand->cols};
    size_t rows = mk_buffer_grid_rows(&program->buffers[operand->buffer]);
    cr_assert_eq(mk_alloc(rows, 1, &weight->parts[p].count), MK_OK);
    weight->count++;
  }
  for (uint32_t row = operand->row; row < (uint32_t)operand->row + operand->rows; row++) {
    weight->parts[p].count[row]++;
  }
}

/* The results of a row tile go where its rows belong. */
static void expect_results_in_place(const mk_program *program, const mk_instruction *in, uint32_t slot) {
  static const char *const names[] = {"out", "residual_in", "residual_out", "logits"};
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    int result = slot_named(info, names[n]);
    if (result >= 0) {
      const mk_operand *operand = &in->operands[result], *weight = &in->operands[slot];
      cr_assert(operand->cols == weight->rows && operand->col == weight->row,
                "instruction %u: %s is not where its rows are", in->uid, names[n]);
    }
  }
  const mk_operand *x = &in->operands[0];
  uint32_t per_step = 16 / program->buffers[x->buffer].tile_cols;
  cr_assert(in->operands[slot].rows == 0 ||
            (x->col == in->operands[slot].col * per_step && x->cols == in->operands[slot].cols * per_step));
}

static void expect_weights_computed_once(const mk_program *program) {
  weight_parts *weights;
  cr_assert_eq(mk_alloc(program->buffer_count, sizeof *weights, &weights), MK_OK);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    int slot = weight_slot(mk_opcode_lookup(in->opcode));
    if (slot >= 0) {
      expect_results_in_place(program, in, (uint32_t)slot);
      if (in->operands[slot].rows != 0) {
        note_part(program, weights, &in->operands[slot]);
      }
    }
  }
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    bool adds = strstr(buffer->name, ".o") != NULL || strstr(buffer->name, ".down") != NULL;
    bool tied = mk_program_find_buffer(program, "lm_head") < 0;
    if (buffer->kind == MK_KIND_WEIGHT && buffer->store == MK_STORE_TILES &&
        (tied || strcmp(buffer->name, "embedding") != 0)) {
      expect_parts_cover(buffer, weights[b].parts, weights[b].count, adds ? mk_split_k(buffer->rows, buffer->cols) : 1);
    }
    for (uint32_t p = 0; p < weights[b].count; p++) {
      mk_free(weights[b].parts[p].count);
    }
  }
  mk_free(weights);
}

/* Every tile of a value, of the logits and of the KV cache is written by one instruction; of parts of sums those of
 * split row tiles, in all parts. */
static void expect_writers(const mk_program *program) {
  for (uint16_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    bool ring = strcmp(buffer->name, "token_ring") == 0;
    if (buffer->kind == MK_KIND_WEIGHT || buffer->kind == MK_KIND_INPUT || ring) {
      continue;
    }
    uint32_t *writers, cols = mk_buffer_grid_cols(buffer);
    size_t tiles = (size_t)mk_buffer_grid_rows(buffer) * cols;
    cr_assert_eq(mk_alloc(tiles, sizeof *writers, &writers), MK_OK);
    for (uint32_t q = 0; q < program->queue_count; q++) {
      for (uint32_t i = 0; i < program->queues[q].count; i++) {
        const mk_instruction *in = &program->instructions[program->queues[q].first + i];
        const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
        for (uint32_t slot = 0; slot < info->operand_count; slot++) {
          const mk_operand *o = &in->operands[slot];
          if (info->operands[slot].access == MK_ACCESS_READ || o->buffer != b) {
            continue;
          }
          for (uint32_t r = o->row; r < (uint32_t)o->row + o->rows; r++) {
            for (uint32_t c = o->col; c < (uint32_t)o->col + o->cols; c++) {
              uint32_t *writer = &writers[(size_t)r * cols + c];
              cr_assert(*writer == 0, "%s: tile %u, %u has two writers", buffer->name, r, c);
              *writer = q + 1;
            }
          }
        }
      }
    }
    bool sums = strstr(buffer->name, "_parts") != NULL;
    for (size_t t = 0; t < tiles; t++) {
      bool unused = sums && writers[t % cols] == 0;
      cr_assert((writers[t] == 0) == unused, "%s: tile %zu of %zu is never written", buffer->name, t, tiles);
    }
    mk_free(writers);
  }
}

static void expect_token_boundary(const mk_program *program) {
  uint32_t rings = 0;
  for (uint32_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q];
    if (queue->count == 0) {
      continue;
    }
    uint32_t products = 0; /* an SM with nothing but a head could be overtaken: such queues are left empty */
    for (uint32_t i = 0; i < queue->count; i++) {
      products += program->instructions[queue->first + i].opcode == MK_OP_GLU;
    }
    cr_assert_gt(products, 0, "SM %u has no work that the next epoch needs", q);
    const mk_instruction *last = &program->instructions[queue->first + queue->count - 1];
    cr_assert_eq(last[-1].opcode, MK_OP_HEAD, "SM %u has no head", q);
    cr_assert_eq(last->opcode, MK_OP_NEXT, "SM %u does not end in next", q);
    rings += last->operands[MK_SLOT_NEXT_ring].rows;
  }
  cr_assert_eq(rings, 1);
}

static void expect_sound(const mk_config *config, uint32_t sms, uint32_t max_seq, mk_placement placement) {
  mk_program *program = compile(config, sms, max_seq, placement);
  expect_structure(program);
  expect_counters(program);
  expect_weights_computed_once(program);
  if (program->instruction_count < 20000) {
    expect_writers(program);
  }
  expect_token_boundary(program);
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

Test(compile, small_models_on_any_number_of_sms) {
  static const uint32_t sms[] = {1, 2, 7, 132, 133};
  for (size_t model = 0; model < TEST_MODELS; model++) {
    mk_config config = test_model_config(model);
    for (size_t s = 0; s < sizeof sms / sizeof sms[0]; s++) {
      expect_sound(&config, sms[s], 1 + (uint32_t)(model * 300), MK_PLACE_BALANCED);
      expect_sound(&config, sms[s], 1024, MK_PLACE_ROUND_ROBIN);
    }
  }
}

Test(compile, named_shapes) {
  for (size_t i = 0; mk_synth_shape_name(i) != NULL; i++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(mk_synth_shape_name(i), &config), MK_OK);
    expect_sound(&config, 132, config.max_position < 4096 ? config.max_position : 4096, MK_PLACE_BALANCED);
    expect_sound(&config, 7, 300, MK_PLACE_BALANCED);
  }
}

Test(compile, one_context_token_and_the_longest_context) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("llama-3.2-1b", &config), MK_OK);
  expect_sound(&config, 132, 1, MK_PLACE_BALANCED);
  expect_sound(&config, 132, config.max_position, MK_PLACE_BALANCED);
}

Test(compile, most_sms) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  expect_sound(&config, MK_MAX_SMS, 512, MK_PLACE_BALANCED);
}

Test(compile, same_options_give_the_same_bytes) {
  mk_config config = test_model_config(TEST_MODEL_WIDE);
  for (uint32_t placement = 0; placement < 2; placement++) {
    void *bytes[2];
    size_t lengths[2];
    for (uint32_t i = 0; i < 2; i++) {
      mk_program *program = compile(&config, 132, 700, (mk_placement)placement);
      cr_assert_eq(mk_program_serialize(program, &bytes[i], &lengths[i]), MK_OK);
      mk_program_free(program);
    }
    cr_assert_eq(lengths[0], lengths[1]);
    cr_assert_eq(memcmp(bytes[0], bytes[1], lengths[0]), 0);
    mk_free(bytes[0]);
    mk_free(bytes[1]);
  }
}

/* K parts and attention splits are all that decides an order of sums; both must follow from the shape alone. */
Test(compile, what_is_summed_does_not_depend_on_sms_or_placement) {
  for (size_t model = 0; model < TEST_MODELS; model++) {
    mk_config config = test_model_config(model);
    mk_program *one = compile(&config, 1, 1024, MK_PLACE_BALANCED);
    static const uint32_t sms[] = {2, 7, 132, 500};
    for (uint32_t s = 0; s < 4; s++) {
      mk_program *other = compile(&config, sms[s], 1024, s % 2 == 0 ? MK_PLACE_ROUND_ROBIN : MK_PLACE_BALANCED);
      cr_assert_eq(one->buffer_count, other->buffer_count);
      cr_assert_eq(one->weight_bytes, other->weight_bytes);
      for (size_t b = 0; b < one->buffer_count; b++) {
        bool candidates = strcmp(one->buffers[b].name, "candidates") == 0;
        cr_assert_eq(strcmp(one->buffers[b].name, other->buffers[b].name), 0);
        cr_assert(candidates ||
                  (one->buffers[b].rows == other->buffers[b].rows && one->buffers[b].cols == other->buffers[b].cols));
      }
      mk_program_free(other);
    }
    mk_program_free(one);
  }
}

static void weight_bytes_per_sm(const mk_program *program, uint64_t *least, uint64_t *most, uint64_t *mean) {
  *least = UINT64_MAX;
  *most = *mean = 0;
  for (uint32_t q = 0; q < program->queue_count; q++) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      const mk_instruction *in = &program->instructions[program->queues[q].first + i];
      int slot = weight_slot(mk_opcode_lookup(in->opcode));
      if (slot >= 0) {
        bytes += (uint64_t)in->operands[slot].rows * in->operands[slot].cols * 512;
      }
    }
    *least = bytes < *least ? bytes : *least;
    *most = bytes > *most ? bytes : *most;
    *mean += bytes;
  }
  /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a program has a queue */
  *mean /= program->queue_count;
}

/* Which row tiles of layer 0's `down` are computed in parts, and the most K steps of it on one SM. */
static uint32_t split_rows_of_down(const mk_program *program, bool *split, uint32_t tiles) {
  uint32_t most = 0;
  memset(split, 0, tiles * sizeof *split);
  for (uint32_t q = 0; q < program->queue_count; q++) {
    uint32_t steps = 0;
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      const mk_instruction *in = &program->instructions[program->queues[q].first + i];
      const mk_operand *weight = &in->operands[MK_SLOT_LINEAR_ADD_weight];
      if (in->opcode == MK_OP_LINEAR_PART) {
        weight = &in->operands[MK_SLOT_LINEAR_PART_weight];
      } else if (in->opcode != MK_OP_LINEAR_ADD) {
        continue;
      }
      if (strcmp(program->buffers[weight->buffer].name, "layers.0.down") != 0) {
        continue;
      }
      steps += (uint32_t)weight->rows * weight->cols;
      for (uint32_t r = 0; in->opcode == MK_OP_LINEAR_PART && r < weight->rows; r++) {
        split[weight->row + r] = true;
      }
    }
    most = steps > most ? steps : most;
  }
  return most;
}

/* 192 row tiles of 512 steps on 132 SMs: 60 are halved, on whatever number of SMs the program runs. */
Test(compile, long_tiles_that_do_not_divide_evenly_are_halved) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("llama-3.2-3b", &config), MK_OK);
  config.layers = 1;
  enum { TILES = 192 };
  bool split[TILES], again[TILES];
  mk_program *program = compile(&config, 132, 512, MK_PLACE_BALANCED);
  cr_expect_eq(split_rows_of_down(program, split, TILES), 512 + 256);
  mk_program_free(program);
  uint32_t count = 0;
  for (uint32_t i = 0; i < TILES; i++) {
    count += split[i];
  }
  cr_expect_eq(count, 60);
  for (uint32_t sms = 1; sms < 400; sms += 66) {
    program = compile(&config, sms, 512, MK_PLACE_ROUND_ROBIN);
    split_rows_of_down(program, again, TILES);
    cr_expect_arr_eq(again, split, sizeof split);
    mk_program_free(program);
  }
}

/* The SM with the most bytes decides: it may exceed the mean by one row tile of the widest weight. Below the mean an SM
 * may fall by what the residual's owners stream: 128 row tiles have 128 owners, and the other 4 SMs compute no O and no
 * down. */
Test(compile, bytes_are_balanced_over_the_sms) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("llama-3.2-1b", &config), MK_OK);
  uint64_t least, most, mean, round_robin_most;
  mk_program *program = compile(&config, 132, 4096, MK_PLACE_BALANCED);
  weight_bytes_per_sm(program, &least, &most, &mean);
  mk_program_free(program);
  uint64_t down = config.intermediate / 16 * 512, o = config.hidden / 16 * 512;
  cr_assert_leq(most, mean + down, "the most is %llu bytes, the mean %llu", (unsigned long long)most,
                (unsigned long long)mean);
  cr_assert_leq(most - least, config.layers * (o + down), "%llu to %llu bytes per SM", (unsigned long long)least,
                (unsigned long long)most);
  program = compile(&config, 132, 4096, MK_PLACE_ROUND_ROBIN);
  weight_bytes_per_sm(program, &least, &round_robin_most, &mean);
  mk_program_free(program);
  cr_assert_gt(round_robin_most, most);
}

Test(compile, splits_follow_from_the_shape) {
  cr_assert_eq(mk_split_k(4096, 4096), 1);
  cr_assert_eq(mk_split_k(16, 128), 1, "too narrow to split");
  cr_assert_eq(mk_split_k(1 << 20, 14336), 1);
  cr_assert_eq(mk_split_k(1 << 20, 14337), 2, "a part's activation must fit");
  cr_assert_eq(mk_split_k(1 << 20, 28672), 2);
  cr_assert_eq(mk_split_k(1 << 20, 28673), 3);
  cr_assert_eq(mk_split_k(16, 8192), 32);
  for (uint32_t cols = 16; cols < 70000; cols += 777) {
    for (uint32_t rows = 16; rows < 20000; rows += 900) {
      uint32_t parts = mk_split_k(rows, cols), steps = (cols + 15) / 16;
      cr_assert_geq(parts, 1);
      cr_assert_leq((steps + parts - 1) / parts * 16, 14336 + 15);
      cr_assert(parts == 1 || cols / parts >= 256, "%u parts of %u columns", parts, cols);
    }
  }
  cr_assert_eq(mk_split_attention(8, 256, 1, 1), 1);
  cr_assert_eq(mk_split_attention(8, 257, 1, 1), 2);
  cr_assert_eq(mk_split_attention(8, 131072, 1, 1), 16);
  cr_assert_eq(mk_split_attention(500, 131072, 1, 1), 1);
  cr_assert_eq(mk_split_attention(8, 1024, 2, 1), 2);
  cr_assert_eq(mk_split_attention(8, 1024, 16, 1), 16);
  cr_assert_eq(mk_split_attention(8, 4096, 2, 1), 8); /* one for each span of each slot */
  cr_assert_eq(mk_split_attention(8, 4097, 4, 1), 16);
  cr_assert_eq(mk_split_attention(16, 131072, 16, 1), 8);
  cr_assert_eq(mk_split_attention(8, 131072, 1, 2), 32); /* each rank has four heads, and 128 units */
  cr_assert_eq(mk_split_attention(8, 131072, 1, 8), 128);
  cr_assert_eq(mk_split_attention(2, 131072, 1, 4), 128); /* as many as several rows may have */
  cr_assert_eq(mk_split_attention(8, 2048, 1, 8), 8);
}

Test(compile, refuses_impossible_options) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  static const struct {
    uint32_t sms, max_seq;
    const char *words;
  } refused[] = {{0, 100, "0 SMs"},
                 {1025, 100, "1025 SMs"},
                 {132, 0, "0 tokens"},
                 {132, 1025, "1025 tokens"},
                 {UINT32_MAX, 100, "4294967295 SMs"},
                 {132, UINT32_MAX, "4294967295 tokens"}};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    mk_program *program = (mk_program *)1;
    mk_compile_options options = {.sms = refused[i].sms, .max_seq = refused[i].max_seq};
    cr_assert_eq(mk_compile(graph, &options, &program), MK_ERR_USAGE);
    cr_assert_null(program);
    cr_assert_not_null(strstr(mk_error_message(), refused[i].words), "%s", mk_error_message());
  }
  mk_graph_free(graph);
}

/* Norms need the whole of x in the resident area. */
Test(compile, refuses_what_does_not_fit_the_machine) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  config.hidden = 65536;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 132, .max_seq = 64};
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_ERR_FILE);
  cr_assert_null(program);
  cr_assert_not_null(strstr(mk_error_message(), "resident"), "%s", mk_error_message());
  mk_graph_free(graph);
}

Test(compile, out_of_memory_unwinds) {
  mk_config config = test_model_config(TEST_MODEL_DEEP_K);
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  mk_compile_options options = {.sms = 7, .max_seq = 300};
  mk_status status = MK_ERR_RUNTIME;
  for (uint64_t n = 1; status != MK_OK; n++) {
    mk_program *program = (mk_program *)1;
    mk_alloc_fail_at(n, n % 2 == 0);
    status = mk_compile(graph, &options, &program);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && program == NULL), "allocation %llu",
              (unsigned long long)n);
    cr_assert(status != MK_OK || n > 10);
    if (status == MK_OK) {
      mk_program_free(program);
    }
  }
  mk_graph_free(graph);
}

Test(compile, configurations_have_different_hashes) {
  mk_config config = test_model_config(TEST_MODEL_TINY), changed = config;
  uint64_t hash = mk_config_hash(&config);
  cr_assert_eq(hash, mk_config_hash(&changed));
  changed.rope_factor = 9;
  cr_assert_neq(hash, mk_config_hash(&changed));
  changed = config;
  changed.rms_eps = 2e-5f;
  cr_assert_neq(hash, mk_config_hash(&changed));
  changed = config;
  changed.tied = false;
  cr_assert_neq(hash, mk_config_hash(&changed));
  changed = config;
  changed.eos[0] = 5; /* not a matter of the program */
  cr_assert_eq(hash, mk_config_hash(&changed));
}
