/* Additions to the residual: whole row tiles, parts of them, and what adds those up. See lower.h. */
#include <stdio.h>

#include "scheduler/lower_internal.h"

static mk_operand residual_input(const mk_lowering *lowering, const mk_node *node, mk_share share, uint32_t lines) {
  return node->residual == MK_NONE
             ? mk_embedding_row(lowering, share.first, share.count)
             : mk_columns(lowering->values[node->residual].residual, lines, share.first, share.count);
}

bool mk_add_splits(const mk_add_plan *plan, uint32_t tile) {
  return tile % plan->stride == plan->stride - 1 && tile / plan->stride < plan->split;
}

uint32_t mk_split_tile(const mk_add_plan *plan, uint32_t number) { return number * plan->stride + plan->stride - 1; }

/* Where long tiles do not divide evenly, owners of one more would stream alone at the end, while the next stage
 * waits: these tiles are halved, if that leaves no SM with two halves (llama-3.2-3b's down: 32 pages become 24, of
 * 23.3 on average). */
mk_add_plan mk_plan_add(const mk_lowering *lowering, const mk_node *node) {
  enum {
    NOMINAL_SMS = 132,     /* an H200's; on other machines the same tiles are split */
    LONG_TILE_STEPS = 256, /* 128 KiB: shorter ones lie in the page ring before x comes */
  };
  const mk_weight *weight = &lowering->graph->weights[node->weight];
  uint32_t tiles = mk_divide_up(weight->rows, MK_TILE);
  uint32_t parts = mk_split_k(weight->rows, weight->cols);
  if (parts > 1 || node->gain != MK_NONE) { /* a norm needs the whole sum before anybody adds */
    return (mk_add_plan){.parts = parts, .stride = 1, .split = tiles};
  }
  uint32_t extra = tiles % NOMINAL_SMS;
  bool halves =
      tiles > NOMINAL_SMS && 2 * extra <= NOMINAL_SMS && mk_divide_up(weight->cols, MK_TILE) >= LONG_TILE_STEPS;
  return (mk_add_plan){.parts = 2, .stride = tiles / NOMINAL_SMS + 1, .split = halves ? extra : 0};
}

static mk_status declare_squares(mk_lowering *lowering, const mk_node *node, mk_add_plan *plan) {
  const uint32_t tiles = mk_divide_up(lowering->graph->weights[node->weight].rows, MK_TILE);
  char name[64];
  snprintf(name, sizeof name, "%s_parts_squares", lowering->graph->values[node->output].name);
  MK_TRY(mk_add_value(lowering, name,
                      (mk_vector){.kind = MK_KIND_ACTIVATION,
                                  .dtype = MK_DTYPE_F32,
                                  .store = MK_STORE_PLAIN,
                                  .cols = mk_divide_up(tiles * MK_TILE, MK_CHAIN_COLS),
                                  .tile = 1,
                                  .lines = lowering->lines,
                                  .by_tiles = true},
                      &plan->squares));
  return mk_add_counters(lowering, name, &plan->squared);
}

mk_status mk_declare_parts(mk_lowering *lowering, const mk_node *node, mk_add_plan *plan) {
  const mk_weight *weight = &lowering->graph->weights[node->weight];
  char name[64];
  snprintf(name, sizeof name, "%s_parts", lowering->graph->values[node->output].name);
  MK_TRY(mk_add_value(lowering, name,
                      (mk_vector){.kind = MK_KIND_ACTIVATION,
                                  .dtype = MK_DTYPE_F32,
                                  .store = lowering->wide ? MK_STORE_PLAIN : MK_STORE_STAMPED,
                                  .extra_proxy = lowering->wide ? MK_PROXY_ASYNC : 0,
                                  .rows = plan->parts,
                                  .cols = mk_divide_up(weight->rows, MK_TILE) * MK_TILE,
                                  .tile = MK_TILE,
                                  .lines = lowering->lines,
                                  .by_tiles = true},
                      &plan->buffer));
  MK_TRY(mk_add_counters(lowering, name, &plan->ready));
  return lowering->wide && node->gain != MK_NONE ? declare_squares(lowering, node, plan) : MK_OK;
}

/* Parts of K begin with a chain, which is a strip of quantised weights. */
static uint32_t first_step_of_part(uint32_t steps, uint32_t part, uint32_t parts) {
  const uint32_t chain = MK_CHAIN_COLS / MK_TILE, chains = mk_divide_up(steps, chain);
  const uint32_t first = (uint32_t)((uint64_t)chains * part / parts) * chain;
  return first < steps ? first : steps;
}

mk_status mk_emit_part(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm, uint32_t part,
                       mk_share rows, uint32_t lines) {
  uint16_t index, x = lowering->values[node->input].buffer;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  uint32_t steps = mk_buffer_grid_cols(weight);
  const uint32_t first = first_step_of_part(steps, part, plan->parts);
  const uint32_t end = first_step_of_part(steps, part + 1, plan->parts);
  uint32_t x_tiles = MK_TILE / lowering->program->buffers[x].tile_cols;
  mk_instruction in = MK_START(LINEAR_PART, node->layer);
  in.operands[MK_SLOT_LINEAR_PART_x] = mk_columns(x, lines, first * x_tiles, (end - first) * x_tiles);
  in.operands[MK_SLOT_LINEAR_PART_weight] = mk_tiles(index, rows.first, rows.count, first, end - first);
  in.operands[MK_SLOT_LINEAR_PART_out] = mk_tiles(plan->buffer, lines * plan->parts + part, 1, rows.first, rows.count);
  mk_wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, (uint16_t)(plan->ready + lines));
}

