/* Plans at random: sequences that come to a slot, go on through steps and launches, and leave; their blocks go to
 * others. */
#include <string.h>

#include "tests/mutation/host.h"
#include "tests/mutation/mutation.h"

typedef struct sequence { /* of a slot */
  bool lives;
  uint32_t next; /* position */
  bool chose;    /* in this launch, before this step */
  uint32_t blocks;
} sequence;

typedef struct planner {
  host *h;
  mk_plan_buffers at;
  uint32_t rows, slots, columns, block_tokens;
  sequence sequences[MK_MAX_ROWS];
  uint32_t *table; /* [slots][columns] */
  uint32_t *free;  /* blocks, the last one is taken next */
  uint32_t free_count;
} planner;

static uint32_t draw(planner *l, uint32_t below) { return below == 0 ? 0 : mutation_draw(&l->h->random, below); }

static void end(planner *l, uint32_t slot) {
  sequence *s = &l->sequences[slot];
  for (uint32_t b = 0; b < s->blocks; b++) {
    l->free[l->free_count++] = l->table[(size_t)slot * l->columns + b];
  }
  *s = (sequence){0};
}

/* Blocks for tokens up to `position`; false: there are none. */
static bool reach(planner *l, uint32_t slot, uint32_t position) {
  sequence *s = &l->sequences[slot];
  while (s->blocks * l->block_tokens <= position) {
    if (l->free_count == 0 || s->blocks == l->columns) {
      return false;
    }
    uint32_t at = l->free_count - 1, kept;
    uint32_t other = draw(l, 2) == 0 ? at : draw(l, l->free_count);
    kept = l->free[other];
    l->free[other] = l->free[at];
    l->table[(size_t)slot * l->columns + s->blocks++] = kept;
    l->free_count--;
  }
  return true;
}

static uint32_t any_token(planner *l) {
  const mk_range *token = &l->h->program->ranges.token;
  return token->low + draw(l, token->high - token->low + 1);
}

/* `count` rows of a slot, put into idle lines of the step; those of a program for prompts are the first ones. */
static uint32_t add_rows(planner *l, mk_step_row *step, uint32_t slot, uint32_t count) {
  sequence *s = &l->sequences[slot];
  bool prompt = l->rows > MK_MAX_ROWS, chose = s->chose;
  uint32_t added = 0, first = prompt ? 0 : draw(l, l->rows);
  for (uint32_t i = 0; i < l->rows && added < count; i++) {
    mk_step_row *row = &step[(first + i) % l->rows];
    bool wraps = first + i >= l->rows; /* rows of a slot rise with the lines */
    if ((row->flags & MK_ROW_ACTIVE) != 0 || wraps || s->next > l->h->program->ranges.position.high ||
        !reach(l, slot, s->next)) {
      continue;
    }
    *row = (mk_step_row){.slot = slot, .position = s->next++, .token = any_token(l), .flags = MK_ROW_ACTIVE};
    if (chose && added == 0 && draw(l, 4) != 0) {
      row->token = MK_TOKEN_CHOSEN;
    }
    if (!prompt && draw(l, 4) == 0) {
      row->flags |= MK_ROW_CHOOSES;
      s->chose = true;
    }
    added++;
    if (added == count) {
      if (draw(l, 4) != 0) {
        row->flags |= MK_ROW_CHOOSES;
        s->chose = true;
      }
    }
  }
  return added;
}

static void begin(planner *l, uint32_t slot) {
  const mk_range *position = &l->h->program->ranges.position;
  uint32_t span = l->h->program->buffers[l->at.kv].span_tokens;
  sequence *s = &l->sequences[slot];
  *s = (sequence){.lives = true, .next = position->low};
  if (draw(l, 3) == 0) { /* over the border of a span, in a cache that another sequence has left */
    uint32_t border = (1 + draw(l, position->high / span + 1)) * span - 2;
    s->next = border < position->low || border > position->high ? position->low : border;
  }
}

static uint32_t fill_step(planner *l, mk_step_row *step) {
  uint32_t active = 0, left = 1 + draw(l, l->rows);
  for (uint32_t i = 0, first = draw(l, l->slots); i < l->slots && active < left; i++) {
    uint32_t slot = (first + i) % l->slots;
    if (l->sequences[slot].lives && draw(l, 4) != 0) {
      uint32_t most = draw(l, 3) == 0 ? left - active : 1;
      active += add_rows(l, step, slot, l->rows > MK_MAX_ROWS ? 1 + draw(l, l->rows) : most);
    }
  }
  return active;
}

static mk_status plan_launch(planner *l, uint32_t launch) {
  host_launch *out = &l->h->launches[launch];
  uint32_t *words, steps = 1 + draw(l, l->at.steps < HOST_EPOCHS ? l->at.steps : HOST_EPOCHS), lives = 0;
  for (uint32_t slot = 0; slot < l->slots; slot++) {
    sequence *s = &l->sequences[slot];
    if (s->lives && (draw(l, 4) == 0 || s->next > l->h->program->ranges.position.high)) {
      end(l, slot);
    }
    if (!s->lives && draw(l, 2) == 0) {
      begin(l, slot);
    }
    s->chose = false;
    lives += s->lives;
  }
  if (lives == 0) {
    begin(l, draw(l, l->slots));
  }
  MK_TRY(mk_alloc((size_t)steps * l->rows, sizeof *out->plan, &out->plan));
  for (uint32_t i = 0, tries = 0; i < steps && tries < 64; tries++) {
    out->epochs = i += fill_step(l, out->plan + (size_t)i * l->rows) != 0;
  }
  if (out->epochs == 0) {
    return mk_error(MK_ERR_USAGE, "host: no step has room for a row");
  }
  MK_TRY(host_patch_of(l->h, launch, l->at.table, &words));
  memcpy(words, l->table, (size_t)l->slots * l->columns * sizeof *words);
  return MK_OK;
}

static mk_status plan_all(planner *l) {
  const mk_range *block = &l->h->program->ranges.block;
  MK_TRY(mk_alloc((size_t)l->slots * l->columns, sizeof *l->table, &l->table));
  MK_TRY(mk_alloc((size_t)block->high - block->low + 1, sizeof *l->free, &l->free));
  for (uint32_t b = block->high + 1; b-- > block->low;) {
    l->free[l->free_count++] = b;
  }
  for (uint32_t i = 0; i < HOST_LAUNCHES; i++) {
    mk_status status = plan_launch(l, i);
    if (status == MK_ERR_USAGE && i != 0) { /* the blocks are used up */
      return MK_OK;
    }
    MK_TRY(status);
    l->h->launch_count = i + 1;
  }
  return MK_OK;
}

mk_status host_plan(host *h) {
  planner l = {.h = h, .rows = h->rows, .slots = mk_program_slots(h->program)};
  MK_TRY(mk_plan_find(h->program, &l.at));
  l.columns = h->program->buffers[l.at.table].cols;
  l.block_tokens = h->program->buffers[l.at.kv].block_tokens;
  if (h->program->buffers[l.at.table].rows < l.slots || l.at.steps == 0) {
    return mk_error(MK_ERR_USAGE, "host: the block table or the plan is too small");
  }
  mk_status status = plan_all(&l);
  mk_free(l.table);
  mk_free(l.free);
  return status;
}
