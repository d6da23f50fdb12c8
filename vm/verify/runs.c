/* Which runs a program needs (order.c makes one), and who makes them.
 *
 * One with all lines, which is the most that anybody waits for. Of several tiles of lines some may have no active line
 * in a step, and then nothing follows from what their instructions would have waited for: so what is done to the lines
 * of a tile has to be ordered where no other tile has any, too, and so do counters. With more tiles there are more
 * edges, and never fewer.
 *
 * Runs do not depend on each other. Those of a long program go to as many threads as there are cores: the nine runs of
 * 112,000 instructions (8B, 1,024 rows) take one thread 3.6 s. What is said of a program does not depend on the
 * threads: runs are begun in their order, and the first one that rejects the program speaks. */
#include <pthread.h>
#include <stdatomic.h>

#include "vm/cores.h"
#include "vm/verify/run.h"

enum {
  MOST_THREADS = 16,
  LONG = 1 << 16, /* instructions of all runs together, from which on threads are worth their start */
};

typedef struct run_job {
  mk_verifier v; /* a copy with a report of its own; the tables are shared, and nobody changes them */
  mk_status status;
  char *message; /* where it failed; NULL: there was no memory for it */
} run_job;

typedef struct run_jobs {
  run_job *jobs;
  uint32_t count;
  atomic_uint next; /* the first run that nobody has begun */
  atomic_bool failed;
} run_jobs;

/* Run 0 is the one with all lines. */
static uint32_t active_in(uint32_t run) { return run == 0 ? (uint32_t)MK_ALL_LINES : run - 1; }

static void *work(void *user) {
  run_jobs *all = user;
  uint32_t i;
  while (!all->failed && (i = atomic_fetch_add(&all->next, 1)) < all->count) {
    run_job *job = &all->jobs[i];
    job->status = mk_run_in_order(&job->v, active_in(i));
    if (job->status != MK_OK) {
      (void)!mk_strdup(mk_error_message(), &job->message);
      all->failed = true;
    }
  }
  return NULL;
}

/* Adds up what the runs have counted, up to the first one that failed, whose words these are. */
static mk_status outcome(mk_verifier *v, const run_jobs *all) {
  uint64_t accesses = v->report.accesses, conflicts = v->report.conflicts;
  for (uint32_t i = 0; i < all->count; i++) {
    const run_job *job = &all->jobs[i];
    accesses += job->v.report.accesses;
    conflicts += job->v.report.conflicts;
    if (job->status != MK_OK || i + 1 == all->count) {
      v->report = job->v.report;
      v->report.accesses = accesses;
      v->report.conflicts = conflicts;
      return job->status == MK_OK ? MK_OK
                                  : mk_error(job->status, "%s", job->message == NULL ? "out of memory" : job->message);
    }
  }
  return MK_OK;
}

mk_status mk_verify_order(mk_verifier *v) {
  const uint32_t rows = mk_program_rows(v->program), tiles = rows / mk_line_tile(rows);
  run_jobs all = {.count = tiles > 1 ? 1 + tiles : 1};
  const bool is_long = (uint64_t)all.count * v->program->instruction_count >= LONG;
  const uint32_t threads = is_long ? mk_cores(all.count < MOST_THREADS ? all.count : MOST_THREADS) : 1;
  pthread_t others[MOST_THREADS];
  uint32_t started = 0;
  MK_TRY(mk_alloc(all.count, sizeof *all.jobs, &all.jobs));
  for (uint32_t i = 0; i < all.count; i++) {
    all.jobs[i].v = *v;
    all.jobs[i].v.report.accesses = all.jobs[i].v.report.conflicts = 0;
  }
  while (started + 1 < threads && pthread_create(&others[started], NULL, work, &all) == 0) {
    started++; /* where the system gives no more, those that there are do all of it */
  }
  work(&all);
  for (uint32_t t = 0; t < started; t++) {
    pthread_join(others[t], NULL);
  }
  const mk_status status = outcome(v, &all);
  for (uint32_t i = 0; i < all.count; i++) {
    mk_free(all.jobs[i].message);
  }
  mk_free(all.jobs);
  return status;
}