/* The numbers of split tiles among a rank's row tiles. */
static mk_share split_tiles_of(const mk_add_plan *plan, mk_share tiles) {
  uint32_t first = 0, end = 0;
  while (first < plan->split && mk_split_tile(plan, first) < tiles.first) {
    first++;
  }
  for (end = first; end < plan->split && mk_split_tile(plan, end) < tiles.first + tiles.count;) {
    end++;
  }
  return (mk_share){first, end - first};
}

/* Deals the parts of split tiles to SMs: one part of one tile is a unit. An SM's units go into as few instructions as
 * possible. A rank has all of K of its row tiles, so all parts of a tile are computed on the tile's rank. */
static mk_status lower_parts(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t rank,
                             uint32_t lines) {
  uint16_t index;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  const uint32_t first_sm = rank * lowering->sms_of_rank, steps = mk_buffer_grid_cols(weight);
  const mk_share split = split_tiles_of(plan, mk_rank_tiles(mk_buffer_grid_rows(weight), lowering->ranks, rank));
  if (split.count == 0) {
    return MK_OK;
  }
  mk_place_in(&lowering->placer, rank, plan->parts * split.count, mk_tiles_bytes(weight, 1, 0, steps) / plan->parts);
  for (uint32_t sm = first_sm; sm < first_sm + lowering->sms_of_rank; sm++) {
    mk_share units = lowering->placer.shares[sm];
    while (units.count != 0) {
      uint32_t part = units.first / split.count, number = units.first % split.count;
      uint32_t count = units.count < split.count - number ? units.count : split.count - number;
      count = plan->stride == 1 ? count : 1;
      MK_TRY(mk_emit_part(lowering, node, plan, sm, part, (mk_share){mk_split_tile(plan, split.first + number), count},
                          lines));
      units.first += count;
      units.count -= count;
    }
  }
  return MK_OK;
}

/* In a wide program nobody waits for a sum that is normed, but for what the NORM after it makes of the sum. The NORM
 * waits for the sum, and where it is on another SM, by a counter. */
static uint16_t signal_of_sum(const mk_lowering *lowering, const mk_lowered_value *out, uint32_t lines) {
  return !lowering->wide                ? mk_signal_of(out, lines)
         : out->summed == MK_NO_COUNTER ? (uint16_t)MK_NO_COUNTER
                                        : (uint16_t)(out->summed + lines);
}

mk_status mk_emit_whole(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  uint16_t index, x = lowering->values[node->input].buffer;
  const mk_buffer *weight = mk_weight_buffer(lowering, node, &index);
  uint32_t steps = mk_buffer_grid_cols(weight);
  lowering->placer.bytes[sm] += mk_tiles_bytes(weight, share.count, 0, steps);
  mk_instruction in = MK_START(LINEAR_ADD, node->layer);
  in.operands[MK_SLOT_LINEAR_ADD_x] = mk_lines_of_value(lowering, x, lines);
  in.operands[MK_SLOT_LINEAR_ADD_weight] = mk_tiles(index, share.first, share.count, 0, steps);
  in.operands[MK_SLOT_LINEAR_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_LINEAR_ADD_residual_out] = mk_columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_LINEAR_ADD_out] = mk_columns(out->buffer, lines, share.first, share.count);
  mk_wait_for(lowering, &in, node->input, lines);
  return mk_emit(lowering, sm, &in, signal_of_sum(lowering, out, lines));
}

static mk_status emit_sum(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                          mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(REDUCE_ADD, node->layer);
  in.operands[MK_SLOT_REDUCE_ADD_parts] =
      mk_tiles(plan->buffer, lines * plan->parts, plan->parts, share.first, share.count);
  in.operands[MK_SLOT_REDUCE_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_REDUCE_ADD_residual_out] = mk_columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_REDUCE_ADD_out] = mk_columns(out->buffer, lines, share.first, share.count);
  mk_add_wait(lowering, &in, (uint16_t)(plan->ready + lines));
  return mk_emit(lowering, sm, &in, signal_of_sum(lowering, out, lines));
}

mk_status mk_emit_squares(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                          mk_share share, uint32_t lines) {
  mk_instruction in = MK_START(SQUARES, node->layer);
  in.operands[MK_SLOT_SQUARES_parts] =
      mk_tiles(plan->buffer, lines * plan->parts, plan->parts, share.first, share.count);
  if (node->biased) {
    in.operands[MK_SLOT_SQUARES_gain] = mk_whole(lowering, lowering->weights[node->gain]);
  }
  in.params[MK_PARAM_SQUARES_width] = lowering->graph->config.hidden;
  in.operands[MK_SLOT_SQUARES_squares] = mk_columns(plan->squares, lines, share.first * MK_TILE / MK_CHAIN_COLS, 1);
  mk_add_wait(lowering, &in, (uint16_t)(plan->ready + lines));
  return mk_emit(lowering, sm, &in, (uint16_t)(plan->squared + lines));
}

