/* Phase 3: one run of all queues over two epochs. Rules D01 (deadlock, told by deadlock.c), R02 for stamped words, E04
 * (counter overrun), and through race.c R01-R03 for all other words. Who signals and waits for which counter is
 * collected by counters.c, what stamps prove by stamps.c.
 *
 * Counters only grow, stamps of an epoch only appear, and waits ask for at least so much: whatever order the run takes,
 * it gets as far as any. Only consumers wait for other queues. A loader waits for pages, which earlier consumers of its
 * own queue free in order, and for its own `next`; a storer for its consumer; so a queue goes on if and only if its
 * consumer does. */
#include <string.h>

#include "vm/verify/run.h"

/* ---- Waiting and waking ---- */

/* Instructions of lanes lie far apart in memory, and lanes take turns: what comes next is asked for in time. */
static void fetch_ahead(const mk_verifier *v, size_t index) {
  const char *in = (const char *)mk_at(v, index), *links = (const char *)mk_link_of(v, index, 0);
  for (size_t i = 0; i < sizeof(mk_instruction); i += 64) {
    __builtin_prefetch(in + i);
  }
  for (size_t i = 0; i < MK_MAX_OPERANDS * sizeof *v->links; i += 64) {
    __builtin_prefetch(links + i);
  }
}

void mk_wake(mk_run *run, uint32_t *list, uint64_t value) {
  uint32_t lane = *list;
  *list = MK_NONE_INDEX;
  while (lane != MK_NONE_INDEX) {
    uint32_t next = run->lanes[lane].next_blocked;
    if (run->lanes[lane].need <= value) {
      run->ready[run->ready_count++] = lane;
    } else {
      run->lanes[lane].next_blocked = *list;
      *list = lane;
    }
    lane = next;
  }
}

/* Wakes the lanes that wait for what the counter has by now. Most wait for all of its signals, so no list is walked
 * before the least value that a lane waits for is there. */
static void wake_waiters(mk_run *run, uint32_t counter) {
  if (run->values[counter] < run->least[counter]) {
    return;
  }
  mk_wake(run, &run->blocked[counter], run->values[counter]);
  run->least[counter] = UINT64_MAX;
  for (uint32_t lane = run->blocked[counter]; lane != MK_NONE_INDEX; lane = run->lanes[lane].next_blocked) {
    const uint64_t need = run->lanes[lane].need;
    run->least[counter] = need < run->least[counter] ? need : run->least[counter];
  }
}

static bool must_wait(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  mk_verifier *v = run->v;
  const mk_instruction *in = mk_at(v, index);
  mk_lane *l = &run->lanes[lane];
  l->wait_counter = l->wait_group = MK_NONE_INDEX;
  for (uint32_t k = 0; k < in->wait_count; k++) {
    uint32_t c = in->waits[k].counter;
    l->need = (uint64_t)epoch * v->program->counters[c].total + in->waits[k].threshold;
    if (run->values[c] < l->need) {
      l->wait_counter = c;
      l->next_blocked = run->blocked[c];
      run->blocked[c] = lane;
      run->least[c] = l->need < run->least[c] ? l->need : run->least[c];
      return true;
    }
  }
  const mk_opcode_info *info = mk_info(in);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    uint32_t group = *mk_link_of(v, index, slot);
    if (group == MK_NONE_INDEX || info->operands[slot].access != MK_ACCESS_READ ||
        v->program->buffers[in->operands[slot].buffer].store != MK_STORE_STAMPED) {
      continue;
    }
    mk_group_state *state = group_state(run, group, epoch);
    if (state->writers != 0) {
      l->need = 0;
      l->wait_group = group;
      l->next_blocked = state->blocked;
      state->blocked = lane;
      return true;
    }
  }
  return false;
}

/* ---- One instruction ---- */

/* Whether the loader makes the instruction's waits, too. Where all lines of the tile are idle it does not. */
static bool loader_waits(const mk_run *run, uint32_t index) {
  return run->acts[mk_at(run->v, index)->opcode].loader_waits && !is_idle(run, index);
}

