/* See batch.h: the launches, and what comes of their steps. */
#include "engine/batch_internal.h"

#include <string.h>

/* Too many sequences for the machine for few go over to the main one at once, and come back when so many quarters of
 * its slots would do. Each that goes over is told to the other machine, with a line of counts as long as the vocabulary
 * where there are penalties: where sequences come and go at the border, every one of them would have all told. */
enum { QUARTERS_TO_COME_BACK = 3 };

typedef struct outlook { /* how far a sequence has come while the launch is planned */
  mk_member *member;
  uint32_t slot;     /* of the machine */
  uint32_t position; /* that of its next row */
} outlook;

/* Records what the last launch has computed, so that its full blocks are known. */
static void settle(mk_batch *b) {
  for (uint32_t slot = 0; slot < b->blocks.options.slots; slot++) {
    mk_member *m = b->sides[MK_MACHINE_MAIN].owner[slot];
    if (m != NULL) {
      const mk_known computed = mk_member_known(b, m, m->computed);
      mk_blocks_learn(&b->blocks, slot, &computed);
      m->went_on = m->takes_part ? b->taken < b->launch.steps : m->went_on;
      m->drawn_by = m->takes_part && b->taken != 0 && b->launch.machine != MK_MACHINE_PROMPTS
                        ? (uint32_t)b->launch.machine
                        : m->drawn_by;
      m->takes_part = false;
    }
  }
}

/* Whether the sequence runs, and comes to positions of that machine next. */
static bool comes_to(const mk_batch *b, const mk_member *m, mk_batch_machine own) {
  return m->slot != MK_NO_SLOT && mk_member_machine(b, m, m->computed) == own;
}

static bool works_on(const mk_batch *b, const mk_member *m, mk_batch_machine machine) {
  const mk_batch_machine own = mk_member_machine(b, m, m->computed);
  return m->slot != MK_NO_SLOT && (own == MK_MACHINE_MAIN ? b->stand_in : own) == machine;
}

/* Whether the machine can compute that position of the sequence in place of the main one, which several sequences
 * share. What is drawn must be drawn by parameters of the sequence's own, since only these can be handed to another
 * machine. With one row it must be the only row that the sequence could have. */
static bool fits(const mk_batch *b, mk_batch_machine machine, const mk_member *m, uint32_t position) {
  return b->sides[machine].program != NULL && b->sides[MK_MACHINE_MAIN].slots > 1 &&
         (!b->options.draws || m->sequence.sampling != NULL) &&
         (machine != MK_MACHINE_ONE_ROW || position + 1 >= m->known);
}

/* Whether so many sequences with work for the main machine have room on the one for few. */
static bool are_few(const mk_batch *b, uint32_t count) {
  const mk_batch_side *few = &b->sides[MK_MACHINE_FEW];
  return few->program != NULL && count <= (b->few ? few->slots : few->slots * QUARTERS_TO_COME_BACK / 4);
}

/* Finds which machine makes the steps of the main one: that of one row for a sequence that is alone, as long as no
 * other has work for it or for the main one; that for few; or the main one itself. */
static void find_stand_in(mk_batch *b) {
  const mk_member *only = NULL;
  uint32_t count = 0;
  bool all_fit = true, one_row = false;
  for (const mk_member *m = b->members; m != NULL; m = m->next) {
    one_row = one_row || comes_to(b, m, MK_MACHINE_ONE_ROW);
    if (comes_to(b, m, MK_MACHINE_MAIN)) {
      only = m;
      count++;
      all_fit = all_fit && fits(b, MK_MACHINE_FEW, m, m->computed);
    }
  }
  b->few = all_fit && are_few(b, count);
  const bool lone = count == 1 && !one_row && fits(b, MK_MACHINE_ONE_ROW, only, only->computed);
  b->stand_in = lone ? MK_MACHINE_ONE_ROW : b->few ? MK_MACHINE_FEW : MK_MACHINE_MAIN;
}

