/* See batch.h: who waits, who runs, and how they end. */
#include "engine/batch_internal.h"

#include <stdio.h>
#include <string.h>

/* Begins every chain of hashes: one more whenever bits of the KV cache come to depend on something new
 * (docs/NUMERICS.md). */
enum { CANON_VERSION = 1 };

static mk_status open_side(mk_batch_side *side, const mk_program *program) {
  if (program == NULL) {
    return MK_OK;
  }
  *side = (mk_batch_side){.program = program, .rows = mk_program_rows(program), .slots = mk_program_slots(program)};
  MK_TRY(mk_plan_find(program, &side->buffers));
  side->columns = program->buffers[side->buffers.table].cols;
  MK_TRY(mk_alloc(side->slots, sizeof(mk_member *), &side->owner));
  return mk_alloc((size_t)side->buffers.steps * side->rows, sizeof *side->plan, &side->plan);
}

/* Beside the main machine, which has the blocks' own. */
static mk_status open_table(mk_batch_side *side) {
  return side->program == NULL ? MK_OK
                               : mk_alloc((size_t)side->slots * side->columns, sizeof *side->table, &side->table);
}

static mk_status init(mk_batch *b) {
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    MK_TRY(open_side(&b->sides[i], b->options.programs[i]));
    MK_TRY(i == MK_MACHINE_MAIN ? MK_OK : open_table(&b->sides[i]));
  }
  const mk_batch_side *main = &b->sides[MK_MACHINE_MAIN];
  const mk_buffer *kv = &main->program->buffers[main->buffers.kv];
  const mk_blocks_options blocks = {.slots = main->slots,
                                    .columns = main->columns,
                                    .block_tokens = kv->block_tokens,
                                    .count = kv->blocks,
                                    .kept = b->options.kept_blocks,
                                    .seed = main->program->config_hash + CANON_VERSION,
                                    .fault = b->options.fault};
  b->options.most = b->options.most != 0 && b->options.most < main->slots ? b->options.most : main->slots;
  b->few = b->sides[MK_MACHINE_FEW].program != NULL;
  return mk_blocks_init(&b->blocks, &blocks);
}

mk_status mk_batch_new(const mk_batch_options *options, mk_batch **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_batch *b = *out;
  b->options = *options;
  b->options.prompt_tokens = options->prompt_tokens != 0 ? options->prompt_tokens : (uint32_t)MK_PROMPT_TOKENS;
  b->options.decode_steps = options->decode_steps != 0 ? options->decode_steps : (uint32_t)MK_DECODE_STEPS;
  mk_status status = init(b);
  if (status != MK_OK) {
    mk_batch_free(b);
    *out = NULL;
  }
  return status;
}

static void member_free(mk_member *m) {
  mk_free(m->tokens);
  mk_free(m);
}

/* No machine has a slot for the sequence any more. */
static void leave_slots(mk_batch *b, const mk_member *m) {
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    for (uint32_t slot = 0; slot < b->sides[i].slots; slot++) {
      mk_member **owner = &b->sides[i].owner[slot];
      *owner = *owner == m ? NULL : *owner;
    }
  }
}

void mk_batch_drop(mk_batch *b) {
  while (b->members != NULL) {
    mk_member *m = b->members;
    b->members = m->next;
    if (m->slot != MK_NO_SLOT) {
      leave_slots(b, m);
      mk_blocks_release(&b->blocks, m->slot);
    }
    member_free(m);
  }
  b->youngest = NULL;
  b->left = 0;
}

void mk_batch_free(mk_batch *b) {
  if (b == NULL) {
    return;
  }
  mk_batch_drop(b);
  mk_blocks_free(&b->blocks);
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    mk_free(b->sides[i].plan);
    mk_free(b->sides[i].owner);
    mk_free(b->sides[i].table);
  }
  mk_free(b);
}

uint32_t mk_batch_context(const mk_batch *b) {
  uint64_t context = (uint64_t)b->sides[MK_MACHINE_MAIN].program->ranges.position.high + 1;
  uint64_t cache = (uint64_t)b->blocks.options.count * b->blocks.options.block_tokens;
  return (uint32_t)(cache < context ? cache : context);
}

