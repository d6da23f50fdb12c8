/* What this machine has no room for, of programs that the verifier has accepted: machine_internal.h,
 * mk_gpu_check_program. All else that its kernels count on is a rule of the verifier. */
#include "instructions/mla.h"
#include "vm/gpu/machine_internal.h"
#include "vm/program/strips.h"

enum {
  MOST_HEAD_DIM = 128,
  NORMED_COLS = MK_GPU_NORMED_PAGES * MK_GPU_PAGE_BYTES / 512 * MK_TILE,
  MOST_FRONTS = MK_GPU_CONSUMER_WARPS * (32 / MK_GPU_FRONT_LANES),
};

/* An input is staged as bf16, 1 KiB a page; of a normed one each warp keeps so many sums of squares
 * (vm/gpu/consumer.cuh). */
static mk_status check_staging(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const uint32_t rows = mk_program_rows(program);
  const bool normed = mk_opcode_reads(info, MK_CONTENT_GAIN) >= 0;
  const bool more = program->machine.ranks > 1 || mk_gpu_is_quantised(program);
  const uint64_t room = !normed ? MK_GPU_ACTIVATION_BYTES / 1024
                        : more  ? MK_GPU_MOST_NORMED_PAGES
                                : MK_GPU_NORMED_PAGES;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (rows == 1 && info->operands[slot].store == MK_OPERAND_STORE_TILES) { /* several rows are not staged at all */
      uint64_t pages = (o->cols * UINT64_C(512) + MK_GPU_PAGE_BYTES - 1) / MK_GPU_PAGE_BYTES;
      if (pages > room) {
        return mk_error(MK_ERR_FILE,
                        "instruction %u (%s) stages %llu bytes of activation; this machine has room for %llu", in->uid,
                        info->name, (unsigned long long)pages * 1024, (unsigned long long)room * 1024);
      }
    }
  }
  if (rows > MK_MAX_ROWS) { /* nor are their parts fetched by as many warps */
    return MK_OK;
  }
  const uint32_t group = mk_param_named(in, "group");
  if (group > 16) {
    return mk_error(MK_ERR_FILE, "instruction %u: %u query heads share a KV head; this machine attends with at most 16",
                    in->uid, group);
  }
  const bool sums = info->sums == MK_SUMS_NORMED;
  const uint32_t summed = sums ? in->operands[MK_SLOT_NORM_ADD_parts].cols * MK_TILE : 0;
  if (rows == 1 && summed > NORMED_COLS) {
    return mk_error(MK_ERR_FILE, "instruction %u norms a sum of %u columns; this machine norms at most %d", in->uid,
                    summed, NORMED_COLS);
  }
  if (in->opcode == MK_OP_REDUCE_ADD && in->operands[MK_SLOT_REDUCE_ADD_parts].rows > MK_GPU_CONSUMER_WARPS) {
    return mk_error(MK_ERR_FILE, "instruction %u adds %u parts; this machine adds at most %d", in->uid,
                    in->operands[MK_SLOT_REDUCE_ADD_parts].rows, MK_GPU_CONSUMER_WARPS);
  }
  return MK_OK;
}

bool mk_gpu_samples(const mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (mk_opcode_writes(mk_opcode_lookup(program->instructions[i].opcode), MK_CONTENT_FRONT) >= 0) {
      return true;
    }
  }
  return false;
}

/* What the instruction has that only wide programs may have, for which the program's kernel is none: an opcode, or
 * values that release counters order. NULL: nothing. */
static const char *find_wide(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const bool value =
        info->operands[slot].store == MK_OPERAND_STORE_VALUE || info->operands[slot].store == MK_OPERAND_STORE_INPUT;
    if (value && o->rows != 0 && program->buffers[o->buffer].store == MK_STORE_PLAIN) {
      return "a value without stamps";
    }
  }
  const int squares = mk_opcode_slot(info, "squares");
  return info->wide_only                                   ? "the opcode"
         : squares >= 0 && in->operands[squares].rows != 0 ? "an input with squares"
                                                           : NULL;
}

const char *mk_gpu_find_parameter(const mk_instruction *in, bool wide) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const int gain = mk_opcode_reads(info, MK_CONTENT_GAIN), work = mk_opcode_reads(info, MK_CONTENT_WORK);
  const bool chooses = mk_opcode_writes(info, MK_CONTENT_LOGITS) >= 0;
  /* A normed input comes with squares in wide steps, and otherwise with a gain, which a HEAD may do without. */
  const bool has_gain = gain >= 0 && in->operands[gain].rows != 0;
  const bool squared = gain >= 0 && in->operands[mk_opcode_slot(info, "squares")].rows != 0;
  return !wide && mk_param_named(in, "extras") != 0            ? "a bias, or a norm of queries and keys,"
         : !wide && mk_param_named(in, "biased") != 0          ? "a bias"
         : !wide && gain < 0 && mk_param_named(in, "eps") != 0 ? "a norm of queries and keys"
         : wide && has_gain && !squared                        ? "an input with a gain"
         : !wide && gain >= 0 && !has_gain && !chooses         ? "an input that is not normed"
         : !wide && work >= 0 && in->operands[work].rows != 0  ? "a work list of rows"
         : !wide && mk_param_named(in, "factor") != 0          ? "a factor on logits"
                                                               : NULL;
}

