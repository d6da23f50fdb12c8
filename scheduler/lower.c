/* Graph nodes to instructions. See lower.h; the edges are those of vm/program/program.h.
 *
 * Values travel in stamped buffers that are written once per epoch, one buffer per value and layer, each with a relaxed
 * counter that its writers signal and its readers wait for before they look at the stamps. The residual stream itself
 * is fp32 and stays with the SM that owns the rows: attention's and the MLP's additions to a row tile are placed on the
 * same queue. */
#include <stdio.h>
#include <string.h>

#include "scheduler/lower_internal.h"

/* Every queue in use must hold work that the next epoch of all others depends on, or its NEXT might still be reading
 * candidates that faster SMs overwrite. A row tile of gate and up is such work, in wide programs a unit of them, so
 * no more queues are used than there are of these. */
static mk_status find_queues_in_use(mk_lowering *lowering, uint32_t sms) {
  const uint32_t tiles = mk_divide_up(2 * mk_divide_up(lowering->graph->config.intermediate, 8) * 8, MK_TILE);
  uint32_t least = sms;
  for (uint32_t rank = 0; rank < lowering->ranks; rank++) {
    const mk_share share = mk_rank_tiles(tiles, lowering->ranks, rank);
    const uint32_t units =
        !lowering->wide ? share.count
                        : mk_wide_units(lowering, share.first + share.count) - mk_wide_units(lowering, share.first);
    least = units < least ? units : least;
  }
  lowering->sms_of_rank = least;
  lowering->sms = lowering->ranks * least;
  return least != 0 ? MK_OK
                    : mk_error(MK_ERR_USAGE,
                               "%u ranks: the gate and up projections of this model have %u row tiles, and each rank "
                               "needs %s; use fewer ranks",
                               lowering->ranks, tiles, lowering->wide ? "eight neighbours of them" : "some");
}

mk_status mk_lowering_init(mk_lowering *lowering, const mk_graph *graph, const mk_compile_options *options,
                           mk_program *program) {
  memset(lowering, 0, sizeof *lowering);
  lowering->graph = graph;
  lowering->program = program;
  lowering->max_seq = options->max_seq;
  lowering->kv = options->kv;
  lowering->lines = mk_program_rows(program);
  lowering->line_tiles = lowering->lines / mk_line_tile(lowering->lines);
  lowering->wide = mk_is_wide(graph, options);
  lowering->reuses = lowering->wide && !options->keep_values;
  lowering->ranks = program->machine.ranks;
  MK_TRY(find_queues_in_use(lowering, options->sms));
  lowering->embedded = (mk_lowered_value){.ready = MK_NO_COUNTER};
  lowering->blocks = program->ranges.block.high + 1;
  lowering->samples = options->sampling;
  const uint32_t slots = mk_program_slots(program);
  lowering->splits =
      lowering->wide ? 1 : mk_split_attention(graph->config.kv_heads, options->max_seq, slots, lowering->ranks);
  lowering->spans = mk_spans_of_split(lowering->splits, options->max_seq, slots);
  lowering->next_uid = 1;
  MK_TRY(mk_placer_init(&lowering->placer, options->placement, lowering->ranks, lowering->sms_of_rank));
  MK_TRY(mk_alloc(lowering->ranks, sizeof *lowering->turns, &lowering->turns));
  MK_TRY(mk_alloc(lowering->ranks, sizeof *lowering->begun, &lowering->begun));
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
  mk_free(lowering->turns);
  mk_free(lowering->begun);
  mk_free(lowering->weights);
  mk_free(lowering->values);
  mk_placer_free(&lowering->placer);
}

uint32_t mk_next_sm(const mk_lowering *lowering, uint32_t rank) {
  return rank * lowering->sms_of_rank + lowering->turns[rank]++ % lowering->sms_of_rank;
}

uint32_t mk_rank_of_head(const mk_lowering *lowering, uint32_t head, uint32_t split) {
  const uint32_t heads = lowering->graph->config.kv_heads, ranks = lowering->ranks;
  const uint32_t first = (uint32_t)((uint64_t)head * ranks / heads);
  const uint32_t end = (uint32_t)((uint64_t)(head + 1) * ranks / heads);
  return end > first ? first + split % (end - first) : first;
}

