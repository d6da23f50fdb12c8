/* The public library: what its header promises of engines, requests, threads and failures. */
#include <math.h>

#include "tests/lib/library.h"

TestSuite(mkvm, .timeout = MK_HANG_SECONDS);

#define WITH_MODEL(name) TEST_WITH_MODEL(mkvm, name)

WITH_MODEL(a_request_from_prompt_to_end) {
  mkvm_engine *engine = open_tiny(1);
  answer a;
  generate(engine, NULL, &a);
  cr_assert_eq(a.count, 20);
  cr_assert_eq(a.end.request, 1);
  cr_assert_eq(a.end.reason, MKVM_END_LENGTH);
  cr_assert_eq(a.end.status, MKVM_OK);
  cr_assert_str_eq(a.message, "");
  cr_assert(a.end.prompt_tokens == 4 && a.end.tokens == 20);
  cr_assert(a.end.queue_seconds >= 0 && a.end.prompt_seconds > 0 && a.end.generate_seconds > 0);
  mkvm_stats stats;
  OK(mkvm_get_stats(engine, &stats));
  cr_assert_eq(stats.size, sizeof stats);
  cr_assert(stats.submitted == 1 && stats.waiting == 0 && stats.running == 0 && stats.full == 1);
  cr_assert(stats.prompt_tokens == 4 && stats.tokens == 20 && stats.busy_seconds > 0);
  mkvm_info info;
  OK(mkvm_get_info(engine, &info));
  cr_assert_str_eq(info.device, "cpu");
  cr_assert(info.vocabulary == config.vocab && info.max_context == 200 && info.model_context == config.max_position);
  cr_assert(info.max_batch == 1 && info.weight_bytes > 0 && info.kv_bytes > 0 && info.load_seconds > 0);
  cr_assert_eq(info.end_token_count, config.eos_count);
  cr_assert(config.eos_count > 0 && memcmp(info.end_tokens, config.eos, config.eos_count * sizeof *config.eos) == 0);
  OK(mkvm_close(engine));
}

/* Half the memory, and a scale of two bytes for each 64 numbers. */
WITH_MODEL(a_cache_in_fp8) {
  mkvm_options options = tiny_options(4);
  mkvm_info bf16, fp8;
  cr_assert_eq(options.kv, MKVM_KV_BF16);
  mkvm_engine *engine = open_with(&options);
  OK(mkvm_get_info(engine, &bf16));
  OK(mkvm_close(engine));
  options.kv = MKVM_KV_FP8;
  answer a = {.engine = open_with(&options)}, b;
  OK(mkvm_get_info(a.engine, &fp8));
  cr_assert_eq(fp8.kv_bytes * 2 * config.head_dim, bf16.kv_bytes * (config.head_dim + 2), "%llu and %llu bytes",
               (unsigned long long)fp8.kv_bytes, (unsigned long long)bf16.kv_bytes);
  submit(&a, long_prompt(), LONG, 20);
  OK(mkvm_run(a.engine));
  OK(mkvm_close(a.engine));
  cr_assert_eq(a.count, 20);
  options.max_batch = 1;
  alone(&options, long_prompt(), LONG, 20, &b);
  expect_same(&a, &b);
}

/* On the CPU a prompt goes in steps of sixteen, however few requests may run at a time; that many run. */
WITH_MODEL(few_requests_have_long_steps) {
  for (uint32_t batch = 1; batch <= 2; batch++) {
    const mkvm_options options = tiny_options(batch);
    answer all[3];
    mkvm_stats stats;
    size_t left = 1;
    mkvm_engine *engine = open_with(&options);
    for (size_t i = 0; i < 3; i++) {
      all[i] = (answer){.engine = engine};
      submit(&all[i], long_prompt(), LONG, 4 + (uint32_t)i);
    }
    while (left != 0) {
      OK(mkvm_step(engine, &left));
      OK(mkvm_get_stats(engine, &stats));
      cr_assert_leq(stats.running, batch);
    }
    cr_assert_eq(stats.kv_tokens, batch * 256, "a context of 200 tokens for each, in whole blocks");
    cr_assert_leq(stats.steps, 3 * (LONG / 16 + 1) + 4 + 5 + 6, "%llu steps", (unsigned long long)stats.steps);
    OK(mkvm_close(engine));
  }
}