/* Of one sequence, or of several. */
static bool is_wide(const mk_program *program) {
  const uint32_t rows = mk_program_rows(program);
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (mk_opcode_lookup(program->instructions[i].opcode)->wide_only) {
      return mk_program_is_for_prompts(program) ? rows >= MK_WIDE_ROWS
                                                : rows >= MK_PROMPT_ROWS && rows <= MK_MOST_SHARED_ROWS;
    }
  }
  return false;
}

/* Whether it is an instruction that the kernels of plain Llamas have no code for. Those for wide steps know fewer of
 * them; what none of these has is refused. */
static bool is_of_family(const mk_instruction *in, bool wide) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const bool normed = mk_opcode_reads(info, MK_CONTENT_GAIN) >= 0;
  const int gain = mk_opcode_slot(info, "gain"), squares = mk_opcode_slot(info, "squares");
  /* A gain that is not there has been multiplied by where there are squares to read. */
  const bool squared =
      squares >= 0 && info->operands[squares].access == MK_ACCESS_READ && in->operands[squares].rows != 0;
  return info->families_only || mk_param_named(in, "extras") != 0 || mk_param_named(in, "biased") != 0 ||
         mk_param_named(in, "factor") != 0 || (!normed && mk_param_named(in, "eps") != 0) ||
         (wide && gain >= 0 && in->operands[gain].rows == 0 && !squared) ||
         (!wide && mk_gpu_find_parameter(in, false) != NULL);
}

bool mk_gpu_is_of_family(const mk_program *program) {
  const bool wide = is_wide(program);
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (is_of_family(&program->instructions[i], wide)) {
      return true;
    }
  }
  return false;
}

bool mk_gpu_is_quantised(const mk_program *program) {
  for (size_t i = 0; i < program->buffer_count; i++) {
    if (mk_dtype_is_quantised(program->buffers[i].dtype)) {
      return true;
    }
  }
  return false;
}

/* Of quantised weights, warps take whole strips of 128 columns (vm/gpu/strips.cuh). */
static mk_status check_strips(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const mk_buffer *b = &program->buffers[o->buffer];
    if (info->operands[slot].store != MK_OPERAND_STORE_TILES || o->rows == 0) {
      continue;
    }
    const bool quantised = mk_dtype_is_quantised(b->dtype);
    const uint32_t bytes =
        quantised ? mk_strip_bytes(b) : MK_STRIP_STEPS * MK_TILE_STEP_ELEMENTS * (uint32_t)sizeof(uint16_t);
    const uint64_t strips = (uint64_t)o->rows * ((o->cols + MK_STRIP_STEPS - 1u) / MK_STRIP_STEPS);
    if (strips * (MK_GPU_PAGE_BYTES / bytes) >= MK_GPU_STRIPS_TIMES) {
      return mk_error(MK_ERR_FILE,
                      "instruction %u (%s) has %llu strips of %d columns of weight %s: more than this machine counts; "
                      "compile for more SMs, or use --device cpu",
                      in->uid, info->name, (unsigned long long)strips, MK_STRIP_COLS, b->name);
    }
    const uint32_t end = o->col + o->cols, cols = mk_buffer_grid_cols(b);
    if (!quantised) {
      continue;
    }
    if (o->col % MK_STRIP_STEPS != 0 || (end % MK_STRIP_STEPS != 0 && end != cols)) {
      return mk_error(
          MK_ERR_FILE,
          "instruction %u (%s) has columns %u to %u of quantised weight %s; this machine takes whole strips "
          "of %d: use --device cpu",
          in->uid, info->name, o->col * MK_TILE, end * MK_TILE, b->name, MK_STRIP_COLS);
    }
  }
  return MK_OK;
}

const char *mk_gpu_find_missing(const mk_instruction *in) {
  return mk_param_named(in, "plus") != 0         ? "a gain of 1 + w"
         : mk_param_named(in, "head_dim") == 256 ? "a head of 256 dims"
         : mk_param_named(in, "gelu") != 0       ? "GELU"
         : mk_param_named(in, "window") != 0     ? "a sliding window"
                                                 : NULL;
}

