/* See batch.h. */
#include "engine/batch.h"

#include "engine/blocks.h"

enum { NO_SLOT = UINT32_MAX };

typedef struct progress { /* of one sequence */
  uint32_t slot;          /* NO_SLOT: it waits, or has ended */
  uint32_t position;      /* tokens that have been computed */
  uint32_t token;         /* the last one that was generated */
  size_t left;            /* tokens to generate */
  bool ended;
} progress;

struct mk_batch {
  const mk_program *program;
  const mk_sequence *sequences;
  progress *progress;
  size_t count;
  size_t owner[MK_MAX_ROWS]; /* by slot; `count`: free */
  mk_sequence_calls calls;
  mk_blocks blocks;
  mk_plan_buffers buffers;
  mk_step_row *plan;
  bool leaves_single;
};

static uint32_t max_seq(const mk_batch *b) { return b->program->ranges.position.high + 1; }

static void end(mk_batch *b, size_t index, mk_status status) {
  progress *p = &b->progress[index];
  p->ended = true;
  if (p->slot != NO_SLOT) {
    mk_blocks_release(&b->blocks, p->slot);
    b->owner[p->slot] = b->count;
    p->slot = NO_SLOT;
  }
  b->calls.ended(b->calls.user, index, status);
}

static mk_status check(const mk_batch *b, const mk_sequence *s) {
  if (s->prompt_count == 0 || s->prompt_count > max_seq(b)) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", s->prompt_count, max_seq(b));
  }
  for (size_t i = 0; i < s->prompt_count; i++) {
    if (s->prompt[i] > b->program->ranges.token.high) {
      return mk_error(MK_ERR_USAGE, "prompt token %zu is %u; the vocabulary has %u", i, s->prompt[i],
                      b->program->ranges.token.high + 1);
    }
  }
  return MK_OK;
}

static mk_status init(mk_batch *b) {
  uint32_t rows = mk_program_rows(b->program), slots = mk_program_slots(b->program);
  MK_TRY(mk_plan_find(b->program, &b->buffers));
  const mk_buffer *kv = &b->program->buffers[b->buffers.kv];
  MK_TRY(mk_alloc(b->count, sizeof *b->progress, &b->progress));
  MK_TRY(mk_alloc((size_t)b->buffers.steps * rows, sizeof *b->plan, &b->plan));
  MK_TRY(mk_blocks_init(&b->blocks, slots, b->program->buffers[b->buffers.table].cols, kv->block_tokens, kv->blocks));
  for (uint32_t slot = 0; slot < slots; slot++) {
    b->owner[slot] = b->count;
  }
  for (size_t i = 0; i < b->count; i++) {
    size_t room = max_seq(b) - b->sequences[i].prompt_count; /* of a prompt that check has not refused */
    b->progress[i] =
        (progress){.slot = NO_SLOT, .left = b->sequences[i].n_predict < room ? b->sequences[i].n_predict : room};
  }
  return MK_OK;
}

mk_status mk_batch_new(const mk_program *program, const mk_sequence *sequences, size_t count,
                       const mk_sequence_calls *calls, mk_batch **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_batch *b = *out;
  *b = (mk_batch){.program = program, .sequences = sequences, .count = count, .calls = *calls};
  mk_status status = init(b);
  if (status != MK_OK) {
    mk_batch_free(b);
    *out = NULL;
  }
  return status;
}

void mk_batch_free(mk_batch *b) {
  if (b == NULL) {
    return;
  }
  mk_blocks_free(&b->blocks);
  mk_free(b->progress);
  mk_free(b->plan);
  mk_free(b);
}

static uint32_t free_slot(const mk_batch *b) {
  for (uint32_t slot = 0; slot < mk_program_slots(b->program); slot++) {
    if (b->owner[slot] == b->count) {
      return slot;
    }
  }
  return NO_SLOT;
}

static bool any_runs(const mk_batch *b) {
  for (uint32_t slot = 0; slot < mk_program_slots(b->program); slot++) {
    if (b->owner[slot] != b->count) {
      return true;
    }
  }
  return false;
}

