/* Graph nodes to instructions. See lower.h; the edges are those of vm/program/program.h.
 *
 * Values travel in stamped buffers that are written once per epoch, one buffer per value and layer, each with a relaxed counter
 * that its writers signal and its readers wait for before they look at the stamps. The residual stream itself is fp32 and stays with
 * the SM that owns the rows: attention's and the MLP's additions to a row tile are placed on the same queue. */
#include <stdio.h>
#include <string.h>

#include "scheduler/lower_internal.h"

/* Every queue in use must hold work that the next epoch of all others depends on, or its NEXT might still be reading candidates
 * that faster SMs overwrite. A row tile of gate and up is such work, so no more queues are used than there are of these. */
static uint32_t queues_in_use(const mk_graph *graph, uint32_t sms) {
  uint32_t tiles = 2 * mk_divide_up(graph->config.intermediate, MK_TILE);
  return tiles < sms ? tiles : sms;
}

mk_status mk_lowering_init(mk_lowering *lowering, const mk_graph *graph, const mk_compile_options *options,
                           mk_program *program) {
  memset(lowering, 0, sizeof *lowering);
  lowering->graph = graph;
  lowering->program = program;
  lowering->sms = queues_in_use(graph, options->sms);
  lowering->max_seq = options->max_seq;
  lowering->lines = mk_program_rows(program);
  lowering->line_tiles = lowering->lines / mk_line_tile(lowering->lines);
  lowering->blocks = program->ranges.block.high + 1;
  lowering->samples = options->sampling;
  lowering->splits = mk_split_attention(graph->config.kv_heads, options->max_seq, mk_program_slots(program));
  lowering->next_uid = 1;
  MK_TRY(mk_placer_init(&lowering->placer, options->placement, lowering->sms));
  MK_TRY(mk_alloc(lowering->sms, sizeof *lowering->owners, &lowering->owners));
  MK_TRY(mk_alloc(lowering->sms, sizeof *lowering->queues, &lowering->queues));
  MK_TRY(mk_alloc(graph->weight_count, sizeof *lowering->weights, &lowering->weights));
  return mk_alloc(graph->value_count, sizeof *lowering->values, &lowering->values);
}

void mk_lowering_free(mk_lowering *lowering) {
  if (lowering->queues != NULL) {
    for (uint32_t sm = 0; sm < lowering->sms; sm++) {
      mk_free(lowering->queues[sm].instructions);
    }
  }
  mk_free(lowering->queues);
  mk_free(lowering->owners);
  mk_free(lowering->weights);
  mk_free(lowering->values);
  mk_placer_free(&lowering->placer);
}

/* Buffers are checked to have at most 65535 tiles a side when they are declared, so coordinates fit. */
mk_operand mk_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols) {
  return (mk_operand){
      .buffer = buffer, .row = (uint16_t)row, .rows = (uint16_t)rows, .col = (uint16_t)col, .cols = (uint16_t)cols};
}

/* Columns of a value, of a tile of its lines. */
static mk_operand columns(uint16_t buffer, uint32_t lines, uint32_t col, uint32_t cols) {
  return mk_tiles(buffer, lines, 1, col, cols);
}

/* All columns of it. */
static mk_operand line_tile(const mk_lowering *lowering, uint16_t buffer, uint32_t lines) {
  return columns(buffer, lines, 0, mk_buffer_grid_cols(&lowering->program->buffers[buffer]));
}

mk_operand mk_whole(const mk_lowering *lowering, uint16_t buffer) {
  return mk_operand_whole(lowering->program, buffer);
}

/* The embedding row of the step's token, columns [col, col + cols). */
static mk_operand embedding_row(const mk_lowering *lowering, uint32_t col, uint32_t cols) {
  uint16_t buffer = lowering->weights[lowering->graph->embedding];
  mk_operand operand = mk_tiles(buffer, 0, mk_buffer_grid_rows(&lowering->program->buffers[buffer]), col, cols);
  operand.flags = MK_OPERAND_TOKEN_ROW;
  return operand;
}