static mk_status access_operand(mk_run *run, uint32_t lane, uint32_t index, uint32_t slot, mk_actor *actor,
                                bool writes) {
  mk_verifier *v = run->v;
  const mk_instruction *in = mk_at(v, index);
  const uint32_t first = *mk_link_of(v, index, slot);
  if (first == MK_NONE_INDEX || mk_operand_empty(&in->operands[slot])) {
    return MK_OK;
  }
  v->report.accesses++;
  if (v->program->buffers[in->operands[slot].buffer].store == MK_STORE_STAMPED) {
    mk_thread *known = &run->known[actor->thread];
    return run->replays ? MK_OK
           : writes     ? mk_write_stamps(run, &v->writes[first], actor->epoch, dep_of(known))
                        : mk_read_stamps(run, first, actor->epoch, known, is_idle(run, index));
  }
  const mk_acts *acts = &run->acts[in->opcode];
  /* Of an update the loader reads what was there. */
  const bool loaded = (acts->loaded >> slot & 1) != 0 || (!writes && (acts->updates >> slot & 1) != 0);
  actor->slot = slot;
  actor->clock = loaded ? &run->loader_hb[lane] : &run->known[actor->thread].hb;
  actor->is_known = run->replays && !loaded;
  return is_idle(run, index) ? MK_OK
         : writes            ? mk_shadow_write(v, &run->shadow, actor)
                             : mk_shadow_read(v, &run->shadow, actor);
}

/* Makes the accesses of `role` that write, or those that read. */
static mk_status access_as(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch, mk_role role, bool writes) {
  const mk_acts *acts = &run->acts[mk_at(run->v, index)->opcode];
  mk_actor actor = {.instruction = index,
                    .thread = 2 * lane + (role == MK_ROLE_STORER),
                    .time = mk_time(run->lanes[lane].done, MK_DONE),
                    .lines = run->active,
                    .epoch = epoch};
  for (uint32_t left = acts->slots[role][writes]; left != 0; left &= left - 1) {
    MK_TRY(access_operand(run, lane, index, (uint32_t)__builtin_ctz(left), &actor, writes));
  }
  return MK_OK;
}

/* Fills in what an instruction of that opcode does. */
static void list_acts(const mk_verifier *v, const mk_opcode_info *info, mk_acts *out) {
  *out = (mk_acts){.loader_waits = mk_opcode_loader_waits(info), .finisher = mk_opcode_finisher(info)};
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *o = &info->operands[slot];
    const uint16_t bit = (uint16_t)(1U << slot);
    const bool loaded = o->role == MK_ROLE_LOADER || (mk_program_has_tiles(v->program) && mk_opcode_copies(info, slot));
    out->slots[o->role][false] |= o->access != MK_ACCESS_WRITE ? bit : 0;
    out->slots[o->role][true] |= o->access != MK_ACCESS_READ ? bit : 0;
    out->loaded |= loaded ? bit : 0;
    out->updates |= o->access == MK_ACCESS_UPDATE ? bit : 0;
    out->loader_waits = out->loader_waits || (loaded && o->when == MK_WHEN_WAITS);
  }
}

static mk_status signal_all(mk_run *run, const mk_instruction *in, uint32_t index, uint32_t epoch, mk_thread *thread) {
  if (in->signal_count != 0) {
    MK_TRY(mk_feed_barriers(run, index, epoch, thread));
  }
  for (uint32_t k = 0; k < in->signal_count; k++) {
    uint32_t c = in->signals[k].counter;
    if (epoch != 0) {
      MK_TRY(mk_check_overrun(run, c, index, thread));
    }
    run->values[c] += in->signals[k].amount;
    wake_waiters(run, c);
  }
  return MK_OK;
}

/* The consumer's part, up to its signals. */
static mk_status consume(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const mk_instruction *in = mk_at(run->v, index);
  const uint32_t consumer = 2 * lane, number = run->lanes[lane].done;
  mk_thread *known = &run->known[consumer];
  set_time(known, consumer, mk_time(number, MK_ENTERED));
  MK_TRY(mk_join_waits(run, in, epoch, &known->hb, known));
  mk_clock_copy(&run->clocks, &run->entered, dep_of(known));
  set_time(known, consumer, mk_time(number, MK_DONE));
  if (loader_waits(run, index)) {
    MK_TRY(mk_join_waits(run, in, epoch, &run->loader_hb[lane], NULL));
  }
  if (mk_opcode_loader_waits(mk_info(in))) {
    MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_LOADER, false));
  }
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_CONSUMER, false));
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_CONSUMER, true));
  if (mk_info(in)->state == MK_STATE_WRITE) {
    mk_clock_copy(&run->clocks, &run->loader_hb[lane], &known->hb);
    if (run->at_next != NULL) {
      mk_clock_copy(&run->clocks, &run->at_next[MK_EPOCHS * lane + epoch], &known->hb);
    }
  }
  return MK_OK;
}