static bool has_work(const mk_batch *b, mk_batch_machine machine) {
  for (const mk_member *m = b->members; m != NULL; m = m->next) {
    if (works_on(b, m, machine)) {
      return true;
    }
  }
  return false;
}

/* Machines take turns: finds the next one that has work; false: no sequence runs. The main one and that for few have a
 * turn together. */
static bool choose_machine(const mk_batch *b, mk_batch_machine last, mk_batch_machine *out) {
  for (uint32_t i = 1; i <= MK_MACHINES; i++) {
    *out = (mk_batch_machine)(((last == MK_MACHINE_FEW ? MK_MACHINE_MAIN : last) + i) % MK_MACHINES);
    if (has_work(b, *out)) {
      return true;
    }
  }
  return false;
}

/* The slot of the machine that the sequence has; without one, the first that nobody in this launch has. */
static uint32_t slot_beside(const mk_batch_side *side, const mk_member *m) {
  uint32_t unused = side->slots;
  for (uint32_t slot = 0; slot < side->slots; slot++) {
    if (side->owner[slot] == m) {
      return slot;
    }
    const bool used = side->owner[slot] != NULL && side->owner[slot]->takes_part;
    unused = used || unused != side->slots ? unused : slot;
  }
  return unused;
}

/* Gives slots of a machine beside the main one to those who take part. Who was in its last launch and is in this one,
 * so that the machine knows of it, has the same slot again. */
static void seat(mk_batch_side *side, outlook *part, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    part[i].slot = slot_beside(side, part[i].member);
    side->owner[part[i].slot] = part[i].member;
  }
}

/* The block table for the launch: of a machine beside the main one, a copy of the lines of those who take part. */
static const uint32_t *table_of(const mk_batch *b, const mk_batch_side *side, const outlook *part, uint32_t count) {
  const uint32_t columns = b->blocks.options.columns, own = side->columns < columns ? side->columns : columns;
  for (uint32_t i = 0; i < count && side->table != NULL; i++) {
    memcpy(side->table + (size_t)part[i].slot * side->columns, b->blocks.table + (size_t)part[i].member->slot * columns,
           own * sizeof *side->table);
  }
  return side->table != NULL ? side->table : b->blocks.table;
}

/* Which machine computes that position of a sequence of the launch, unless company comes or goes. only: it has none. */
static mk_batch_machine machine_at(const mk_batch *b, const mk_member *m, uint32_t position, bool only) {
  const mk_batch_machine own = mk_member_machine(b, m, position);
  if (own == MK_MACHINE_MAIN && only && fits(b, MK_MACHINE_ONE_ROW, m, position)) {
    return MK_MACHINE_ONE_ROW;
  }
  return own == MK_MACHINE_MAIN && b->few && fits(b, MK_MACHINE_FEW, m, position) ? MK_MACHINE_FEW : own;
}

/* How many rows, at most `most`, the sequence could have in one step: one for each token that is known, or one for the
 * token that the step before chooses. */
static uint32_t rows_wanted(const mk_batch *b, mk_batch_machine machine, const outlook *o, uint32_t most) {
  uint32_t rows = 1;
  while (rows < most && o->position + rows < o->member->known &&
         machine_at(b, o->member, o->position + rows, false) == machine) {
    rows++;
  }
  return rows;
}

/* Collects the sequences that take part in the launch, in the order of arrival, as many as there are slots; of prompts
 * those alone that the ones before them leave rows. */
static uint32_t collect(mk_batch *b, mk_batch_machine machine, outlook *part) {
  const mk_batch_side *side = &b->sides[machine];
  uint32_t count = 0, rows = 0; /* rows: that those so far would have, were there enough */
  for (mk_member *m = b->members; m != NULL && count < side->slots && rows < side->rows; m = m->next) {
    if (works_on(b, m, machine)) {
      m->takes_part = true;
      part[count++] = (outlook){.member = m, .slot = m->slot, .position = m->computed};
      rows += machine == MK_MACHINE_PROMPTS ? mk_member_known(b, m, 0).origin.prompt_count - m->computed : 1;
    }
  }
  return count;
}