void mk_add_wait(const mk_lowering *lowering, mk_instruction *instruction, uint16_t counter) {
  if (counter != MK_NO_COUNTER) {
    instruction->waits[instruction->wait_count++] =
        (mk_wait){.counter = counter, .threshold = (uint16_t)lowering->program->counters[counter].total};
  }
}

mk_status mk_emit(mk_lowering *lowering, uint32_t sm, mk_instruction *instruction, uint16_t signal) {
  mk_program *program = lowering->program;
  instruction->uid = lowering->next_uid++;
  if (signal != MK_NO_COUNTER) {
    instruction->signals[instruction->signal_count++] = (mk_signal){.counter = signal, .amount = 1};
    if (++program->counters[signal].total > MK_MAX_COORDINATE) {
      return mk_error(MK_ERR_FILE, "counter %s would have more than %d signals per epoch",
                      program->counters[signal].name, MK_MAX_COORDINATE);
    }
  }
  instruction->pages = mk_instruction_pages(program, instruction);
  uint32_t resident = mk_instruction_resident(program, instruction);
  if (resident > program->machine.resident_bytes) {
    return mk_error(
        MK_ERR_FILE, "layer %u: %s needs %u bytes of resident shared memory for its activation; the machine has %u",
        instruction->layer, mk_opcode_lookup(instruction->opcode)->name, resident, program->machine.resident_bytes);
  }
  instruction->resident = (uint16_t)mk_divide_up(resident, MK_RESIDENT_UNIT);
  mk_queue_builder *queue = &lowering->queues[sm];
  const mk_instruction *before = queue->count == 0 ? NULL : &queue->instructions[queue->count - 1];
  instruction->flags = mk_fuses(program, before, instruction) ? MK_FUSED : 0;
  MK_TRY(mk_grow(&queue->instructions, &queue->capacity, queue->count + 1, sizeof *instruction));
  queue->instructions[queue->count++] = *instruction;
  return MK_OK;
}

/* A counter for each tile of lines, side by side; the first one. */
static mk_status add_counters(mk_lowering *lowering, const char *what, uint16_t *first) {
  if (lowering->line_tiles == 1) {
    return mk_program_add_counter(lowering->program, what, MK_COUNTER_RELAXED, first);
  }
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    char name[64];
    uint16_t counter;
    snprintf(name, sizeof name, "%.40s.%u", what, lines);
    MK_TRY(mk_program_add_counter(lowering->program, name, MK_COUNTER_RELAXED, &counter));
    *first = lines == 0 ? counter : *first;
  }
  return MK_OK;
}

static mk_status add_ready(mk_lowering *lowering, uint32_t layer, const char *what, mk_lowered_value *value) {
  char name[48];
  snprintf(name, sizeof name, "layers.%u.%s", layer, what);
  value->ready_by_tiles = true;
  return add_counters(lowering, name, &value->ready);
}

static uint16_t signal_of(const mk_lowered_value *value, uint32_t lines) {
  return (uint16_t)(value->ready + (value->ready_by_tiles ? lines : 0));
}

/* Waits for a tile of the lines of a value. */
static void wait_for(const mk_lowering *lowering, mk_instruction *in, int value, uint32_t lines) {
  if (value != MK_NONE && lowering->values[value].ready != MK_NO_COUNTER) {
    mk_add_wait(lowering, in, signal_of(&lowering->values[value], lines));
  }
}

static mk_operand input_of(const mk_lowering *lowering, const mk_node *node, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  return node->input == MK_NONE ? embedding_row(lowering, 0, mk_divide_up(c->hidden, MK_TILE))
                                : line_tile(lowering, lowering->values[node->input].buffer, lines);
}

static const mk_buffer *weight_buffer(const mk_lowering *lowering, const mk_node *node, uint16_t *index) {
  *index = lowering->weights[node->weight];
  return &lowering->program->buffers[*index];
}