WITH_MODEL(text_and_ids) {
  mkvm_engine *engine = open_tiny(1);
  uint32_t *ids;
  char *text;
  size_t count, length;
  OK(mkvm_tokenize(engine, "h\xc3\xa9", 3, 0, &ids, &count));
  cr_assert_eq(count, 3);
  OK(mkvm_detokenize(engine, ids, count, &text, &length));
  cr_assert_eq(length, 3);
  cr_assert_str_eq(text, "h\xc3\xa9");
  mkvm_free(text);
  OK(mkvm_detokenize(engine, ids, 2, &text, &length)); /* half a character */
  cr_assert_str_eq(text, "h\xef\xbf\xbd");
  mkvm_free(text);
  mkvm_free(ids);
  OK(mkvm_tokenize(engine, NULL, 0, 0, &ids, &count));
  cr_assert(count == 0 && ids != NULL);
  mkvm_free(ids);
  OK(mkvm_detokenize(engine, NULL, 0, &text, &length));
  cr_assert_str_eq(text, "");
  mkvm_free(text);
  OK(mkvm_close(engine));
}

WITH_MODEL(a_conversation) {
  const mkvm_turn turns[] = {{"user", "What is free software?", 22}};
  mkvm_engine *engine;
  mkvm_options options;
  mkvm_request request;
  answer a = {.count = 0};
  char *text;
  size_t length;
  mkvm_options_init(&options);
  options.device = "cpu";
  OK(mkvm_open(MK_SOURCE_DIR "/models/demo", &options, &engine));
  OK(mkvm_chat_text(engine, turns, 1, &text, &length));
  cr_assert_eq(strlen(text), length);
  cr_assert_not_null(strstr(text, "What is free software?"));
  mkvm_free(text);
  mkvm_request_init(&request);
  request.turns = turns;
  request.turn_count = 1;
  request.max_tokens = 5;
  request.on_token = on_token;
  request.on_end = on_end;
  request.user = &a;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  OK(mkvm_detokenize(engine, a.tokens, a.count, &text, &length)); /* a text of its own */
  cr_assert(a.count == 5 && a.length == length && memcmp(a.text, text, length) == 0, "'%s', '%s'", a.text, text);
  mkvm_free(text);
  OK(mkvm_close(engine));
  engine = open_tiny(1);
  REFUSED(mkvm_chat_text(engine, turns, 1, &text, &length), MKVM_ERR_FILE, "no chat template");
  request.size = sizeof request;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_FILE, "no chat template");
  OK(mkvm_close(engine));
}

static void put(const char *name, const char *text) {
  char path[TEST_PATH + 64];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* What the caller says goes before what the model's files say. */
WITH_MODEL(the_template_has_variables_of_the_callers) {
  static const char off[] = "{\"think\": false, \"bos_token\": \"<B>\"}";
  const mkvm_turn turns[] = {{"user", "ab", 2}};
  answer a = {.count = 0};
  char *text;
  size_t length;
  put("tokenizer_config.json", "{\"bos_token\": \"a\"}");
  put("chat_template.jinja",
      "{{ bos_token }}{{ messages[0].content }}{{ tools is none }}{% if think is defined %}"
      "{{ 'yes' if think else 'no' }}{% endif %}{{ more[0].x if more is defined }}");
  mkvm_engine *engine = open_tiny(1);
  OK(mkvm_chat_text(engine, turns, 1, &text, &length));
  cr_assert_str_eq(text, "aabTrue");
  mkvm_free(text);
  OK(mkvm_chat_text_with(engine, turns, 1, off, strlen(off), &text, &length));
  cr_assert_str_eq(text, "<B>abTrueno");
  mkvm_free(text);
  OK(mkvm_chat_text_with(engine, turns, 1, "{\"more\": [{\"x\": 2}], \"think\": 1}?", 32, &text, &length));
  cr_assert_str_eq(text, "aabTrueyes2");
  mkvm_free(text);
  REFUSED(mkvm_chat_text_with(engine, turns, 1, "{", 1, &text, &length), MKVM_ERR_USAGE, "variables of the chat");
  REFUSED(mkvm_chat_text_with(engine, turns, 1, "[]", 2, &text, &length), MKVM_ERR_USAGE, "must be an object");
  REFUSED(mkvm_chat_text_with(engine, turns, 1, NULL, 2, &text, &length), MKVM_ERR_USAGE, "at no address");
  REFUSED(mkvm_chat_text_with(engine, turns, 1, "{\"tools\": []}", 13, &text, &length), MKVM_ERR_USAGE,
          "'tools' cannot be given");
  mkvm_request request = request_of(&a, NULL, 0, 1);
  request.turns = turns;
  request.turn_count = 1;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert_eq(a.end.prompt_tokens, strlen("aabTrue"));
  request.variables = off;
  request.variables_length = strlen(off);
  a = (answer){.count = 0};
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert_eq(a.end.prompt_tokens, strlen("<B>abTrueno"));
  request.variables = "{";
  request.variables_length = 1;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "variables of the chat template");
  OK(mkvm_close(engine));
}