uint32_t mk_rank_of_tile(const mk_lowering *lowering, uint32_t tiles, uint32_t tile) {
  uint32_t rank = 0;
  for (; rank + 1 < lowering->ranks; rank++) {
    const mk_share share = mk_rank_tiles(tiles, lowering->ranks, rank);
    if (tile < share.first + share.count) {
      break;
    }
  }
  return rank;
}

/* Buffers are checked to have at most 65535 tiles a side when they are declared, so coordinates fit. */
mk_operand mk_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols) {
  return (mk_operand){
      .buffer = buffer, .row = (uint16_t)row, .rows = (uint16_t)rows, .col = (uint16_t)col, .cols = (uint16_t)cols};
}

/* An operand: columns [col, col + cols) of a value, of one tile of its lines. */
mk_operand mk_columns(uint16_t buffer, uint32_t lines, uint32_t col, uint32_t cols) {
  return mk_tiles(buffer, lines, 1, col, cols);
}

/* An operand: all columns of a value, of one tile of its lines. */
mk_operand mk_lines_of_value(const mk_lowering *lowering, uint16_t buffer, uint32_t lines) {
  return mk_columns(buffer, lines, 0, mk_buffer_grid_cols(&lowering->program->buffers[buffer]));
}

mk_operand mk_whole(const mk_lowering *lowering, uint16_t buffer) {
  return mk_operand_whole(lowering->program, buffer);
}

/* The embedding row of the step's token, columns [col, col + cols). */
mk_operand mk_embedding_row(const mk_lowering *lowering, uint32_t col, uint32_t cols) {
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

/* Adds a counter for each tile of lines, one after the other; *first becomes the first one. */
mk_status mk_add_counters(mk_lowering *lowering, const char *what, uint16_t *first) {
  const mk_counter_kind kind = mk_edge_kind(lowering);
  if (lowering->line_tiles == 1) {
    return mk_program_add_counter(lowering->program, what, kind, first);
  }
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    char name[64];
    uint16_t counter;
    snprintf(name, sizeof name, "%.40s.%u", what, lines);
    MK_TRY(mk_program_add_counter(lowering->program, name, kind, &counter));
    *first = lines == 0 ? counter : *first;
  }
  return MK_OK;
}

static mk_status add_ready(mk_lowering *lowering, uint32_t layer, const char *what, mk_lowered_value *value) {
  char name[48];
  snprintf(name, sizeof name, "layers.%u.%s", layer, what);
  value->ready_by_tiles = true;
  return mk_add_counters(lowering, name, &value->ready);
}

uint16_t mk_signal_of(const mk_lowered_value *value, uint32_t lines) {
  return (uint16_t)(value->ready + (value->ready_by_tiles ? lines : 0));
}

/* Waits for a tile of the lines of a value. */
void mk_wait_for(const mk_lowering *lowering, mk_instruction *in, int value, uint32_t lines) {
  const mk_lowered_value *from = mk_value_of(lowering, value);
  if (from->ready != MK_NO_COUNTER) {
    mk_add_wait(lowering, in, mk_signal_of(from, lines));
  }
}

static mk_operand input_of(const mk_lowering *lowering, const mk_node *node, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  if (lowering->wide) { /* what a NORM has made, if the input is normed */
    return mk_lines_of_value(lowering, mk_value_of(lowering, node->input)->normed, lines);
  }
  return node->input == MK_NONE ? mk_embedding_row(lowering, 0, mk_divide_up(c->hidden, MK_TILE))
                                : mk_lines_of_value(lowering, lowering->values[node->input].buffer, lines);
}

/* The sums of squares by which a product has to be scaled, where a NORM has begun the norm of its input. */
static mk_operand squares_of(const mk_lowering *lowering, const mk_node *node, uint32_t lines) {
  return lowering->wide && node->gain != MK_NONE
             ? mk_lines_of_value(lowering, mk_value_of(lowering, node->input)->squares, lines)
             : (mk_operand){0};
}

const mk_buffer *mk_weight_buffer(const mk_lowering *lowering, const mk_node *node, uint16_t *index) {
  *index = lowering->weights[node->weight];
  return &lowering->program->buffers[*index];
}

/* The gain of an instruction that norms its input itself. In a wide program a NORM has multiplied by the gain, of which
 * the instruction has the biases alone that it goes on with. */
