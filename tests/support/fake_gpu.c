/* See fake_gpu.h. */
#include "tests/support/fake_gpu.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "instructions/sampling.h"

uint32_t fake_gpu_choice(uint32_t token, uint32_t position) { return (token * 7 + position * 3 + 1) % 500; }

static void put_word(const mk_gpu_params *params, uint64_t entry, uint32_t step, uint32_t word) {
  params->token_ring[entry] = (uint64_t)(params->first_epoch + step + 1) << 32 | word;
}

/* Rows from the plan in memory, results into the ring. */
static void run_rows(fake_gpu *gpu, const mk_gpu_params *params, uint32_t step) {
  const mk_step_row *rows = (const mk_step_row *)(const void *)params->plan + (size_t)step * params->rows;
  for (uint32_t line = 0; line < params->rows; line++) {
    mk_step_row row = rows[line];
    uint32_t result = MK_CANDIDATE_NONE;
    if ((row.flags & MK_ROW_ACTIVE) != 0 && (row.flags & MK_ROW_CHOOSES) != 0) {
      uint32_t token = row.token == MK_TOKEN_CHOSEN ? gpu->chosen[row.slot] : row.token;
      result = gpu->chosen[row.slot] = fake_gpu_choice(token, row.position);
      result |= step == gpu->nan_at ? MK_RESULT_NAN : 0;
    }
    put_word(params, (uint64_t)step * params->rows + line, step, result);
  }
}

/* ---- Ranks that are processes ---- */

enum { LAST = 1u << 31 }; /* in a stamp of rank 0: it was told to stop */

