/* See accesses.h. */
#include "vm/cpu/accesses.h"

typedef struct result_slot { /* what the consumer hands to the storer of the same instruction */
  uint64_t hash;
  uint32_t token;
} result_slot;

struct mk_accesses {
  const mk_program *program;
  uint64_t **words;   /* [ranks][buffers] */
  mk_readers readers; /* of several ranks */
  uint64_t *loaded;   /* per instruction: hash of what its loader has read */
  result_slot *slots; /* [queue][result_slots] */
};

static bool changes(const mk_buffer *buffer) { return buffer->kind != MK_KIND_WEIGHT && buffer->kind != MK_KIND_INPUT; }

/* Words of a rank and buffer: the first rank's are those of all, unless there are copies. */
static bool has_own(const mk_accesses *a, size_t i) {
  const mk_program *p = a->program;
  return i < p->buffer_count || mk_buffer_is_pushed(p, &p->buffers[i % p->buffer_count]);
}

static mk_status accesses_init(mk_accesses *a) {
  const mk_program *p = a->program;
  MK_TRY(mk_alloc(p->machine.ranks * p->buffer_count, sizeof *a->words, &a->words));
  for (size_t i = 0; i < p->machine.ranks * p->buffer_count; i++) {
    const mk_buffer *buffer = &p->buffers[i % p->buffer_count];
    if (changes(buffer) && has_own(a, i)) {
      MK_TRY(
          mk_alloc((size_t)mk_buffer_grid_rows(buffer) * mk_buffer_grid_cols(buffer), sizeof **a->words, &a->words[i]));
    } else if (changes(buffer)) {
      a->words[i] = a->words[i % p->buffer_count];
    }
  }
  MK_TRY(p->machine.ranks > 1 ? mk_program_readers(p, &a->readers) : MK_OK);
  MK_TRY(mk_alloc(p->instruction_count, sizeof *a->loaded, &a->loaded));
  return mk_alloc(p->queue_count, p->machine.result_slots * sizeof *a->slots, &a->slots);
}

mk_status mk_accesses_new(const mk_program *program, mk_accesses **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->program = program;
  mk_status status = accesses_init(*out);
  if (status != MK_OK) {
    mk_accesses_free(*out);
    *out = NULL;
  }
  return status;
}

void mk_accesses_free(mk_accesses *a) {
  if (a == NULL) {
    return;
  }
  for (size_t i = 0; a->words != NULL && i < a->program->machine.ranks * a->program->buffer_count; i++) {
    mk_free(has_own(a, i) ? a->words[i] : NULL);
  }
  mk_readers_free(&a->readers);
  mk_free(a->words);
  mk_free(a->loaded);
  mk_free(a->slots);
  mk_free(a);
}

uint64_t *mk_accesses_words(mk_accesses *a, uint32_t rank, size_t buffer) {
  return a->words[rank * a->program->buffer_count + buffer];
}

static uint32_t rank_of(const mk_accesses *a, const mk_access_turn *turn) {
  return mk_queue_rank(a->program, turn->sm);
}

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

static uint64_t *word_at(const mk_accesses *a, uint32_t rank, const mk_operand *operand, uint32_t row, uint32_t col) {
  uint32_t cols = mk_buffer_grid_cols(&a->program->buffers[operand->buffer]);
  uint64_t *words = a->words[rank * a->program->buffer_count + operand->buffer];
  return &words[(size_t)(operand->row + row) * cols + operand->col + col];
}

/* Attention writes, and combine reads, only the splits that have tokens. */
static uint32_t rows_in_use(const mk_accesses *a, const mk_instruction *in, uint32_t slot, uint32_t position) {
  uint32_t rows = in->operands[slot].rows;
  const mk_operand_info *info = &mk_opcode_lookup(in->opcode)->operands[slot];
  bool parts = info->content == MK_CONTENT_PARTS;
  if (parts && info->access == MK_ACCESS_READ) {
    uint32_t used = position / in->params[MK_PARAM_COMBINE_span] + 1;
    return used < rows ? used : rows;
  }
  if (parts || info->store == MK_OPERAND_STORE_BLOCKS) {
    const mk_operand *kv = &in->operands[mk_opcode_cache(mk_opcode_lookup(in->opcode))];
    return kv->row > position / a->program->buffers[kv->buffer].span_tokens ? 0 : rows;
  }
  /* What sampling opcodes read depends on parameters that are alike on all SMs. Here the position stands for them. */
  return info->when == MK_WHEN_USED && position % 2 == 0 ? 0 : rows;
}

