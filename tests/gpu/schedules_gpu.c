/* Requests that come and go at an engine on a GPU: whatever comes, is cancelled, finds its beginning known, or is
 * struck by a fault of the machine, each has the tokens, and the bits of their logits where it asks for them, that it
 * has alone. The CPU's schedules are many more (tests/support/schedule.h); these go through the machines that a GPU has
 * beside the main one. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"

enum {
  TEXTS = 40,
  REQUESTS = 14, /* of a schedule */
  PROMPT = 260,  /* tokens at most */
  ANSWER = 40,
  CONTEXT = 320,
  VOCAB = 499,
  BLOCKS = 40,
  FEW_BLOCKS = 12, /* requests have to give theirs back */
  /* The same without a machine for prompts, which caches in fp8 do not have: prompts take turns in steps of sixteen
   * rows, and fewer are under way. One request needs five. */
  FEWEST_BLOCKS = 6,
  SCHEDULES = 200, /* with each number of blocks */
  QUICK_SCHEDULES = 40,
  FAULT_EVERY = 25,
  DENSE = 60, /* boundaries in which all come; in one of three schedules so many more, and some have no company */
  SPARSE = 400,
};

typedef struct text { /* a prompt, and what comes of it alone */
  uint32_t prompt[PROMPT], prompt_count, tokens[ANSWER];
  uint64_t bits[ANSWER];
  uint32_t count;
  mk_sampling sampling;
} text;

typedef struct request {
  uint32_t text, want, at, cancel_at; /* boundaries; cancel_at 0: never */
  bool logits;
  bool there, over;
  bool by_one_row; /* its last token */
  uint64_t id;
  uint32_t tokens;
  mk_sequence_report report;
} request;

typedef struct world {
  mk_engine *engine;
  text texts[TEXTS];
  text *learning; /* whose answer is heard */
  request requests[REQUESTS];
  uint64_t random;
  uint32_t boundary, wrong, struck;
  uint64_t compared, cached, preemptions, cancelled;
  uint64_t one_row_steps, crossings; /* of requests: into company, and out of it */
  bool faulty, draws;                /* draws: the engine does, every request by parameters of its own */
} world;

static uint32_t below(uint64_t *random, uint32_t n) { return (uint32_t)(mk_synth_mix(++*random) % n); }

static uint64_t bits_of(const float *logits) {
  uint64_t hash = 1;
  for (uint32_t i = 0; i < VOCAB; i++) {
    uint32_t word;
    memcpy(&word, &logits[i], sizeof word);
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 31;
  }
  return hash;
}

static bool learn_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  text *t = ((world *)user)->learning;
  (void)sequence;
  t->tokens[t->count] = token;
  t->bits[t->count++] = bits_of(logits);
  return t->count < ANSWER;
}

static void learn_end(void *user, size_t sequence, mk_status status) {
  (void)user;
  (void)sequence;
  (void)expect_ok(status, "a request alone");
}

/* Beginnings in common, lengths around whole blocks and around those from which on prompts have their own machine. */
static void make_text(world *w, text *t) {
  static const uint32_t lengths[] = {1, 5, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200, 256, 260};
  uint64_t stream = below(&w->random, 3);
  t->prompt_count = lengths[below(&w->random, sizeof lengths / sizeof lengths[0])];
  uint32_t own = below(&w->random, 2) == 0 ? t->prompt_count : below(&w->random, t->prompt_count + 1);
  for (uint32_t i = 0; i < t->prompt_count; i++) {
    t->prompt[i] = below(i < own ? &stream : &w->random, VOCAB);
  }
  t->sampling = (mk_sampling)MK_SAMPLING_OFF;
  t->sampling.seed = below(&w->random, 1000);
  t->sampling.temperature = below(&w->random, 4) == 0 ? 0 : 1;
  t->sampling.top_k = below(&w->random, 3) == 0 ? 20 : 0;
  t->sampling.top_p = below(&w->random, 3) == 0 ? 0.8 : 1;
  t->sampling.repetition = below(&w->random, 3) == 0 ? 1.2 : 1;
  t->sampling.frequency = below(&w->random, 3) == 0 ? 0.6 : 0; /* a token that is counted twice shows */
}

