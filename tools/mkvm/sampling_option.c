/* See sampling_option.h. */
#include "tools/mkvm/sampling_option.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/defaults.h"
#include "tools/mkvm/command.h"

enum {
  KEY_TEMPERATURE = 768,
  KEY_TOP_K,
  KEY_TOP_P,
  KEY_MIN_P,
  KEY_REPETITION,
  KEY_PRESENCE,
  KEY_FREQUENCY,
  KEY_BIAS,
  KEY_LOGPROBS,
};

enum {
  GIVEN_TEMPERATURE = 1,
  GIVEN_TOP_K = 2,
  GIVEN_TOP_P = 4,
  GIVEN_MIN_P = 8,
  GIVEN_REPETITION = 16,
  GIVEN_SEED = 32,
  GIVEN_OTHER = 64
};

static const struct argp_option option_table[] = {
    {"temp", KEY_TEMPERATURE, "T", 0,
     "Temperature; 0: always the most probable token. Default: the model's generation_config.json, 0 where that does "
     "not ask for "
     "sampling, but 1 with --top-k, --top-p or --min-p",
     0},
    {"top-k", KEY_TOP_K, "K", 0,
     "Only the K most probable tokens; 0: all (generation_config.json, 50 where that samples without saying, else 0)",
     0},
    {"top-p", KEY_TOP_P, "P", 0,
     "Of these, the fewest most probable ones that together have the share P; 1: all (generation_config.json, else 1)",
     0},
    {"min-p", KEY_MIN_P, "P", 0,
     "Only tokens at least P times as probable as the most probable one; 0: all (generation_config.json, else 0)", 0},
    {"seed", 's', "N", 0,
     "Seed of the draws, which depend on it, the position and the logits alone; of no effect at temperature 0 (a "
     "random "
     "one, which is told)",
     0},
    {"repeat-penalty", KEY_REPETITION, "R", 0,
     "Divide positive logits, multiply negative ones, of tokens in the prompt or the output by R; 1: off "
     "(generation_config.json, else 1)",
     0},
    {"presence-penalty", KEY_PRESENCE, "X", 0, "Subtract X from the logit of each generated token (0)", 0},
    {"frequency-penalty", KEY_FREQUENCY, "X", 0, "Subtract X for each time that a token was generated (0)", 0},
    {"logit-bias", KEY_BIAS, "TOKEN(+|-)B", 0,
     "Add B to the logit of the token with this id, as in 15043-2.5; 15043-inf bans it. May be given several times", 0},
    {"logprobs", KEY_LOGPROBS, "N", 0,
     "Print the log-probability of each generated token and of the N most probable ones (0 to 20): of the logits as "
     "they are, at "
     "temperature 1, before penalties and filters. On cuda each token is then a launch of its own",
     0},
    {0}};

static double number(struct argp_state *state, const char *flag, const char *text) {
  char *end;
  errno = 0;
  double value = strtod(text, &end);
  if (end == text || *end != 0 || !isfinite(value)) {
    argp_error(state, "%s: '%s' is not a number", flag, text);
  }
  return value;
}

