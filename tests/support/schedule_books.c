/* See schedule.h: what must be true of the tables of blocks between launches, and a fault of the machine. */
#include <string.h>

#include "engine/batch_internal.h"
#include "engine/engine_internal.h"
#include "tests/support/schedule_internal.h"

enum { MOST_BLOCKS = 1024, SPARE = 1, KEPT };

typedef struct books {
  const mk_blocks *blocks;
  uint32_t holders[MOST_BLOCKS];
  uint8_t place[MOST_BLOCKS]; /* SPARE or KEPT; 0: neither */
} books;

static mk_status put(books *b, uint32_t block, uint8_t place, bool known) {
  const mk_block *k = &b->blocks->blocks[block];
  if (block >= b->blocks->options.count || b->place[block] != 0 || k->holders != 0 || k->known != known) {
    return mk_error(MK_ERR_DEVICE, "block %u is among the %s ones, and has another place, too, or is the wrong kind",
                    block, place == SPARE ? "spare" : "kept");
  }
  b->place[block] = place;
  return MK_OK;
}

static mk_status look_at_free(books *b) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < b->blocks->left; i++) {
    MK_TRY(put(b, b->blocks->spare[i], SPARE, false));
  }
  for (uint32_t block = b->blocks->oldest; block != MK_NO_BLOCK; block = b->blocks->blocks[block].newer, kept++) {
    MK_TRY(put(b, block, KEPT, true));
  }
  if (kept != b->blocks->kept || kept > b->blocks->options.kept) {
    return mk_error(MK_ERR_DEVICE, "%u blocks are kept; the count says %u, and %u is the limit", kept, b->blocks->kept,
                    b->blocks->options.kept);
  }
  return MK_OK;
}

static mk_status look_at_slot(books *b, uint32_t slot, const mk_member *owner) {
  const mk_blocks *blocks = b->blocks;
  uint32_t held = blocks->held[slot], tokens = blocks->options.block_tokens;
  if (held * tokens < (owner == NULL ? 0 : owner->computed) || (owner == NULL && held != 0)) {
    return mk_error(MK_ERR_DEVICE, "slot %u has %u blocks, and %u tokens are computed", slot, held,
                    owner == NULL ? 0 : owner->computed);
  }
  for (uint32_t i = 0; i < held; i++) {
    uint32_t block = blocks->table[(size_t)slot * blocks->options.columns + i];
    if (block >= blocks->options.count || b->place[block] != 0 ||
        blocks->blocks[block].known != (i < blocks->shared[slot])) {
      return mk_error(MK_ERR_DEVICE, "slot %u holds block %u, which is free, or of the wrong kind", slot, block);
    }
    b->holders[block]++;
  }
  return MK_OK;
}

mk_status schedule_books(const mk_engine *engine) {
  const mk_batch *batch = engine->batch;
  books b = {.blocks = &batch->blocks};
  if (b.blocks->options.count > MOST_BLOCKS) {
    return mk_error(MK_ERR_USAGE, "%u blocks; these books have room for %d", b.blocks->options.count, MOST_BLOCKS);
  }
  MK_TRY(look_at_free(&b));
  for (uint32_t slot = 0; slot < b.blocks->options.slots; slot++) {
    MK_TRY(look_at_slot(&b, slot, batch->sides[MK_MACHINE_MAIN].owner[slot]));
  }
  for (uint32_t block = 0; block < b.blocks->options.count; block++) {
    const mk_block *k = &b.blocks->blocks[block];
    if (k->holders != b.holders[block] || (b.place[block] == 0 && k->holders == 0) || (!k->known && k->holders > 1)) {
      return mk_error(MK_ERR_DEVICE, "block %u has %u holders, and %u slots name it", block, k->holders,
                      b.holders[block]);
    }
    if (k->known && k->before != MK_NO_BLOCK && !b.blocks->blocks[k->before].known) {
      return mk_error(MK_ERR_DEVICE, "block %u follows block %u, which was given up before it", block, k->before);
    }
  }
  return MK_OK;
}

void schedule_break_tables(const mk_engine *engine) {
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    const mk_engine_machine *m = &engine->machines[i];
    if (m->cpu != NULL) {
      memset(mk_cpu_memory(m->cpu, (size_t)m->table), 0x7f, m->program->buffers[m->table].bytes);
    }
  }
}