/* Whether a warp has room for what it reads of the fronts of all SMs. */
static mk_status check_fronts(const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const int fronts = mk_opcode_writes(info, MK_CONTENT_CANDIDATE) >= 0 ? mk_opcode_reads(info, MK_CONTENT_FRONT) : -1;
  if (fronts >= 0 && program->machine.ranks == 1 && in->operands[fronts].rows > MOST_FRONTS) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s) has the fronts of %u SMs; this machine takes %d", in->uid,
                    info->name, in->operands[fronts].rows, MOST_FRONTS);
  }
  return MK_OK;
}

static mk_status check_room(const mk_program *program, const mk_instruction *in) {
  const char *missing = find_wide(program, in);
  missing = missing != NULL ? missing : mk_gpu_find_missing(in);
  if (missing != NULL) {
    return mk_error(MK_ERR_FILE, "instruction %u (%s): %s is not yet on a GPU: use --device cpu", in->uid,
                    mk_opcode_lookup(in->opcode)->name, missing);
  }
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const uint32_t rows = mk_program_rows(program);
  /* Where an opcode can be fused in every step, or in lines of several rows, kernels have no code to do it alone. */
  bool within =
      info->fusion == MK_FUSION_ALWAYS || (info->fusion == MK_FUSION_ALONE && rows > 1 && rows <= MK_MAX_ROWS);
  if (within && (in->flags & MK_FUSED) == 0) {
    return mk_error(
        MK_ERR_FILE,
        "instruction %u (%s) is not marked as fused; this machine does it within the %s of its input alone, so mark it",
        in->uid, info->name, mk_opcode_lookup(info->fused_into)->name);
  }
  return check_staging(program, in);
}

/* With several rows per step the kernel takes rounds of a search in pairs: tallies, and their sums
 * (instructions/search_lines.cuh). */
static mk_status check_rounds(const mk_program *program, const mk_queue *queue) {
  uint32_t rounds = 0, last = 0;
  for (uint32_t i = queue->first; i < queue->first + queue->count; i++) {
    bool sifts = mk_opcode_writes(mk_opcode_lookup(program->instructions[i].opcode), MK_CONTENT_ROUND) >= 0;
    rounds += sifts;
    last = sifts ? program->instructions[i].uid : last;
  }
  return rounds % 2 == 0 ? MK_OK
                         : mk_error(MK_ERR_FILE,
                                    "instruction %u (sift) is the last of %u rounds; with several rows per step this "
                                    "machine takes rounds in pairs, so add one",
                                    last, rounds);
}

/* Whether all counters are relaxed, which the machine leaves out. */
static bool has_hints_alone(const mk_program *program) {
  for (size_t c = 0; c < program->counter_count; c++) {
    if (program->counters[c].kind == MK_COUNTER_RELEASE && program->counters[c].total != 0) {
      return false;
    }
  }
  return true;
}

/* An ATTENTION that does the work of a COMBINE stores to the copies of all ranks, as the COMBINE then has to. */
static mk_status check_combined(const mk_program *program) {
  const uint64_t all = (UINT64_C(1) << program->machine.ranks) - 1;
  mk_readers readers;
  mk_status status = MK_OK;
  MK_TRY(mk_program_readers(program, &readers));
  for (size_t i = 0; i < program->instruction_count && status == MK_OK; i++) {
    const mk_instruction *in = &program->instructions[i];
    const bool combines =
        mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_PARTS) >= 0 && (in->flags & MK_FUSED) != 0;
    if (combines && readers.operands[i * MK_MAX_OPERANDS + MK_SLOT_COMBINE_out] != all) {
      status = mk_error(MK_ERR_FILE,
                        "instruction %u (combine): not all of %u ranks read what it writes, as they do on "
                        "this machine",
                        in->uid, program->machine.ranks);
    }
  }
  mk_readers_free(&readers);
  return status;
}

/* Whether what lies on that rank, in full or by copies or shares, is there for an instruction of rank `own`. */
static bool is_at_home(uint32_t rank, uint32_t own) {
  return rank == MK_RANK_EACH || rank == MK_RANK_DEALT || rank == own;
}

static mk_status check_home(const mk_program *program, const mk_instruction *in, uint32_t own) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const char *what = NULL, *name = NULL;
  uint32_t rank = own;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const mk_buffer *b = &program->buffers[o->buffer];
    if (o->rows != 0 && o->cols != 0 && !is_at_home(b->rank, own)) {
      what = "has buffer", name = b->name, rank = b->rank;
    }
  }
  for (uint32_t w = 0; w < in->wait_count; w++) {
    const mk_counter *c = &program->counters[in->waits[w].counter];
    if (c->kind == MK_COUNTER_RELEASE && !is_at_home(c->rank, own)) {
      what = "waits for counter", name = c->name, rank = c->rank;
    }
  }
  return what == NULL ? MK_OK
                      : mk_error(MK_ERR_FILE,
                                 "instruction %u (%s) of rank %u %s %s of rank %u; here ranks share what each of them "
                                 "has a copy of",
                                 in->uid, info->name, own, what, name, rank);
}