static bool stamps_are_there(const mk_accesses *a, uint32_t rank, const mk_operand *operand, uint32_t rows,
                             uint32_t generation) {
  for (uint32_t r = 0; r < rows; r++) {
    for (uint32_t c = 0; c < operand->cols; c++) {
      if (*word_at(a, rank, operand, r, c) >> 32 != generation) {
        return false;
      }
    }
  }
  return true;
}

static mk_status read_words(const mk_accesses *a, const mk_access_turn *turn, uint32_t slot, uint32_t rows,
                            uint64_t *hash) {
  const mk_instruction *in = &a->program->instructions[turn->index];
  const mk_operand *operand = &in->operands[slot];
  const mk_buffer *buffer = &a->program->buffers[operand->buffer];
  for (uint32_t r = 0; r < rows && a->words[operand->buffer] != NULL; r++) {
    for (uint32_t c = 0; c < operand->cols; c++) {
      uint64_t word = *word_at(a, rank_of(a, turn), operand, r, c);
      if (buffer->kind != MK_KIND_KV && word >> 32 != turn->generation) {
        return mk_error(MK_ERR_DEVICE,
                        "stale value: instruction %u (%s) reads tile (%u, %u) of buffer %s in generation %u, which was "
                        "last written in generation %u",
                        in->uid, mk_opcode_lookup(in->opcode)->name, operand->row + r, operand->col + c, buffer->name,
                        turn->generation, (uint32_t)(word >> 32));
      }
      *hash = mix(*hash, (uint32_t)word);
    }
  }
  return MK_OK;
}

static void write_words(mk_accesses *a, const mk_access_turn *turn, uint32_t slot, uint32_t rows, uint64_t hash) {
  const mk_operand *operand = &a->program->instructions[turn->index].operands[slot];
  bool stamped = a->program->buffers[operand->buffer].store == MK_STORE_STAMPED;
  uint64_t stamp = (uint64_t)(stamped ? turn->stamp : turn->generation) << 32;
  uint64_t ranks = UINT64_C(1) << rank_of(a, turn);
  if (a->readers.operands != NULL) {
    ranks |= a->readers.operands[(size_t)turn->index * MK_MAX_OPERANDS + slot];
  }
  for (; ranks != 0; ranks &= ranks - 1) {
    const uint32_t rank = (uint32_t)__builtin_ctzll(ranks);
    for (uint32_t i = 0; i < rows * operand->cols; i++) {
      const uint32_t r = i / operand->cols, c = i % operand->cols;
      *word_at(a, rank, operand, r, c) = stamp | (uint32_t)mix(hash, slot << 16 | r << 8 | c);
    }
  }
}

/* What `role` reads (writes == false) or writes. The cache is read by the loader and appended to by the consumer. */
static bool does(const mk_operand_info *operand, mk_role role, bool writes) {
  if (operand->access == MK_ACCESS_UPDATE && !writes) {
    return role == MK_ROLE_LOADER;
  }
  return operand->role == role && (operand->access != MK_ACCESS_READ) == writes;
}

static mk_status read_all(const mk_accesses *a, const mk_access_turn *turn, mk_role role, uint32_t token,
                          uint64_t *hash) {
  const mk_instruction *in = &a->program->instructions[turn->index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (does(&info->operands[slot], role, false)) {
      uint32_t rows = rows_in_use(a, in, slot, turn->state->rows[0].position);
      MK_TRY(read_words(a, turn, slot, rows, hash));
      *hash = (in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) != 0 ? mix(*hash, token) : *hash;
    }
  }
  return MK_OK;
}

static void write_all(mk_accesses *a, const mk_access_turn *turn, mk_role role, uint64_t hash) {
  const mk_instruction *in = &a->program->instructions[turn->index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (does(&info->operands[slot], role, true)) {
      /* The rows of a consumer's writes depend on the position, which has not moved on; a storer always writes all. */
      write_words(a, turn, slot, rows_in_use(a, in, slot, turn->state->rows[0].position), hash);
    }
  }
}

