/* The recorder on every machine of the GPU: it changes no token, every role accounts for its time, and an instruction
 * that is delayed shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"
#include "tools/profiler/profile.h"

enum { PROMPT = 350, TOKENS = 12, STEPS = 6, DELAY_NS = 400000 };

static const shape traced_shape = {"traced", 512, 1024, 8, 2, 64, 2, 400, NULL};

typedef struct machine {
  const char *name;
  uint32_t rows, sequences;
  bool samples, prompts; /* prompts: the steps of a prompt are recorded, else those that generate */
  bool quantised;
  uint32_t ranks; /* 0: one */
} machine;

static const machine machines[] = {
    {"one row", 1, 1, false, false, false, 0},
    {"one row, drawn", 1, 1, true, false, false, 0},
    {"4 rows", 4, 3, false, false, false, 0},
    {"16 rows", 16, 16, false, false, false, 0},
    {"4 rows, drawn", 4, 3, true, false, false, 0},
    {"16 rows, drawn", 16, 16, true, false, false, 0},
    {"16 rows, a prompt", 16, 1, false, true, false, 0},
    {"128 rows, a prompt", 128, 1, false, true, false, 0},
    {"64 rows", 64, 16, false, false, false, 0},
    {"one row, int4", 1, 1, false, false, true, 0},
    {"one row, int4, drawn", 1, 1, true, false, true, 0},
    {"16 rows, int4", 16, 16, false, false, true, 0},
    {"16 rows, int4, drawn", 16, 16, true, false, true, 0},
    {"one row, 2 ranks", 1, 1, false, false, false, 2},
    {"4 rows, 2 ranks", 4, 3, false, false, false, 2},
    {"16 rows, 2 ranks", 16, 16, false, false, false, 2},
    {"128 rows, a prompt, 2 ranks", 128, 1, false, true, false, 2},
    {"64 rows, 2 ranks", 64, 16, false, false, false, 2},
};

typedef struct answers {
  uint32_t tokens[MK_MAX_ROWS][TOKENS], counts[MK_MAX_ROWS];
} answers;

static bool keep(void *user, size_t sequence, uint32_t token, const float *logits) {
  answers *a = user;
  (void)logits;
  a->tokens[sequence][a->counts[sequence]++] = token;
  return true;
}

static void on_end(void *user, size_t sequence, mk_status status) {
  (void)user;
  (void)sequence;
  expect_ok(status, "a traced sequence");
}

static mk_status generate_all(mk_engine *engine, const machine *m, answers *out) {
  static uint32_t prompts[MK_MAX_ROWS][PROMPT];
  mk_sequence sequences[MK_MAX_ROWS];
  mk_sequence_calls calls = {.token = keep, .ended = on_end, .user = out};
  memset(out, 0, sizeof *out);
  for (uint32_t s = 0; s < m->sequences; s++) {
    for (uint32_t i = 0; i < PROMPT; i++) {
      prompts[s][i] = (s * 31 + i * 7) % mk_engine_config(engine)->vocab;
    }
    sequences[s] =
        (mk_sequence){.prompt = prompts[s], .prompt_count = m->prompts ? PROMPT : 5 + s, .n_predict = TOKENS};
  }
  return mk_engine_generate_all(engine, sequences, m->sequences, &calls);
}

/* Nanoseconds of the longest time that a consumer worked on that instruction. */
static uint64_t longest_work(const mk_trace *trace, uint32_t uid) {
  uint64_t most = 0;
  for (uint32_t sm = 0; sm < trace->sms; sm++) {
    const mk_trace_track *track = mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i + 1 < track->count; i++) {
      const mk_trace_record *r = &track->records[i];
      uint64_t took = r[1].time - r[0].time;
      most = r->uid == uid && r->activity == MK_ACTIVITY_WORK && took > most ? took : most;
    }
  }
  return most;
}

static mk_trace *record(mk_engine *engine, const machine *m, answers *out) {
  mk_trace *trace = NULL;
  mk_trace_window window = {.first = m->prompts ? 1 : MK_FIRST_GENERATED, .steps = m->prompts ? 2 : STEPS};
  mk_engine_trace(engine, &window);
  if (expect_ok(generate_all(engine, m, out), m->name)) {
    expect_ok(mk_engine_trace_take(engine, &trace), m->name);
  }
  mk_engine_trace(engine, &(mk_trace_window){0});
  return trace;
}