static double now(const mk_batch *b) { return b->options.clock == NULL ? 0 : b->options.clock(b->options.clock_user); }

/* ---- Arrivals ---- */

static mk_status check(const mk_batch *b, const mk_sequence *s, const mk_sequence_calls *calls) {
  const mk_step_ranges *ranges = &b->sides[MK_MACHINE_MAIN].program->ranges;
  uint32_t context = mk_batch_context(b);
  if (s->prompt_count > context && s->prompt_count <= ranges->position.high) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the KV cache holds %u", s->prompt_count, context);
  }
  if (s->prompt_count == 0 || s->prompt_count > context) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", s->prompt_count, context);
  }
  for (size_t i = 0; i < s->prompt_count; i++) {
    if (s->prompt[i] > ranges->token.high) {
      return mk_error(MK_ERR_USAGE, "prompt token %zu is %u; the vocabulary has %u", i, s->prompt[i],
                      ranges->token.high + 1);
    }
  }
  return s->prompt_logits && (calls->prompt == NULL || mk_program_is_for_prompts(b->sides[MK_MACHINE_MAIN].program))
             ? mk_error(MK_ERR_USAGE, "logits of prompts are to be had of programs that several sequences may share")
             : MK_OK;
}

static mk_status member_new(const mk_batch *b, const mk_sequence *s, mk_member **out) {
  size_t room = mk_batch_context(b) - s->prompt_count;
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_member *m = *out;
  m->sequence = *s;
  m->slot = MK_NO_SLOT;
  m->known = (uint32_t)s->prompt_count;
  m->limit = (uint32_t)(s->prompt_count + (s->n_predict < room ? s->n_predict : room));
  mk_status status = mk_alloc(m->limit, sizeof *m->tokens, &m->tokens);
  if (status != MK_OK) {
    mk_free(m);
    return status;
  }
  memcpy(m->tokens, s->prompt, s->prompt_count * sizeof *m->tokens);
  m->sequence.prompt = m->tokens;
  return MK_OK;
}

static void note_deadline(mk_batch *b, double time) {
  if (time != 0 && (b->next_deadline == 0 || time < b->next_deadline)) {
    b->next_deadline = time;
  }
}

mk_status mk_batch_add(mk_batch *b, const mk_sequence *s, const mk_sequence_calls *calls, size_t tag, uint64_t *id) {
  mk_member *m;
  MK_TRY(check(b, s, calls));
  MK_TRY(member_new(b, s, &m));
  if (b->members == NULL) {
    b->prompt_done = b->prompt_total = 0;
  }
  *(b->youngest == NULL ? &b->members : &b->youngest->next) = m;
  b->youngest = m;
  b->left++;
  m->calls = *calls;
  m->tag = tag;
  m->id = ++b->last_id;
  note_deadline(b, s->begin_by);
  note_deadline(b, s->end_by);
  b->arrived = true;
  b->prompt_total += s->prompt_count;
  if (id != NULL) {
    *id = m->id;
  }
  return MK_OK;
}

/* ---- Ends ---- */

/* Frees the slot and the blocks of a sequence. If what it has computed is sound, others may use it. */
static void leave_slot(mk_batch *b, mk_member *m, bool sound) {
  if (m->slot == MK_NO_SLOT) {
    return;
  }
  if (sound) {
    mk_known computed = mk_member_known(b, m, m->computed);
    mk_blocks_learn(&b->blocks, m->slot, &computed);
  }
  mk_blocks_release(&b->blocks, m->slot);
  leave_slots(b, m);
  b->lost = b->lost || m->takes_part;
  m->slot = MK_NO_SLOT;
  m->takes_part = false;
}

void mk_member_end(mk_batch *b, mk_member *m, mk_how_ended how, mk_status status) {
  mk_member **at = &b->members, *previous = NULL;
  for (; *at != m; at = &previous->next) {
    previous = *at;
  }
  *at = m->next;
  b->youngest = b->youngest == m ? previous : b->youngest;
  b->left--;
  leave_slot(b, m, status == MK_OK);
  m->report.how = status == MK_OK ? how : MK_ENDED_FAILED;
  b->counters.expired += m->report.how == MK_ENDED_LATE;
  if (m->sequence.report != NULL) {
    *m->sequence.report = m->report;
  }
  m->calls.ended(m->calls.user, m->tag, status);
  member_free(m);
}

