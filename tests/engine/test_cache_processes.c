/* Packed copies of ranks that are processes: each reads its own rows of the checkpoint alone, and writes and reads a
 * copy of its own share. Over a driver and an NCCL without GPUs, whose memory is looked at. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cache.h"
#include "engine/load.h"
#include "engine/weights.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/rank_process.h"
#include "tests/support/raw_model.h"
#include "vm/gpu/upload.h"

FAKE_GPU_IMAGE

enum { RANKS = 2, MOST_RANKS = 3, NOBODY = 99 };

/* What a rank says of a loading, in memory of all processes. */
typedef struct report {
  uint32_t notices;
  char notice[512];
  uint64_t done, total, here, all; /* progress; bytes of weights that are here, and of all ranks */
} report;

typedef struct rig {
  char address[32], model[TEST_RAW_PATH], folder[TEST_RAW_PATH];
  uint32_t ranks;
  mk_config config;
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  uint8_t **weights; /* as the host packs them */
  report *told;      /* [MOST_RANKS] */
  uint32_t dies;     /* the rank that is killed before it writes its copy */
  uint32_t full;     /* the one whose disk is full */
} rig;

static void open_model(rig *r) {
  *r = (rig){.ranks = RANKS, .dies = NOBODY, .full = NOBODY};
  cr_assert_eq(mk_synth_shape("tiny", &r->config), MK_OK);
  const char *parent = getenv("TMPDIR");
  snprintf(r->folder, sizeof r->folder, "%s/mkvm-shares-XXXXXX", parent == NULL ? "/tmp" : parent);
  cr_assert_not_null(mkdtemp(r->folder));
  cr_assert_eq(test_raw_model_write(&r->config, MK_TENSOR_BF16, 5, r->model), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_open(r->model, &r->checkpoint), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&r->config, &r->graph), MK_OK);
  r->told = mmap(NULL, MOST_RANKS * sizeof *r->told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert_neq((void *)r->told, MAP_FAILED);
}

static mk_program *compile(const rig *r) {
  mk_program *program;
  const mk_compile_options options = {.sms = 4, .ranks = r->ranks, .max_seq = 64};
  RANK_MUST(mk_compile(r->graph, &options, &program) == MK_OK);
  return program;
}

/* What the weights are, as they are now. */
static void take_weights(rig *r) {
  mk_program *program = compile(r);
  cr_assert_eq(mk_alloc(r->graph->weight_count, sizeof *r->weights, &r->weights), MK_OK);
  for (size_t i = 0; i < r->graph->weight_count; i++) {
    cr_assert_eq(mk_alloc_aligned(64, program->buffers[i].bytes, &r->weights[i]), MK_OK);
    cr_assert_eq(mk_weights_load(r->checkpoint, r->graph, &r->graph->weights[i], r->weights[i]), MK_OK, "%s",
                 mk_error_message());
  }
  mk_program_free(program);
}

static void open_rig(rig *r) {
  open_model(r);
  take_weights(r);
}

static void close_rig(rig *r) {
  for (size_t i = 0; i < r->graph->weight_count; i++) {
    mk_free(r->weights[i]);
  }
  mk_free(r->weights);
  mk_graph_free(r->graph);
  mk_checkpoint_close(r->checkpoint);
  test_raw_model_remove(r->model);
  test_raw_model_remove(r->folder);
  munmap(r->told, MOST_RANKS * sizeof *r->told);
}

/* ---- In a rank ---- */

typedef struct own {
  const rig *rig;
  uint32_t rank;
} own;

static void take_notice(void *user, const char *text) {
  const own *o = user;
  report *t = &o->rig->told[o->rank];
  t->notices++;
  snprintf(t->notice, sizeof t->notice, "%s", text);
}

static void take_progress(void *user, uint64_t done, uint64_t total) {
  const own *o = user;
  report *t = &o->rig->told[o->rank];
  t->done = done;
  t->total = total;
  if (done == total && o->rig->dies == o->rank) {
    (void)raise(SIGKILL);
  }
}