static bool open_engine(const mk_config *config, uint32_t kv_blocks, uint64_t prefix, mk_engine_options options,
                        mk_engine **engine) {
  options.device = device;
  options.synth = config;
  options.synth_seed = 5;
  options.gpu_deadline_ms = deadline_ms;
  options.max_seq = CONTEXT;
  options.rows = MK_MAX_ROWS;
  options.kv = kv;
  options.long_prompts = true;
  options.kv_blocks = kv_blocks;
  options.prefix_tokens = prefix;
  return expect_ok(mk_engine_open(NULL, &options, engine), "an engine of sixteen rows");
}

static mk_sampling any_draw(void) {
  mk_sampling sampling = MK_SAMPLING_OFF;
  sampling.temperature = 1;
  return sampling;
}

static void learn(world *w, const mk_config *config) {
  const mk_sequence_calls calls = {.token = learn_token, .ended = learn_end, .user = w};
  const mk_sampling draw = any_draw();
  mk_engine *engine = NULL;
  if (!open_engine(config, 0, 0, (mk_engine_options){.sampling = w->draws ? &draw : NULL}, &engine)) {
    return;
  }
  for (uint32_t i = 0; i < TEXTS; i++) {
    w->learning = &w->texts[i];
    make_text(w, w->learning);
    const mk_sequence alone = {.prompt = w->learning->prompt,
                               .prompt_count = w->learning->prompt_count,
                               .n_predict = ANSWER,
                               .sampling = w->draws ? &w->learning->sampling : NULL,
                               .logits = true};
    (void)expect_ok(mk_engine_generate_all(engine, &alone, 1, &calls), "a request alone");
  }
  mk_engine_close(engine);
}

/* ---- At work ---- */

/* Tells by which machine a token came: a step of one row computes no other token. */
static void note_machine(world *w, request *r) {
  mk_batch_counters counters;
  mk_engine_count(w->engine, &counters);
  const bool by_one_row = counters.one_row_steps != w->one_row_steps;
  w->crossings += r->tokens != 0 && by_one_row != r->by_one_row;
  r->by_one_row = by_one_row;
  w->one_row_steps = counters.one_row_steps;
}

static bool take_token(void *user, size_t i, uint32_t token, const float *logits) {
  world *w = user;
  request *r = &w->requests[i];
  note_machine(w, r);
  const text *t = &w->texts[r->text];
  bool same = r->tokens < t->count && token == t->tokens[r->tokens];
  bool bits = logits == NULL ? !r->logits : same && bits_of(logits) == t->bits[r->tokens];
  w->wrong += !same || !bits;
  w->compared++;
  return ++r->tokens < r->want;
}

static void take_end(void *user, size_t i, mk_status status) {
  world *w = user;
  request *r = &w->requests[i];
  w->wrong += r->over || (status != MK_OK && !(w->faulty && status == MK_ERR_DEVICE)) ||
              (status == MK_OK && r->report.how == MK_ENDED_WHOLE && r->tokens != r->want);
  r->over = true;
  w->struck += status != MK_OK;
  w->cached += r->report.cached;
  w->preemptions += r->report.preemptions;
  w->cancelled += r->report.how == MK_ENDED_CANCELLED;
}

static void look(void *user) {
  world *w = user;
  const mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = w};
  w->boundary++;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    request *r = &w->requests[i];
    const text *t = &w->texts[r->text];
    if (!r->there && w->boundary >= r->at) {
      const mk_sequence s = {.prompt = t->prompt,
                             .prompt_count = t->prompt_count,
                             .n_predict = ANSWER,
                             .sampling = w->draws ? &t->sampling : NULL,
                             .logits = r->logits,
                             .report = &r->report,
                             .priority = (int32_t)(i % 2)};
      r->there = true;
      w->wrong += mk_engine_submit(w->engine, &s, &calls, i, &r->id) != MK_OK;
    } else if (r->there && !r->over && r->cancel_at != 0 && w->boundary >= r->cancel_at) {
      w->wrong += !mk_engine_cancel(w->engine, r->id);
    }
  }
}

static bool all_there(const world *w) {
  for (uint32_t i = 0; i < REQUESTS; i++) {
    if (!w->requests[i].there) {
      return false;
    }
  }
  return true;
}