bool mk_batch_cancel(mk_batch *b, uint64_t id) {
  for (mk_member *m = b->members; m != NULL; m = m->next) {
    if (m->id == id) {
      mk_member_end(b, m, MK_ENDED_CANCELLED, MK_OK);
      return true;
    }
  }
  return false;
}

static bool is_late(const mk_member *m, double time) {
  const mk_sequence *s = &m->sequence;
  return (s->end_by != 0 && time >= s->end_by) || (!m->report.begun && s->begin_by != 0 && time >= s->begin_by);
}

void mk_batch_expire(mk_batch *b) {
  double time = b->next_deadline == 0 ? 0 : now(b);
  if (b->next_deadline == 0 || time < b->next_deadline) {
    return;
  }
  b->next_deadline = 0;
  for (mk_member *m = b->members, *next; m != NULL; m = next) {
    next = m->next;
    if (is_late(m, time)) {
      mk_member_end(b, m, MK_ENDED_LATE, MK_OK);
    } else {
      note_deadline(b, m->report.begun ? 0 : m->sequence.begin_by);
      note_deadline(b, m->sequence.end_by);
    }
  }
}

void mk_batch_fail(mk_batch *b, mk_status status) {
  enum { MESSAGE = 4096 };
  char message[MESSAGE]; /* callbacks may leave another one */
  snprintf(message, sizeof message, "%s", mk_error_message());
  for (mk_member *m = b->members, *next; m != NULL; m = next) {
    next = m->next;
    if (m->slot != MK_NO_SLOT) {
      mk_member_end(b, m, MK_ENDED_FAILED, mk_error(status, "%s", message));
    }
  }
  mk_blocks_forget(&b->blocks);
  (void)mk_error(status, "%s", message);
}

size_t mk_batch_left(const mk_batch *b) { return b->left; }

/* ---- Who begins ---- */

static bool overdue(const mk_member *m) { return m->overtaken >= MK_MOST_OVERTAKEN; }

static bool before(const mk_member *a, const mk_member *b) {
  if (overdue(a) != overdue(b)) {
    return overdue(a);
  }
  if (!overdue(a) && a->sequence.priority != b->sequence.priority) {
    return a->sequence.priority < b->sequence.priority;
  }
  return a->id < b->id;
}

/* Whether a running sequence is computing more of this one's first tokens than are known so far. */
static bool waits_for_blocks(const mk_batch *b, const mk_member *m) {
  const mk_known known = mk_member_known(b, m, m->known), whole = mk_member_known(b, m, m->known - 1);
  uint32_t have = UINT32_MAX; /* not looked up so far */
  for (uint32_t slot = 0; slot < b->blocks.options.slots && b->options.kept_blocks != 0 && !overdue(m); slot++) {
    const mk_member *other = b->sides[MK_MACHINE_MAIN].owner[slot];
    if (other != NULL && other->computed < other->sequence.prompt_count) {
      const mk_known prompt = mk_member_known(b, other, (uint32_t)other->sequence.prompt_count);
      uint32_t alike = mk_blocks_alike(&b->blocks, &whole, &prompt);
      have = alike != 0 && have == UINT32_MAX ? mk_blocks_match(&b->blocks, &known) : have;
      if (alike != 0 && alike > have) {
        return true;
      }
    }
  }
  return false;
}

/* The sequence that begins next. */
static mk_member *first_waiting(const mk_batch *b) {
  mk_member *first;
  for (mk_member *m = b->members; m != NULL; m = m->next) {
    m->held_back = false;
  }
  do {
    first = NULL;
    for (mk_member *m = b->members; m != NULL; m = m->next) {
      if (m->slot == MK_NO_SLOT && !m->held_back && (first == NULL || before(m, first))) {
        first = m;
      }
    }
    if (first != NULL) {
      first->held_back = waits_for_blocks(b, first);
    }
  } while (first != NULL && first->held_back);
  return first;
}