static mk_operand gain_of(const mk_lowering *lowering, const mk_node *node) {
  return node->gain == MK_NONE || (lowering->wide && !node->biased) ? (mk_operand){0}
                                                                    : mk_whole(lowering, lowering->weights[node->gain]);
}

static uint32_t qkv_extras(const mk_lowering *lowering, const mk_node *node) {
  const uint32_t vectors = lowering->graph->weights[node->vector].extras;
  return ((vectors & MK_VECTOR_BIASES) != 0 ? (uint32_t)MK_QKV_BIASES : 0U) |
         ((vectors & MK_VECTOR_GAINS) != 0 ? (uint32_t)MK_QKV_GAINS : 0U) |
         (lowering->graph->config.qk_norm != MK_QK_PLAIN ? (uint32_t)MK_QKV_SQUARES : 0U);
}

mk_status mk_emit_qkv(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(mk_weight_buffer(lowering, node, &index));
  mk_instruction in = MK_START(QKV, node->layer);
  in.operands[MK_SLOT_QKV_x] = input_of(lowering, node, lines);
  in.operands[MK_SLOT_QKV_gain] = gain_of(lowering, node);
  in.operands[MK_SLOT_QKV_squares] = squares_of(lowering, node, lines);
  in.operands[MK_SLOT_QKV_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_QKV_inv_freq] = mk_whole(lowering, lowering->weights[node->vector]);
  in.operands[MK_SLOT_QKV_out] = mk_columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_QKV_eps] = node->gain == MK_NONE ? 0 : mk_float_param(node->eps);
  in.params[MK_PARAM_QKV_width] = node->gain == MK_NONE ? 0 : c->hidden;
  in.params[MK_PARAM_QKV_rope_tiles] = node->unrotated ? 0 : (c->heads + c->kv_heads) * c->head_dim / MK_TILE;
  in.params[MK_PARAM_QKV_head_dim] = c->head_dim;
  in.params[MK_PARAM_QKV_extras] = qkv_extras(lowering, node);
  in.params[MK_PARAM_QKV_plus] = mk_float_param(node->plus);
  mk_wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, mk_signal_of(out, lines + out->of_rank * (sm / lowering->sms_of_rank)));
}

typedef mk_status (*emitter)(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);

/* Emits an instruction for every SM that has a share, and for each tile of lines. */
static mk_status emit_shares(mk_lowering *lowering, const mk_node *node, emitter emit) {
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    for (uint32_t sm = 0; sm < lowering->sms; sm++) {
      const mk_share share = lowering->placer.shares[sm];
      MK_TRY(share.count == 0 ? MK_OK : emit(lowering, node, sm, share, lines));
    }
  }
  return MK_OK;
}

/* Deals the row tiles of the node's weight to the SMs. */
static mk_status lower_rows(mk_lowering *lowering, const mk_node *node, const char *what, emitter emit) {
  uint16_t index;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  MK_TRY(add_ready(lowering, node->layer, what, &lowering->values[node->output]));
  mk_place(&lowering->placer, mk_buffer_grid_rows(weight),
           mk_tiles_bytes(weight, 1, 0, mk_buffer_grid_cols(weight)) * lowering->line_tiles);
  return emit_shares(lowering, node, emit);
}

/* The row tiles that a rank computes of QKV's weight: those of its query heads, of its keys and of its values. */
typedef struct row_ranges {
  mk_share of[3];
} row_ranges;

static row_ranges tiles_of_heads(const mk_lowering *lowering, uint32_t rank) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t tiles = c->head_dim / MK_TILE, heads = c->kv_heads / lowering->ranks, group = c->heads / c->kv_heads;
  const uint32_t first = rank * heads;
  return (row_ranges){{{first * group * tiles, heads * group * tiles},
                       {(c->heads + first) * tiles, heads * tiles},
                       {(c->heads + c->kv_heads + first) * tiles, heads * tiles}}};
}

/* Emits what an SM's share has of these ranges, an instruction for each range. */
static mk_status emit_ranges(mk_lowering *lowering, const mk_node *node, uint32_t sm, const row_ranges *tiles,
                             uint32_t lines) {
  mk_share share = lowering->placer.shares[sm];
  for (uint32_t i = 0; i < 3 && share.count != 0; i++) {
    const mk_share range = tiles->of[i];
    if (share.first < range.count) {
      const uint32_t left = range.count - share.first, count = share.count < left ? share.count : left;
      MK_TRY(mk_emit_qkv(lowering, node, sm, (mk_share){range.first + share.first, count}, lines));
      share = (mk_share){share.first + count, share.count - count};
    }
    share.first -= range.count;
  }
  return MK_OK;
}