/* The model's own settings count only where the caller says nothing. */
WITH_MODEL(the_model_says_how_long_answers_are) {
  put("generation_config.json", "{\"max_new_tokens\": 7}");
  for (size_t most = 0; most <= 9; most += 9) {
    mkvm_engine *engine = open_tiny(1);
    answer a = {.engine = engine};
    mkvm_request request = request_of(&a, prompt, 4, most);
    request.ignore_end = 1;
    OK(mkvm_submit(engine, &request, NULL));
    OK(mkvm_run(engine));
    cr_assert_eq(a.count, most == 0 ? 7 : 9);
    cr_assert_eq(a.end.reason, MKVM_END_LENGTH);
    OK(mkvm_close(engine));
  }
}

WITH_MODEL(side_by_side_as_alone) {
  enum { REQUESTS = 5 };
  static const uint32_t prompts[REQUESTS][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {3, 2, 1}, {9, 9, 9}};
  answer alone[REQUESTS], together[REQUESTS];
  for (uint32_t batch = 1; batch <= 4; batch += 3) {
    mkvm_engine *engine = open_tiny(batch);
    answer *to = batch == 1 ? alone : together;
    size_t left = 99;
    for (size_t i = 0; i < REQUESTS; i++) {
      uint64_t id = 0;
      to[i] = (answer){.engine = engine};
      mkvm_request request = request_of(&to[i], prompts[i], 3, 10 + i);
      OK(mkvm_submit(engine, &request, &id));
      cr_assert_eq(id, i + 1);
    }
    for (size_t steps = 0; left != 0; steps++) { /* each brings something about */
      size_t before = 0, after = 0;
      cr_assert_leq(steps, 100);
      for (size_t i = 0; i < REQUESTS; i++) {
        before += to[i].calls + to[i].ends;
      }
      OK(mkvm_step(engine, &left));
      for (size_t i = 0; i < REQUESTS; i++) {
        after += to[i].calls + to[i].ends;
      }
      cr_assert_gt(after, before);
    }
    OK(mkvm_step(engine, &left));
    OK(mkvm_close(engine));
  }
  for (size_t i = 0; i < REQUESTS; i++) {
    cr_assert(alone[i].count == 10 + i && alone[i].ends == 1 && together[i].ends == 1);
    expect_same(&alone[i], &together[i]);
  }
}

WITH_MODEL(each_request_draws_for_itself) {
  mkvm_engine *engine = open_tiny(1);
  mkvm_sampling hot, model;
  answer greedy, one, two, again;
  mkvm_sampling_init(&hot);
  hot.temperature = 2;
  hot.seed = 7;
  generate(engine, NULL, &greedy);
  generate(engine, &hot, &one);
  hot.seed = 8;
  generate(engine, &hot, &two);
  hot.seed = 7;
  generate(engine, &hot, &again);
  expect_same(&one, &again);
  cr_assert(memcmp(one.tokens, two.tokens, sizeof one.tokens) != 0);
  generate(engine, NULL, &again);
  expect_same(&greedy, &again);
  const mkvm_bias ban = {greedy.tokens[0], -INFINITY};
  mkvm_sampling_init(&hot);
  hot.biases = &ban;
  hot.bias_count = 1;
  generate(engine, &hot, &two);
  for (size_t i = 0; i < two.count; i++) {
    cr_assert_neq(two.tokens[i], ban.token);
  }
  OK(mkvm_sampling_of_model(engine, &model));
  cr_assert(model.temperature == 0 && model.top_p == 1); /* the tiny model asks for nothing */
  OK(mkvm_close(engine));
}

