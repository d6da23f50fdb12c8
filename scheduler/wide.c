/* The wide form of programs: of 128 rows a step and more, all of one sequence (prompts), or of 64 to 512 of several.
 * See lower.h, and docs/PROGRAMS.md, "Wide programs".
 *
 * Lines come in tiles of MK_LINE_TILE. Work is dealt in units: eight row tiles of a weight (one chain of what they
 * make) by one tile of lines, so that a machine can multiply tiles of 128 x 256. Neighbouring units, which have the
 * row tiles in common, are on neighbouring SMs at the same time. Values are plain, and ordered by release counters,
 * one for each tile of lines of a value, which all of its writers signal. The SM that owns a unit of the residual also
 * begins the norm of that unit (NORM): it multiplies by the gain, and sums up the squares. By the squares of all units
 * of a row readers know the row's scale. Where it is what is added that is normed, the owner of a unit sums up the
 * squares of that (SQUARES), and adds when those of all units are there (NORM_ADD). */
#include <stdio.h>

#include "scheduler/lower_internal.h"
#include "vm/program/attend_list.h"

enum {
  UNIT_TILES = MK_CHAIN_COLS / MK_TILE,
  LEAST_TILES = 2, /* of a unit where lines are few: each unit reads all of them */
};

static uint32_t groups_of(uint32_t tiles) { return mk_divide_up(tiles, UNIT_TILES); }

uint32_t mk_wide_units(const mk_lowering *lowering, uint32_t tiles) { return groups_of(tiles) * lowering->line_tiles; }

/* The row tiles of a unit, where units have `each` row tiles, and there are `tiles` of them in all. */
static mk_share tiles_of(uint32_t unit, uint32_t line_tiles, uint32_t tiles, uint32_t each) {
  const uint32_t first = unit / line_tiles * each;
  return (mk_share){first, tiles - first < each ? tiles - first : each};
}

/* How many row tiles a unit has, of a weight of `tiles` of them. Where lines are few, how soon the weight is read
 * decides the time, and whole units would leave half of the SMs without one: units then have half as many, or a
 * quarter. Not with several ranks, as a NORM's sums must all be on its own rank. */
static uint32_t each_of(const mk_lowering *lowering, uint32_t tiles) {
  uint32_t each = UNIT_TILES;
  while (lowering->lines <= MK_PROMPT_ROWS && lowering->ranks == 1 && each > LEAST_TILES &&
         2 * mk_divide_up(tiles, each) * lowering->line_tiles <= lowering->sms) {
    each /= 2;
  }
  return each;
}

/* The units that are dealt from here on are done at the same time: rounds begin anew, after the last unit's SM. Not for
 * prompts, whose many rounds even out. */
static void begin_dealing(const mk_lowering *lowering) {
  for (uint32_t rank = 0; mk_program_slots(lowering->program) > 1 && rank < lowering->ranks; rank++) {
    const uint32_t dealt = lowering->turns[rank] - lowering->begun[rank];
    lowering->turns[rank] += dealt / lowering->sms_of_rank;
    lowering->begun[rank] = lowering->turns[rank];
  }
}

/* The SM of the next unit of a rank. Each round begins one SM further on. Otherwise the same SMs would have the same
 * tile of lines in every round, and all the work of a step that has few lines. The rounds are those of a dealing, so
 * that no SM has two units of it before every SM has one. */
static uint32_t next_sm(const mk_lowering *lowering, uint32_t rank) {
  const uint32_t turn = lowering->turns[rank]++, sms = lowering->sms_of_rank;
  return rank * sms + (turn + (turn - lowering->begun[rank]) / sms) % sms;
}

/* The rank that computes a unit of q, k and v: the rank of the KV head that the unit's first row tile belongs to. So
 * nearly all of q, k and v are made where attention reads them. */
static uint32_t rank_of_heads(const mk_lowering *lowering, uint32_t tile) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t head = tile / (c->head_dim / MK_TILE);
  return mk_rank_of_head(lowering, head < c->heads ? head * c->kv_heads / c->heads : (head - c->heads) % c->kv_heads,
                         0);
}