/* Adds counters for each rank that nobody but the SMs of that rank signals and waits for. */
static mk_status add_ready_of_ranks(mk_lowering *lowering, uint32_t layer, mk_lowered_value *value) {
  mk_program *program = lowering->program;
  uint16_t first = MK_NO_COUNTER;
  for (uint32_t rank = 0; rank < lowering->ranks; rank++) {
    const size_t before = program->counter_count;
    char what[24];
    snprintf(what, sizeof what, "qkv.rank%u", rank);
    MK_TRY(add_ready(lowering, layer, what, value));
    first = rank == 0 ? value->ready : first;
    for (size_t c = before; c < program->counter_count; c++) {
      program->counters[c].rank = (uint16_t)rank;
      program->counters[c].scope = MK_SCOPE_GPU;
    }
  }
  value->ready = first;
  value->of_rank = lowering->line_tiles;
  return MK_OK;
}

bool mk_goes_to_attention(const mk_graph *graph, const mk_node *node) {
  for (size_t i = 0; i < graph->node_count; i++) {
    if (graph->nodes[i].kind == MK_NODE_NORM_HEADS && graph->nodes[i].input == node->output) {
      return false;
    }
  }
  return true;
}

/* Where all ranks have equally many KV heads, each rank makes the q, k and v of its own heads, so that they need not
 * travel between ranks. */
static mk_status lower_qkv(mk_lowering *lowering, const mk_node *node) {
  uint16_t index;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  if (lowering->ranks == 1 || lowering->graph->config.kv_heads % lowering->ranks != 0 ||
      !mk_goes_to_attention(lowering->graph, node)) {
    return lower_rows(lowering, node, "qkv", mk_emit_qkv);
  }
  MK_TRY(add_ready_of_ranks(lowering, node->layer, &lowering->values[node->output]));
  for (uint32_t rank = 0; rank < lowering->ranks; rank++) {
    const row_ranges tiles = tiles_of_heads(lowering, rank);
    mk_place_in(&lowering->placer, rank, mk_buffer_grid_rows(weight) / lowering->ranks,
                mk_tiles_bytes(weight, 1, 0, mk_buffer_grid_cols(weight)) * lowering->line_tiles);
    for (uint32_t i = 0; i < lowering->line_tiles * lowering->sms_of_rank; i++) {
      const uint32_t sm = rank * lowering->sms_of_rank + i % lowering->sms_of_rank;
      MK_TRY(emit_ranges(lowering, node, sm, &tiles, i / lowering->sms_of_rank));
    }
  }
  return MK_OK;
}

/* Every SM norms its share of the tiles. For that it reads the sums of squares of all tiles. */
mk_status mk_emit_norm_heads(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t head_tiles = c->head_dim / MK_TILE;
  const mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(NORM_HEADS, node->layer);
  in.operands[MK_SLOT_NORM_HEADS_values] = mk_lines_of_value(lowering, lowering->values[node->input].buffer, lines);
  in.operands[MK_SLOT_NORM_HEADS_out] = mk_columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_NORM_HEADS_eps] = mk_float_param(node->eps);
  in.params[MK_PARAM_NORM_HEADS_query_tiles] = c->heads * head_tiles;
  in.params[MK_PARAM_NORM_HEADS_key_tiles] = c->kv_heads * head_tiles;
  mk_wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, mk_signal_of(out, lines));
}

static mk_status lower_norm_heads(mk_lowering *lowering, const mk_node *node) {
  const mk_config *c = &lowering->graph->config;
  MK_TRY(add_ready(lowering, node->layer, "qkv_normed", &lowering->values[node->output]));
  mk_place(&lowering->placer, (c->heads + 2 * c->kv_heads) * (c->head_dim / MK_TILE), 0);
  return emit_shares(lowering, node, mk_emit_norm_heads);
}

/* Every query head has a COMBINE of its own, and with one row each of its slices, so that many SMs share the work of a
 * long context. Where they are does not matter: what a line has in one span becomes its output where that span is
 * computed (MK_FUSED). */