/* Every byte of the share is the one that the host packs. */
static mk_status look_at_weights(const own *o, mk_gpu *gpu, const mk_program *program) {
  report *t = &o->rig->told[o->rank];
  t->here = t->all = 0;
  for (size_t i = 0; i < o->rig->graph->weight_count; i++) {
    const uint64_t bytes = program->buffers[i].bytes;
    uint8_t *have;
    RANK_MUST(mk_alloc(bytes, 1, &have) == MK_OK);
    uint64_t offset = 0;
    for (uint64_t run; (run = mk_gpu_next_here(gpu, i, &offset)) != 0; offset += run) {
      const mk_status status = mk_gpu_read(gpu, i, offset, have, run);
      if (status != MK_OK) { /* another rank may be gone */
        mk_free(have);
        return status;
      }
      RANK_MUST(memcmp(have, o->rig->weights[i] + offset, run) == 0);
      t->here += run;
    }
    t->all += bytes;
    if (mk_gpu_next_here(gpu, i, &(uint64_t){0}) != bytes) { /* what others have is theirs to tell */
      RANK_MUST(mk_gpu_read(gpu, i, 0, have, bytes) == MK_ERR_USAGE);
    }
    mk_free(have);
  }
  return MK_OK;
}

static mk_status load_share(const own *o, mk_gpu *gpu, const mk_program *program) {
  const mk_load load = {.graph = o->rig->graph,
                        .program = program,
                        .checkpoint = o->rig->checkpoint,
                        .gpu = gpu,
                        .cache = o->rig->folder,
                        .notice = take_notice,
                        .progress = take_progress,
                        .user = (void *)(uintptr_t)o};
  struct rlimit limit;
  RANK_MUST(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  if (o->rig->full == o->rank) {
    (void)signal(SIGXFSZ, SIG_IGN);
    limit.rlim_cur = 100000;
    RANK_MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  MK_TRY(mk_load_weights(&load));
  return look_at_weights(o, gpu, program);
}

static mk_status run_rank(uint32_t rank, void *user) {
  const own o = {.rig = user, .rank = rank};
  rank_world world = {0};
  rank_world_start(&world, rank, o.rig->ranks, true);
  mk_program *program = compile(o.rig);
  const mk_group_options options = {
      .rank = rank, .ranks = o.rig->ranks, .address = o.rig->address, .deadline_s = 20, .version = "a test"};
  mk_group *group = NULL;
  mk_gpu *gpu = NULL;
  MK_TRY(mk_group_open(&options, 1, rank, &group));
  mk_status status = mk_gpu_new(program, &(mk_gpu_options){.group = group}, &gpu);
  status = status == MK_OK ? load_share(&o, gpu, program) : status;
  if (status == MK_OK) {
    status = rank == 0 ? mk_group_lead(group) : mk_group_follow(group);
  }
  mk_group_end(group, status);
  mk_gpu_free(gpu);
  mk_group_free(group);
  mk_program_free(program);
  rank_world_end(&world);
  return status;
}

/* ---- All of them ---- */

static void start_all(rig *r, rank_process *processes) {
  rank_address(r->address);
  memset(r->told, 0, MOST_RANKS * sizeof *r->told);
  for (uint32_t rank = 0; rank < r->ranks; rank++) {
    rank_start(&processes[rank], run_rank, rank, r);
  }
}

/* All load well, and so many have something to say; the shares are all that there is. */
static void expect_load(rig *r, uint32_t notices) {
  rank_process processes[MOST_RANKS];
  uint64_t here = 0;
  uint32_t said = 0;
  start_all(r, processes);
  for (uint32_t rank = 0; rank < r->ranks; rank++) {
    const int code = rank_finish(&processes[rank]);
    cr_assert_eq(code, MK_OK, "rank %u: code %d, %s", rank, code, processes[rank].message);
    cr_assert(r->told[rank].done == r->told[rank].total && r->told[rank].total == r->told[rank].here);
    cr_assert_lt(r->told[rank].here, r->told[rank].all);
    here += r->told[rank].here;
    said += r->told[rank].notices;
  }
  cr_assert_geq(here, r->told[0].all);
  cr_assert_eq(said, notices, "%s%s", r->told[0].notice, r->told[1].notice);
}

/* The copies in the folder, and all files there. */
static size_t files_in(const rig *r, const char *pattern) {
  char command[TEST_RAW_PATH + 64];
  size_t files = 0;
  snprintf(command, sizeof command, "ls -A '%s' | grep -c '%s'", r->folder, pattern);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  cr_assert_eq(fscanf(pipe, "%zu", &files), 1);
  pclose(pipe);
  return files;
}

static void copies_of(const rig *r, char paths[RANKS][TEST_RAW_PATH]) {
  char command[TEST_RAW_PATH + 64];
  snprintf(command, sizeof command, "ls '%s'/*.packed", r->folder);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  for (uint32_t i = 0; i < RANKS; i++) {
    cr_assert_not_null(fgets(paths[i], TEST_RAW_PATH, pipe));
    paths[i][strcspn(paths[i], "\n")] = '\0';
  }
  pclose(pipe);
}

/* Changes the weights on the disk, in what the key does not look at. */
static void change_weights(const rig *r) {
  char file[TEST_RAW_PATH + 32];
  struct stat before;
  snprintf(file, sizeof file, "%s/model.safetensors", r->model);
  cr_assert_eq(stat(file, &before), 0);
  for (size_t i = 0; i < mk_checkpoint_count(r->checkpoint); i++) {
    const mk_tensor *tensor = mk_checkpoint_tensor(r->checkpoint, i);
    if (tensor->bytes > 8192) {
      cr_assert(test_flip(file, (off_t)(tensor->offset + tensor->bytes - 1)));
    }
  }
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  cr_assert_eq(utimensat(AT_FDCWD, file, times, 0), 0);
}

Test(cache_processes, each_rank_writes_and_reads_its_share) {
  rig r;
  open_rig(&r);
  expect_load(&r, 0);
  cr_assert_eq(files_in(&r, "packed$"), RANKS);
  cr_assert_eq(files_in(&r, "."), RANKS);
  change_weights(&r); /* so what is right comes from the copies */
  expect_load(&r, 0);
  cr_assert_eq(files_in(&r, "."), RANKS);
  close_rig(&r);
}

/* Of another number of ranks the shares are others, and so are the copies. */
Test(cache_processes, other_ranks_have_other_copies) {
  rig r;
  open_rig(&r);
  expect_load(&r, 0);
  r.ranks = MOST_RANKS;
  expect_load(&r, 0);
  cr_assert_eq(files_in(&r, "packed$"), RANKS + MOST_RANKS);
  change_weights(&r);
  expect_load(&r, 0);
  r.ranks = RANKS;
  expect_load(&r, 0);
  close_rig(&r);
}

static void expect_made_again(rig *r) {
  expect_load(r, 1);
  const char *notice = r->told[r->told[0].notices != 0 ? 0 : 1].notice;
  cr_assert_not_null(strstr(notice, "packing the weights again"), "%s", notice);
  expect_load(r, 0);
  cr_assert_eq(files_in(r, "."), RANKS);
}

Test(cache_processes, a_spoilt_copy_is_made_again_by_its_rank) {
  rig r;
  char paths[RANKS][TEST_RAW_PATH];
  struct stat size;
  open_rig(&r);
  expect_load(&r, 0);
  copies_of(&r, paths);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(stat(paths[rank], &size), 0);
    cr_assert(test_flip(paths[rank], size.st_size - 5));
    expect_made_again(&r);
    cr_assert_eq(truncate(paths[rank], 3000), 0);
    expect_made_again(&r);
    cr_assert_eq(unlink(paths[rank]), 0);
    cr_assert_eq(mkfifo(paths[rank], 0600), 0);
    expect_load(&r, 2); /* and nothing takes its place */
    cr_assert_eq(unlink(paths[rank]), 0);
    expect_load(&r, 0);
  }
  close_rig(&r);
}

/* A copy under the name of another rank's is none. */
Test(cache_processes, copies_do_not_stand_for_each_other) {
  rig r;
  char paths[RANKS][TEST_RAW_PATH], aside[TEST_RAW_PATH + 8];
  open_rig(&r);
  expect_load(&r, 0);
  copies_of(&r, paths);
  snprintf(aside, sizeof aside, "%s.x", paths[0]);
  cr_assert_eq(rename(paths[0], aside), 0);
  cr_assert_eq(rename(paths[1], paths[0]), 0);
  cr_assert_eq(rename(aside, paths[1]), 0);
  expect_load(&r, RANKS);
  expect_load(&r, 0);
  close_rig(&r);
}

Test(cache_processes, a_full_disk_of_one_rank_is_its_notice) {
  rig r;
  open_rig(&r);
  r.full = 1;
  expect_load(&r, 1);
  cr_assert_not_null(strstr(r.told[1].notice, "cannot be written"), "%s", r.told[1].notice);
  cr_assert_not_null(strstr(r.told[1].notice, "going on without a packed copy"), "%s", r.told[1].notice);
  cr_assert_eq(files_in(&r, "."), 1);
  r.full = NOBODY;
  expect_load(&r, 0);
  cr_assert_eq(files_in(&r, "."), RANKS);
  close_rig(&r);
}

/* Killed before its copy has its name: the other rank ends by the line, and the next run has both. */
Test(cache_processes, a_rank_that_is_killed_leaves_no_copy) {
  rig r;
  rank_process processes[RANKS];
  open_rig(&r);
  r.dies = 1;
  start_all(&r, processes);
  cr_assert_eq(rank_finish(&processes[1]), 1000 + SIGKILL);
  cr_assert_eq(rank_finish(&processes[0]), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(processes[0].message, ") is gone"), "%s", processes[0].message);
  cr_assert_leq(files_in(&r, "packed$"), 1);
  r.dies = NOBODY;
  expect_load(&r, 0);
  cr_assert_eq(files_in(&r, "packed$"), RANKS);
  change_weights(&r);
  expect_load(&r, 0);
  close_rig(&r);
}

/* ---- Rows of the checkpoint ---- */

static bool has_row(const mk_gpu *gpu, size_t buffer, const mk_gpu_pack *pack, uint32_t row, uint64_t tile_bytes) {
  const uint64_t want = mk_gpu_pack_row(pack, row) / MK_TILE * tile_bytes;
  uint64_t at = want;
  return mk_gpu_next_here(gpu, buffer, &at) >= tile_bytes && at == want;
}

/* Of a weight's source: the rows that are read are those from the first to the last one that are here. */
static void look_at_rows(const mk_gpu_upload *upload, const mk_gpu *gpu, const mk_program *program, const rig *r,
                         size_t weight, uint32_t source, uint64_t *read, uint64_t *all) {
  static const mk_gpu_fill_order orders[] = {
      [MK_PACK_ROWS] = MK_GPU_FILL_ROWS, [MK_PACK_ROPE] = MK_GPU_FILL_ROPE, [MK_PACK_GLU] = MK_GPU_FILL_GLU};
  const mk_weight *w = &r->graph->weights[weight];
  const mk_buffer *b = &program->buffers[weight];
  mk_gpu_pack pack = {.order = orders[w->pack],
                      .source = source,
                      .rows = w->sources[source].rows,
                      .cols = w->cols,
                      .head_dim = r->config.head_dim};
  for (uint32_t s = 0; s < w->source_count; s++) {
    pack.source_rows[s] = w->sources[s].rows;
  }
  uint32_t first = 0, last = pack.rows;
  while (first < last && !has_row(gpu, weight, &pack, first, b->bytes / mk_buffer_grid_rows(b))) {
    first++;
  }
  while (first < last && !has_row(gpu, weight, &pack, last - 1, b->bytes / mk_buffer_grid_rows(b))) {
    last--;
  }
  *all += pack.rows;
  mk_gpu_upload_trim(upload, weight, &pack);
  RANK_MUST(pack.rows == last - first && (pack.rows == 0 || pack.first_row == first));
  *read += pack.rows;
}

static mk_status look_at_all_rows(uint32_t rank, void *user) {
  const rig *r = user;
  rank_world world = {0};
  rank_world_start(&world, rank, r->ranks, true);
  mk_program *program = compile(r);
  const mk_group_options options = {.rank = rank, .ranks = r->ranks, .address = r->address, .version = "a test"};
  mk_group *group;
  mk_gpu *gpu;
  mk_gpu_upload *upload;
  uint64_t read = 0, all = 0;
  RANK_MUST(mk_group_open(&options, 1, rank, &group) == MK_OK);
  RANK_MUST(mk_gpu_new(program, &(mk_gpu_options){.group = group}, &gpu) == MK_OK);
  RANK_MUST(mk_gpu_upload_new(gpu, 0, &upload) == MK_OK);
  for (size_t i = 0; i < r->graph->weight_count; i++) {
    for (uint32_t s = 0; !mk_pack_is_vector(r->graph->weights[i].pack) && s < r->graph->weights[i].source_count; s++) {
      look_at_rows(upload, gpu, program, r, i, s, &read, &all);
    }
  }
  r->told[rank].here = read;
  r->told[rank].all = all;
  mk_gpu_upload_free(upload);
  RANK_MUST((rank == 0 ? mk_group_lead(group) : mk_group_follow(group)) == MK_OK);
  mk_group_end(group, MK_OK);
  mk_gpu_free(gpu);
  mk_group_free(group);
  mk_program_free(program);
  rank_world_end(&world);
  return MK_OK;
}

Test(cache_processes, a_rank_reads_its_own_rows_alone) {
  rig r;
  rank_process processes[RANKS];
  open_rig(&r);
  rank_address(r.address);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    rank_start(&processes[rank], look_at_all_rows, rank, &r);
  }
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    const int code = rank_finish(&processes[rank]);
    cr_assert_eq(code, MK_OK, "rank %u: %s", rank, processes[rank].message);
  }
  /* The embedding is every rank's where it is looked up; of all else there are two halves. */
  cr_assert_lt(r.told[0].here, r.told[0].all);
  cr_assert_lt(r.told[1].here, r.told[1].all);
  close_rig(&r);
}