/* Gives free slots to those that wait, in order. One whose prompt finds no room in the cache waits for others to end. */
static void admit(mk_batch *b) {
  for (size_t i = 0; i < b->count; i++) {
    progress *p = &b->progress[i];
    const mk_sequence *s = &b->sequences[i];
    if (p->ended || p->slot != NO_SLOT) {
      continue;
    }
    mk_status status = check(b, s);
    if (status != MK_OK || p->left == 0) {
      end(b, i, status);
      continue;
    }
    uint32_t slot = free_slot(b);
    if (slot == NO_SLOT) {
      return;
    }
    status = mk_blocks_hold(&b->blocks, slot, (uint32_t)s->prompt_count);
    if (status == MK_OK) {
      p->slot = slot;
      b->owner[slot] = i;
    } else if (any_runs(b)) {
      return;
    } else {
      end(b, i, status);
    }
  }
}

typedef struct outlook { /* of a running sequence, as the launch is planned */
  size_t index;
  uint32_t position;
  size_t left;
} outlook;

static uint32_t collect(const mk_batch *b, outlook *running) {
  uint32_t count = 0;
  for (size_t i = 0; i < b->count; i++) {
    if (b->progress[i].slot != NO_SLOT) {
      running[count++] = (outlook){.index = i, .position = b->progress[i].position, .left = b->progress[i].left};
    }
  }
  return count;
}

static uint32_t prompt_left(const mk_batch *b, const outlook *o) {
  size_t prompt = b->sequences[o->index].prompt_count;
  return o->position < prompt ? (uint32_t)(prompt - o->position) : 0;
}

/* One row of a sequence: of its prompt, what the launch chose before, or what the last launch did. */
static mk_step_row next_row(const mk_batch *b, outlook *o) {
  const mk_sequence *s = &b->sequences[o->index];
  const progress *p = &b->progress[o->index];
  bool prompt = o->position < s->prompt_count;
  mk_step_row row = {.slot = p->slot,
                     .position = o->position,
                     .token = prompt                       ? s->prompt[o->position]
                              : o->position == p->position ? p->token
                                                           : MK_TOKEN_CHOSEN,
                     .flags = MK_ROW_ACTIVE | (prompt ? (uint32_t)MK_ROW_PROMPT : 0)};
  if (++o->position >= s->prompt_count) {
    row.flags |= MK_ROW_CHOOSES;
    o->left--;
  }
  return row;
}

/* false: a sequence has come to its limit. */
static bool plan_step(const mk_batch *b, outlook *running, uint32_t count, mk_step_row *rows) {
  uint32_t total = mk_program_rows(b->program), line = 0, spare = total - count;
  bool goes_on = true;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t more = prompt_left(b, &running[i]);
    more = more > 0 ? more - 1 : 0;
    more = more < spare ? more : spare;
    spare -= more;
    for (uint32_t n = 0; n < 1 + more; n++) {
      rows[line++] = next_row(b, &running[i]);
    }
    goes_on = goes_on && running[i].left != 0;
  }
  for (; line < total; line++) {
    rows[line] = (mk_step_row){0};
  }
  return goes_on;
}

/* Blocks for the tokens up to where the sequences now stand. A sequence that gets none ends, unless it has had a step of this launch
 * (`stays`): then the launch ends before this one. */
static bool hold_blocks(mk_batch *b, const outlook *running, uint32_t count, bool stays) {
  for (uint32_t i = 0; i < count; i++) {
    mk_status status = mk_blocks_hold(&b->blocks, b->progress[running[i].index].slot, running[i].position);
    if (status != MK_OK && !stays) {
      end(b, running[i].index, status);
    }
    if (status != MK_OK) {
      return false;
    }
  }
  return true;
}

/* The one sequence that has not ended; `count`: none, or several. */
static size_t find_single(const mk_batch *b) {
  size_t found = b->count;
  for (size_t i = 0; i < b->count; i++) {
    if (!b->progress[i].ended && found != b->count) {
      return b->count;
    }
    found = b->progress[i].ended ? found : i;
  }
  return found;
}

void mk_batch_leave_single(mk_batch *b) { b->leaves_single = true; }

/* Whether what has been planned computes the prompt of the only sequence, and another machine goes on. */
static bool leaves(const mk_batch *b, const outlook *running, uint32_t count) {
  return b->leaves_single && count == 1 && find_single(b) != b->count && prompt_left(b, &running[0]) == 0;
}