/* Whether a rank has the rows of its heads of a weight. */
static bool is_by_heads(const mk_graph *graph, const mk_node *node) {
  return node->kind == MK_NODE_QKV && mk_goes_to_attention(graph, node);
}

/* Of q, k and v a rank has heads, or what mk_rank_tiles gives, as of all else. HEAD goes by single row tiles. */
bool mk_wide_shares(const mk_graph *graph, uint32_t ranks) {
  const mk_config *c = &graph->config;
  if (ranks > 1 && (c->kv_heads % ranks != 0 || c->kv_heads / ranks * c->head_dim % MK_CHAIN_COLS != 0)) {
    return false;
  }
  for (size_t i = 0; i < graph->node_count; i++) {
    const mk_node *node = &graph->nodes[i];
    if (node->weight == MK_NONE || is_by_heads(graph, node) || node->kind == MK_NODE_HEAD) {
      continue;
    }
    const uint32_t tiles = graph->weights[node->weight].rows / MK_TILE;
    for (uint32_t rank = 1; rank < ranks; rank++) {
      if (mk_rank_tiles(tiles, ranks, rank).first % UNIT_TILES != 0) {
        return false;
      }
    }
  }
  return true;
}

/* The SM that owns a unit of the residual. */
static uint32_t owner_of(const mk_lowering *lowering, uint32_t unit, uint32_t tiles) {
  const uint32_t rank = mk_rank_of_tile(lowering, tiles, unit / lowering->line_tiles * UNIT_TILES);
  const uint32_t first = mk_wide_units(lowering, mk_rank_tiles(tiles, lowering->ranks, rank).first);
  return rank * lowering->sms_of_rank + (unit - first) % lowering->sms_of_rank;
}

/* The SM that adds to a unit of the residual, where units have `each` row tiles: its owner, or, of fewer than a whole
 * unit has, one of all SMs. */
static uint32_t sm_of_sum(const mk_lowering *lowering, uint32_t unit, uint32_t tiles, uint32_t each) {
  return each == UNIT_TILES ? owner_of(lowering, unit, tiles) : unit % lowering->sms;
}

const mk_node *mk_norm_of(const mk_graph *graph, int value) {
  const mk_node *found = NULL;
  for (size_t i = 0; i < graph->node_count; i++) {
    const mk_node *node = &graph->nodes[i];
    if (node->gain != MK_NONE && node->input == value && node->kind != MK_NODE_ADD) {
      if (found != NULL) {
        return NULL;
      }
      found = node;
    }
  }
  return found;
}

/* Whether a node is one of those that wide steps have. A value that is normed before a product has one reader, which
 * norms it by gains of its own, as in a Llama. */
static bool is_taken(const mk_graph *graph, const mk_node *node) {
  if (node->plus != 0 || node->gelu) {
    return false;
  }
  switch (node->kind) {
    case MK_NODE_ATTENTION:
    case MK_NODE_OFFSET:
    case MK_NODE_ADD:
    case MK_NODE_NORM_HEADS:
      return true;
    case MK_NODE_QKV:
    case MK_NODE_GLU:
      return mk_norm_of(graph, node->input) == (node->gain == MK_NONE ? NULL : node);
    case MK_NODE_HEAD:
      return mk_norm_of(graph, node->input) == node;
  }
  return false;
}

bool mk_is_wide(const mk_graph *graph, const mk_compile_options *options) {
  const bool one = mk_compile_slots(options) == 1;
  const uint32_t most = options->sampling ? MK_MOST_DRAWING_ROWS : MK_MOST_SHARED_ROWS;
  bool wide = options->rows >= (uint32_t)(one ? MK_WIDE_ROWS : MK_PROMPT_ROWS) &&
              (one ? !options->sampling : options->rows <= most) &&
              graph->config.heads / graph->config.kv_heads <= MK_ATTEND_MOST_HEADS;
  for (size_t i = 0; wide && i < graph->node_count; i++) {
    wide = is_taken(graph, &graph->nodes[i]);
  }
  return wide;
}