static mk_step_row next_row(const mk_batch *b, outlook *o) {
  const mk_member *m = o->member;
  uint32_t at = o->position++;
  bool shows = m->sequence.prompt_logits && at + 1 < m->sequence.prompt_count && at >= m->told;
  return (mk_step_row){.slot = o->slot,
                       .position = at + b->options.position_shift,
                       .token = at < m->known ? m->tokens[at] : MK_TOKEN_CHOSEN,
                       .flags = MK_ROW_ACTIVE | (at < m->sequence.prompt_count ? (uint32_t)MK_ROW_PROMPT : 0) |
                                (shows || at + 1 >= m->known ? (uint32_t)MK_ROW_CHOOSES : 0)};
}

/* Whether a sequence waits and a slot is free. */
static bool somebody_could_begin(const mk_batch *b) {
  bool free_slot = false, waits = false;
  for (uint32_t slot = 0; slot < b->options.most; slot++) {
    free_slot = free_slot || b->sides[MK_MACHINE_MAIN].owner[slot] == NULL;
  }
  for (const mk_member *m = b->members; m != NULL && free_slot; m = m->next) {
    waits = waits || m->slot == MK_NO_SLOT;
  }
  return waits;
}

/* Whether the launch may have a step after this one, as far as this sequence goes: it has not come to its end or to
 * positions of another machine, nor to the end of a prompt for whose blocks another sequence may wait. */
static bool goes_on(const mk_batch *b, mk_batch_machine machine, const outlook *o, uint32_t before, bool only) {
  const mk_member *m = o->member;
  uint32_t prompt = (uint32_t)m->sequence.prompt_count;
  return o->position + 1 < m->limit && machine_at(b, m, o->position, only) == machine &&
         !(before < prompt && o->position >= prompt && somebody_could_begin(b));
}

/* Puts `own` rows of a sequence into the step, from line `line` on; returns the line after them. */
static uint32_t put_rows(const mk_batch *b, outlook *o, uint32_t own, uint32_t line, mk_step_row *rows) {
  for (uint32_t n = 0; n < own; n++) {
    rows[line++] = next_row(b, o);
  }
  return line;
}

/* Plans a step: a row for every sequence, and the rows that are left for those that have more to compute; false: the
 * launch ends with this step. Where lines come in tiles, sequences with one row come first: most of their rows choose,
 * so few tiles have rows that choose. */
static bool plan_step(const mk_batch *b, mk_batch_machine machine, outlook *part, uint32_t count, mk_step_row *rows) {
  const bool only = count == 1 && (b->stand_in == MK_MACHINE_ONE_ROW || !has_work(b, MK_MACHINE_ONE_ROW));
  const mk_batch_side *side = &b->sides[machine];
  const bool sorts = mk_program_has_tiles(side->program);
  uint32_t line = 0, spare = side->rows - count, wanted[MK_MOST_ROWS];
  bool more = true;
  for (uint32_t i = 0; i < count; i++) {
    wanted[i] = rows_wanted(b, machine, &part[i], 1 + spare);
    spare -= wanted[i] - 1;
  }
  for (uint32_t turn = 0; turn < (sorts ? 2U : 1U); turn++) {
    for (uint32_t i = 0; i < count; i++) {
      if (!sorts || (wanted[i] == 1) == (turn == 0)) {
        const uint32_t before = part[i].position;
        line = put_rows(b, &part[i], wanted[i], line, rows);
        more = more && goes_on(b, machine, &part[i], before, only);
      }
    }
  }
  for (; line < side->rows; line++) {
    rows[line] = (mk_step_row){0};
  }
  return more;
}

/* How many steps a launch has while another machine waits. A step of more rows than MK_MAX_ROWS takes as many times
 * longer, or generates as many times more: it counts for so many. */
static uint32_t turn_of(const mk_batch *b, mk_batch_machine machine) {
  const uint32_t rows = b->sides[machine].rows;
  if (machine == MK_MACHINE_PROMPTS) {
    return (b->options.prompt_tokens + rows - 1) / rows;
  }
  const uint32_t steps = rows > MK_MAX_ROWS ? b->options.decode_steps * MK_MAX_ROWS / rows : b->options.decode_steps;
  return steps != 0 ? steps : 1;
}