void mk_batch_plan(mk_batch *b, mk_launch *launch) {
  outlook running[MK_MAX_ROWS];
  uint32_t rows = mk_program_rows(b->program), count;
  bool goes_on = true;
  *launch = (mk_launch){.plan = b->plan, .table = b->blocks.table};
  admit(b);
  count = collect(b, running);
  while (goes_on && count != 0 && launch->steps < b->buffers.steps) {
    goes_on = plan_step(b, running, count, b->plan + (size_t)launch->steps * rows) && !leaves(b, running, count);
    if (hold_blocks(b, running, count, launch->steps != 0)) {
      launch->steps++;
    } else if (launch->steps != 0) {
      return;
    } else { /* one has ended: from the beginning, without it */
      admit(b);
      count = collect(b, running);
      goes_on = true;
    }
  }
}

/* What a row of the sequence at hand chose; false: it has ended. */
static bool take_choice(mk_batch *b, size_t index, uint32_t result, const float *logits) {
  progress *p = &b->progress[index];
  mk_status status = MK_OK;
  bool more = false;
  if ((result & MK_RESULT_NAN) != 0) {
    status = mk_error(MK_ERR_DEVICE, "the logits at position %u are not numbers (NaN)", p->position - 1);
  } else {
    p->token = result;
    p->left--;
    more = b->calls.token(b->calls.user, index, p->token, logits) && p->left != 0;
  }
  if (!more) {
    end(b, index, status);
  }
  return more;
}

bool mk_batch_take(mk_batch *b, uint32_t step, const uint32_t *results, const float *logits) {
  uint32_t rows = mk_program_rows(b->program), vocab = b->program->ranges.token.high + 1;
  bool goes_on = true;
  for (uint32_t line = 0; line < rows; line++) {
    const mk_step_row *row = &b->plan[(size_t)step * rows + line];
    size_t index = b->owner[row->slot];
    if ((row->flags & MK_ROW_ACTIVE) == 0 || index == b->count) {
      continue;
    }
    b->progress[index].position = row->position + 1;
    if ((row->flags & MK_ROW_CHOOSES) != 0 &&
        !take_choice(b, index, results[line], logits == NULL ? NULL : logits + (size_t)line * vocab)) {
      goes_on = false;
    }
  }
  return goes_on;
}

bool mk_batch_long_prompt(mk_batch *b, size_t longer_than, mk_long_prompt *out) {
  for (size_t i = 0; i < b->count; i++) {
    const progress *p = &b->progress[i];
    if (p->slot != NO_SLOT && p->position == 0 && b->sequences[i].prompt_count > longer_than) {
      *out = (mk_long_prompt){.sequence = i, .table = b->blocks.table + (size_t)p->slot * b->blocks.columns};
      return true;
    }
  }
  return false;
}

void mk_batch_take_prompt(mk_batch *b, size_t sequence, uint32_t result, const float *logits) {
  b->progress[sequence].position = (uint32_t)b->sequences[sequence].prompt_count;
  (void)take_choice(b, sequence, result, logits);
}

bool mk_batch_single(mk_batch *b, mk_single *out) {
  size_t index = find_single(b);
  if (index == b->count || b->progress[index].slot == NO_SLOT) {
    return false;
  }
  const progress *p = &b->progress[index];
  if (p->position < b->sequences[index].prompt_count ||
      mk_blocks_hold(&b->blocks, p->slot, p->position + (uint32_t)p->left) != MK_OK) {
    return false;
  }
  *out = (mk_single){.table = b->blocks.table + (size_t)p->slot * b->blocks.columns,
                     .token = p->token,
                     .position = p->position,
                     .left = (uint32_t)p->left};
  return true;
}

bool mk_batch_take_single(mk_batch *b, uint32_t token, const float *logits) {
  size_t index = find_single(b);
  progress *p = &b->progress[index];
  p->position++;
  p->token = token;
  p->left--;
  bool more = b->calls.token(b->calls.user, index, token, logits) && p->left != 0;
  if (!more) {
    end(b, index, MK_OK);
  }
  return more;
}

void mk_batch_end_single(mk_batch *b, mk_status status) {
  size_t index = find_single(b);
  if (index != b->count) {
    end(b, index, status);
  }
}