static uint32_t running(const mk_batch *b) {
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < b->blocks.options.slots; slot++) {
    count += b->sides[MK_MACHINE_MAIN].owner[slot] != NULL;
  }
  return count;
}

/* How many running sequences may need another block. The last token of a sequence needs none. */
static uint32_t growing(const mk_batch *b) {
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < b->blocks.options.slots; slot++) {
    const mk_member *m = b->sides[MK_MACHINE_MAIN].owner[slot];
    count += m != NULL && b->blocks.held[slot] * b->blocks.options.block_tokens + 1 < m->limit;
  }
  return count;
}

/* Takes blocks for all tokens that are known of the sequence, if one then is left for each running sequence that may
 * need another. */
static bool give_blocks(mk_batch *b, mk_member *m, uint32_t slot) {
  const mk_known known = mk_member_known(b, m, m->known);
  const uint32_t spare = growing(b), tokens = b->blocks.options.block_tokens;
  const bool all =
      m->sequence.prompt_logits && m->told + 1 < m->sequence.prompt_count; /* each position has to be seen */
  m->computed = all ? 0 : mk_blocks_begin(&b->blocks, slot, &known) * tokens;
  uint32_t need = (m->known + tokens - 1) / tokens - m->computed / tokens;
  if (need + spare > mk_blocks_available(&b->blocks) || !mk_blocks_hold(&b->blocks, slot, m->known)) {
    mk_blocks_release(&b->blocks, slot);
    m->computed = 0;
    return false;
  }
  return true;
}

static void begin(mk_batch *b, mk_member *m, uint32_t slot) {
  uint32_t prompt = (uint32_t)m->sequence.prompt_count, cached = m->computed < prompt ? m->computed : prompt;
  m->slot = slot;
  b->sides[MK_MACHINE_MAIN].owner[slot] = m;
  m->drawn_by = MK_MACHINES;
  m->went_on = false;
  if (!m->report.begun) {
    m->report.begun = true;
    m->report.begun_at = now(b);
    m->report.cached = cached;
    b->counters.asked_tokens += prompt;
    b->counters.cached_tokens += cached;
    b->prompt_done += cached;
  }
  for (mk_member *other = b->members; other != m; other = other->next) {
    other->overtaken += other->slot == MK_NO_SLOT;
  }
}

static void end_those_with_nothing_to_do(mk_batch *b) {
  for (mk_member *m = b->members, *next; m != NULL; m = next) {
    next = m->next;
    if (m->known == m->limit) {
      mk_member_end(b, m, MK_ENDED_WHOLE, MK_OK);
    }
  }
}

void mk_batch_admit(mk_batch *b) {
  b->arrived = false;
  end_those_with_nothing_to_do(b);
  for (uint32_t slot = 0; slot < b->options.most; slot++) {
    mk_member *m = b->sides[MK_MACHINE_MAIN].owner[slot] == NULL ? first_waiting(b) : NULL;
    if (m != NULL) {
      if (!give_blocks(b, m, slot)) {
        return;
      }
      begin(b, m, slot);
    }
  }
}

void mk_batch_preempt(mk_batch *b) {
  mk_member *youngest = NULL;
  for (mk_member *m = b->members; m != NULL; m = m->next) {
    youngest = m->slot != MK_NO_SLOT ? m : youngest;
  }
  if (youngest == NULL) {
    return;
  }
  leave_slot(b, youngest, true);
  youngest->computed = 0;
  youngest->report.preemptions++;
  b->counters.preemptions++;
}

void mk_batch_count(const mk_batch *b, mk_batch_counters *out) {
  *out = b->counters;
  out->running = running(b);
  out->waiting = (uint32_t)mk_batch_left(b) - out->running;
  out->blocks = b->blocks.options.count;
  out->blocks_in_use = mk_blocks_in_use(&b->blocks);
  out->blocks_kept = b->blocks.kept;
}

void mk_batch_prompts(const mk_batch *b, uint64_t *done, uint64_t *total) {
  *total = b->prompt_total;
  *done = b->prompt_done < b->prompt_total ? b->prompt_done : b->prompt_total; /* some were computed twice */
}