/* How many steps a launch may have, so that other machines do not wait too long. */
static uint32_t most_steps(const mk_batch *b, mk_batch_machine machine) {
  const mk_batch_side *side = &b->sides[machine];
  uint32_t most = side->buffers.steps;
  if (machine == b->stand_in && most > b->sides[MK_MACHINE_MAIN].buffers.steps) {
    most = b->sides[MK_MACHINE_MAIN].buffers.steps; /* a lone sequence takes no more blocks ahead than one in company */
  }
  for (uint32_t other = 0; other < MK_MACHINES; other++) {
    if (other != (uint32_t)machine && has_work(b, (mk_batch_machine)other)) {
      const uint32_t turn = turn_of(b, machine);
      most = turn < most ? turn : most;
    }
  }
  return most;
}

static bool hold_blocks(mk_batch *b, const outlook *part, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (!mk_blocks_hold(&b->blocks, part[i].member->slot, part[i].position + b->options.position_shift)) {
      return false;
    }
  }
  return true;
}

/* Plans steps as long as there are blocks for them; false: there are none for the first step. */
static bool plan_launch(mk_batch *b, mk_batch_machine machine) {
  outlook part[MK_MOST_ROWS];
  mk_batch_side *side = &b->sides[machine];
  uint32_t count = collect(b, machine, part), most = most_steps(b, machine), steps = 0;
  bool more = true;
  if (machine != MK_MACHINE_MAIN) {
    seat(side, part, count);
  }
  while (more && steps < most) {
    more = plan_step(b, machine, part, count, side->plan + (size_t)steps * side->rows);
    if (!hold_blocks(b, part, count)) {
      break;
    }
    steps++;
  }
  for (uint32_t i = 0; i < count; i++) {
    part[i].member->takes_part = steps != 0;
  }
  b->launch =
      (mk_launch){.machine = machine, .plan = side->plan, .table = table_of(b, side, part, count), .steps = steps};
  return steps != 0;
}

void mk_batch_plan(mk_batch *b, mk_launch *launch) {
  mk_batch_machine last = b->launch.machine, machine;
  settle(b);
  mk_batch_admit(b);
  b->launch.steps = 0;
  b->taken = 0;
  find_stand_in(b);
  while (choose_machine(b, last, &machine) && !plan_launch(b, machine)) {
    mk_batch_preempt(b);
    find_stand_in(b);
  }
  b->lost = false;
  b->counters.launches += b->launch.steps != 0;
  *launch = b->launch;
}

/* ---- What comes of it ---- */

mk_batch_wants mk_batch_wants_of(const mk_batch *b) {
  mk_batch_wants wants = {0};
  for (const mk_member *m = b->members; m != NULL; m = m->next) {
    if (m->takes_part) {
      const mk_ranking *ranking = m->sequence.ranking;
      wants.logits = wants.logits || m->sequence.logits || (m->sequence.prompt_logits && ranking == NULL);
      wants.rankings = wants.rankings || ranking != NULL;
      wants.most = ranking != NULL && ranking->most > wants.most ? ranking->most : wants.most;
    }
  }
  return wants;
}

/* The sequence whose row it is; NULL: the row is idle, or its sequence has ended. */
static mk_member *member_of(const mk_batch *b, const mk_step_row *row) {
  mk_member *m = b->sides[b->launch.machine].owner[row->slot];
  return (row->flags & MK_ROW_ACTIVE) != 0 && m != NULL && m->takes_part ? m : NULL;
}

static const mk_step_row *row_of(const mk_batch *b, uint32_t step, uint32_t line) {
  return &b->launch.plan[(size_t)step * b->sides[b->launch.machine].rows + line];
}

static uint32_t position_after(const mk_batch *b, const mk_step_row *row) {
  return row->position - b->options.position_shift + 1;
}