/* TOKEN+B, TOKEN-B: the sign belongs to the number. */
static void add_bias(mk_sampling_option *o, const char *text, struct argp_state *state) {
  char *end, *last = NULL;
  errno = 0;
  unsigned long token = strtoul(text, &end, 10);
  double bias = (*end == '+' || *end == '-') ? strtod(end, &last) : NAN;
  if (text[0] < '0' || text[0] > '9' || errno == ERANGE || token > UINT32_MAX || isnan(bias) || last == NULL ||
      last == end || *last != 0 || bias == INFINITY) {
    argp_error(state, "--logit-bias: '%s' is not TOKEN+B or TOKEN-B, as in 15043-2.5", text);
    return;
  }
  mk_sampling *s = &o->sampling;
  if (mk_grow(&o->biases, &o->bias_capacity, s->bias_count + 1, sizeof *o->biases) != MK_OK) {
    argp_failure(state, 1, 0, "%s", mk_error_message());
    return;
  }
  o->biases[s->bias_count++] = (mk_logit_bias){.token = (uint32_t)token, .bias = (float)bias};
  s->biases = o->biases;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_sampling_option *o = state->input;
  mk_sampling *s = &o->sampling;
  switch (key) {
    case ARGP_KEY_INIT:
      *s = MK_SAMPLING_OFF;
      return 0;
    case KEY_TEMPERATURE:
      s->temperature = number(state, "--temp", text);
      o->given |= GIVEN_TEMPERATURE;
      return 0;
    case KEY_TOP_K:
      s->top_k = (uint32_t)mk_number(state, "--top-k", text, 0, UINT32_MAX);
      o->given |= GIVEN_TOP_K;
      return 0;
    case KEY_TOP_P:
      s->top_p = number(state, "--top-p", text);
      o->given |= GIVEN_TOP_P;
      return 0;
    case KEY_MIN_P:
      s->min_p = number(state, "--min-p", text);
      o->given |= GIVEN_MIN_P;
      return 0;
    case 's':
      s->seed = mk_number(state, "--seed", text, 0, INT64_MAX);
      o->given |= GIVEN_SEED;
      return 0;
    case KEY_REPETITION:
      s->repetition = number(state, "--repeat-penalty", text);
      o->given |= GIVEN_REPETITION;
      return 0;
    case KEY_PRESENCE:
      s->presence = number(state, "--presence-penalty", text);
      o->given |= GIVEN_OTHER;
      return 0;
    case KEY_FREQUENCY:
      s->frequency = number(state, "--frequency-penalty", text);
      o->given |= GIVEN_OTHER;
      return 0;
    case KEY_BIAS:
      add_bias(o, text, state);
      o->given |= GIVEN_OTHER;
      return 0;
    case KEY_LOGPROBS:
      o->logprobs = true;
      o->given |= GIVEN_OTHER;
      o->logprob_count = (uint32_t)mk_number(state, "--logprobs", text, 0, MK_MOST_LOGPROBS);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp mk_sampling_argp = {.options = option_table, .parser = parse};

mk_status mk_sampling_option_resolve(mk_sampling_option *o, const char *directory, uint32_t vocab) {
  mk_sampling *s = &o->sampling;
  mk_generation generation;
  MK_TRY(mk_generation_load(directory, &generation));
  const mk_sampling model = mk_sampling_of_generation(&generation);
  o->max_new_tokens = generation.max_new_tokens;
  bool filters = (o->given & (GIVEN_TOP_K | GIVEN_TOP_P | GIVEN_MIN_P)) != 0;
  if ((o->given & GIVEN_TEMPERATURE) == 0) {
    s->temperature = generation.do_sample ? model.temperature : filters ? 1 : 0;
  }
  s->top_k = (o->given & GIVEN_TOP_K) != 0 ? s->top_k : model.top_k;
  s->top_p = (o->given & GIVEN_TOP_P) != 0 ? s->top_p : model.top_p;
  s->min_p = (o->given & GIVEN_MIN_P) != 0 ? s->min_p : model.min_p;
  s->repetition = (o->given & GIVEN_REPETITION) != 0 ? s->repetition : model.repetition;
  if ((o->given & GIVEN_SEED) == 0) {
    MK_TRY(mk_random_seed(&s->seed));
  }
  return mk_sampling_check(s, vocab);
}

void mk_sampling_option_tell(const mk_sampling_option *o, FILE *out) {
  const mk_sampling *s = &o->sampling;
  if (mk_sampling_is_greedy(s)) {
    return;
  }
  fprintf(out, "sampling: temperature %g", s->temperature);
  if (s->temperature > 0) {
    fprintf(out, ", top-k %u, top-p %g, min-p %g", s->top_k, s->top_p, s->min_p);
  }
  if (s->repetition != 1 || s->presence != 0 || s->frequency != 0) {
    fprintf(out, ", penalties: repetition %g, presence %g, frequency %g", s->repetition, s->presence, s->frequency);
  }
  if (s->bias_count != 0) {
    fprintf(out, ", logit biases: %zu", s->bias_count);
  }
  if (s->temperature > 0) {
    fprintf(out, ", seed %llu", (unsigned long long)s->seed);
  }
  fputs("\n", out);
}

/* JSON has no infinity: null bans the token. */
static json_t *biases_json(const mk_sampling *s) {
  json_t *array = json_array();
  for (size_t i = 0; i < s->bias_count; i++) {
    json_t *object = json_object();
    json_object_set_new(object, "token", json_integer(s->biases[i].token));
    json_object_set_new(object, "bias",
                        isfinite(s->biases[i].bias) ? json_real((double)s->biases[i].bias) : json_null());
    json_array_append_new(array, object);
  }
  return array;
}

json_t *mk_sampling_option_json(const mk_sampling_option *o) {
  const mk_sampling *s = &o->sampling;
  if (mk_sampling_is_greedy(s)) {
    return json_null();
  }
  json_t *object = json_object();
  json_object_set_new(object, "temperature", json_real(s->temperature));
  json_object_set_new(object, "top_k", json_integer(s->top_k));
  json_object_set_new(object, "top_p", json_real(s->top_p));
  json_object_set_new(object, "min_p", json_real(s->min_p));
  json_object_set_new(object, "repetition_penalty", json_real(s->repetition));
  json_object_set_new(object, "presence_penalty", json_real(s->presence));
  json_object_set_new(object, "frequency_penalty", json_real(s->frequency));
  json_object_set_new(object, "logit_bias", biases_json(s));
  json_object_set_new(object, "seed", json_integer((json_int_t)s->seed));
  return object;
}

void mk_sampling_option_free(mk_sampling_option *o) {
  mk_free(o->biases);
  o->biases = NULL;
}
