/* What the kernel for wide steps (vm/gpu/wide.cu) has no code or no room for, of programs that the verifier has
 * accepted: machine_internal.h, mk_gpu_check_wide.
 *
 * The verifier knows one thread for each role. This kernel's consumers are eight warps, which store themselves, each by
 * its own row tile of a product and by lines elsewhere, and which meet where an instruction begins that is no product,
 * where what is normed has its sums, and before a signal. Programs that count on more are refused here. */
#include "vm/gpu/machine_internal.h"

static bool is_empty(const mk_operand *o) { return o->rows == 0 || o->cols == 0; }
static bool is_token_row(const mk_operand *o) { return (o->flags & MK_OPERAND_TOKEN_ROW) != 0; }

static const mk_buffer *buffer_of(const mk_program *program, const mk_operand *o) {
  return &program->buffers[o->buffer];
}

static bool signals_release(const mk_program *program, const mk_instruction *in) {
  for (uint32_t i = 0; i < in->signal_count; i++) {
    if (program->counters[in->signals[i].counter].kind == MK_COUNTER_RELEASE) {
      return true;
    }
  }
  return false;
}

/* Whether the kernel that samples, which is one of several slots and of one rank, has such values. */
static bool is_of_draw(const mk_program *program, mk_content content) {
  return (content == MK_CONTENT_SCORES || content == MK_CONTENT_FRONT || content == MK_CONTENT_ROUND) &&
         mk_program_slots(program) > 1 && program->machine.ranks == 1;
}

/* Stamps are those of candidates, and of what draws go by, alone; so opcodes that know no other values have no code.
 * NULL: nothing. */
static const char *find_stamps(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const char *found = NULL;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const mk_content content = info->operands[slot].content;
    if (content == MK_CONTENT_CANDIDATE || is_of_draw(program, content)) {
      continue;
    }
    if (info->operands[slot].store == MK_OPERAND_STORE_STAMPED) {
      return "the opcode";
    }
    if (!is_empty(o) && buffer_of(program, o)->store == MK_STORE_STAMPED) {
      found = "a value with stamps";
    }
  }
  return found;
}

/* A product's input comes by a tensor map, which plain activations have; so does that of HEAD where several lines may
 * choose. NULL: nothing. */
static const char *find_input(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const bool by_map = mk_opcode_writes(info, MK_CONTENT_LOGITS) >= 0 && mk_program_slots(program) > 1;
  if (by_map && buffer_of(program, &in->operands[MK_SLOT_HEAD_x])->kind != MK_KIND_ACTIVATION) {
    return "an input that is an output";
  }
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (!mk_opcode_is_product(info) || !mk_opcode_copies(info, slot)) {
      continue;
    }
    if (is_token_row(o)) {
      return "an input that is the row of a token";
    }
    if (buffer_of(program, o)->kind != MK_KIND_ACTIVATION) {
      return "an input that is an output";
    }
  }
  return NULL;
}

/* Values go by pairs and fours of elements, and products by whole row tiles: rows of a value are whole tiles of 16
 * columns. Squares go one by one, and logits, and what draws have for each token, by the vocabulary. */
static mk_status check_columns(const mk_program *program, const mk_instruction *in, uint32_t slot) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const mk_operand *o = &in->operands[slot];
  const mk_buffer *b = buffer_of(program, o);
  const bool single = b->dtype == MK_DTYPE_F32 && b->tile_cols == 1;
  const bool by_token =
      info->operands[slot].content == MK_CONTENT_LOGITS || mk_opcode_writes(info, MK_CONTENT_FRONT) >= 0;
  const uint32_t unit = b->tile_cols == MK_SQUARED_TILE ? MK_SQUARED_TILE : MK_TILE; /* taken by pairs */
  if (is_empty(o) || info->operands[slot].extent != MK_EXTENT_PART || b->store != MK_STORE_PLAIN || single ||
      by_token || b->cols % unit == 0) {
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE,
                  "instruction %u (%s): %s in buffer %s has rows of %u columns; this machine takes a multiple of %u",
                  in->uid, info->name, info->operands[slot].name, b->name, b->cols, unit);
}

/* Units of a product, or of a sum of parts, are of eight row tiles; heads are of 64 or 128 dims. */
static mk_status check_units(const mk_program *program, const mk_instruction *in, uint32_t slot) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const mk_operand *o = &in->operands[slot];
  const mk_operand_store store = info->operands[slot].store;
  if (store == MK_OPERAND_STORE_TILES && mk_opcode_is_product(info) && o->rows > MK_WIDE_GPU_UNIT_TILES) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s) multiplies %u row tiles; this machine multiplies at most %d",
                    in->uid, info->name, o->rows, MK_WIDE_GPU_UNIT_TILES);
  }
  if (store == MK_OPERAND_STORE_RESIDUAL && o->cols > MK_WIDE_GPU_UNIT_TILES) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s) adds to %u row tiles; this machine adds to at most %d", in->uid,
                    info->name, o->cols, MK_WIDE_GPU_UNIT_TILES);
  }
  const uint32_t head_dim = buffer_of(program, o)->head_dim;
  if (store == MK_OPERAND_STORE_BLOCKS && head_dim != 64 && head_dim != 128) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s): heads of %u dims; this machine has them of 64 and 128", in->uid,
                    info->name, head_dim);
  }
  return MK_OK;
}

