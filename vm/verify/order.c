/* Phase 3: one run of all queues over two epochs. Rules D01 (deadlock, told by deadlock.c), R02 for stamped words, E04
 * (counter overrun), and through race.c R01-R03 for all other words. Who signals and waits for which counter is
 * collected by counters.c, and which runs a program needs is decided by runs.c.
 *
 * Counters only grow, stamps of an epoch only appear, and waits ask for at least so much: whatever order the run takes,
 * it gets as far as any. Only consumers wait for other queues. A loader waits for pages, which earlier consumers of its
 * own queue free in order, and for its own `next`; a storer for its consumer; so a queue goes on if and only if its
 * consumer does. */
#include <string.h>

#include "vm/verify/run.h"

/* ---- Waiting and waking ---- */

static void wake(mk_run *run, uint32_t *list, uint64_t value) {
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
  wake(run, &run->blocked[counter], run->values[counter]);
  run->least[counter] = UINT64_MAX;
  for (uint32_t lane = run->blocked[counter]; lane != MK_NONE_INDEX; lane = run->lanes[lane].next_blocked) {
    const uint64_t need = run->lanes[lane].need;
    run->least[counter] = need < run->least[counter] ? need : run->least[counter];
  }
}

static mk_group_state *group_state(mk_run *run, uint32_t group, uint32_t epoch) {
  return &run->groups[(size_t)group * MK_EPOCHS + epoch];
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
    uint32_t group = v->links[(size_t)index * MK_MAX_OPERANDS + slot].first;
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

static bool has_copies(const mk_verifier *v, uint32_t counter) {
  return v->program->counters[counter].rank == MK_RANK_EACH && v->program->machine.ranks > 1;
}

/* E04: a signal of the next epoch must not help a wait of this one. Of a counter with copies each has to get the
 * signals of this epoch first: that one copy has had one, which stamps may tell of, says nothing of the others; what
 * comes after a later release of the same thread does. */
static mk_status check_overrun(mk_run *run, uint32_t counter, uint32_t index, const mk_clock *hb, const mk_clock *dep) {
  mk_verifier *v = run->v;
  uint32_t wait = MK_NONE_INDEX, signal = MK_NONE_INDEX;
  bool by_vector = dep->shared != NULL; /* whether that alone is enough: then it is for all who share it */
  if (by_vector && mk_is_seen(run->waits_over[counter], dep->shared)) {
    return MK_OK;
  }
  uint32_t end = run->first_last_wait[counter + 1];
  for (uint32_t i = run->first_last_wait[counter]; i < end && wait == MK_NONE_INDEX; i++) {
    const mk_user *user = &run->last_waits[i];
    const uint32_t entered = mk_time(mk_position_of(v, user->instruction), MK_ENTERED);
    by_vector = by_vector && dep->shared->of[user->thread] >= entered;
    if (mk_clock_at(dep, user->thread) < entered) {
      wait = user->instruction;
    }
  }
  if (wait == MK_NONE_INDEX) {
    run->waits_over[counter] = by_vector ? mk_seen_now(dep->shared) : (mk_seen){.times = NULL};
    return MK_OK;
  }
  end = run->first_last_signal[counter + 1];
  const mk_clock *known = has_copies(v, counter) ? hb : dep;
  for (uint32_t i = run->first_last_signal[counter]; i < end && signal == MK_NONE_INDEX; i++) {
    const mk_user *user = &run->last_signals[i];
    if (mk_clock_at(known, user->thread) < mk_time(mk_position_of(v, user->instruction), MK_SIGNALLED)) {
      signal = user->instruction;
    }
  }
  if (signal == MK_NONE_INDEX) {
    return MK_OK;
  }
  return mk_reject(
      v, "E04", index,
      "signals counter %s in the next epoch before the wait of %s in this one is over and before the signal of %s has "
      "come, so that wait may end too early; order this instruction after either",
      v->program->counters[counter].name, mk_place_of(v, wait).text, mk_place_of(v, signal).text);
}

/* Adds to the clocks what the instruction's waits for release counters prove. dep: NULL where it is not asked for. */
static mk_status join_waits(mk_run *run, const mk_instruction *in, uint32_t epoch, mk_clock *hb, mk_clock *dep) {
  for (uint32_t k = 0; k < in->wait_count; k++) {
    if (run->v->program->counters[in->waits[k].counter].kind != MK_COUNTER_RELEASE) {
      continue;
    }
    const mk_barrier *b = mk_find_barrier(run, in->waits[k].counter, in->waits[k].threshold);
    MK_TRY(mk_clock_join_view(&run->clocks, hb, b->views[epoch][0]));
    if (dep != NULL) {
      MK_TRY(mk_clock_join_view(&run->clocks, dep, b->views[epoch][1]));
    }
  }
  return MK_OK;
}

/* Adds what a signal proves to the barriers that it feeds. Where the counter has copies, a thread that has waited on
 * one copy knows that the signaller was done, but not that the signal has come to the other copies. */
static mk_status feed_barrier(mk_run *run, mk_barrier *b, uint32_t index, uint32_t epoch, mk_clock *hb, mk_clock *dep) {
  const uint32_t thread = mk_finisher_of(run->v, index), done = run->lanes[thread / 2].done;
  const mk_moment known = has_copies(run->v, b->counter) ? MK_DONE : MK_SIGNALLED;
  mk_clock_set(hb, thread, mk_time(done, known));
  mk_clock_set(dep, thread, mk_time(done, known));
  MK_TRY(mk_view_feed(&run->clocks, &b->views[epoch][0], hb));
  MK_TRY(mk_view_feed(&run->clocks, &b->views[epoch][1], dep));
  mk_clock_set(hb, thread, mk_time(done, MK_SIGNALLED));
  mk_clock_set(dep, thread, mk_time(done, MK_SIGNALLED));
  return MK_OK;
}

static mk_status feed_barriers(mk_run *run, uint32_t index, uint32_t epoch, mk_clock *hb, mk_clock *dep) {
  size_t low = 0, high = run->join_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (run->joins[middle].instruction < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < run->join_count && run->joins[low].instruction == index; low++) {
    MK_TRY(feed_barrier(run, &run->barriers[run->joins[low].barrier], index, epoch, hb, dep));
  }
  return MK_OK;
}

/* Whether no line of the tile that it computes is active in this run. */
static bool is_idle(const mk_run *run, uint32_t instruction) {
  const uint32_t lines = run->active == MK_ALL_LINES ? MK_ALL_LINES : run->v->lines_of[instruction];
  return lines != MK_ALL_LINES && lines != run->active;
}

/* Takes the stamps of a group in: the reader runs after the writers that it waits for at every position. */
static mk_status read_stamps(mk_run *run, uint32_t group, uint32_t epoch, mk_clock *dep, bool idle) {
  mk_group_state *state = group_state(run, group, epoch);
  if (!idle) {
    MK_TRY(mk_clock_join_view(&run->clocks, dep, state->view));
  }
  if (--state->reads == 0) {
    mk_view_drop(&run->clocks, &state->view);
  }
  return MK_OK;
}

/* R02 for stamped words: all readers of the epoch before are over. */
static mk_status check_overwrite(mk_run *run, const mk_write *w, uint32_t group, const mk_clock *dep) {
  mk_verifier *v = run->v;
  const mk_group *g = &v->groups[group];
  mk_group_state *state = group_state(run, group, 0);
  bool by_vector = dep->shared != NULL; /* whether that alone is enough: then it is for all who share it */
  if (by_vector && mk_is_seen(state->passed, dep->shared)) {
    v->report.conflicts += g->reader_count;
    return MK_OK;
  }
  for (uint32_t r = g->first_reader; r < g->first_reader + g->reader_count; r++) {
    const mk_reader *reader = &v->readers[r];
    if (is_idle(run, reader->instruction)) {
      continue;
    }
    v->report.conflicts++;
    by_vector = by_vector && dep->shared->of[reader->thread] >= reader->index;
    if (mk_clock_at(dep, reader->thread) < reader->index) {
      return mk_reject(v, "R02", w->instruction,
                       "%s: overwrites tile (%u, %u) of stamped buffer %s in the next epoch, and nothing orders that "
                       "after %s, which "
                       "reads it in this one; let this instruction depend on one that comes after that reader",
                       mk_info(mk_at(v, w->instruction))->operands[w->slot].name, (uint32_t)(w->key >> 16 & 0xffff),
                       (uint32_t)(w->key & 0xffff), v->program->buffers[w->key >> 32].name,
                       mk_place_of(v, reader->instruction).text);
    }
  }
  state->passed = by_vector ? mk_seen_now(dep->shared) : (mk_seen){.times = NULL};
  return MK_OK;
}

/* With several rows per step: whether it leaves out inputs that the step does not need, as where a unit of attention
 * has no tokens. */
static bool leaves_out(const mk_verifier *v, const mk_write *w) {
  return mk_program_rows(v->program) > 1 &&
         mk_info(mk_at(v, w->instruction))->operands[w->slot].content == MK_CONTENT_PARTS;
}

/* Whether it may publish words before it has read all inputs. */
static bool streams(const mk_verifier *v, const mk_write *w) {
  return leaves_out(v, w) || mk_info(mk_at(v, w->instruction))->streams;
}

/* Whether a machine may have done it within the instruction before it in its queue (rule S12), whose signals then come
 * later. */
static bool may_be_fused(const mk_verifier *v, uint32_t index) {
  return (mk_at(v, index)->flags & MK_FUSED) != 0 && !mk_fused_anywhere(v, mk_at(v, index));
}

/* Sets the clock that a reader of the write's words gets. As a rule that is `dep`: all that came before the writer had
 * read its inputs. It is only what came before the writer began to read if the reader has seen some of the tiles alone
 * and the writer streams, since other tiles may be still to come, with the inputs that they are computed from; and also
 * if the writer leaves inputs out, but then with the writer itself being done. */
static mk_status show_write(mk_run *run, const mk_write *w, bool whole, mk_times **view, const mk_clock *dep) {
  bool fused = may_be_fused(run->v, w->instruction), less = leaves_out(run->v, w);
  const mk_clock *known = !less && (whole || !streams(run->v, w)) ? dep : &run->entered;
  mk_clock own = {.shared = NULL};
  mk_status status = MK_OK;
  if (fused || (whole && less)) {
    uint32_t first = mk_thread_of(run->v, w->instruction, MK_ROLE_CONSUMER);
    uint32_t last = mk_time(run->lanes[first / 2].done - fused, whole ? MK_DONE : MK_ENTERED);
    mk_clock_copy(&run->clocks, &own, known);
    for (uint32_t thread = first; thread < first + 2 && status == MK_OK; thread++) {
      if (less) { /* it is done all the same */
        mk_clock_set(&own, thread, last);
      }
      status = mk_clock_limit(&run->clocks, &own, thread, last);
    }
    known = &own;
  }
  if (status == MK_OK) {
    status = mk_view_feed(&run->clocks, view, known);
  }
  mk_clock_drop(&run->clocks, &own);
  return status;
}

static mk_status write_stamps(mk_run *run, const mk_write *w, uint32_t epoch, const mk_clock *dep) {
  const bool idle = is_idle(run, w->instruction);
  for (uint32_t t = w->first_group; t < w->first_group + w->group_count; t++) {
    const mk_target *target = &run->v->targets[t];
    mk_group_state *state = group_state(run, target->group, epoch);
    if (epoch != 0 && !idle) { /* of what streams the first tile may go out before the last one's inputs are there */
      MK_TRY(check_overwrite(run, w, target->group, streams(run->v, w) ? &run->entered : dep));
    }
    if (target->certain && !idle) {
      MK_TRY(show_write(run, w, target->whole, &state->view, dep));
    }
    if (--state->writers == 0) {
      wake(run, &state->blocked, UINT64_MAX);
    }
  }
  return MK_OK;
}

/* Whether it is the loader that reads the operand. */
static bool is_loaded(const mk_verifier *v, const mk_opcode_info *info, uint32_t slot) {
  return info->operands[slot].role == MK_ROLE_LOADER ||
         (mk_program_has_tiles(v->program) && mk_opcode_copies(info, slot));
}

/* Whether the loader makes the instruction's waits, too. Where all lines of the tile are idle it does not. */
static bool loader_waits(const mk_run *run, uint32_t index) {
  const mk_opcode_info *info = mk_info(mk_at(run->v, index));
  bool waits = mk_opcode_loader_waits(info);
  for (uint32_t slot = 0; slot < info->operand_count && !waits; slot++) {
    waits = info->operands[slot].when == MK_WHEN_WAITS && is_loaded(run->v, info, slot);
  }
  return waits && !is_idle(run, index);
}

/* Makes the accesses of `role` that write, or those that read. */
static mk_status access_as(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch, mk_role role, bool writes) {
  mk_verifier *v = run->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_opcode_info *info = mk_info(in);
  uint32_t thread = 2 * lane + (role == MK_ROLE_STORER);
  const mk_clock *hb = &run->hb[thread];
  mk_clock *dep = &run->dep[thread];
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *o = &info->operands[slot];
    mk_link link = v->links[(size_t)index * MK_MAX_OPERANDS + slot];
    bool update = o->access == MK_ACCESS_UPDATE;
    if (link.first == MK_NONE_INDEX || mk_operand_empty(&in->operands[slot]) || o->role != role ||
        (writes ? o->access == MK_ACCESS_READ : o->access == MK_ACCESS_WRITE)) {
      continue;
    }
    mk_actor actor = {.instruction = index,
                      .slot = slot,
                      .thread = thread,
                      .time = mk_time(run->lanes[lane].done, MK_DONE),
                      .clock = is_loaded(v, info, slot) ? &run->loader_hb[lane] : hb,
                      .lines = run->active,
                      .epoch = epoch};
    v->report.accesses++;
    if (v->program->buffers[in->operands[slot].buffer].store == MK_STORE_STAMPED) {
      MK_TRY(writes ? write_stamps(run, &v->writes[link.first], epoch, dep)
                    : read_stamps(run, link.first, epoch, dep, is_idle(run, index)));
    } else if (is_idle(run, index)) {
      continue;
    } else if (writes) {
      MK_TRY(mk_shadow_write(v, &run->shadow, &actor));
    } else {
      if (update) { /* the loader reads what was there */
        actor.clock = &run->loader_hb[lane];
      }
      MK_TRY(mk_shadow_read(v, &run->shadow, &actor));
    }
  }
  return MK_OK;
}