/* Of several ranks: each has SMs that work, all of these have records, and its clock was compared with the first one's.
 */
static void check_ranks(const mk_trace *trace, const machine *m) {
  const uint32_t sms = trace->sms / m->ranks;
  expect(trace->sms == trace->program->queue_count && trace->alignment_ns > 0, m->name, "clocks were not compared");
  for (uint32_t rank = 0; rank < m->ranks; rank++) {
    uint32_t busy = 0, silent = 0;
    for (uint32_t sm = rank * sms; sm < (rank + 1) * sms; sm++) {
      const bool works = trace->program->queues[sm].count != 0;
      busy += works;
      silent += works && mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER)->count == 0;
    }
    expect(busy != 0 && silent == 0, m->name, "SMs of a rank have no records");
  }
}

static void check(const mk_trace *trace, const machine *m) {
  mk_profile *profile;
  if (m->ranks > 1) {
    check_ranks(trace, m);
  }
  if (expect_ok(mk_profile_new(trace, &profile), m->name)) {
    expect_ok(mk_profile_check(profile), m->name);
    expect(profile->steps == (m->prompts ? 2 : STEPS), m->name, "steps are missing from the trace");
    printf("%s: %u steps traced, %.1f us a step; the launch of %u steps %.1f us a step; clocks aligned to %.0f ns\n",
           m->name, profile->steps, profile->token_us, trace->launch_steps,
           trace->milliseconds * 1e3 / trace->launch_steps, trace->alignment_ns);
    mk_profile_free(profile);
  }
}

static void test_machine(const machine *m) {
  mk_config config = config_of(&traced_shape);
  char on[64];
  uint32_t sms = 0;
  snprintf(on, sizeof on, "%s", device);
  if (m->ranks > 1) { /* whose wide steps ask for whole units of eight row tiles on each */
    config.kv_heads = 4;
    place_ranks(m->ranks, on, sizeof on, &sms);
  }
  if (kv != MK_DTYPE_BF16 && (m->rows > MK_MAX_ROWS || m->ranks > 1)) {
    return; /* wide steps, and ranks that are recorded, have caches of bf16 alone */
  }
  mk_sampling sampling = {.top_p = 0.9, .repetition = 1.1, .temperature = 1, .top_k = 50, .seed = 3};
  mk_engine_options options = {.device = on,
                               .sms = sms,
                               .synth = &config,
                               .synth_seed = 3,
                               .rows = m->rows,
                               .slots = m->rows <= MK_MAX_ROWS ? 0
                                        : m->prompts           ? 1
                                                               : m->rows,
                               .few_rows = m->rows, /* none: the few sequences of a wide machine go by that one */
                               .max_seq = traced_shape.max_seq,
                               .kv = kv,
                               .sampling = m->samples ? &sampling : NULL,
                               .gpu_deadline_ms = deadline_ms};
  mk_engine *engine;
  answers plain, traced;
  if (m->quantised) {
    mk_synth_quantise(&config, MK_CODES_INT4, 128, MK_TENSOR_BF16, false);
  }
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), m->name)) {
    return;
  }
  uint32_t uid = 0;
  for (size_t i = 0; i < mk_engine_program(engine)->instruction_count; i++) {
    const mk_instruction *in = &mk_engine_program(engine)->instructions[i];
    uid = in->opcode == MK_OP_GLU ? in->uid : uid;
  }
  mk_trace *trace = NULL;
  if (expect_ok(generate_all(engine, m, &plain), m->name)) {
    trace = record(engine, m, &traced);
  }
  if (trace != NULL) {
    expect(memcmp(&plain, &traced, sizeof plain) == 0, m->name, "the recorder changes tokens");
    check(trace, m);
    expect(longest_work(trace, uid) < DELAY_NS, m->name, "an undisturbed instruction takes as long as a delayed one");
    mk_trace_free(trace);
    mk_gpu_delay(mk_engine_gpu(engine), uid, DELAY_NS);
    trace = record(engine, m, &traced);
    expect(trace != NULL && longest_work(trace, uid) >= DELAY_NS, m->name, "a delay does not show");
  }
  mk_trace_free(trace);
  mk_engine_close(engine);
}

void test_traces(void) {
  for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
    test_machine(&machines[i]);
  }
}