static mk_operand whole_or_none(const mk_lowering *lowering, int weight) {
  return weight == MK_NONE ? (mk_operand){0} : mk_whole(lowering, lowering->weights[weight]);
}

static uint32_t qkv_extras(const mk_lowering *lowering, const mk_node *node) {
  const uint32_t vectors = lowering->graph->weights[node->vector].extras;
  return ((vectors & MK_VECTOR_BIASES) != 0 ? (uint32_t)MK_QKV_BIASES : 0U) |
         ((vectors & MK_VECTOR_GAINS) != 0 ? (uint32_t)MK_QKV_GAINS : 0U) |
         (lowering->graph->config.qk_norm != MK_QK_PLAIN ? (uint32_t)MK_QKV_SQUARES : 0U);
}

static mk_status emit_qkv(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(weight_buffer(lowering, node, &index));
  mk_instruction in = MK_START(QKV, node->layer);
  in.operands[MK_SLOT_QKV_x] = input_of(lowering, node, lines);
  in.operands[MK_SLOT_QKV_gain] = whole_or_none(lowering, node->gain);
  in.operands[MK_SLOT_QKV_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_QKV_inv_freq] = mk_whole(lowering, lowering->weights[node->vector]);
  in.operands[MK_SLOT_QKV_out] = columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_QKV_eps] = node->gain == MK_NONE ? 0 : mk_float_param(node->eps);
  in.params[MK_PARAM_QKV_width] = node->gain == MK_NONE ? 0 : c->hidden;
  in.params[MK_PARAM_QKV_rope_tiles] = node->unrotated ? 0 : (c->heads + c->kv_heads) * c->head_dim / MK_TILE;
  in.params[MK_PARAM_QKV_head_dim] = c->head_dim;
  in.params[MK_PARAM_QKV_extras] = qkv_extras(lowering, node);
  wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

typedef mk_status (*emitter)(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);

/* An instruction of every SM that has a share, of each tile of lines. */
static mk_status emit_shares(mk_lowering *lowering, const mk_node *node, emitter emit) {
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    for (uint32_t sm = 0; sm < lowering->sms; sm++) {
      const mk_share share = lowering->placer.shares[sm];
      MK_TRY(share.count == 0 ? MK_OK : emit(lowering, node, sm, share, lines));
    }
  }
  return MK_OK;
}

/* Row tiles of its weight, dealt to the SMs. */
static mk_status lower_rows(mk_lowering *lowering, const mk_node *node, const char *what, emitter emit) {
  uint16_t index;
  const mk_buffer *weight = weight_buffer(lowering, node, &index);
  MK_TRY(add_ready(lowering, node->layer, what, &lowering->values[node->output]));
  mk_place(&lowering->placer, mk_buffer_grid_rows(weight),
           (uint64_t)mk_buffer_grid_cols(weight) * 512 * lowering->line_tiles);
  return emit_shares(lowering, node, emit);
}

/* Every SM norms its share of tiles, for which it looks at the squares of all of them. */
static mk_status emit_norm_heads(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share,
                                 uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t head_tiles = c->head_dim / MK_TILE;
  const mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(NORM_HEADS, node->layer);
  in.operands[MK_SLOT_NORM_HEADS_values] = line_tile(lowering, lowering->values[node->input].buffer, lines);
  in.operands[MK_SLOT_NORM_HEADS_out] = columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_NORM_HEADS_eps] = mk_float_param(node->eps);
  in.params[MK_PARAM_NORM_HEADS_query_tiles] = c->heads * head_tiles;
  in.params[MK_PARAM_NORM_HEADS_key_tiles] = c->kv_heads * head_tiles;
  wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

static mk_status lower_norm_heads(mk_lowering *lowering, const mk_node *node) {
  const mk_config *c = &lowering->graph->config;
  MK_TRY(add_ready(lowering, node->layer, "qkv_normed", &lowering->values[node->output]));
  mk_place(&lowering->placer, (c->heads + 2 * c->kv_heads) * (c->head_dim / MK_TILE), 0);
  return emit_shares(lowering, node, emit_norm_heads);
}