/* K and V are taken by fours of elements, and with one distance from line to line. */
static mk_status check_heads(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const mk_buffer *k = buffer_of(program, &in->operands[MK_SLOT_APPEND_k]),
                  *v = buffer_of(program, &in->operands[MK_SLOT_APPEND_v]);
  const uint32_t tile = in->params[MK_PARAM_APPEND_eps] != 0 ? MK_SQUARED_TILE : MK_TILE;
  if (k->cols != v->cols || k->tile_cols != tile || v->tile_cols != tile) {
    return mk_error(MK_ERR_FILE,
                    "instruction %u (%s): k and v are in rows of %u and %u columns, tiles of %u and %u; this machine "
                    "takes rows of one length and tiles of %u",
                    in->uid, info->name, k->cols, v->cols, k->tile_cols, v->tile_cols, tile);
  }
  return MK_OK;
}

/* Work lists are of several slots: there is a kernel that goes by them, and one for a sequence that does not. */
static const char *find_list(const mk_program *program, const mk_instruction *in) {
  const bool several = mk_program_slots(program) > 1;
  const int work = mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_WORK);
  return work < 0 || is_empty(&in->operands[work]) != several ? NULL
         : several                                            ? "attention of several slots without a work list"
                                                              : "a work list of one slot";
}

static mk_status check_instruction(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const char *missing = find_stamps(program, in);
  missing = missing != NULL ? missing : mk_gpu_find_missing(in);
  missing = missing != NULL ? missing : mk_gpu_find_parameter(in, true);
  missing = missing != NULL ? missing : find_input(program, in);
  missing = missing != NULL ? missing : find_list(program, in);
  if (missing != NULL) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s): %s is not yet in wide steps on a GPU: use --device cpu", in->uid,
                    info->name, missing);
  }
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    MK_TRY(check_units(program, in, slot));
    MK_TRY(check_columns(program, in, slot));
  }
  return in->opcode == MK_OP_APPEND ? check_heads(program, in) : MK_OK;
}

static bool overlap(const mk_operand *a, const mk_operand *b) {
  return !is_empty(a) && !is_empty(b) && a->buffer == b->buffer && a->row < b->row + b->rows &&
         b->row < a->row + a->rows && a->col < b->col + b->cols && b->col < a->col + a->cols;
}

/* Whether one of them writes what the other one touches. */
static bool conflict(const mk_instruction *a, const mk_instruction *b) {
  const mk_opcode_info *of_a = mk_opcode_lookup(a->opcode), *of_b = mk_opcode_lookup(b->opcode);
  for (uint32_t i = 0; i < of_a->operand_count; i++) {
    for (uint32_t k = 0; k < of_b->operand_count; k++) {
      const bool writes = of_a->operands[i].access != MK_ACCESS_READ || of_b->operands[k].access != MK_ACCESS_READ;
      if (writes && overlap(&a->operands[i], &b->operands[k])) {
        return true;
      }
    }
  }
  return false;
}

/* Whether all that it makes is a residual, of which no other SM is told: then the warps meet when it is done
 * (instructions/offset_wide.cuh). */
static bool keeps_residual(const mk_opcode_info *info) {
  bool keeps = false;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *o = &info->operands[slot];
    if (o->access != MK_ACCESS_READ && o->store != MK_OPERAND_STORE_PLAIN) {
      return false;
    }
    keeps = keeps || o->store == MK_OPERAND_STORE_RESIDUAL;
  }
  return keeps;
}

/* Warps meet before a signal. Where a product has none of its own before it stores, other warps may still be at what
 * comes before it. */
static mk_status check_meeting(const mk_program *program, const mk_instruction *before, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const int squares = mk_opcode_slot(info, "squares");
  if (mk_opcode_is_product(info) && squares >= 0 &&
      !is_empty(&in->operands[squares])) { /* the warps have the scales in common */
    return signals_release(program, in)
               ? MK_OK
               : mk_error(MK_ERR_FILE,
                          "instruction %u (%s) signals no release counter; a normed product in wide steps does, so "
                          "that its warps meet before the next one",
                          in->uid, info->name);
  }
  if (before == NULL || !mk_opcode_is_product(info) || signals_release(program, before) ||
      keeps_residual(mk_opcode_lookup(before->opcode)) ||
      (!mk_opcode_is_product(mk_opcode_lookup(before->opcode)) && !conflict(before, in))) {
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE,
                  "instruction %u (%s) comes after instruction %u in its queue, which signals no release counter; this "
                  "machine's warps meet before signals, so let that one signal",
                  in->uid, info->name, before->uid);
}

mk_status mk_gpu_check_wide(const mk_program *program) {
  if (program->ranges.position.high > INT32_MAX) {
    return mk_error(MK_ERR_FILE, "positions go up to %u; in wide steps this machine has bits for %d",
                    program->ranges.position.high, INT32_MAX);
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    MK_TRY(check_instruction(program, &program->instructions[i]));
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q];
    for (uint32_t i = 0; i < queue->count; i++) {
      const mk_instruction *in = &program->instructions[queue->first + i];
      MK_TRY(check_meeting(program, i == 0 ? NULL : in - 1, in));
    }
  }
  return MK_OK;
}
