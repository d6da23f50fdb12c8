/* Of the verifier's run (run.h): what stamped words prove to their readers, and rule R02 for them. */
#include "vm/verify/run.h"

/* Takes the stamps of a group in: the reader runs after the writers that it waits for at every position. */
mk_status mk_read_stamps(mk_run *run, uint32_t group, uint32_t epoch, mk_thread *thread, bool idle) {
  mk_group_state *state = group_state(run, group, epoch);
  if (!idle) {
    part(run, thread);
    MK_TRY(mk_clock_learn(&run->clocks, &thread->dep, &state->view));
    unite(run, thread);
  }
  if (--state->reads == 0) {
    mk_known_drop(&run->clocks, &state->view);
  }
  return MK_OK;
}

/* R02 for stamped words: all readers of the epoch before are over. */
static mk_status check_overwrite(mk_run *run, const mk_write *w, uint32_t group, const mk_clock *dep) {
  mk_verifier *v = run->v;
  const mk_group *g = &v->groups[group];
  mk_group_state *state = group_state(run, group, 0);
  bool by_vector = dep->known.shared != NULL; /* whether that alone is enough: then it is for all who share it */
  if (by_vector && mk_holds(dep->known.shared, state->passed)) {
    v->report.conflicts += g->reader_count;
    return MK_OK;
  }
  for (uint32_t r = g->first_reader; r < g->first_reader + g->reader_count; r++) {
    const mk_reader *reader = &v->readers[r];
    if (is_idle(run, reader->instruction)) {
      continue;
    }
    v->report.conflicts++;
    by_vector = by_vector && dep->known.shared->of[reader->thread] >= reader->index;
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
  state->passed = by_vector ? mk_seen_now(dep->known.shared) : (mk_seen){.times = NULL};
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
  return (mk_at(v, index)->flags & MK_FUSED) != 0 && !mk_fused_anywhere(mk_at(v, index));
}

/* Sets the clock that a reader of the write's words gets. As a rule that is `dep`: all that came before the writer had
 * read its inputs. It is only what came before the writer began to read if the reader has seen some of the tiles alone
 * and the writer streams, since other tiles may be still to come, with the inputs that they are computed from; and also
 * if the writer leaves inputs out, but then with the writer itself being done. */
static mk_status show_write(mk_run *run, const mk_write *w, bool whole, mk_known *view, const mk_clock *dep) {
  bool fused = may_be_fused(run->v, w->instruction), less = leaves_out(run->v, w);
  const mk_clock *known = !less && (whole || !streams(run->v, w)) ? dep : &run->entered;
  mk_clock own = {.lane = 0};
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
    status = mk_known_feed(&run->clocks, view, known);
  }
  mk_clock_drop(&run->clocks, &own);
  return status;
}

mk_status mk_write_stamps(mk_run *run, const mk_write *w, uint32_t epoch, const mk_clock *dep) {
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
      mk_wake(run, &state->blocked, UINT64_MAX);
    }
  }
  return MK_OK;
}
