/* What this machine refuses of programs that the verifier has accepted: machine_internal.h, mk_gpu_check_program. */
#include <string.h>

#include "instructions/mla.h"
#include "vm/gpu/machine_internal.h"

enum {
  BLOCK_TOKENS = 64,
  MOST_FRONTS = MK_GPU_CONSUMER_WARPS * (32 / MK_GPU_FRONT_LANES),
};

/* A normed input is staged as two bf16 columns, 1 KiB a page each; the second begins at a multiple of four pages
 * (vm/gpu/consumer.cuh). */
static mk_status check_staging(const mk_instruction *in, uint32_t rows) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t columns = in->opcode == MK_OP_QKV || in->opcode == MK_OP_GLU || in->opcode == MK_OP_HEAD ? 2 : 1;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (rows == 1 && info->operands[slot].store == MK_OPERAND_STORE_TILES) { /* several rows are not staged at all */
      uint64_t pages = (o->cols * UINT64_C(512) + MK_GPU_PAGE_BYTES - 1) / MK_GPU_PAGE_BYTES;
      uint64_t bytes = ((columns == 2 ? (pages + 3) / 4 * 4 : 0) + pages) * 1024;
      if (bytes > (uint64_t)MK_GPU_ACTIVATION_BYTES) {
        return mk_error(MK_ERR_FILE,
                        "instruction %u (%s) stages %llu bytes of activation; this machine has room for %d", in->uid,
                        info->name, (unsigned long long)bytes, MK_GPU_ACTIVATION_BYTES);
      }
    }
  }
  if (rows > MK_MAX_ROWS) { /* nor are their parts fetched by as many warps */
    return MK_OK;
  }
  if (in->opcode == MK_OP_ATTENTION && in->params[MK_PARAM_ATTENTION_group] > 16) {
    return mk_error(MK_ERR_FILE, "instruction %u: %u query heads share a KV head; this machine attends with at most 16",
                    in->uid, in->params[MK_PARAM_ATTENTION_group]);
  }
  if (in->opcode == MK_OP_REDUCE_ADD && in->operands[MK_SLOT_REDUCE_ADD_parts].rows > MK_GPU_CONSUMER_WARPS) {
    return mk_error(MK_ERR_FILE, "instruction %u adds %u parts; this machine adds at most %d", in->uid,
                    in->operands[MK_SLOT_REDUCE_ADD_parts].rows, MK_GPU_CONSUMER_WARPS);
  }
  return MK_OK;
}

static bool is_sampling(uint32_t opcode) {
  return opcode == MK_OP_SCORE || opcode == MK_OP_SIFT || opcode == MK_OP_DRAW;
}

bool mk_gpu_samples(const mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (is_sampling(program->instructions[i].opcode)) {
      return true;
    }
  }
  return false;
}

static bool same_operand(const mk_instruction *a, uint32_t slot_a, const mk_instruction *b, uint32_t slot_b) {
  return memcmp(&a->operands[slot_a], &b->operands[slot_b], sizeof a->operands[0]) == 0;
}

/* What the sampling kernel does of one instruction within another: the storer does all of `score` within the `head` before it, which must
 * therefore have the same tiles, and nothing to wait for between the two; `sift` leaves its round in the activation area, where nothing
 * else may stage, to the one behind it; `draw` hands its choice to the `next` behind it. */