/* Side by side each draws what it draws alone. */
WITH_MODEL(side_by_side_each_draws_for_itself) {
  enum { REQUESTS = 20, BATCHES = 3 };
  static const uint32_t batches[BATCHES] = {1, 4, 64};
  static answer answers[BATCHES][REQUESTS];
  for (uint32_t b = 0; b < BATCHES; b++) {
    mkvm_engine *engine = open_tiny(batches[b]);
    answer *to = answers[b];
    for (size_t i = 0; i < REQUESTS; i++) {
      mkvm_sampling hot;
      mkvm_sampling_init(&hot);
      hot.temperature = i == 2 ? 0 : 1.5;
      hot.seed = i;
      hot.top_k = i == 3 ? 20 : 0;
      hot.frequency_penalty = i == 4 ? 1.5 : 0;
      to[i] = (answer){.engine = engine};
      mkvm_request request = request_of(&to[i], prompt, 4, 12 + i);
      request.sampling = &hot;
      OK(mkvm_submit(engine, &request, NULL));
    }
    OK(mkvm_run(engine));
    OK(mkvm_close(engine));
  }
  const answer *alone = answers[0];
  for (size_t i = 0; i < REQUESTS; i++) {
    expect_same(&alone[i], &answers[1][i]);
    expect_same(&alone[i], &answers[2][i]);
    cr_assert(i == 0 || memcmp(alone[i].tokens, alone[0].tokens, 12 * sizeof alone[i].tokens[0]) != 0, "%zu", i);
  }
}

/* A stop text ends the answer before it, and what was held back for it comes when it does not. */
WITH_MODEL(stop_texts) {
  mkvm_engine *engine = open_tiny(1);
  answer whole, cut = {.engine = engine};
  generate(engine, NULL, &whole);
  cr_assert_gt(whole.length, 4);
  char stop[3] = {whole.text[whole.length / 2], whole.text[whole.length / 2 + 1], 0};
  const char *at = strstr(whole.text, stop), *stops[] = {stop};
  cr_assert_not_null(at);
  mkvm_request request = request_of(&cut, prompt, 4, 20);
  request.stops = stops;
  request.stop_count = 1;
  OK(mkvm_submit(engine, &request, NULL));
  stop[0] = 0; /* it was copied */
  OK(mkvm_run(engine));
  cr_assert_eq(cut.end.reason, MKVM_END_STOP);
  cr_assert_eq(cut.length, (size_t)(at - whole.text));
  cr_assert_arr_eq(cut.text, whole.text, cut.length);
  const char last[] = {whole.text[whole.length - 1], 'Z', 'Z', 0};
  const char *begun[] = {last};
  cut = (answer){.engine = engine};
  request.stops = begun;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert_eq(cut.end.reason, MKVM_END_LENGTH);
  cr_assert_eq(cut.calls, 21); /* the last one without a token */
  expect_same(&cut, &whole);
  OK(mkvm_close(engine));
}

WITH_MODEL(bad_arguments) {
  mkvm_engine *engine = (mkvm_engine *)1;
  mkvm_options options;
  mkvm_request request;
  mkvm_sampling sampling;
  answer a = {.count = 0};
  uint32_t *ids;
  char *text;
  size_t n;
  REFUSED(mkvm_open(NULL, NULL, &engine), MKVM_ERR_USAGE, "no directory");
  cr_assert_null(engine);
  REFUSED(mkvm_open(directory, NULL, NULL), MKVM_ERR_USAGE, "no place");
  memset(&options, 0, sizeof options);
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "mkvm_options: its size is 0");
  mkvm_options_init(&options);
  options.max_batch = 3;
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "max_batch is 3");
  options.max_batch = 256;
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "max_batch is 256");
  options.max_batch = 0;
  options.kv = (mkvm_kv)7;
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "kv is 7; it is MKVM_KV_BF16 or MKVM_KV_FP8");
  options.kv = MKVM_KV_BF16;
  options.max_context = config.max_position + 1;
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "a context of");
  options.max_context = 0;
  options.device = "abacus";
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_USAGE, "abacus");
  cr_assert_null(engine);
  OK(mkvm_close(NULL));
  mkvm_free(NULL);

  engine = open_tiny(1);
  REFUSED(mkvm_submit(engine, NULL, NULL), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_submit(NULL, &request, NULL), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_step(NULL, NULL), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_run(NULL), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_cancel(NULL, 1), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_tokenize(NULL, "a", 1, 0, &ids, &n), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_tokenize(engine, NULL, 1, 0, &ids, &n), MKVM_ERR_USAGE, "no address");
  REFUSED(mkvm_detokenize(engine, NULL, 1, &text, &n), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_chat_text(engine, NULL, 0, &text, &n), MKVM_ERR_USAGE, "no turns");
  REFUSED(mkvm_get_info_size(NULL, NULL, 0), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_get_stats_size(engine, NULL, 0), MKVM_ERR_USAGE, "missing");
  mkvm_request_init(&request);
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "one of text, turns and tokens");
  request.text = "a";
  request.tokens = prompt;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "one of text, turns and tokens");
  request = request_of(&a, prompt, 0, 1);
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "the prompt has 0 tokens");
  request.token_count = 201;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_TOO_LONG, "the prompt has 201 tokens");
  const uint32_t unknown[] = {1, config.vocab};
  request = request_of(&a, unknown, 2, 1);
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "prompt token 1 is");
  const char *stops[] = {"a", ""};
  request = request_of(&a, prompt, 4, 1);
  request.stops = stops;
  request.stop_count = 2;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "stop text 1 is empty");
  request = request_of(&a, prompt, 4, 1);
  mkvm_sampling_init(&sampling);
  sampling.top_p = 2;
  request.sampling = &sampling;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "top-p is 2");
  const mkvm_bias bias = {config.vocab, 1};
  mkvm_sampling_init(&sampling);
  sampling.biases = &bias;
  sampling.bias_count = 1;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "the logit bias of token");
  mkvm_stats stats;
  OK(mkvm_get_stats(engine, &stats));
  cr_assert_eq(stats.submitted, 0);
  OK(mkvm_close(engine));
}