/* The storer's part, up to its signals. */
static mk_status store(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const uint32_t storer = 2 * lane + 1;
  mk_thread *known = &run->known[storer], *consumer = known - 1;
  if (consumer->apart) {
    part(run, known);
  }
  MK_TRY(mk_clock_join(&run->clocks, &known->hb, &consumer->hb));
  if (known->apart) {
    MK_TRY(mk_clock_join(&run->clocks, &known->dep, dep_of(consumer)));
    unite(run, known);
  }
  set_time(known, storer, mk_time(run->lanes[lane].done, MK_DONE));
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_STORER, false));
  return access_as(run, lane, index, epoch, MK_ROLE_STORER, true);
}

static mk_status execute(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const bool stores = run->acts[mk_at(run->v, index)->opcode].finisher == MK_ROLE_STORER;
  const uint32_t thread = 2 * lane + stores;
  mk_thread *known = &run->known[thread];
  MK_TRY(consume(run, lane, index, epoch));
  if (stores) {
    MK_TRY(store(run, lane, index, epoch));
  }
  set_time(known, thread, mk_time(run->lanes[lane].done, MK_SIGNALLED));
  return signal_all(run, mk_at(run->v, index), index, epoch, known);
}

static mk_status run_all(mk_run *run) {
  uint64_t left = (uint64_t)run->v->program->instruction_count * MK_EPOCHS;
  while (run->ready_count != 0) {
    uint32_t lane = run->ready[--run->ready_count], index, epoch;
    uint32_t end = MK_EPOCHS * run->v->program->queues[run->lanes[lane].queue].count;
    if (run->ready_count != 0) {
      head_of(run, run->ready[run->ready_count - 1], &index, &epoch);
      fetch_ahead(run->v, index);
    }
    while (run->lanes[lane].done < end) {
      head_of(run, lane, &index, &epoch);
      if (must_wait(run, lane, index, epoch)) {
        break;
      }
      if (index + 1 < run->v->program->instruction_count) {
        fetch_ahead(run->v, index + 1);
      }
      MK_TRY(execute(run, lane, index, epoch));
      run->lanes[lane].done++;
      if (run->order != NULL) {
        run->order[MK_EPOCHS * (uint64_t)run->v->program->instruction_count - left] = lane;
      }
      left--;
    }
  }
  return left == 0 ? MK_OK : mk_report_deadlock(run);
}

/* ---- Tiles of lines ---- */

/* An instruction of a run that is replayed. */
static mk_status execute_again(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const mk_instruction *in = mk_at(run->v, index);
  if (loader_waits(run, index)) {
    MK_TRY(mk_join_waits(run, in, epoch, &run->loader_hb[lane], NULL));
  }
  if (mk_opcode_loader_waits(mk_info(in))) {
    MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_LOADER, false));
  }
  for (mk_role role = MK_ROLE_CONSUMER; role <= MK_ROLE_STORER; role++) {
    MK_TRY(access_as(run, lane, index, epoch, role, false));
    MK_TRY(access_as(run, lane, index, epoch, role, true));
  }
  if (mk_info(in)->state == MK_STATE_WRITE) {
    mk_clock_copy(&run->clocks, &run->loader_hb[lane], &run->at_next[MK_EPOCHS * lane + epoch]);
  }
  return MK_OK;
}

/* Goes over a run in which DEP was HB once more, with one tile of lines whose rows are active, instead of all. Waits
 * and signals are made all the same, so HB is what it was; and so is DEP, which is no more than in the run with all
 * tiles and no less than HB. What differs is what loaders know, as they do not wait where their lines are idle, and
 * which writes there are: of a chain in which each one is ordered after the one before, some are left out, so the rest
 * is ordered, too, and a reader of it as well. It remains to see that what loaders read comes after the last write
 * that there is, and that all that is read has been written. */
static mk_status replay(mk_run *run, uint32_t active) {
  const uint64_t count = MK_EPOCHS * (uint64_t)run->v->program->instruction_count;
  run->active = active;
  run->replays = true;
  for (uint32_t lane = 0; lane < run->v->lanes; lane++) {
    run->lanes[lane].done = 0;
    mk_clock_drop(&run->clocks, &run->loader_hb[lane]);
    memset(run->loader_hb[lane].own, 0, sizeof run->loader_hb[lane].own);
  }
  mk_shadow_free(&run->shadow);
  MK_TRY(mk_shadow_init(run->v, &run->shadow));
  for (uint64_t i = 0; i < count; i++) {
    const uint32_t lane = run->order[i];
    uint32_t index, epoch;
    head_of(run, lane, &index, &epoch);
    if (!is_idle(run, index)) { /* else it does nothing */
      MK_TRY(execute_again(run, lane, index, epoch));
    }
    run->lanes[lane].done++;
  }
  return MK_OK;
}