/* Slots take turns at the units, so with several rows no SM has all splits 0 of a head: each query head goes where it
 * may. */
static mk_status lower_combine(mk_lowering *lowering, const mk_node *node, uint16_t parts) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  const uint32_t head_tiles = c->head_dim / MK_TILE, heads = lowering->lines > 1 ? 1 : c->heads / c->kv_heads;
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    for (uint32_t head = 0; head < c->heads; head += heads) {
      mk_instruction in = MK_START(COMBINE, node->layer);
      in.operands[MK_SLOT_COMBINE_parts] = mk_tiles(parts, 0, lowering->splits, head, heads);
      in.operands[MK_SLOT_COMBINE_out] = columns(out->buffer, lines, head * head_tiles, heads * head_tiles);
      in.params[MK_PARAM_COMBINE_span] = mk_span_tokens(mk_program_slots(lowering->program));
      MK_TRY(mk_emit(lowering, head / heads % lowering->sms, &in, signal_of(out, lines)));
    }
  }
  return MK_OK;
}

/* Split s of every KV head, s-major, so that short contexts (split 0 alone) spread over as many SMs as there are KV heads.
 * A head's COMBINE sits behind its split 0: with one split in use the result never leaves the SM. With several rows a split is that
 * of slot 0; what is split j of slot c is unit (j + c) mod splits, so that several short contexts spread, too, and a slot's
 * blocks stay with the SM that appends to them. */
static mk_status lower_attention(mk_lowering *lowering, const mk_node *node) {
  const mk_config *c = &lowering->graph->config;
  uint32_t group = c->heads / c->kv_heads, head_tiles = c->head_dim / MK_TILE;
  mk_lowered_value *out = &lowering->values[node->output];
  uint16_t qkv = lowering->values[node->input].buffer, kv, parts;
  char name[48];
  MK_TRY(mk_declare_kv(lowering, node->layer, &kv));
  snprintf(name, sizeof name, "layers.%u.attn_parts", node->layer);
  MK_TRY(mk_add_vector(lowering->program, name,
                       (mk_vector){.kind = MK_KIND_ACTIVATION,
                                   .dtype = MK_DTYPE_F32,
                                   .store = MK_STORE_STAMPED,
                                   .rows = lowering->splits,
                                   .cols = c->heads * (c->head_dim + 2),
                                   .tile = c->head_dim + 2,
                                   .lines = lowering->lines},
                       &parts));
  MK_TRY(add_ready(lowering, node->layer, "attn", out));
  for (uint32_t split = 0; split < lowering->splits; split++) {
    for (uint32_t head = 0; head < c->kv_heads; head++) {
      mk_instruction in = MK_START(ATTENTION, node->layer);
      in.operands[MK_SLOT_ATTENTION_q] =
          mk_tiles(qkv, 0, lowering->line_tiles, head * group * head_tiles, group * head_tiles);
      in.operands[MK_SLOT_ATTENTION_k] =
          mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + head) * head_tiles, head_tiles);
      in.operands[MK_SLOT_ATTENTION_v] =
          mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + c->kv_heads + head) * head_tiles, head_tiles);
      in.operands[MK_SLOT_ATTENTION_kv] = mk_tiles(kv, split, 1, head, 1);
      in.operands[MK_SLOT_ATTENTION_table] = mk_whole(lowering, lowering->table);
      in.operands[MK_SLOT_ATTENTION_out] = mk_tiles(parts, split, 1, head * group, group);
      in.params[MK_PARAM_ATTENTION_scale] = mk_float_param(node->factor);
      in.params[MK_PARAM_ATTENTION_splits] = lowering->splits;
      in.params[MK_PARAM_ATTENTION_group] = group;
      in.params[MK_PARAM_ATTENTION_eps] = mk_float_param(node->eps);
      for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
        wait_for(lowering, &in, node->input, lines);
      }
      MK_TRY(mk_emit(lowering, (split * c->kv_heads + head) % lowering->sms, &in, MK_NO_COUNTER));
    }
  }
  return lower_combine(lowering, node, parts);
}