static uint32_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint32_t)((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
}

/* A word of this rank's on rank `other`, first in the copies of what is counted, then in those of what is worked on. */
static volatile uint32_t *counter_on(const mk_gpu_params *params, uint32_t other, uint32_t of) {
  return (volatile uint32_t *)(uintptr_t)((uintptr_t)params->counters + params->peers->counters[other]) + of;
}
static volatile uint32_t *word_on(const mk_gpu_params *params, uint32_t other, uint32_t of) {
  return (volatile uint32_t *)(uintptr_t)((uintptr_t)params->scratch + params->peers->away[other]) + of;
}

static void abort_all(const mk_gpu_params *params) {
  for (uint32_t r = 0; r < params->peers->ranks; r++) {
    *(volatile uint32_t *)(uintptr_t)params->peers->aborts[r] = 1;
  }
}

/* Tells all ranks that this one has come to the step. */
static void come(fake_gpu *gpu, const mk_gpu_params *params, uint32_t stamp) {
  const mk_gpu_peers *peers = params->peers;
  const uint32_t last = peers->rank == 0 && *params->stop != 0 ? LAST : 0;
  for (uint32_t r = 0; r < peers->ranks; r++) {
    *word_on(params, r, peers->rank) = stamp;
    __atomic_store_n(counter_on(params, r, peers->rank), stamp | last, __ATOMIC_RELEASE);
  }
  gpu->came = true;
  gpu->since_ms = now_ms();
}

/* Whether all have come to it. */
static bool all_came(const mk_gpu_params *params, uint32_t stamp) {
  const mk_gpu_peers *peers = params->peers;
  for (uint32_t r = 0; r < peers->ranks; r++) {
    const uint32_t counted = __atomic_load_n(counter_on(params, peers->rank, r), __ATOMIC_ACQUIRE);
    if ((counted & ~(uint32_t)LAST) < stamp || *word_on(params, peers->rank, r) < stamp) {
      return false;
    }
  }
  return true;
}

static void fail_apart(const fake_gpu *gpu, const mk_gpu_params *params, uint32_t sm) {
  *params->fault = (mk_gpu_fault){.claimed = 1, .sm = sm, .uid = 7, .epoch = gpu->step, .want = 1};
  abort_all(params);
}

/* Goes on as far as it can; true: that was the launch's end. */
static bool go_on_apart(fake_gpu *gpu, const mk_gpu_params *params) {
  const uint32_t stamp = params->first_epoch + gpu->step + 1, rank = params->peers->rank;
  if (gpu->step == gpu->fault_at && rank == gpu->faulty && !gpu->came) {
    fail_apart(gpu, params, 3);
    return true;
  }
  if (!gpu->came) {
    come(gpu, params, stamp);
  }
  if (!all_came(params, stamp)) {
    if ((uint64_t)(now_ms() - gpu->since_ms) * 1000000 / 1024 > params->deadline) {
      fail_apart(gpu, params, 2);
    }
    return false;
  }
  if (rank == 0) {
    run_rows(gpu, params, gpu->step);
  }
  const bool last = *counter_on(params, rank, 0) == (stamp | LAST); /* rank 0 may be a step ahead */
  *params->epochs_done = ++gpu->step;
  gpu->came = false;
  return last || gpu->step == params->epochs;
}

/* Called again and again until the launch is over. */
static bool run_apart(fake_gpu *gpu, const mk_gpu_params *params, uint32_t call) {
  gpu->step = call == 0 ? 0 : gpu->step;
  gpu->came = call != 0 && gpu->came;
  for (uint32_t since = now_ms(); now_ms() - since < 2; sched_yield()) { /* GPUs do not wait for the host to look */
    const uint32_t before = gpu->step;
    if (*(volatile uint32_t *)params->abort != 0 || go_on_apart(gpu, params)) {
      return true;
    }
    if (gpu->one_step && gpu->step != before) {
      return false;
    }
  }
  return false;
}

static bool run_step(void *user, const mk_gpu_params *params, uint32_t step) {
  fake_gpu *gpu = user;
  if (gpu->apart) {
    return run_apart(gpu, params, step);
  }
  const uint32_t rank = gpu->ranks > 1 ? params->peers->rank : 0;
  gpu->launches[params->rows <= 1 ? 0 : params->rows <= MK_MAX_ROWS ? 1 : 2] += step == 0;
  gpu->at_work[rank]++;
  if (step == gpu->fault_at && rank == gpu->faulty) {
    *params->fault = (mk_gpu_fault){.claimed = 1, .sm = 3, .uid = 7, .epoch = step, .want = 1};
    *params->abort = 1;
    for (uint32_t r = 0; gpu->ranks > 1 && r < gpu->ranks; r++) {
      *(uint32_t *)(uintptr_t)params->peers->aborts[r] = 1; /* device memory is memory */
    }
    return true;
  }
  if (rank != 0 && *params->abort != 0) {
    return true;
  }
  if (rank == 0) { /* the one that has the ring */
    run_rows(gpu, params, step);
  }
  *params->epochs_done = step + 1;
  const bool stops = rank == 0 ? *params->stop != 0
                               : gpu->began == params->first_epoch && gpu->ended == params->first_epoch + step + 1;
  const bool last = step + 1 == params->epochs || stops;
  if (rank == 0 && last) {
    gpu->began = params->first_epoch;
    gpu->ended = params->first_epoch + step + 1;
  }
  return last;
}

/* A rule in the place of a ranking, too: of token t the rank is t + 1, and the most probable are the first ones, with
 * logits of -1, -2, ... */
static void rank(void *user, const mk_gpu_rank *params, uint32_t rows) {
  fake_gpu *gpu = user;
  mk_gpu_ranked *out = (mk_gpu_ranked *)(uintptr_t)params->out; /* device memory is memory */
  for (uint32_t i = 0; i < rows; i++) {
    const uint64_t *chosen = (const uint64_t *)(uintptr_t)params->chosen + params->rows[i].line;
    const uint32_t given = params->rows[i].token, token = given == MK_TOKEN_CHOSEN ? (uint32_t)*chosen : given;
    out[i] = (mk_gpu_ranked){.sum = 1, .before = token, .logit = -1.0f - (float)token};
    for (uint32_t place = 0; place < MK_GPU_RANK_MOST; place++) {
      out[i].keys[place] = mk_rank_key(-1.0f - (float)place, place);
    }
    gpu->ranked++;
  }
}

fake_cuda *fake_gpu_start(fake_gpu *gpu) {
  /* The library has the name that mkvm looks for, so it is found as one that is there already. */
  void *library = dlopen(MK_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  cr_assert_not_null(library, "%s", dlerror());
  fake_cuda_state_fn *get;
  void *found = dlsym(library, FAKE_CUDA_STATE);
  memcpy(&get, &found, sizeof get);
  cr_assert_not_null(get);
  fake_cuda *cuda = get();
  *gpu = (fake_gpu){.fault_at = UINT32_MAX, .nan_at = UINT32_MAX};
  cuda->kernel = run_step;
  cuda->rank = rank;
  cuda->user = gpu;
  return cuda;
}