static mk_status signal_all(mk_run *run, const mk_instruction *in, uint32_t index, uint32_t epoch, mk_clock *hb,
                            mk_clock *dep) {
  if (in->signal_count != 0) {
    MK_TRY(feed_barriers(run, index, epoch, hb, dep));
  }
  for (uint32_t k = 0; k < in->signal_count; k++) {
    uint32_t c = in->signals[k].counter;
    if (epoch != 0) {
      MK_TRY(check_overrun(run, c, index, hb, dep));
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
  mk_clock *hb = &run->hb[consumer], *dep = &run->dep[consumer];
  mk_clock_set(hb, consumer, mk_time(number, MK_ENTERED));
  mk_clock_set(dep, consumer, mk_time(number, MK_ENTERED));
  MK_TRY(join_waits(run, in, epoch, hb, dep));
  mk_clock_copy(&run->clocks, &run->entered, dep);
  mk_clock_set(hb, consumer, mk_time(number, MK_DONE));
  mk_clock_set(dep, consumer, mk_time(number, MK_DONE));
  if (loader_waits(run, index)) {
    MK_TRY(join_waits(run, in, epoch, &run->loader_hb[lane], NULL));
  }
  if (mk_opcode_loader_waits(mk_info(in))) {
    MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_LOADER, false));
  }
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_CONSUMER, false));
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_CONSUMER, true));
  if (mk_info(in)->state == MK_STATE_WRITE) {
    mk_clock_copy(&run->clocks, &run->loader_hb[lane], hb);
  }
  return MK_OK;
}