/* A rank stores and signals to copies of others, and otherwise stays with its own memory. */
static mk_status check_homes(const mk_program *program) {
  for (size_t q = 0; q < program->queue_count; q++) {
    for (uint32_t i = program->queues[q].first; i < program->queues[q].first + program->queues[q].count; i++) {
      MK_TRY(check_home(program, &program->instructions[i], mk_queue_rank(program, q)));
    }
  }
  return MK_OK;
}

/* What kernels for several ranks have. */
static mk_status check_ranks(const mk_program *program) {
  const uint32_t ranks = program->machine.ranks;
  if (ranks == 1) {
    return MK_OK;
  }
  if (ranks > MK_GPU_MOST_RANKS) {
    return mk_error(MK_ERR_FILE, "the program has %u ranks; this machine has at most %d", ranks, MK_GPU_MOST_RANKS);
  }
  MK_TRY(check_homes(program));
  if (mk_program_rows(program) <= MK_MAX_ROWS && !has_hints_alone(program)) {
    return mk_error(
        MK_ERR_FILE,
        "the program has %u ranks and has a release counter, which several GPUs do not do yet: use one GPU, "
        "or --device cpu",
        ranks);
  }
  return check_combined(program);
}

mk_status mk_gpu_check_program(const mk_program *program) {
  const mk_machine *machine = &program->machine;
  bool wide = is_wide(program);
  uint32_t pages = wide ? MK_WIDE_GPU_RING_PAGES : MK_GPU_RING_PAGES;
  uint32_t warps = wide ? MK_WIDE_GPU_WARPS : MK_GPU_CONSUMER_WARPS;
  if (mk_program_listed(program)) {
    return machine->ranks == 1
               ? mk_gpu_check_mla(program)
               : mk_error(MK_ERR_FILE, "the program follows a work list and has %u ranks; it may have 1",
                          machine->ranks);
  }
  if (mk_program_rows(program) > MK_MAX_ROWS && !wide) {
    return mk_error(MK_ERR_FILE,
                    "the program has %u rows per step and %u slots; this machine takes up to %d rows of any slots, and "
                    "of models of Llama's shape %d to %d of several, or %d and more of one; compile it again, or "
                    "run it on device cpu",
                    mk_program_rows(program), mk_program_slots(program), MK_MAX_ROWS, MK_PROMPT_ROWS,
                    MK_MOST_SHARED_ROWS, MK_WIDE_ROWS);
  }
  MK_TRY(check_ranks(program));
  if (machine->page_bytes != MK_GPU_PAGE_BYTES || machine->consumer_warps != warps || machine->ring_pages > pages) {
    return mk_error(
        MK_ERR_FILE,
        "the program is for another machine: pages of %u bytes, %u of them, %u consumer warps; this one has %d, %u and "
        "%u; compile it again",
        machine->page_bytes, machine->ring_pages, machine->consumer_warps, MK_GPU_PAGE_BYTES, pages, warps);
  }
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (b->store == MK_STORE_BLOCKS && b->head_dim > MOST_HEAD_DIM) {
      return mk_error(MK_ERR_FILE, "buffer %s: heads of %u dims are not yet on a GPU: use --device cpu", b->name,
                      b->head_dim);
    }
    if (b->store == MK_STORE_BLOCKS && b->block_tokens != MK_GPU_BLOCK_TOKENS) {
      return mk_error(MK_ERR_FILE, "buffer %s has KV blocks of %u tokens; this machine attends over blocks of %d",
                      b->name, b->block_tokens, MK_GPU_BLOCK_TOKENS);
    }
    if (b->store == MK_STORE_BLOCKS && mk_program_rows(program) == 1 && b->span_tokens != MK_PIECE_TOKENS) {
      return mk_error(MK_ERR_FILE, "buffer %s has spans of %u tokens; with one row this machine adds up spans of %d",
                      b->name, b->span_tokens, MK_PIECE_TOKENS);
    }
  }
  if (wide) {
    MK_TRY(mk_gpu_check_wide(program));
  }
  const bool quantised = mk_gpu_is_quantised(program);
  for (size_t i = 0; i < program->instruction_count; i++) {
    MK_TRY(check_fronts(program, &program->instructions[i]));
    if (!wide) {
      MK_TRY(check_room(program, &program->instructions[i]));
      MK_TRY(quantised ? check_strips(program, &program->instructions[i]) : MK_OK);
    }
  }
  for (size_t q = 0; mk_program_rows(program) > 1 && q < program->queue_count; q++) {
    MK_TRY(check_rounds(program, &program->queues[q]));
  }
  return MK_OK;
}