static mk_status check_sampling(const mk_instruction *in, const mk_instruction *behind) {
  uint32_t opcode = in->opcode, next = behind == NULL ? MK_OP_NONE : behind->opcode;
  bool searches = next == MK_OP_SIFT || next == MK_OP_DRAW;
  const char *needs = NULL;
  if (opcode == MK_OP_HEAD && (next != MK_OP_SCORE || behind->wait_count != 0 ||
                               !same_operand(in, MK_SLOT_HEAD_logits, behind, MK_SLOT_SCORE_logits))) {
    needs = "a score of its logits, without waits";
  } else if (next == MK_OP_SCORE && opcode != MK_OP_HEAD) {
    needs = "no score, which belongs behind a head";
  } else if (opcode == MK_OP_SIFT &&
             !(searches && behind->operands[MK_SLOT_SIFT_rounds].rows != 0 &&
               behind->operands[MK_SLOT_SIFT_rounds].buffer == in->operands[MK_SLOT_SIFT_round].buffer)) {
    needs = "a sift or draw that goes on with its round";
  } else if (opcode != MK_OP_SIFT && searches && behind->operands[MK_SLOT_SIFT_rounds].rows != 0) {
    needs = "no sift or draw that goes on with a round";
  } else if ((opcode == MK_OP_DRAW) != (next == MK_OP_NEXT) ||
             (opcode == MK_OP_DRAW && !same_operand(in, MK_SLOT_DRAW_choice, behind, MK_SLOT_NEXT_candidates))) {
    needs = opcode == MK_OP_DRAW ? "a next that takes its choice" : "no next, which belongs behind a draw";
  } else if (opcode == MK_OP_DRAW && in->operands[MK_SLOT_DRAW_fronts].rows > MOST_FRONTS) {
    return mk_error(MK_ERR_FILE, "instruction %u (draw) has the fronts of %u SMs; this machine takes %d", in->uid,
                    in->operands[MK_SLOT_DRAW_fronts].rows, MOST_FRONTS);
  }
  return needs == NULL
             ? MK_OK
             : mk_error(MK_ERR_FILE, "instruction %u (%s): a machine that samples needs behind it on its queue %s",
                        in->uid, mk_opcode_lookup(opcode)->name, needs);
}

/* A `sift` takes scores from the logits of its own SM, those of the `score` before it on the queue. */
static mk_status check_searched(const mk_instruction *score, const mk_instruction *in) {
  return in->opcode != MK_OP_SIFT ||
                 (score != NULL && same_operand(score, MK_SLOT_SCORE_scores, in, MK_SLOT_SIFT_scores))
             ? MK_OK
             : mk_error(MK_ERR_FILE,
                        "instruction %u (sift) looks at other tokens than the score before it on its queue, which this "
                        "machine does not",
                        in->uid);
}

/* The kernel's consumers may run further ahead of the storer than result_slots, but not past the token boundary: `next`, or the `draw`
 * before it, waits for what the storer of its own SM publishes behind the last row tile. So every queue with a `next` needs a `head` before
 * it. */
static mk_status check_boundary(const mk_program *program, const mk_queue *queue, bool sampling) {
  bool head = false;
  const mk_instruction *score = NULL;
  for (uint32_t i = 0; i < queue->count; i++) {
    const mk_instruction *in = &program->instructions[queue->first + i];
    head |= in->opcode == MK_OP_HEAD;
    if (in->opcode == MK_OP_NEXT && !head) {
      return mk_error(MK_ERR_FILE, "instruction %u (next) has no head before it on its queue, which this machine needs",
                      in->uid);
    }
    if (sampling) {
      score = in->opcode == MK_OP_SCORE ? in : score;
      MK_TRY(check_sampling(in, i + 1 < queue->count ? in + 1 : NULL));
      MK_TRY(check_searched(score, in));
    }
  }
  return MK_OK;
}

/* ATTENTION itself writes what COMBINE would of lines with one split in use: so all parts of one buffer become one value, which nobody else
 * writes or empties. `partner`: by buffer, 1 + the other one of such a pair; 0 for all. */
static mk_status check_combined(const mk_program *program, uint32_t *partner) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (in->opcode == MK_OP_COMBINE) {
      uint32_t from = in->operands[MK_SLOT_COMBINE_parts].buffer, to = in->operands[MK_SLOT_COMBINE_out].buffer;
      const mk_buffer *parts = &program->buffers[from], *out = &program->buffers[to];
      if (out->cols != parts->cols / parts->tile_cols * (parts->tile_cols - 2u) ||
          (partner[from] != 0 && partner[from] != to + 1) || (partner[to] != 0 && partner[to] != from + 1)) {
        return mk_error(MK_ERR_FILE,
                        "instruction %u (combine) makes columns of buffer %s from %s; with several rows per step this "
                        "machine makes "
                        "the whole of one buffer from the whole of another one; use --device cpu",
                        in->uid, out->name, parts->name);
      }
      partner[from] = to + 1;
      partner[to] = from + 1;
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      uint32_t buffer = in->operands[slot].buffer;
      bool combined = partner[buffer] != 0, writes = info->operands[slot].access != MK_ACCESS_READ;
      bool parts = in->opcode == MK_OP_ATTENTION && slot == MK_SLOT_ATTENTION_out;
      if (parts ? !combined : combined && writes && in->opcode != MK_OP_COMBINE) {
        return mk_error(
            MK_ERR_FILE,
            "instruction %u (%s) writes buffer %s, which %s; this machine runs no such program of several rows per "
            "step; use --device cpu",
            in->uid, info->name, program->buffers[buffer].name,
            parts ? "no combine reads" : "a combine writes or reads, too");
      }
    }
  }
  return MK_OK;
}