/* The storer's part, up to its signals. */
static mk_status store(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const uint32_t consumer = 2 * lane, storer = consumer + 1;
  mk_clock *hb = &run->hb[storer], *dep = &run->dep[storer];
  MK_TRY(mk_clock_join(&run->clocks, &run->entered, dep));
  MK_TRY(mk_clock_join(&run->clocks, hb, &run->hb[consumer]));
  MK_TRY(mk_clock_join(&run->clocks, dep, &run->dep[consumer]));
  mk_clock_set(hb, storer, mk_time(run->lanes[lane].done, MK_DONE));
  mk_clock_set(dep, storer, mk_time(run->lanes[lane].done, MK_DONE));
  MK_TRY(access_as(run, lane, index, epoch, MK_ROLE_STORER, false));
  return access_as(run, lane, index, epoch, MK_ROLE_STORER, true);
}

static mk_status execute(mk_run *run, uint32_t lane, uint32_t index, uint32_t epoch) {
  const uint32_t thread = mk_finisher_of(run->v, index);
  mk_clock *hb = &run->hb[thread], *dep = &run->dep[thread];
  MK_TRY(consume(run, lane, index, epoch));
  if (thread != 2 * lane) {
    MK_TRY(store(run, lane, index, epoch));
  }
  mk_clock_set(hb, thread, mk_time(run->lanes[lane].done, MK_SIGNALLED));
  mk_clock_set(dep, thread, mk_time(run->lanes[lane].done, MK_SIGNALLED));
  return signal_all(run, mk_at(run->v, index), index, epoch, hb, dep);
}