/* by_tiles: each tile of lines has a counter, and readers wait for the tile that they read. Else there is one counter,
 * and readers wait for all lines. */
static mk_status add_ready(mk_lowering *lowering, const char *name, bool by_tiles, mk_lowered_value *value) {
  value->ready_by_tiles = by_tiles;
  return by_tiles ? mk_add_counters(lowering, name, &value->ready)
                  : mk_program_add_counter(lowering->program, name, MK_COUNTER_RELEASE, &value->ready);
}

static mk_status add_ready_in_layer(mk_lowering *lowering, uint32_t layer, const char *what, bool by_tiles,
                                    mk_lowered_value *value) {
  char name[48];
  snprintf(name, sizeof name, "layers.%u.%s", layer, what);
  return add_ready(lowering, name, by_tiles, value);
}

/* Emits the NORM of a unit of the residual, where a product norms it, or (MK_NONE) of the tokens' embedding rows, which
 * without a norm become lines as they are. */
static mk_status emit_norm(mk_lowering *lowering, int value, uint32_t sm, mk_share share, uint32_t lines) {
  const mk_node *norm = mk_norm_of(lowering->graph, value);
  const mk_lowered_value *of = mk_value_of(lowering, value);
  if (norm == NULL && value != MK_NONE) {
    return MK_OK;
  }
  mk_instruction in = MK_START(NORM, norm == NULL                 ? 0
                                     : norm->kind == MK_NODE_HEAD ? (uint32_t)MK_NO_LAYER
                                                                  : norm->layer);
  in.operands[MK_SLOT_NORM_x] = value == MK_NONE ? mk_embedding_row(lowering, share.first, share.count)
                                                 : mk_columns(of->buffer, lines, share.first, share.count);
  if (norm != NULL) {
    in.operands[MK_SLOT_NORM_gain] = mk_whole(lowering, lowering->weights[norm->gain]);
    in.params[MK_PARAM_NORM_gains] = norm->biased ? lowering->graph->config.hidden : 0;
  }
  in.operands[MK_SLOT_NORM_out] = mk_columns(of->normed, lines, share.first, share.count);
  in.operands[MK_SLOT_NORM_squares] = mk_columns(of->squares, lines, share.first / UNIT_TILES, 1);
  if (value != MK_NONE && of->summed != MK_NO_COUNTER) {
    mk_add_wait(lowering, &in, (uint16_t)(of->summed + lines));
  }
  return mk_emit(lowering, sm, &in, mk_signal_of(of, lines));
}

mk_status mk_begin_wide(mk_lowering *lowering) {
  const uint32_t tiles = mk_divide_up(lowering->graph->config.hidden, MK_TILE);
  mk_lowered_value *embedded = &lowering->embedded;
  MK_TRY(mk_program_slots(lowering->program) > 1 ? mk_declare_work(lowering) : MK_OK);
  MK_TRY(mk_declare_normed(lowering, "embedding", embedded));
  MK_TRY(add_ready(lowering, "embedding", true, embedded));
  for (uint32_t unit = 0; unit < mk_wide_units(lowering, tiles); unit++) {
    MK_TRY(emit_norm(lowering, MK_NONE, owner_of(lowering, unit, tiles),
                     tiles_of(unit, lowering->line_tiles, tiles, UNIT_TILES), unit % lowering->line_tiles));
  }
  return MK_OK;
}

/* Deals `tiles` row tiles, `each` to a unit, for all tiles of lines; with `heads` to the rank of the unit's heads. */
static mk_status deal_units(mk_lowering *lowering, const mk_node *node, uint32_t tiles, uint32_t each, bool heads,
                            mk_emitter emit) {
  begin_dealing(lowering);
  for (uint32_t unit = 0; unit < mk_divide_up(tiles, each) * lowering->line_tiles; unit++) {
    const mk_share share = tiles_of(unit, lowering->line_tiles, tiles, each);
    const uint32_t rank = heads ? rank_of_heads(lowering, share.first) : mk_rank_of_tile(lowering, tiles, share.first);
    MK_TRY(emit(lowering, node, next_sm(lowering, rank), share, unit % lowering->line_tiles));
  }
  return MK_OK;
}