static mk_status init(mk_run *run) {
  mk_verifier *v = run->v;
  const mk_program *p = v->program;
  size_t n = run->threads;
  MK_TRY(mk_clocks_init(&run->clocks, run->threads));
  MK_TRY(mk_alloc(n, sizeof *run->known, &run->known));
  MK_TRY(mk_alloc(v->lanes, sizeof *run->loader_hb, &run->loader_hb));
  for (uint32_t thread = 0; thread < n; thread++) {
    run->known[thread].hb.lane = run->known[thread].dep.lane = run->loader_hb[thread / 2].lane = thread / 2;
  }
  MK_TRY(mk_alloc(v->lanes, sizeof *run->lanes, &run->lanes));
  MK_TRY(mk_alloc(v->lanes, sizeof *run->ready, &run->ready));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->values, &run->values));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->least, &run->least));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->waits_over, &run->waits_over));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->blocked, &run->blocked));
  MK_TRY(mk_alloc(v->group_count * MK_EPOCHS, sizeof *run->groups, &run->groups));
  MK_TRY(mk_shadow_init(v, &run->shadow));
  for (uint32_t opcode = 0; opcode < sizeof run->acts / sizeof *run->acts; opcode++) {
    if (mk_opcode_lookup(opcode) != NULL) {
      list_acts(v, mk_opcode_lookup(opcode), &run->acts[opcode]);
    }
  }
  for (uint32_t q = 0; q < p->queue_count; q++) {
    if (p->queues[q].count != 0) {
      run->lanes[v->lane_of[q]].queue = q;
    }
  }
  for (uint32_t lane = 0; lane < v->lanes; lane++) { /* lane 0 on top of the stack */
    run->ready[run->ready_count++] = v->lanes - 1 - lane;
  }
  for (size_t c = 0; c < p->counter_count; c++) {
    run->blocked[c] = MK_NONE_INDEX;
    run->least[c] = UINT64_MAX;
  }
  for (size_t g = 0; g < v->group_count * MK_EPOCHS; g++) {
    const mk_group *group = &v->groups[g / MK_EPOCHS];
    run->groups[g] = (mk_group_state){.writers = group->writers, .reads = group->reads, .blocked = MK_NONE_INDEX};
  }
  return mk_collect_counters(run);
}

static void free_run(mk_run *run) {
  mk_clocks_free(&run->clocks);
  mk_free(run->known);
  mk_free(run->order);
  mk_free(run->at_next);
  mk_free(run->loader_hb);
  mk_free(run->lanes);
  mk_free(run->ready);
  mk_free(run->values);
  mk_free(run->waits_over);
  mk_free(run->least);
  mk_free(run->blocked);
  mk_free(run->groups);
  mk_free(run->signals);
  mk_free(run->waits);
  mk_free(run->first_signal);
  mk_free(run->last_signals);
  mk_free(run->last_waits);
  mk_free(run->first_last_signal);
  mk_free(run->first_last_wait);
  mk_free(run->barriers);
  mk_free(run->joins);
  mk_shadow_free(&run->shadow);
}

mk_status mk_run_in_order(mk_verifier *v, uint32_t active) {
  mk_run run = {.v = v, .threads = 2 * v->lanes, .active = active};
  mk_status status = init(&run);
  if (status == MK_OK) {
    status = run_all(&run);
  }
  free_run(&run);
  return status;
}

static mk_status keep_order(mk_run *run) {
  MK_TRY(mk_alloc(MK_EPOCHS * (size_t)run->v->program->instruction_count, sizeof *run->order, &run->order));
  return mk_alloc(MK_EPOCHS * (size_t)run->v->lanes, sizeof *run->at_next, &run->at_next);
}

/* One run with all lines, which is the most that anybody waits for. Of several tiles of lines some may have no active
 * line in a step, and then nothing follows from what their instructions would have waited for: so what is done to the
 * lines of a tile has to be ordered where no other tile has any, too, and so do counters. With more tiles there are
 * more edges, and never fewer. */
mk_status mk_verify_order(mk_verifier *v) {
  const uint32_t rows = mk_program_rows(v->program), tiles = rows / mk_line_tile(rows);
  mk_run run = {.v = v, .threads = 2 * v->lanes, .active = MK_ALL_LINES};
  mk_status status = init(&run);
  if (status == MK_OK && tiles > 1) {
    status = keep_order(&run);
  }
  if (status == MK_OK) {
    status = run_all(&run);
  }
  for (uint32_t tile = 0; tile < tiles && tiles > 1 && status == MK_OK; tile++) {
    status = run.parted ? mk_run_in_order(v, tile) : replay(&run, tile);
  }
  free_run(&run);
  return status;
}