static mk_status run_all(mk_run *run) {
  uint64_t left = (uint64_t)run->v->program->instruction_count * MK_EPOCHS;
  while (run->ready_count != 0) {
    uint32_t lane = run->ready[--run->ready_count], index, epoch;
    uint32_t end = MK_EPOCHS * run->v->program->queues[run->lanes[lane].queue].count;
    while (run->lanes[lane].done < end) {
      head_of(run, lane, &index, &epoch);
      if (must_wait(run, lane, index, epoch)) {
        break;
      }
      MK_TRY(execute(run, lane, index, epoch));
      run->lanes[lane].done++;
      left--;
    }
  }
  return left == 0 ? MK_OK : mk_report_deadlock(run);
}

static mk_status init(mk_run *run) {
  mk_verifier *v = run->v;
  const mk_program *p = v->program;
  size_t n = run->threads;
  run->clocks.threads = run->threads;
  MK_TRY(mk_alloc(n, sizeof *run->hb, &run->hb));
  MK_TRY(mk_alloc(n, sizeof *run->dep, &run->dep));
  MK_TRY(mk_alloc(v->lanes, sizeof *run->loader_hb, &run->loader_hb));
  for (uint32_t thread = 0; thread < n; thread++) {
    run->hb[thread].lane = run->dep[thread].lane = run->loader_hb[thread / 2].lane = thread / 2;
  }
  MK_TRY(mk_alloc(v->lanes, sizeof *run->lanes, &run->lanes));
  MK_TRY(mk_alloc(v->lanes, sizeof *run->ready, &run->ready));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->values, &run->values));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->least, &run->least));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->waits_over, &run->waits_over));
  MK_TRY(mk_alloc(p->counter_count, sizeof *run->blocked, &run->blocked));
  MK_TRY(mk_alloc(v->group_count * MK_EPOCHS, sizeof *run->groups, &run->groups));
  MK_TRY(mk_shadow_init(v, &run->shadow));
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
  mk_free(run->hb);
  mk_free(run->dep);
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
