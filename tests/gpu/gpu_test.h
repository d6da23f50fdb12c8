/* What the files of mkvm_gpu_tests share: the count of checks, and the GPU under test. One thread. */
#ifndef MK_GPU_TEST_H
#define MK_GPU_TEST_H

#include "engine/engine.h"
#include "models/config.h"
#include "vm/gpu/machine.h"

extern unsigned passed, failed;
extern const char *device;   /* as --device names it */
extern uint32_t deadline_ms; /* of waits, as --deadline says; 0: the machine's own */

extern mk_dtype kv; /* of the caches of models, as --kv says; MLA has bf16 */

/* The N of cuda:N, 0 where there is none. */
uint32_t device_index(void);

/* Deals the ranks to the GPUs from the one under test on, in turn: several to a GPU where there are fewer GPUs. *sms:
 * that each rank can have. */
void place_ranks(uint32_t ranks, char *name, size_t size, uint32_t *sms);

/* Counts a check and returns `good`; a failed one is printed with the test's name and what was wrong. */
bool expect(bool good, const char *test, const char *what);
/* The same for a status, with its message. */
bool expect_ok(mk_status status, const char *test);
#ifdef __clang_analyzer__ /* which sees one file at a time */
static inline bool expect_ok_analyzed(mk_status status) { return status == MK_OK; }
#define expect_ok(status, test) expect_ok_analyzed(status)
#endif

/* Slots of several rows get blocks: one for every entry of the table, the last ones first. */
bool write_table(mk_gpu *gpu, const mk_program *program, const char *test);

/* A golden, on every machine for it (golden_gpu.c); first: with faults, too; quick: fewer repeats. */
void test_golden(const char *path, bool first, bool quick);
/* Its prompt alone, in chunks of so many rows. */
void test_rows_golden(const char *path, uint32_t rows);
/* Of a family that may have no program for wide steps; its prompt may be too long for every instruction of it to be
 * computed again. */
void test_family_golden(const char *path, bool quick);

/* Weights of every kind of checkpoint, packed on the GPU and on the host: the same bytes (pack_gpu.c). */
void test_packing(void);

/* Launches of a random model after a KV cache of hash values: always the same bits (depth_gpu.c). */
void test_depth(const char *shape, uint32_t depth);

/* The tile library, each operation against a plain C loop (tile_gpu.c); quick: fewer shapes and rounds. */
void test_tiles(bool quick);

/* Sampling, against its definition; prints what it costs per token (sampling_gpu.c). quick: a tiny model only. */
void test_sampling(bool quick);
/* All of it, one row and several, of a model. */
void test_draws_of(const char *name, const mk_config *config);
/* The same of a model that several GPUs share, named with commas, so many SMs of each. */
void test_draws_of_ranks(const char *gpus, uint32_t each, const char *name, const mk_config *config);

/* A sampling that draws, and many ways to sample (sampling_gpu.c): each slot gets one, from way `first` on. */
const mk_sampling *way_that_draws(void);
bool set_ways(mk_engine *engine, size_t first, const char *name);

/* Changes of a model (quantised_gpu.c): weights of codes, some by groups of 64 or 32 columns or with zeros. */
void have_fp8(mk_config *config);
void have_fp8_by_64(mk_config *config);
void have_int8(mk_config *config);
void have_int4(mk_config *config);
void have_int4_zeros(mk_config *config);
void have_int4_by_32(mk_config *config);

/* MLA decode, against its definition; quick: that launches give the same bits, and a fault. */
void test_mla(bool quick);
/* Programs of several rows per step, instruction by instruction and sequence by sequence (rows_gpu.c). */
void test_rows(bool quick);
/* The same of wide steps that several sequences share (rows_gpu.c). */
void test_many(bool quick);
/* What sets other families apart, piece by piece (families_gpu.c); quick: several rows of one shape alone. */
void test_families(bool quick);
/* Weights of one form, or (NULL) of every form (quantised_gpu.c); quick: several rows of one shape and three forms
 * alone. */
void test_quantised(const char *form, bool quick);
/* A KV cache in fp8 (kv_gpu.c); quick: several rows of two shapes alone. */
void test_kv(bool quick);
/* A program written by hand: rejected, or right and the same in 100 launches (program_gpu.c); quick: in three short
 * ones. */
void test_program(const char *path, bool quick);
/* Tokens and blocks out of range, in a program of one row with attention, end the launch and nothing else. */
void test_indices(const char *path);
/* Programs for the prompt of one sequence, in the same way (prompt_gpu.c). */
void test_prompts(bool quick);
/* The same logits in every mixture of machines and rows (mixture_gpu.c); quick: fewer tokens and mixtures. */
void test_mixture(bool quick);
/* Requests that come and go at an engine have what they have alone (schedules_gpu.c); quick: fewer schedules. */
void test_schedules(bool quick);
/* Models that several GPUs share give the bits of one (ranks_gpu.c); quick: fewer tokens and ranks. */
void test_ranks(bool quick);
/* The recorder on every machine (trace_gpu.c). */
void test_traces(void);

#endif