bool mk_batch_ranked(const mk_batch *b, uint32_t step, uint32_t line, uint32_t *token) {
  const mk_step_row *row = row_of(b, step, line);
  const mk_member *m = member_of(b, row);
  if (m == NULL || m->sequence.ranking == NULL || (row->flags & MK_ROW_CHOOSES) == 0) {
    return false;
  }
  const uint32_t next = position_after(b, row);
  *token = next < m->known ? m->tokens[next] : MK_TOKEN_CHOSEN;
  return true;
}

static void rank(const mk_batch *b, const mk_member *m, uint32_t token, const float *logits, const mk_ranking *found) {
  mk_ranking *to = m->sequence.ranking;
  const uint32_t vocab = b->sides[b->launch.machine].program->ranges.token.high + 1;
  if (to == NULL) {
    return;
  }
  if (found == NULL) {
    mk_rank_logits(logits, vocab, token, to);
    return;
  }
  const uint32_t most = to->most;
  *to = *found;
  to->most = most;
  to->count = most < to->count ? most : to->count;
}

static void take_choice(mk_batch *b, mk_member *m, uint32_t result, const float *logits, const mk_ranking *found) {
  if ((result & MK_RESULT_NAN) != 0) {
    mk_member_end(b, m, MK_ENDED_FAILED,
                  mk_error(MK_ERR_DEVICE, "the logits at position %u are not numbers (NaN)", m->computed - 1));
    return;
  }
  const bool known = m->computed < m->known; /* the token that follows */
  rank(b, m, known ? m->tokens[m->computed] : result, logits, found);
  if (known) {
    m->calls.prompt(m->calls.user, m->tag, m->computed - 1, logits);
    m->told = m->computed;
    return;
  }
  m->tokens[m->known++] = result;
  if (!m->calls.token(m->calls.user, m->tag, result, logits) || m->known == m->limit) {
    mk_member_end(b, m, MK_ENDED_WHOLE, MK_OK);
  } else if (m->known + 1 == m->limit) {
    mk_blocks_free_early(&b->blocks, m->slot);
  }
}

bool mk_batch_take(mk_batch *b, uint32_t step, const uint32_t *results, const mk_batch_extras *extras) {
  const mk_batch_side *side = &b->sides[b->launch.machine];
  const size_t vocab = (size_t)side->program->ranges.token.high + 1;
  b->taken = step + 1;
  b->counters.steps++;
  b->counters.one_row_steps += b->launch.machine == MK_MACHINE_ONE_ROW;
  b->counters.few_steps += b->launch.machine == MK_MACHINE_FEW;
  for (uint32_t line = 0; line < side->rows; line++) {
    const mk_step_row *row = row_of(b, step, line);
    mk_member *m = member_of(b, row);
    if (m == NULL) {
      continue;
    }
    b->counters.rows++;
    m->computed = position_after(b, row);
    b->prompt_done += (row->flags & (MK_ROW_PROMPT | MK_ROW_CHOOSES)) == MK_ROW_PROMPT;
    if ((row->flags & MK_ROW_CHOOSES) != 0) {
      take_choice(b, m, results[line], extras->logits == NULL ? NULL : extras->logits + line * vocab,
                  extras->rankings == NULL ? NULL : &extras->rankings[line]);
    }
  }
  return !b->lost && !(b->arrived && somebody_could_begin(b));
}

bool mk_batch_slot(const mk_batch *b, uint32_t slot, mk_slot_view *out) {
  const mk_member *m = b->sides[b->launch.machine].owner[slot];
  if (m == NULL || !m->takes_part) {
    return false;
  }
  *out = (mk_slot_view){.sampling = m->sequence.sampling,
                        .tokens = m->tokens,
                        .count = m->known,
                        .prompt_count = (uint32_t)m->sequence.prompt_count,
                        .computed = m->computed,
                        .fresh = m->drawn_by != (uint32_t)b->launch.machine,
                        .crosses = m->drawn_by != (uint32_t)b->launch.machine && m->drawn_by != MK_MACHINES,
                        .went_on = m->went_on};
  return true;
}