static mk_operand residual_input(const mk_lowering *lowering, const mk_node *node, mk_share share, uint32_t lines) {
  return node->residual == MK_NONE
             ? embedding_row(lowering, share.first, share.count)
             : columns(lowering->values[node->residual].residual, lines, share.first, share.count);
}

/* How an addition to the residual is computed: for split row tiles K is cut into `parts`, which the tile's owner adds up; it computes the others
 * in one piece. Which ones are split follows from the shape alone, so that what is summed does not depend on the SMs: all of them, or the
 * last tile of every owner that has `stride` of them where `split` owners have one more than the others. */
typedef struct add_plan {
  uint32_t parts;
  uint32_t stride, split; /* tile number k of the split ones is k * stride + stride - 1 */
  uint16_t buffer;        /* [tile of lines][parts][rows]: of split tiles */
  uint16_t ready;         /* as mk_lowered_value.ready, by tiles */
} add_plan;

static bool splits(const add_plan *plan, uint32_t tile) {
  return tile % plan->stride == plan->stride - 1 && tile / plan->stride < plan->split;
}

static uint32_t split_tile(const add_plan *plan, uint32_t number) { return number * plan->stride + plan->stride - 1; }

/* Where long tiles do not divide evenly, owners of one more would stream alone at the end, while the next stage waits: these tiles are halved,
 * if that leaves no SM with two halves (llama-3.2-3b's down: 32 pages become 24, of 23.3 on average). */
static add_plan plan_add(const mk_lowering *lowering, const mk_node *node) {
  enum {
    NOMINAL_SMS = 132,     /* an H200's; on other machines the same tiles are split */
    LONG_TILE_STEPS = 256, /* 128 KiB: shorter ones lie in the page ring before x comes */
  };
  const mk_weight *weight = &lowering->graph->weights[node->weight];
  uint32_t tiles = mk_divide_up(weight->rows, MK_TILE);
  uint32_t parts = mk_split_k(weight->rows, weight->cols);
  if (parts > 1 || node->gain != MK_NONE) { /* a norm needs the whole sum before anybody adds */
    return (add_plan){.parts = parts, .stride = 1, .split = tiles};
  }
  uint32_t extra = tiles % NOMINAL_SMS;
  bool halves =
      tiles > NOMINAL_SMS && 2 * extra <= NOMINAL_SMS && mk_divide_up(weight->cols, MK_TILE) >= LONG_TILE_STEPS;
  return (add_plan){.parts = 2, .stride = tiles / NOMINAL_SMS + 1, .split = halves ? extra : 0};
}

static mk_status declare_parts(mk_lowering *lowering, const mk_node *node, add_plan *plan) {
  const mk_weight *weight = &lowering->graph->weights[node->weight];
  char name[64];
  snprintf(name, sizeof name, "%s_parts", lowering->graph->values[node->output].name);
  MK_TRY(mk_add_vector(lowering->program, name,
                       (mk_vector){.kind = MK_KIND_ACTIVATION,
                                   .dtype = MK_DTYPE_F32,
                                   .store = MK_STORE_STAMPED,
                                   .rows = plan->parts,
                                   .cols = mk_divide_up(weight->rows, MK_TILE) * MK_TILE,
                                   .tile = MK_TILE,
                                   .lines = lowering->lines,
                                   .by_tiles = true},
                       &plan->buffer));
  return add_counters(lowering, name, &plan->ready);
}