/* Deals the units of the node's weight to the SMs. */
static mk_status lower_rows(mk_lowering *lowering, const mk_node *node, const char *what, mk_emitter emit) {
  uint16_t index;
  const uint32_t tiles = mk_buffer_grid_rows(mk_weight_buffer(lowering, node, &index));
  /* APPEND looks at K and V of all lines. */
  const bool by_tiles = node->kind != MK_NODE_QKV || !mk_goes_to_attention(lowering->graph, node);
  const bool heads = is_by_heads(lowering->graph, node) && lowering->graph->config.kv_heads % lowering->ranks == 0;
  MK_TRY(add_ready_in_layer(lowering, node->layer, what, by_tiles, &lowering->values[node->output]));
  return deal_units(lowering, node, tiles, each_of(lowering, tiles), heads, emit);
}

/* Deals the tiles of q, k and v, at most a unit to each SM: every unit reads the squares of all tiles. */
static mk_status lower_norm_heads(mk_lowering *lowering, const mk_node *node) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t tiles = (c->heads + 2 * c->kv_heads) * (c->head_dim / MK_TILE);
  const uint32_t sms = lowering->sms / lowering->line_tiles; /* of a tile of lines */
  const uint32_t each = mk_divide_up(tiles, sms == 0 ? 1 : sms);
  MK_TRY(add_ready_in_layer(lowering, node->layer, "qkv_normed", false, &lowering->values[node->output]));
  return deal_units(lowering, node, tiles, each, c->kv_heads % lowering->ranks == 0, mk_emit_norm_heads);
}

/* All lines of a KV head go into the cache at once: a line of any tile may look at them. */
static mk_status emit_append(mk_lowering *lowering, const mk_node *node, uint16_t kv, uint32_t head, uint16_t signal) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t head_tiles = c->head_dim / MK_TILE;
  const uint16_t qkv = lowering->values[node->input].buffer;
  mk_instruction in = MK_START(APPEND, node->layer);
  in.operands[MK_SLOT_APPEND_k] = mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + head) * head_tiles, head_tiles);
  in.operands[MK_SLOT_APPEND_v] =
      mk_tiles(qkv, 0, lowering->line_tiles, (c->heads + c->kv_heads + head) * head_tiles, head_tiles);
  in.operands[MK_SLOT_APPEND_kv] = mk_tiles(kv, 0, 1, head, 1);
  in.operands[MK_SLOT_APPEND_table] = mk_whole(lowering, lowering->table);
  in.params[MK_PARAM_APPEND_eps] = mk_float_param(node->eps);
  mk_wait_for(lowering, &in, node->input, 0);
  return mk_emit(lowering, next_sm(lowering, mk_rank_of_head(lowering, head, 0)), &in, signal);
}

static mk_status emit_attend(mk_lowering *lowering, const mk_node *node, uint16_t kv, uint32_t head, uint32_t lines,
                             uint16_t appended) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t head_tiles = c->head_dim / MK_TILE;
  const mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(ATTEND, node->layer);
  in.operands[MK_SLOT_ATTEND_q] =
      mk_columns(lowering->values[node->input].buffer, lines, head * head_tiles, head_tiles);
  in.operands[MK_SLOT_ATTEND_kv] = mk_tiles(kv, 0, 1, head * c->kv_heads / c->heads, 1);
  in.operands[MK_SLOT_ATTEND_table] = mk_whole(lowering, lowering->table);
  in.operands[MK_SLOT_ATTEND_out] = mk_columns(out->buffer, lines, head * head_tiles, head_tiles);
  in.params[MK_PARAM_ATTEND_scale] = mk_float_param(node->factor);
  in.params[MK_PARAM_ATTEND_window] = node->window;
  in.params[MK_PARAM_ATTEND_eps] = mk_float_param(node->eps);
  mk_add_wait(lowering, &in, appended); /* which comes after q, too */
  return mk_emit(lowering, next_sm(lowering, mk_rank_of_head(lowering, head * c->kv_heads / c->heads, 0)), &in,
                 mk_signal_of(out, lines));
}