/* All of the sum is normed by the squares that SQUARES have made, or, in programs of fewer rows, by each SM. */
static mk_status emit_norm(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                           mk_share share, uint32_t lines) {
  mk_lowered_value *out = &lowering->values[node->output];
  const uint32_t all = mk_buffer_grid_cols(&lowering->program->buffers[plan->buffer]);
  const mk_share parts = lowering->wide ? share : (mk_share){0, all};
  mk_instruction in = lowering->wide ? MK_START(ADD_NORMED, node->layer) : MK_START(NORM_ADD, node->layer);
  in.operands[MK_SLOT_NORM_ADD_parts] =
      mk_tiles(plan->buffer, lines * plan->parts, plan->parts, parts.first, parts.count);
  in.operands[MK_SLOT_NORM_ADD_gain] = mk_whole(lowering, lowering->weights[node->gain]);
  in.operands[MK_SLOT_NORM_ADD_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_NORM_ADD_residual_out] = mk_columns(out->residual, lines, share.first, share.count);
  in.operands[MK_SLOT_NORM_ADD_out] = mk_columns(out->buffer, lines, share.first, share.count);
  in.params[MK_PARAM_NORM_ADD_eps] = mk_float_param(node->eps);
  in.params[MK_PARAM_NORM_ADD_width] = lowering->graph->config.hidden;
  in.params[MK_PARAM_NORM_ADD_biased] = node->biased;
  in.params[MK_PARAM_NORM_ADD_plus] = mk_float_param(node->plus);
  if (lowering->wide) {
    in.operands[MK_SLOT_ADD_NORMED_squares] = mk_lines_of_value(lowering, plan->squares, lines);
  }
  mk_add_wait(lowering, &in, (uint16_t)((lowering->wide ? plan->squared : plan->ready) + lines));
  return mk_emit(lowering, sm, &in, signal_of_sum(lowering, out, lines));
}

mk_status mk_emit_reduce(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                         mk_share share, uint32_t lines) {
  return (node->gain != MK_NONE ? emit_norm : emit_sum)(lowering, node, plan, sm, share, lines);
}

/* An OFFSET runs on the SM that owns these row tiles of the residual, before the addition to them: the queue orders the
 * two, so the OFFSET waits for nobody, and nobody waits for it. */
mk_status mk_emit_offset(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines) {
  mk_instruction in = MK_START(OFFSET, node->layer);
  in.operands[MK_SLOT_OFFSET_residual_in] = residual_input(lowering, node, share, lines);
  in.operands[MK_SLOT_OFFSET_bias] =
      node->vector == MK_NONE ? (mk_operand){0} : mk_whole(lowering, lowering->weights[node->vector]);
  in.operands[MK_SLOT_OFFSET_residual_out] =
      mk_columns(lowering->values[node->output].residual, lines, share.first, share.count);
  in.params[MK_PARAM_OFFSET_factor] = mk_float_param(node->factor);
  return mk_emit(lowering, sm, &in, MK_NO_COUNTER);
}

mk_status mk_lower_offset(mk_lowering *lowering, const mk_node *node) {
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    for (uint32_t sm = 0; sm < lowering->sms; sm++) {
      const mk_share share = lowering->owners[sm];
      MK_TRY(share.count == 0 ? MK_OK : mk_emit_offset(lowering, node, sm, share, lines));
    }
  }
  return MK_OK;
}

/* Parts come first in every queue, so that they are there when their owner is done with its whole tiles. */
static mk_status add_lines(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t lines) {
  for (uint32_t rank = 0; plan->split != 0 && rank < lowering->ranks; rank++) {
    MK_TRY(lower_parts(lowering, node, plan, rank, lines));
  }
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    uint32_t end = lowering->owners[sm].first + lowering->owners[sm].count;
    for (mk_share run = {lowering->owners[sm].first, 0}; run.first < end; run = (mk_share){run.first + run.count, 0}) {
      bool split = mk_add_splits(plan, run.first);
      while (run.first + run.count < end && mk_add_splits(plan, run.first + run.count) == split) {
        run.count++;
      }
      MK_TRY(split ? mk_emit_reduce(lowering, node, plan, sm, run, lines)
                   : mk_emit_whole(lowering, node, sm, run, lines));
    }
  }
  return MK_OK;
}

mk_status mk_lower_add(mk_lowering *lowering, const mk_node *node) {
  mk_lowered_value *out = &lowering->values[node->output];
  mk_add_plan plan = mk_plan_add(lowering, node);
  out->ready_by_tiles = true;
  MK_TRY(mk_add_counters(lowering, lowering->graph->values[node->output].name, &out->ready));
  MK_TRY(plan.split != 0 ? mk_declare_parts(lowering, node, &plan) : MK_OK);
  for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
    MK_TRY(add_lines(lowering, node, &plan, lines));
  }
  return MK_OK;
}