static mk_status emit_part(mk_lowering *lowering, const mk_node *node, const add_plan *plan, uint32_t sm, uint32_t part,
                           mk_share rows, uint32_t lines) {
  uint16_t index, x = lowering->values[node->input].buffer;
  const mk_buffer *weight = weight_buffer(lowering, node, &index);
  uint32_t steps = mk_buffer_grid_cols(weight);
  uint32_t first = (uint32_t)((uint64_t)steps * part / plan->parts);
  uint32_t end = (uint32_t)((uint64_t)steps * (part + 1) / plan->parts);
  uint32_t x_tiles = MK_TILE / lowering->program->buffers[x].tile_cols;
  mk_instruction in = MK_START(LINEAR_PART, node->layer);
  in.operands[MK_SLOT_LINEAR_PART_x] = columns(x, lines, first * x_tiles, (end - first) * x_tiles);
  in.operands[MK_SLOT_LINEAR_PART_weight] = mk_tiles(index, rows.first, rows.count, first, end - first);
  in.operands[MK_SLOT_LINEAR_PART_out] = mk_tiles(plan->buffer, lines * plan->parts + part, 1, rows.first, rows.count);
  wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, (uint16_t)(plan->ready + lines));
}

/* A unit is a part of a split tile. Each SM's units, as many as possible in one instruction. */
static mk_status lower_parts(mk_lowering *lowering, const mk_node *node, const add_plan *plan, uint32_t lines) {
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(weight_buffer(lowering, node, &index));
  mk_place(&lowering->placer, plan->parts * plan->split, (uint64_t)steps * 512 / plan->parts);
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    mk_share units = lowering->placer.shares[sm];
    while (units.count != 0) {
      uint32_t part = units.first / plan->split, number = units.first % plan->split;
      uint32_t count = units.count < plan->split - number ? units.count : plan->split - number;
      count = plan->stride == 1 ? count : 1;
      MK_TRY(emit_part(lowering, node, plan, sm, part, (mk_share){split_tile(plan, number), count}, lines));
      units.first += count;
      units.count -= count;
    }
  }
  return MK_OK;
}

static mk_status emit_whole(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index, x = lowering->values[node->input].buffer;
  uint32_t steps = mk_buffer_grid_cols(weight_buffer(lowering, node, &index));
  lowering->placer.bytes[sm] += (uint64_t)share.count * steps * 512;
  mk_instruction in = MK_START(LINEAR_ADD, node->layer);
  in.operands[MK_SLOT_LINEAR_ADD_x] = line_tile(lowering, x, lines);
  in.operands[MK_SLOT_LINEAR_ADD_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_LINEAR_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_LINEAR_ADD_residual_out] = columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_LINEAR_ADD_out] = columns(out->buffer, lines, share.first, share.count);
  wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

static mk_status emit_reduce(mk_lowering *lowering, const mk_node *node, const add_plan *plan, uint32_t sm,
                             mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(REDUCE_ADD, node->layer);
  in.operands[MK_SLOT_REDUCE_ADD_parts] =
      mk_tiles(plan->buffer, lines * plan->parts, plan->parts, share.first, share.count);
  in.operands[MK_SLOT_REDUCE_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_REDUCE_ADD_residual_out] = columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_REDUCE_ADD_out] = columns(out->buffer, lines, share.first, share.count);
  mk_add_wait(lowering, &in, (uint16_t)(plan->ready + lines));
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

static mk_status emit_norm(mk_lowering *lowering, const mk_node *node, const add_plan *plan, uint32_t sm,
                           mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(NORM_ADD, node->layer);
  in.operands[MK_SLOT_NORM_ADD_parts] = mk_tiles(plan->buffer, lines * plan->parts, plan->parts, 0,
                                                 mk_buffer_grid_cols(&lowering->program->buffers[plan->buffer]));
  in.operands[MK_SLOT_NORM_ADD_gain] = mk_whole(lowering, lowering->weights[node->gain]);
  in.operands[MK_SLOT_NORM_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_NORM_ADD_residual_out] = columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_NORM_ADD_out] = columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_NORM_ADD_eps] = mk_float_param(node->eps);
  in.params[MK_PARAM_NORM_ADD_width] = lowering->graph->config.hidden;
  in.params[MK_PARAM_NORM_ADD_biased] = node->biased;
  mk_add_wait(lowering, &in, (uint16_t)(plan->ready + lines));
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