/* Emits the attention of one share of a KV head and a tile of lines. The work list says which items a share has. */
static mk_status emit_share(mk_lowering *lowering, const mk_node *node, uint16_t kv, uint32_t head, uint32_t lines,
                            mk_share share, uint16_t appended) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t tiles = c->heads / c->kv_heads * (c->head_dim / MK_TILE);
  const mk_lowered_value *out = &lowering->values[node->output];
  mk_instruction in = MK_START(ATTEND, node->layer);
  in.operands[MK_SLOT_ATTEND_q] = mk_columns(lowering->values[node->input].buffer, lines, head * tiles, tiles);
  in.operands[MK_SLOT_ATTEND_kv] = mk_tiles(kv, 0, 1, head, 1);
  in.operands[MK_SLOT_ATTEND_table] = mk_whole(lowering, lowering->table);
  in.operands[MK_SLOT_ATTEND_out] = mk_columns(out->buffer, lines, head * tiles, tiles);
  in.operands[MK_SLOT_ATTEND_work] = mk_whole(lowering, lowering->work);
  in.params[MK_PARAM_ATTEND_scale] = mk_float_param(node->factor);
  in.params[MK_PARAM_ATTEND_window] = node->window;
  in.params[MK_PARAM_ATTEND_eps] = mk_float_param(node->eps);
  in.params[MK_PARAM_ATTEND_share] = share.first;
  in.params[MK_PARAM_ATTEND_shares] = share.count;
  mk_add_wait(lowering, &in, appended);
  return mk_emit(lowering, next_sm(lowering, mk_rank_of_head(lowering, head, 0)), &in, mk_signal_of(out, lines));
}

/* Into how many shares the work of a KV head and a tile of lines is dealt: so many that all SMs have some, whether a
 * step has prompts (an item for each query head of a tile) or decoding rows. With one tile of lines an SM has one
 * share, so that many items of it pass together; with several tiles two, since tiles differ in their work. */
static uint32_t shares_of(const mk_lowering *lowering) {
  enum { MOST_SHARES = 64 };
  const mk_config *c = &lowering->graph->config;
  const uint32_t group = c->heads / c->kv_heads;
  const uint32_t units = mk_divide_up(c->kv_heads, lowering->ranks) * lowering->line_tiles; /* of a rank */
  const uint32_t rounds = lowering->line_tiles == 1 ? 1 : 2, wanted = rounds * lowering->sms_of_rank / units;
  return wanted < group ? group : wanted > MOST_SHARES ? (group > MOST_SHARES ? group : MOST_SHARES) : wanted;
}

/* Share by share: the first shares have the longest items, and so these come first on every SM. */
static mk_status emit_shares(mk_lowering *lowering, const mk_node *node, uint16_t kv, uint16_t appended) {
  const uint32_t shares = shares_of(lowering), heads = lowering->graph->config.kv_heads;
  for (uint32_t share = 0; share < shares; share++) {
    for (uint32_t lines = 0; lines < lowering->line_tiles; lines++) {
      for (uint32_t head = 0; head < heads; head++) {
        MK_TRY(emit_share(lowering, node, kv, head, lines, (mk_share){share, shares}, (uint16_t)(appended + head)));
      }
    }
  }
  return MK_OK;
}

/* For prompts a unit of attention is a query head and a tile of lines, and the last lines come first, as they see the
 * most tokens. With several slots it is a share of a KV head and a tile. */