static mk_status lower_combine(mk_lowering *lowering, const mk_node *node, uint16_t parts) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  const uint32_t slices = lowering->lines == 1 ? MK_COMBINE_SLICES : 1, tiles = c->head_dim / MK_TILE / slices;
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    memset(lowering->turns, 0, lowering->ranks * sizeof *lowering->turns);
    for (uint32_t slice = 0; slice < c->heads * slices; slice++) {
      const uint32_t head = slice / slices, rank = mk_rank_of_head(lowering, head * c->kv_heads / c->heads, 0);
      mk_instruction in = MK_START(COMBINE, node->layer);
      in.operands[MK_SLOT_COMBINE_parts] =
          mk_tiles(parts, 0, lowering->splits, head * lowering->spans, lowering->spans);
      in.operands[MK_SLOT_COMBINE_out] = mk_columns(out->buffer, lines, slice * tiles, tiles);
      in.params[MK_PARAM_COMBINE_span] = mk_span_tokens(mk_program_slots(lowering->program));
      in.params[MK_PARAM_COMBINE_spans] = lowering->spans;
      MK_TRY(mk_emit(lowering, mk_next_sm(lowering, rank), &in, mk_signal_of(out, lines)));
    }
  }
  return MK_OK;
}

/* Split s of every KV head, s-major, so that short contexts (split 0 alone) spread over as many SMs as there are KV
 * heads. A rank attends over its own KV heads (with more ranks than KV heads: over its own splits of a head), and its
 * SMs take turns. With several rows these are the splits of slot 0: a unit has one of each slot (vm/program/spans.h).
 * So several short contexts spread, too, and a slot's blocks stay with the SM that appends to them. */
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
                                   .cols = c->heads * lowering->spans * (c->head_dim + 2),
                                   .tile = c->head_dim + 2,
                                   .lines = lowering->lines},
                       &parts));
  MK_TRY(add_ready(lowering, node->layer, "attn", out));
  memset(lowering->turns, 0, lowering->ranks * sizeof *lowering->turns);
  for (uint32_t split = 0; split < lowering->splits; split++) {
    for (uint32_t head = 0; head < c->kv_heads; head++) {
      const uint32_t rank = mk_rank_of_head(lowering, head, split);
      mk_instruction in = MK_START(ATTENTION, node->layer);
      in.operands[MK_SLOT_ATTENTION_q] =
          mk_tiles(qkv, 0, lowering->line_tiles, head * group * head_tiles, group * head_tiles);
      in.operands[MK_SLOT_ATTENTION_k] =
          mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + head) * head_tiles, head_tiles);
      in.operands[MK_SLOT_ATTENTION_v] =
          mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + c->kv_heads + head) * head_tiles, head_tiles);
      in.operands[MK_SLOT_ATTENTION_kv] = mk_tiles(kv, split, 1, head, 1);
      in.operands[MK_SLOT_ATTENTION_table] = mk_whole(lowering, lowering->table);
      in.operands[MK_SLOT_ATTENTION_out] =
          mk_tiles(parts, split, 1, head * group * lowering->spans, group * lowering->spans);
      in.params[MK_PARAM_ATTENTION_scale] = mk_float_param(node->factor);
      in.params[MK_PARAM_ATTENTION_splits] = lowering->splits;
      in.params[MK_PARAM_ATTENTION_group] = group;
      in.params[MK_PARAM_ATTENTION_eps] = mk_float_param(node->eps);
      in.params[MK_PARAM_ATTENTION_window] = node->window;
      for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
        mk_wait_for(lowering, &in, node->input, lines + lowering->values[node->input].of_rank * rank);
      }
      MK_TRY(mk_emit(lowering, mk_next_sm(lowering, rank), &in, MK_NO_COUNTER));
    }
  }
  return lower_combine(lowering, node, parts);
}

mk_status mk_emit_glu(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  const mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(mk_weight_buffer(lowering, node, &index));
  mk_instruction in = MK_START(GLU, node->layer);
  in.operands[MK_SLOT_GLU_x] = input_of(lowering, node, lines);
  in.operands[MK_SLOT_GLU_gain] = gain_of(lowering, node);
  in.operands[MK_SLOT_GLU_squares] = squares_of(lowering, node, lines);
  in.operands[MK_SLOT_GLU_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_GLU_out] = mk_columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_GLU_eps] = node->gain == MK_NONE ? 0 : mk_float_param(node->eps);
  in.params[MK_PARAM_GLU_width] = node->gain == MK_NONE ? 0 : c->hidden;
  in.params[MK_PARAM_GLU_biased] = node->biased;
  in.params[MK_PARAM_GLU_plus] = mk_float_param(node->plus);
  in.params[MK_PARAM_GLU_gelu] = node->gelu;
  mk_wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, mk_signal_of(out, lines));
}