/* Where the residual's owners are, before they add: nobody waits for it, and it waits for nobody. */
static mk_status emit_offset(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  mk_instruction in = MK_START(OFFSET, node->layer);
  in.operands[MK_SLOT_OFFSET_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_OFFSET_bias] = whole_or_none(lowering, node->vector);
  in.operands[MK_SLOT_OFFSET_residual_out] =
      columns(lowering->values[node->output].residual, lines, share.first, share.count);
  in.params[MK_PARAM_OFFSET_factor] = mk_float_param(node->factor);
  return mk_emit(lowering, sm, &in, MK_NO_COUNTER);
}

static mk_status lower_offset(mk_lowering *lowering, const mk_node *node) {
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    for (uint32_t sm = 0; sm < lowering->sms; sm++) {
      const mk_share share = lowering->owners[sm];
      MK_TRY(share.count == 0 ? MK_OK : emit_offset(lowering, node, sm, share, lines));
    }
  }
  return MK_OK;
}

/* Parts come first in every queue, so that they are there when their owner is done with its whole tiles. */
static mk_status add_lines(mk_lowering *lowering, const mk_node *node, const add_plan *plan, uint32_t lines) {
  MK_TRY(plan->split != 0 ? lower_parts(lowering, node, plan, lines) : MK_OK);
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    uint32_t end = lowering->owners[sm].first + lowering->owners[sm].count;
    for (mk_share run = {lowering->owners[sm].first, 0}; run.first < end; run = (mk_share){run.first + run.count, 0}) {
      bool split = splits(plan, run.first);
      while (run.first + run.count < end && splits(plan, run.first + run.count) == split) {
        run.count++;
      }
      MK_TRY(node->gain != MK_NONE ? emit_norm(lowering, node, plan, sm, run, lines)
             : split               ? emit_reduce(lowering, node, plan, sm, run, lines)
                                   : emit_whole(lowering, node, sm, run, lines));
    }
  }
  return MK_OK;
}

static mk_status lower_add(mk_lowering *lowering, const mk_node *node) {
  mk_lowered_value *out = &lowering->values[node->output];
  add_plan plan = plan_add(lowering, node);
  out->ready_by_tiles = true;
  MK_TRY(add_counters(lowering, lowering->graph->values[node->output].name, &out->ready));
  MK_TRY(plan.split != 0 ? declare_parts(lowering, node, &plan) : MK_OK);
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    MK_TRY(add_lines(lowering, node, &plan, lines));
  }
  return MK_OK;
}

static mk_status emit_glu(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(weight_buffer(lowering, node, &index));
  mk_instruction in = MK_START(GLU, node->layer);
  in.operands[MK_SLOT_GLU_x] = input_of(lowering, node, lines);
  in.operands[MK_SLOT_GLU_gain] = whole_or_none(lowering, node->gain);
  in.operands[MK_SLOT_GLU_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_GLU_out] = columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_GLU_eps] = node->gain == MK_NONE ? 0 : mk_float_param(node->eps);
  in.params[MK_PARAM_GLU_width] = node->gain == MK_NONE ? 0 : c->hidden;
  in.params[MK_PARAM_GLU_biased] = node->biased;
  wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, signal_of(out, lines));
}