static mk_status lower_attention(mk_lowering *lowering, const mk_node *node) {
  const mk_config *c = &lowering->graph->config;
  uint16_t kv, first = MK_NO_COUNTER;
  MK_TRY(mk_declare_kv(lowering, node->layer, &kv));
  MK_TRY(add_ready_in_layer(lowering, node->layer, "attn", true, &lowering->values[node->output]));
  begin_dealing(lowering);
  for (uint32_t head = 0; head < c->kv_heads; head++) {
    char name[48];
    uint16_t appended;
    snprintf(name, sizeof name, "layers.%u.append.%u", node->layer, head);
    MK_TRY(mk_program_add_counter(lowering->program, name, MK_COUNTER_RELEASE, &appended));
    MK_TRY(emit_append(lowering, node, kv, head, appended));
    first = head == 0 ? appended : first;
  }
  begin_dealing(lowering);
  if (mk_program_slots(lowering->program) > 1) {
    return emit_shares(lowering, node, kv, first);
  }
  for (uint32_t lines = lowering->line_tiles; lines-- != 0;) {
    for (uint32_t head = 0; head < c->heads; head++) {
      MK_TRY(emit_attend(lowering, node, kv, head, lines, (uint16_t)(first + head * c->kv_heads / c->heads)));
    }
  }
  return MK_OK;
}

/* Emits the parts of K of all units of `each` row tiles, or of the few row tiles whose K is split. */
static mk_status lower_parts(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t tiles,
                             uint32_t each) {
  const bool all = plan->stride == 1;
  const uint32_t units = (all ? mk_divide_up(tiles, each) : plan->split) * lowering->line_tiles;
  begin_dealing(lowering);
  for (uint32_t part = 0; part < plan->parts; part++) {
    for (uint32_t unit = 0; unit < units; unit++) {
      const mk_share share = all ? tiles_of(unit, lowering->line_tiles, tiles, each)
                                 : (mk_share){mk_split_tile(plan, unit / lowering->line_tiles), 1};
      const uint32_t rank = mk_rank_of_tile(lowering, tiles, share.first);
      MK_TRY(mk_emit_part(lowering, node, plan, next_sm(lowering, rank), part, share, unit % lowering->line_tiles));
    }
  }
  return MK_OK;
}

/* Emits the addition to a unit of the residual, on its owner: an instruction for each run of row tiles whose K is
 * split, or is not. */
static mk_status add_unit(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                          uint32_t lines, mk_share share) {
  const uint32_t end = share.first + share.count;
  for (mk_share run = {share.first, 0}; run.first < end; run = (mk_share){run.first + run.count, 0}) {
    const bool split = mk_add_splits(plan, run.first);
    while (run.first + run.count < end && mk_add_splits(plan, run.first + run.count) == split) {
      run.count++;
    }
    MK_TRY(split ? mk_emit_reduce(lowering, node, plan, sm, run, lines)
                 : mk_emit_whole(lowering, node, sm, run, lines));
  }
  return MK_OK;
}

/* Emits the squares of all units of a sum that is normed, by the SMs that own these. */
static mk_status lower_squares(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t tiles) {
  for (uint32_t unit = 0; unit < mk_wide_units(lowering, tiles); unit++) {
    MK_TRY(mk_emit_squares(lowering, node, plan, owner_of(lowering, unit, tiles),
                           tiles_of(unit, lowering->line_tiles, tiles, UNIT_TILES), unit % lowering->line_tiles));
  }
  return MK_OK;
}

/* Emits all units of an addition, each followed by its NORM on the same SM. */
static mk_status add_units(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t tiles) {
  const uint32_t line_tiles = lowering->line_tiles;
  for (uint32_t unit = 0; unit < mk_wide_units(lowering, tiles); unit++) {
    const uint32_t sm = owner_of(lowering, unit, tiles), lines = unit % line_tiles;
    const mk_share share = tiles_of(unit, line_tiles, tiles, UNIT_TILES);
    MK_TRY(add_unit(lowering, node, plan, sm, lines, share));
    MK_TRY(emit_norm(lowering, node->output, sm, share, lines));
  }
  return MK_OK;
}

/* Emits units of fewer row tiles, each on an SM of its own. A NORM has a whole chain of columns, which is a unit: it
 * waits for all sums of its lines. */
