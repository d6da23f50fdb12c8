/* See schedule.h: the models and the texts, and what each comes to alone. */
#include <string.h>

#include "models/synth.h"
#include "tests/support/numbers.h"
#include "tests/support/schedule_internal.h"

enum {
  BEGINNINGS = 3, /* blocks of tokens that prompts begin with */
  MOST_TAIL = 8,
  NAN_TOKEN = 77, /* its embedding is not a number */
  NAN_BITS = 0x7fc0,
};

mk_status schedule_world_new(schedule_world **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->seed = UINT64_MAX;
  (*out)->config = (mk_config){.hidden = 64,
                               .intermediate = 96,
                               .layers = 2,
                               .heads = 2,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .vocab = 128,
                               .eos = {127},
                               .eos_count = 1,
                               .max_position = SCHEDULE_CONTEXT,
                               .rms_eps = 1e-5f,
                               .rope_theta = 10000};
  return MK_OK;
}

void schedule_world_free(schedule_world *world) { mk_free(world); }

void schedule_world_enter(schedule_world *world, uint64_t seed) {
  if (world->seed != seed / SCHEDULE_WORLD) {
    world->seed = seed / SCHEDULE_WORLD;
    memset(world->texts, 0, sizeof world->texts);
  }
}

/* ---- Engines ---- */

static void spoil_token(mk_engine *engine) {
  const mk_program *program = mk_engine_program(engine);
  int embedding = mk_program_find_buffer(program, "embedding");
  uint16_t *elements = mk_cpu_memory(mk_engine_cpu(engine), (size_t)embedding);
  elements[mk_tile_offset(mk_buffer_grid_cols(&program->buffers[embedding]), NAN_TOKEN, 5)] = NAN_BITS;
}

void schedule_spoil_cache(mk_engine *engine) {
  const mk_program *program = mk_engine_program(engine);
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (program->buffers[b].kind == MK_KIND_KV) {
      uint16_t *elements = mk_cpu_memory(mk_engine_cpu(engine), b);
      for (uint64_t i = 0; i < program->buffers[b].bytes / sizeof *elements; i++) {
        elements[i] = NAN_BITS;
      }
    }
  }
}

/* Every other world has its caches in fp8. */
mk_dtype schedule_world_kv(const schedule_world *world) { return world->seed % 2 == 1 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16; }

mk_status schedule_world_open(const schedule_world *world, mk_engine_options options, mk_engine **out) {
  options.device = "cpu";
  options.threads = 1;
  options.synth = &world->config;
  options.synth_seed = world->seed + 1;
  options.max_seq = SCHEDULE_CONTEXT;
  options.kv = schedule_world_kv(world);
  MK_TRY(mk_engine_open(NULL, &options, out));
  spoil_token(*out);
  schedule_spoil_cache(*out);
  return MK_OK;
}