static uint32_t uid_of(const mk_program *program, uint32_t opcode) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == opcode) {
      return program->instructions[i].uid;
    }
  }
  return 0;
}

static void run_schedule(world *w, uint32_t number) {
  size_t left = 0;
  w->boundary = 0;
  w->faulty = number % FAULT_EVERY == FAULT_EVERY - 1;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    uint32_t at = below(&w->random, number % 3 == 2 ? SPARSE : DENSE);
    w->requests[i] = (request){.text = below(&w->random, TEXTS),
                               .want = 1 + below(&w->random, ANSWER),
                               .at = at,
                               .cancel_at = below(&w->random, 5) == 0 ? at + 1 + below(&w->random, 40) : 0,
                               .logits = number % 4 == 0 && i % 3 == 0};
  }
  for (uint32_t launches = 0; left != 0 || !all_there(w); launches++) {
    if (w->faulty && launches == 2) {
      mk_gpu_skip_signal(mk_engine_gpu(w->engine), uid_of(mk_engine_program(w->engine), MK_OP_GLU));
    }
    mk_status status = mk_engine_step(w->engine, &left);
    if (status != MK_OK) {
      w->wrong += !w->faulty || status != MK_ERR_DEVICE;
      mk_gpu_skip_signal(mk_engine_gpu(w->engine), 0);
    }
  }
  mk_gpu_skip_signal(mk_engine_gpu(w->engine), 0);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    w->wrong += !w->requests[i].over;
  }
}

static void run_schedules(world *w, const mk_config *config, uint32_t blocks, uint32_t schedules) {
  mk_batch_counters counters = {0};
  const mk_sampling draw = any_draw();
  const mk_engine_options options = {.poll = look, .poll_user = w, .sampling = w->draws ? &draw : NULL};
  if (!open_engine(config, blocks, UINT64_MAX, options, &w->engine)) {
    return;
  }
  w->compared = w->cached = w->preemptions = w->cancelled = w->struck = 0;
  w->one_row_steps = w->crossings = 0;
  for (uint32_t number = 0; number < schedules; number++) {
    uint32_t before = w->wrong;
    char name[48];
    snprintf(name, sizeof name, "schedule %u with %u blocks", number, blocks);
    run_schedule(w, number);
    mk_engine_count(w->engine, &counters);
    expect(w->wrong == before, name, "a request has other tokens or logits than alone, or another end");
    expect(counters.blocks_in_use == 0 && counters.running == 0 && counters.waiting == 0, name, "something is left");
  }
  printf(
      "schedules%s with %u blocks: %llu tokens compared, %llu of prompts known, %llu preemptions, %llu cancelled, "
      "%u struck; %llu of %llu steps by one row, %llu crossings\n",
      w->draws ? " of requests that draw" : "", blocks, (unsigned long long)w->compared, (unsigned long long)w->cached,
      (unsigned long long)w->preemptions, (unsigned long long)w->cancelled, w->struck,
      (unsigned long long)counters.one_row_steps, (unsigned long long)counters.steps, (unsigned long long)w->crossings);
  expect(w->compared != 0 && w->cached != 0 && w->cancelled != 0 && w->struck != 0, "schedules",
         "nothing was known, cancelled or struck");
  expect(w->crossings != 0 && counters.one_row_steps < counters.steps, "schedules",
         "nobody went on by one row, or came back");
  expect(blocks == BLOCKS || w->preemptions != 0, "schedules", "nobody had to give blocks back");
  mk_engine_close(w->engine);
}

void test_schedules(bool quick) {
  static const shape small = {"schedules", 256, 704, 4, 2, 64, 2, 0, NULL};
  static world w;
  mk_config config = config_of(&small);
  config.vocab = VOCAB;
  config.max_position = CONTEXT;
  for (int draws = 0; draws < 2; draws++) {
    w = (world){.random = 11, .draws = draws != 0};
    learn(&w, &config);
    run_schedules(&w, &config, BLOCKS, quick ? QUICK_SCHEDULES : SCHEDULES);
    run_schedules(&w, &config, kv == MK_DTYPE_BF16 ? FEW_BLOCKS : FEWEST_BLOCKS, quick ? QUICK_SCHEDULES : SCHEDULES);
  }
}