void mk_accesses_load(mk_accesses *a, const mk_access_turn *turn) {
  a->loaded[turn->index] = 0;
  (void)read_all(a, turn, MK_ROLE_LOADER, 0,
                 &a->loaded[turn->index]); /* constants, and the cache, which is never stale */
}

mk_status mk_accesses_consume(mk_accesses *a, const mk_access_turn *turn, bool *waits) {
  const mk_instruction *in = &a->program->instructions[turn->index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t token = turn->state->rows[0].token, position = turn->state->rows[0].position;
  *waits = false;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &in->operands[slot];
    turn->rows_used[slot] = (uint16_t)rows_in_use(a, in, slot, position);
    bool reads = does(&info->operands[slot], MK_ROLE_CONSUMER, false) ||
                 does(&info->operands[slot], MK_ROLE_STORER, false); /* which waits for stamps no later */
    if (reads && a->words[operand->buffer] != NULL && a->program->buffers[operand->buffer].store == MK_STORE_STAMPED &&
        !stamps_are_there(a, rank_of(a, turn), operand, turn->rows_used[slot], turn->generation)) {
      *waits = true;
      return MK_OK;
    }
  }
  if (info->state != MK_STATE_NONE && turn->boundaries != turn->epoch) {
    return mk_error(MK_ERR_DEVICE, "step state: instruction %u (%s) of epoch %llu meets the state of epoch %llu",
                    in->uid, info->name, (unsigned long long)turn->epoch, (unsigned long long)turn->boundaries);
  }
  const mk_range *positions = &a->program->ranges.position;
  if (info->state != MK_STATE_NONE && (position < positions->low || position > positions->high)) {
    return mk_error(MK_ERR_DEVICE,
                    "SM %u, instruction %u (%s): the step is at position %u; the program declares positions %u to %u",
                    turn->sm, in->uid, info->name, position, positions->low, positions->high);
  }
  uint64_t hash = mix(a->loaded[turn->index], in->uid);
  hash = info->state == MK_STATE_NONE ? hash : mix(hash, position);
  MK_TRY(read_all(a, turn, MK_ROLE_CONSUMER, token, &hash));
  write_all(a, turn, MK_ROLE_CONSUMER, hash);
  a->slots[(size_t)turn->sm * a->program->machine.result_slots + turn->step % a->program->machine.result_slots] =
      (result_slot){.hash = hash, .token = token};
  if (info->state == MK_STATE_WRITE) {
    mk_step_state *state = turn->state;
    state->step++;
    state->rows[0] = state->step < turn->steps ? turn->plan[state->step] : (mk_step_row){0};
    state->rows[0].token = (uint32_t)hash;
  }
  return MK_OK;
}

/* Whether the instruction's storer reads the step state, a copy that the `next` of the following epoch overwrites. The
 * role that finishes an instruction is the one that reads the state. */
static bool storer_reads_state(const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  return info->state == MK_STATE_READ && mk_opcode_finisher(info) == MK_ROLE_STORER;
}

mk_status mk_accesses_store(mk_accesses *a, const mk_access_turn *turn) {
  const mk_instruction *in = &a->program->instructions[turn->index];
  uint32_t slots = a->program->machine.result_slots;
  result_slot result = a->slots[(size_t)turn->sm * slots + turn->step % slots];
  if (storer_reads_state(in) && turn->boundaries > turn->epoch + 1) {
    return mk_error(MK_ERR_DEVICE,
                    "step state: the storer of instruction %u reads the state of epoch %llu, which the `next` of the "
                    "following epoch has overwritten",
                    in->uid, (unsigned long long)turn->epoch);
  }
  MK_TRY(read_all(a, turn, MK_ROLE_STORER, result.token, &result.hash));
  write_all(a, turn, MK_ROLE_STORER, result.hash);
  return MK_OK;
}

void mk_accesses_publish(mk_accesses *a, uint32_t rank, const mk_operand *operand, uint32_t tile, uint32_t held,
                         uint32_t generation) {
  uint64_t *word = word_at(a, rank, operand, tile / operand->cols, tile % operand->cols);
  *word = *word >> 32 == held ? (uint64_t)generation << 32 | (uint32_t)*word : *word;
}