uint64_t schedule_world_bits(const schedule_world *world, const float *logits) {
  uint64_t hash = world->config.vocab, pair;
  for (uint32_t i = 0; i < world->config.vocab; i += 2) { /* vocab is even */
    memcpy(&pair, logits + i, sizeof pair);
    hash = (hash ^ pair) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  return hash;
}

/* ---- Texts ---- */

typedef struct listener {
  const schedule_world *world;
  schedule_text *text;
} listener;

static bool hear(void *user, uint32_t token, const float *logits) {
  listener *l = user;
  l->text->tokens[l->text->count] = token;
  l->text->bits[l->text->count++] = schedule_world_bits(l->world, logits);
  return true;
}

/* Each by itself and together, and seeds that others have, too. */
static mk_sampling draw_sampling(uint64_t *random) {
  mk_sampling s = MK_SAMPLING_OFF;
  s.temperature = 0.5 + 0.25 * test_random_below(random, 6);
  s.seed = test_random_below(random, 8);
  s.top_k = test_random_below(random, 3) == 0 ? 1 + test_random_below(random, 40) : 0;
  s.top_p = test_random_below(random, 3) == 0 ? 0.7 : 1;
  s.min_p = test_random_below(random, 4) == 0 ? 0.05 : 0;
  s.repetition = test_random_below(random, 3) == 0 ? 1.3 : 1;
  s.frequency = test_random_below(random, 3) == 0 ? 0.5 : 0;
  return s;
}

/* Computes a request in an engine of one row that has computed nothing else. */
static mk_status answer(const schedule_world *world, schedule_text *text, bool draws) {
  mk_engine *engine;
  listener l = {world, text};
  MK_TRY(
      schedule_world_open(world, (mk_engine_options){.sms = 1, .sampling = draws ? &text->sampling : NULL}, &engine));
  text->status = mk_engine_generate(engine, text->prompt, text->prompt_count, SCHEDULE_ANSWER, hear, &l);
  mk_engine_close(engine);
  if (text->status != MK_OK && text->status != MK_ERR_DEVICE) {
    text->prompt_count = 0;
    return text->status;
  }
  return MK_OK;
}

static uint32_t random_token(const schedule_world *world, uint64_t *random) {
  uint32_t token = test_random_below(random, world->config.vocab);
  return token == NAN_TOKEN ? 0 : token;
}

/* Lengths around whole blocks are the ones that matter. */
static uint32_t draw_length(uint64_t *random) {
  switch (test_random_below(random, 4)) {
    case 0:
      return 1 + test_random_below(random, 16);
    case 1:
      return 1 + test_random_below(random, SCHEDULE_PROMPT);
    default:
      return MK_BLOCK_TOKENS * (1 + test_random_below(random, 3)) + test_random_below(random, 5) - 2;
  }
}

/* Whole blocks from a few, so that the same one follows different ones, and itself. */
static void draw_beginning(const schedule_world *world, uint64_t *random, schedule_text *text) {
  uint64_t block = test_random_below(random, BEGINNINGS), stream = 0;
  text->prompt_count = draw_length(random);
  for (uint32_t i = 0; i < text->prompt_count; i++) {
    if (i % MK_BLOCK_TOKENS == 0) {
      block = test_random_below(random, 4) == 0 ? test_random_below(random, BEGINNINGS) : block;
      stream = world->seed * BEGINNINGS + block;
    }
    text->prompt[i] = random_token(world, &stream);
  }
}

static void draw_tail(const schedule_world *world, uint64_t *random, schedule_text *text) {
  for (uint32_t i = test_random_below(random, MOST_TAIL + 1); i > 0 && text->prompt_count < SCHEDULE_PROMPT; i--) {
    text->prompt[text->prompt_count++] = random_token(world, random);
  }
  if (test_random_below(random, 64) == 0) {
    text->prompt[test_random_below(random, text->prompt_count)] = NAN_TOKEN;
  }
}

/* What somebody sends who goes on from an answer, or from a part of it. */
static bool draw_continuation(const schedule_text *before, uint64_t *random, schedule_text *text) {
  uint32_t more = test_random_below(random, before->count + 1);
  if (before->prompt_count + more >= SCHEDULE_PROMPT) {
    return false;
  }
  memcpy(text->prompt, before->prompt, before->prompt_count * sizeof *text->prompt);
  memcpy(text->prompt + before->prompt_count, before->tokens, more * sizeof *text->prompt);
  text->prompt_count = before->prompt_count + more;
  return true;
}

mk_status schedule_world_text(schedule_world *world, uint32_t index, const schedule_text **out) {
  schedule_text *text = &world->texts[index];
  uint64_t random = mk_synth_mix(world->seed * 2 * SCHEDULE_TEXTS + index);
  const schedule_text *before = NULL;
  *out = text;
  if (text->prompt_count != 0) {
    return MK_OK;
  }
  if (index % SCHEDULE_FAMILY != 0 && test_random_below(&random, 2) == 0) {
    MK_TRY(schedule_world_text(world, index - 1, &before));
  }
  if (before == NULL || !draw_continuation(before, &random, text)) {
    draw_beginning(world, &random, text);
  }
  draw_tail(world, &random, text);
  text->sampling = draw_sampling(&random);
  return answer(world, text, schedule_draws(index));
}