/* Programs that were built with an older or a newer header. */
WITH_MODEL(structs_of_other_versions) {
  struct newer {
    mkvm_options options;
    uint64_t unknown;
  } newer;
  mkvm_engine *engine;
  mkvm_options_init_size(&newer.options, sizeof newer);
  cr_assert_eq(newer.options.size, sizeof newer);
  cr_assert_eq(newer.unknown, 0);
  newer.options.device = "cpu";
  OK(mkvm_open(directory, &newer.options, &engine));
  struct {
    mkvm_info info;
    uint64_t unknown;
  } info = {.unknown = 7};
  OK(mkvm_get_info_size(engine, &info.info, sizeof info));
  cr_assert(info.info.vocabulary == config.vocab && info.unknown == 0);
  struct {
    mkvm_stats stats;
    uint64_t guard;
  } stats = {.guard = 7};
  OK(mkvm_get_stats_size(engine, &stats.stats, offsetof(mkvm_stats, stopped)));
  cr_assert(stats.stats.size == offsetof(mkvm_stats, stopped) && stats.stats.stopped == 0 && stats.guard == 7);
  OK(mkvm_close(engine));
  newer.unknown = 1;
  REFUSED(mkvm_open(directory, &newer.options, &engine), MKVM_ERR_USAGE, "does not know is set, at byte");
}

typedef struct heard {
  size_t lines, steps;
  uint64_t done, total, give_up_at;
  char line[256];
} heard;

static void on_log(void *user, mkvm_log_level level, const char *line) {
  heard *h = user;
  cr_assert(level == MKVM_LOG_WARNING || level == MKVM_LOG_INFO);
  cr_assert_null(strchr(line, '\n'));
  snprintf(h->line, sizeof h->line, "%s", line);
  h->lines++;
}

static int on_progress(void *user, uint64_t done, uint64_t total) {
  heard *h = user;
  cr_assert(done >= h->done && done <= total);
  h->done = done;
  h->total = total;
  h->steps++;
  return h->give_up_at != 0 && h->steps >= h->give_up_at;
}

WITH_MODEL(log_and_progress) {
  heard h = {.lines = 0};
  mkvm_engine *engine;
  mkvm_options options;
  mkvm_options_init(&options);
  options.device = "cpu";
  options.on_log = on_log;
  options.on_progress = on_progress;
  options.user = &h;
  OK(mkvm_open(directory, &options, &engine));
  cr_assert_geq(h.lines, 1);
  cr_assert_not_null(strstr(h.line, "weights take"));
  cr_assert(h.steps > 1 && h.done == h.total);
  OK(mkvm_close(engine));
  h = (heard){.give_up_at = 2};
  REFUSED(mkvm_open(directory, &options, &engine), MKVM_ERR_RUNTIME, "interrupted");
  cr_assert_null(engine);
}

Test(mkvm, version) {
  char header[32];
  snprintf(header, sizeof header, "%d.%d.%d", MKVM_VERSION_MAJOR, MKVM_VERSION_MINOR, MKVM_VERSION_PATCH);
  cr_assert_str_eq(mkvm_version(), header);
}