static mk_status add_small_units(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t tiles,
                                 uint32_t each) {
  const uint32_t line_tiles = lowering->line_tiles;
  if (mk_norm_of(lowering->graph, node->output) != NULL) {
    char name[64];
    snprintf(name, sizeof name, "%s_sums", lowering->graph->values[node->output].name);
    MK_TRY(mk_add_counters(lowering, name, &lowering->values[node->output].summed));
  }
  for (uint32_t unit = 0; unit < mk_divide_up(tiles, each) * line_tiles; unit++) {
    MK_TRY(add_unit(lowering, node, plan, sm_of_sum(lowering, unit, tiles, each), unit % line_tiles,
                    tiles_of(unit, line_tiles, tiles, each)));
  }
  for (uint32_t unit = 0; unit < mk_wide_units(lowering, tiles); unit++) {
    MK_TRY(emit_norm(lowering, node->output, unit % lowering->sms, tiles_of(unit, line_tiles, tiles, UNIT_TILES),
                     unit % line_tiles));
  }
  return MK_OK;
}

static mk_status lower_add(mk_lowering *lowering, const mk_node *node) {
  mk_lowered_value *out = &lowering->values[node->output];
  const char *name = lowering->graph->values[node->output].name;
  mk_add_plan plan = mk_plan_add(lowering, node);
  uint16_t index;
  const uint32_t tiles = mk_buffer_grid_rows(mk_weight_buffer(lowering, node, &index));
  const uint32_t each = each_of(lowering, tiles);
  const mk_node *norm = mk_norm_of(lowering->graph, node->output);
  /* HEAD waits for all lines, so that its candidate tells that its SM has nothing more to do in the step. */
  MK_TRY(add_ready(lowering, name, norm == NULL || norm->kind != MK_NODE_HEAD, out));
  out->summed = norm == NULL ? out->ready : (uint16_t)MK_NO_COUNTER;
  out->normed = out->buffer;
  MK_TRY(norm == NULL ? MK_OK : mk_declare_normed(lowering, name, out));
  if (plan.split != 0) {
    MK_TRY(mk_declare_parts(lowering, node, &plan));
    MK_TRY(lower_parts(lowering, node, &plan, tiles, node->gain == MK_NONE ? (uint32_t)UNIT_TILES : each));
  }
  MK_TRY(node->gain == MK_NONE ? MK_OK : lower_squares(lowering, node, &plan, tiles));
  return each == UNIT_TILES ? add_units(lowering, node, &plan, tiles)
                            : add_small_units(lowering, node, &plan, tiles, each);
}

/* What comes before an addition, by the SMs that add: the queue orders the two. */
static mk_status lower_offset(mk_lowering *lowering, const mk_node *node) {
  const uint32_t tiles = mk_divide_up(lowering->graph->config.hidden, MK_TILE), each = each_of(lowering, tiles);
  const uint32_t line_tiles = lowering->line_tiles;
  for (uint32_t unit = 0; unit < mk_divide_up(tiles, each) * line_tiles; unit++) {
    MK_TRY(mk_emit_offset(lowering, node, sm_of_sum(lowering, unit, tiles, each),
                          tiles_of(unit, line_tiles, tiles, each), unit % line_tiles));
  }
  return MK_OK;
}

mk_status mk_lower_wide(mk_lowering *lowering, const mk_node *node) {
  switch (node->kind) {
    case MK_NODE_QKV:
      return lower_rows(lowering, node, "qkv", mk_emit_qkv);
    case MK_NODE_ATTENTION:
      return lower_attention(lowering, node);
    case MK_NODE_ADD:
      return lower_add(lowering, node);
    case MK_NODE_GLU:
      return lower_rows(lowering, node, "act", mk_emit_glu);
    case MK_NODE_HEAD:
      return mk_lower_head(lowering, node);
    case MK_NODE_OFFSET:
      return lower_offset(lowering, node);
    case MK_NODE_NORM_HEADS:
      return lower_norm_heads(lowering, node);
  }
  return MK_OK;
}