/* Of 2 to 16 rows: attention goes in pieces, and writes for COMBINE. */
static mk_status check_pieces(const mk_program *program) {
  uint32_t *partner;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *partner, &partner));
  mk_status combined = check_combined(program, partner);
  mk_free(partner);
  MK_TRY(combined);
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    uint32_t pieces = b->span_tokens / MK_GPU_PIECE_TOKENS;
    if (b->store == MK_STORE_BLOCKS &&
        (pieces == 0 || b->span_tokens % MK_GPU_PIECE_TOKENS != 0 || (pieces & (pieces - 1)) != 0)) {
      return mk_error(MK_ERR_FILE,
                      "buffer %s has spans of %u tokens; with several rows per step this machine takes %d times a "
                      "power of two; use "
                      "--device cpu",
                      b->name, b->span_tokens, (int)MK_GPU_PIECE_TOKENS);
    }
  }
  return MK_OK;
}

static mk_status check_rows(const mk_program *program) {
  mk_plan_buffers buffers;
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (mk_gpu_in_fragments(program, b) && (b->cols % MK_TILE != 0 || b->rows != mk_program_rows(program))) {
      return mk_error(
          MK_ERR_FILE,
          "buffer %s has %u columns; with several rows per step this machine has values of whole tiles of %d "
          "alone; compile it with 1 row, or use --device cpu",
          b->name, b->cols, MK_TILE);
    }
  }
  if (mk_program_rows(program) <= MK_MAX_ROWS) {
    MK_TRY(check_pieces(program));
  }
  if (mk_gpu_samples(program)) {
    return mk_error(MK_ERR_FILE, "the program has %u rows per step and samples; this machine samples one row",
                    mk_program_rows(program));
  }
  for (size_t i = 0; i < program->counter_count;
       i++) { /* two storers finish an instruction, and nobody asks for both */
    if (program->counters[i].kind == MK_COUNTER_RELEASE) {
      return mk_error(MK_ERR_FILE,
                      "the program has %u rows per step and release counters; this machine has none for those",
                      mk_program_rows(program));
    }
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    MK_TRY(check_boundary(program, &program->queues[q], false));
  }
  return mk_plan_find(program, &buffers);
}

mk_status mk_gpu_check_program(const mk_program *program) {
  const mk_machine *machine = &program->machine;
  bool prompt = mk_program_rows(program) > MK_MAX_ROWS;
  uint32_t pages = prompt ? MK_PROMPT_GPU_RING_PAGES : MK_GPU_RING_PAGES;
  uint32_t warps = prompt ? MK_PROMPT_GPU_WARPS : MK_GPU_CONSUMER_WARPS;
  if (mk_program_listed(program)) {
    return mk_gpu_check_mla(program);
  }
  if (machine->ranks != 1 || machine->page_bytes != MK_GPU_PAGE_BYTES || machine->consumer_warps != warps ||
      machine->ring_pages > pages) {
    return mk_error(
        MK_ERR_FILE,
        "the program is for another machine: %u GPUs, pages of %u bytes, %u of them, %u consumer warps; this "
        "one has 1, %d, %u and %u; compile it again",
        machine->ranks, machine->page_bytes, machine->ring_pages, machine->consumer_warps, MK_GPU_PAGE_BYTES, pages,
        warps);
  }
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (b->store == MK_STORE_BLOCKS && b->block_tokens != BLOCK_TOKENS) {
      return mk_error(MK_ERR_FILE, "buffer %s has KV blocks of %u tokens; this machine attends over blocks of %d",
                      b->name, b->block_tokens, BLOCK_TOKENS);
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    MK_TRY(check_staging(&program->instructions[i], mk_program_rows(program)));
  }
  if (mk_program_rows(program) > 1) {
    return check_rows(program);
  }
  bool sampling = mk_gpu_samples(program);
  for (size_t q = 0; q < program->queue_count; q++) {
    MK_TRY(check_boundary(program, &program->queues[q], sampling));
  }
  return MK_OK;
}