/* Every queue in use has a HEAD, an empty one if need be: its candidate also proves that the SM is done with this epoch. */
static mk_status lower_heads(mk_lowering *lowering, const mk_node *node, const mk_share *shares, uint16_t ready,
                             uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(weight_buffer(lowering, node, &index));
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    mk_share share = shares[sm];
    mk_instruction in = MK_START(HEAD, MK_NO_LAYER);
    in.operands[MK_SLOT_HEAD_x] = input_of(lowering, node, lines);
    in.operands[MK_SLOT_HEAD_gain] = mk_whole(lowering, lowering->weights[node->gain]);
    bool empty = share.count == 0;
    in.operands[MK_SLOT_HEAD_weight] =
        empty ? mk_tiles(index, 0, 0, 0, 0) : mk_tiles(index, share.first, share.count, 0, steps);
    in.operands[MK_SLOT_HEAD_logits] =
        empty ? mk_tiles(lowering->logits, 0, 0, 0, 0) : columns(lowering->logits, lines, share.first, share.count);
    in.operands[MK_SLOT_HEAD_candidate] = mk_tiles(lowering->candidates, sm * lowering->line_tiles + lines, 1, 0, 1);
    in.params[MK_PARAM_HEAD_eps] = mk_float_param(node->eps);
    in.params[MK_PARAM_HEAD_width] = c->hidden;
    in.params[MK_PARAM_HEAD_vocab] = c->vocab;
    in.params[MK_PARAM_HEAD_factor] = mk_float_param(node->factor);
    wait_for(lowering, &in, node->input, lines);
    MK_TRY(mk_emit(lowering, sm, &in, ready));
  }
  return MK_OK;
}

/* NEXT of every SM: over all candidates that `ready` tells of, or over the choice of its own SM. */
static mk_status lower_next(mk_lowering *lowering, uint16_t candidates, uint16_t ready) {
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    mk_instruction in = MK_START(NEXT, MK_NO_LAYER);
    in.operands[MK_SLOT_NEXT_candidates] =
        lowering->samples ? mk_tiles(candidates, sm, 1, 0, 1) : mk_whole(lowering, candidates);
    in.operands[MK_SLOT_NEXT_plan] = mk_whole(lowering, lowering->plan);
    in.operands[MK_SLOT_NEXT_ring] = sm == 0 ? mk_whole(lowering, lowering->ring) : (mk_operand){0};
    mk_add_wait(lowering, &in, ready);
    MK_TRY(mk_emit(lowering, sm, &in, MK_NO_COUNTER));
  }
  return MK_OK;
}

static mk_status lower_head(mk_lowering *lowering, const mk_node *node) {
  const mk_share *shares = lowering->placer.shares;
  uint16_t index, candidates = lowering->candidates, ready = MK_NO_COUNTER;
  const mk_buffer *weight = weight_buffer(lowering, node, &index);
  mk_place(&lowering->placer, mk_buffer_grid_rows(weight), (uint64_t)mk_buffer_grid_cols(weight) * 512);
  if (!lowering->samples) {
    MK_TRY(mk_program_add_counter(lowering->program, "candidates", MK_COUNTER_RELAXED, &ready));
  }
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    MK_TRY(lower_heads(lowering, node, shares, ready, lines));
  }
  if (lowering->samples) {
    MK_TRY(mk_lower_sampling(lowering, shares, &candidates));
  }
  return lower_next(lowering, candidates, ready);
}

static mk_status lower_node(mk_lowering *lowering, const mk_node *node) {
  if (node->output != MK_NONE) {
    MK_TRY(mk_declare_value(lowering, node));
  }
  switch (node->kind) {
    case MK_NODE_QKV:
      return lower_rows(lowering, node, "qkv", emit_qkv);
    case MK_NODE_NORM_HEADS:
      return lower_norm_heads(lowering, node);
    case MK_NODE_ATTENTION:
      return lower_attention(lowering, node);
    case MK_NODE_OFFSET:
      return lower_offset(lowering, node);
    case MK_NODE_ADD:
      return lower_add(lowering, node);
    case MK_NODE_GLU:
      return lower_rows(lowering, node, "act", emit_glu);
    case MK_NODE_HEAD:
      return lower_head(lowering, node);
  }
  return MK_OK;
}

mk_status mk_lower(mk_lowering *lowering) {
  const mk_graph *graph = lowering->graph;
  MK_TRY(mk_declare_shared(lowering));
  mk_place(&lowering->placer, mk_divide_up(graph->config.hidden, MK_TILE), 0);
  memcpy(lowering->owners, lowering->placer.shares, lowering->sms * sizeof *lowering->owners);
  for (size_t i = 0; i < graph->node_count; i++) {
    MK_TRY(lower_node(lowering, &graph->nodes[i]));
  }
  return MK_OK;
}