/* Every queue in use has a HEAD, an empty one if need be: its candidate also proves that the SM is done with this
 * epoch. In a wide program, whose SMs may have no unit of some tile of lines, any head's candidate proves that of
 * all tiles, by waiting for all. */
static mk_status lower_heads(mk_lowering *lowering, const mk_node *node, const mk_share *shares, uint16_t ready,
                             uint32_t lines) {
  const mk_config *c = &lowering->graph->config;
  uint16_t index;
  uint32_t steps = mk_buffer_grid_cols(mk_weight_buffer(lowering, node, &index));
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    mk_share share = shares[sm];
    mk_instruction in = MK_START(HEAD, MK_NO_LAYER);
    in.operands[MK_SLOT_HEAD_x] = input_of(lowering, node, lines);
    in.operands[MK_SLOT_HEAD_gain] = gain_of(lowering, node);
    in.operands[MK_SLOT_HEAD_squares] = squares_of(lowering, node, lines);
    bool empty = share.count == 0;
    in.operands[MK_SLOT_HEAD_weight] =
        empty ? mk_tiles(index, 0, 0, 0, 0) : mk_tiles(index, share.first, share.count, 0, steps);
    in.operands[MK_SLOT_HEAD_logits] =
        empty ? mk_tiles(lowering->logits, 0, 0, 0, 0) : mk_columns(lowering->logits, lines, share.first, share.count);
    in.operands[MK_SLOT_HEAD_candidate] = mk_tiles(lowering->candidates, sm * lowering->line_tiles + lines, 1, 0, 1);
    in.params[MK_PARAM_HEAD_eps] = mk_float_param(node->eps);
    in.params[MK_PARAM_HEAD_width] = c->hidden;
    in.params[MK_PARAM_HEAD_vocab] = c->vocab;
    in.params[MK_PARAM_HEAD_factor] = mk_float_param(node->factor);
    in.params[MK_PARAM_HEAD_plus] = mk_float_param(node->plus);
    mk_wait_for(lowering, &in, node->input, lines); /* in the wide form for all of them */
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

mk_status mk_lower_head(mk_lowering *lowering, const mk_node *node) {
  const mk_share *shares = lowering->placer.shares;
  uint16_t index, candidates = lowering->candidates, ready = MK_NO_COUNTER;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  mk_place(&lowering->placer, mk_buffer_grid_rows(weight), mk_tiles_bytes(weight, 1, 0, mk_buffer_grid_cols(weight)));
  if (!lowering->samples) {
    MK_TRY(mk_program_add_counter(lowering->program, "candidates", mk_edge_kind(lowering), &ready));
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
  if (lowering->wide) {
    return mk_lower_wide(lowering, node);
  }
  switch (node->kind) {
    case MK_NODE_QKV:
      return lower_qkv(lowering, node);
    case MK_NODE_NORM_HEADS:
      return lower_norm_heads(lowering, node);
    case MK_NODE_ATTENTION:
      return lower_attention(lowering, node);
    case MK_NODE_OFFSET:
      return mk_lower_offset(lowering, node);
    case MK_NODE_ADD:
      return mk_lower_add(lowering, node);
    case MK_NODE_GLU:
      return lower_rows(lowering, node, "act", mk_emit_glu);
    case MK_NODE_HEAD:
      return mk_lower_head(lowering, node);
  }
  return MK_OK;
}

mk_status mk_lower(mk_lowering *lowering) {
  const mk_graph *graph = lowering->graph;
  MK_TRY(mk_declare_shared(lowering));
  mk_place(&lowering->placer, mk_divide_up(graph->config.hidden, MK_TILE), 0);
  memcpy(lowering->owners, lowering->placer.shares, lowering->sms * sizeof *lowering->owners);
  MK_TRY(lowering->wide ? mk_begin_wide(lowering) : MK_OK);
  for (size_t i = 0; i < graph->node_count; i++) {
    MK_TRY(lower_node(lowering, &graph->nodes[i]));
  }
  return MK_OK;
}
