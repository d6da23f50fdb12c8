/* libmkvm: a Hugging Face model directory of the Llama family, ready to generate.
 *
 *   mkvm_request request;
 *   mkvm_request_init(&request);
 *   request.text = "A database is";
 *   request.text_length = strlen(request.text);
 *   request.on_token = print;
 *   if (mkvm_open("models/demo", NULL, &engine) == MKVM_OK && mkvm_submit(engine, &request, NULL) == MKVM_OK) {
 *     mkvm_run(engine);
 *   }
 *
 * Who owns what. An engine owns all that it opens until mkvm_close. What a request points to is copied by mkvm_submit.
 * What a callback is given is valid until it returns. What comes out through a `T **` is the caller's, for mkvm_free.
 *
 * Which thread. Engines share nothing: several live in one process, each with threads of its own. Of one engine, one
 * thread at a time may be in mkvm_step, mkvm_run or mkvm_serve (another one is refused); no thread may be in any
 * function of an engine that mkvm_close closes, nor call one later. All other functions may be called from any thread
 * at any time, also while the engine works: what they ask for begins at the next step. (A step is the work for one more
 * token of each running request.) Callbacks come in the thread that is in mkvm_step, mkvm_run, mkvm_serve, mkvm_open or
 * mkvm_close. Those of a request may call everything but mkvm_step, mkvm_run, mkvm_serve and mkvm_close of their
 * engine, which refuse. A callback returns: neither longjmp nor a C++ exception may leave it.
 *
 * How it fails. A function that can fail returns a mkvm_status. When it is not MKVM_OK, mkvm_message() is a sentence
 * that names the field or value at fault, and nothing has been handed out. The library prints nothing, ends no
 * process, handles no signal and reads no environment variable. (NVIDIA's driver has its own habits.)
 *
 * ABI. Structs that the caller fills begin with `size`, which mkvm_..._init sets, with the default of every other
 * member. Later versions add members at the end; an older program gets their defaults, and a newer program is refused
 * when it sets what an older library does not know. Structs that the library fills grow at the end, too. Enumerators
 * keep their values; new ones may come. What breaks this changes the soname. */
#ifndef MKVM_H
#define MKVM_H

#include <stddef.h>
#include <stdint.h>

#define MKVM_VERSION_MAJOR 0 /* of this header */
#define MKVM_VERSION_MINOR 2 /* of this header */
#define MKVM_VERSION_PATCH 0 /* of this header */

/* What the library shows. */
#if defined(__GNUC__)
#define MKVM_API __attribute__((visibility("default")))
#else
#define MKVM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that runs, such as "0.2.0". The macros above are the version of the header that was
 * compiled. */
MKVM_API const char *mkvm_version(void);

/* The values below 6 are the exit codes of the command, too. */
typedef enum mkvm_status {
  MKVM_OK = 0,           /* done */
  MKVM_ERR_RUNTIME = 1,  /* out of memory, input or output, anything else of the host */
  MKVM_ERR_USAGE = 2,    /* an argument, or a call at the wrong time */
  MKVM_ERR_FILE = 3,     /* a file of the model is bad, malformed or not supported */
  MKVM_ERR_REJECTED = 4, /* the verifier rejects what was made of the model: a fault of the library */
  MKVM_ERR_DEVICE = 5,   /* the machine faulted or ran into a deadline */
  MKVM_ERR_BUSY = 6,     /* max_waiting requests wait already; later there may be room */
  MKVM_ERR_TOO_LONG = 7  /* a prompt has more tokens than the context or the KV cache has room for */
} mkvm_status;

/* The message of the last failure in this thread, "" before the first; valid until this thread's next call of the
 * library. */
MKVM_API const char *mkvm_message(void);

/* Frees what was handed out; NULL is fine. */
MKVM_API void mkvm_free(void *memory);

/* ---- An engine ---- */

/* A model on a machine (CPU or GPU), and the requests that it works at. */
typedef struct mkvm_engine mkvm_engine;

/* What kind of line on_log gets. */
typedef enum mkvm_log_level {
  MKVM_LOG_WARNING = 1, /* what may not be as the user expects */
  MKVM_LOG_INFO = 2     /* what is good to know */
} mkvm_log_level;

/* What keys and values of tokens are kept as. */
typedef enum mkvm_kv {
  MKVM_KV_BF16 = 0, /* as they are computed, rounded to bf16 */
  MKVM_KV_FP8 = 1   /* e4m3, with a scale for each token and KV head: half the memory */
} mkvm_kv;

/* What mkvm_open is asked for. */
typedef struct mkvm_options {
  size_t size;          /* of the struct; mkvm_options_init sets it */
  const char *device;   /* "cpu", "cuda", "cuda:N", "cuda:N-M" (which share the model); NULL: cuda:0, or else cpu */
  uint32_t max_context; /* tokens of a request, prompt and answer together; 0: the model's limit, at most 4096 */
  /* 1, 2, 4, ... or 128 requests share a step, and long prompts are faster; fewer where on_log and mkvm_info say so. */
  uint32_t max_batch;
  uint32_t threads;         /* of the CPU; 0: one for each core that the process may use */
  const char *cache_folder; /* where packed weights are kept, so that a model opens faster again; NULL: nowhere */
  /* A line without its end, in the thread that called the library; NULL: nothing is said. */
  void (*on_log)(void *user, mkvm_log_level level, const char *line);
  /* Bytes of weights that mkvm_open has loaded; to return other than 0 fails it (MKVM_ERR_RUNTIME). May be NULL. */
  int (*on_progress)(void *user, uint64_t done, uint64_t total);
  void *user;           /* handed to on_log and on_progress */
  uint32_t max_waiting; /* requests that may wait; 0: 1024 */
  /* For how many tokens there is room to keep keys and values: for all requests together, in whole blocks of 64; 0: for
   * max_batch whole contexts. With less room a request may have to give its own to an older one, and is then computed
   * again later, to the same tokens. */
  uint64_t kv_tokens;
  /* How much of that room ended requests may keep, in tokens, so that the beginning of a later prompt that is the same
   * as theirs is not computed again. UINT64_MAX, the default: as much as running requests do not need; 0: none. */
  uint64_t prefix_tokens;
  /* Long prompts are computed apart from answers on a GPU with max_batch above 1 (those of more than 32 tokens). The
   * two take turns: so many tokens of prompts, then so many of each of 16 answers, or fewer of more. 0: 512 and 8. */
  uint32_t prompt_tokens, decode_steps;
  mkvm_kv kv; /* docs/MODELS.md says what the error of the other form is */
  /* Not NULL: a process for each of `ranks` GPUs that share the model; they meet at this HOST:PORT (docs/RANKS.md).
   * mkvm_open of another than rank 0 works for rank 0, until that has closed its engine; then *out becomes NULL. */
  const char *rendezvous;
  uint32_t rank, ranks, rank_seconds; /* which one this is; after how many seconds a silent one is lost, 0: 60 */
} mkvm_options;

/* Sets all members to their defaults. */
#define mkvm_options_init(options) mkvm_options_init_size((options), sizeof *(options))
/* The function of that macro: `size` is that of the struct as its caller knows it. */
MKVM_API void mkvm_options_init_size(mkvm_options *options, size_t size);

/* Opens a model directory; `options` may be NULL for the defaults. It takes as long as reading the weights does. */
MKVM_API mkvm_status mkvm_open(const char *directory, const mkvm_options *options, mkvm_engine **out);
/* Ends what has not ended (on_end comes, with MKVM_END_CANCELLED), then frees the engine; NULL is fine.
 * MKVM_ERR_USAGE, and nothing is closed, while the engine works: in a callback of its requests. */
MKVM_API mkvm_status mkvm_close(mkvm_engine *engine);

/* What an engine has opened. */
typedef struct mkvm_info {
  size_t size;                         /* of the struct; mkvm_get_info sets it */
  const char *device;                  /* "cpu", or "cuda:0 (NVIDIA H200)"; as long-lived as the engine */
  uint32_t vocabulary;                 /* tokens that there are */
  uint32_t max_context, model_context; /* tokens of a request: here, and as the model could have them */
  uint32_t max_batch;                  /* requests that share a step */
  int has_chat_template;               /* not 0: requests may have turns */
  double load_seconds;                 /* how long mkvm_open took */
  uint64_t weight_bytes, kv_bytes;     /* memory that they take on the machine */
  const uint32_t *end_tokens;          /* those that end an answer; as long-lived as the engine */
  size_t end_token_count;              /* of end_tokens */
} mkvm_info;

/* Fills in *info. */
#define mkvm_get_info(engine, info) mkvm_get_info_size((engine), (info), sizeof *(info))
/* The function of that macro. */
MKVM_API mkvm_status mkvm_get_info_size(const mkvm_engine *engine, mkvm_info *out, size_t size);

/* ---- Text ---- */

/* The ids of `text`, as the model's Hugging Face tokenizer gives them. add_special: not 0 adds the special tokens that
 * the tokenizer puts around a text, such as a BOS; special tokens that are written in the text are recognised in any
 * case. Bytes that are not UTF-8 become U+FFFD. */
MKVM_API mkvm_status mkvm_tokenize(const mkvm_engine *engine, const char *text, size_t length, int add_special,
                                   uint32_t **tokens, size_t *count);
/* The text of ids, without special tokens; always UTF-8. *text has a NUL that *length does not count. */
MKVM_API mkvm_status mkvm_detokenize(const mkvm_engine *engine, const uint32_t *tokens, size_t count, char **text,
                                     size_t *length);

/* The bytes that one token stands for: perhaps part of a character, and of a special token its name. *length may be
 * more than `size`: only so many are written to `bytes`, which may be NULL when size is 0. *special (may be NULL): not
 * 0 for a token that is no part of a text. */
MKVM_API mkvm_status mkvm_token_bytes(const mkvm_engine *engine, uint32_t token, char *bytes, size_t size,
                                      size_t *length, int *special);

/* A turn of a conversation. */
typedef struct mkvm_turn {
  const char *role;      /* "system", "user", "assistant", or what else the model's template knows */
  const char *content;   /* what was said */
  size_t content_length; /* bytes of it */
} mkvm_turn;

/* The conversation as the model's chat template writes it, up to where the answer begins; tokenize it without
 * add_special. MKVM_ERR_FILE without a template that can be used, MKVM_ERR_USAGE when the template refuses the
 * conversation. */
MKVM_API mkvm_status mkvm_chat_text(const mkvm_engine *engine, const mkvm_turn *turns, size_t count, char **text,
                                    size_t *length);
/* mkvm_chat_text with further variables of the template: an object in JSON, such as {"enable_thinking": false}. */
MKVM_API mkvm_status mkvm_chat_text_with(const mkvm_engine *engine, const mkvm_turn *turns, size_t count,
                                         const char *variables, size_t variables_length, char **text, size_t *length);

/* ---- Requests ---- */

/* Makes a token more or less probable. */
typedef struct mkvm_bias {
  uint32_t token; /* its id */
  float bias;     /* is added to its logit; -INFINITY bans the token */
} mkvm_bias;

/* How tokens are drawn. docs/SAMPLING.md says what each number does. */
typedef struct mkvm_sampling {
  size_t size;                                /* of the struct; mkvm_sampling_init sets it */
  uint64_t seed;                              /* the same seed gives the same tokens */
  double temperature;                         /* 0: always the most probable token */
  double top_p;                               /* 1: off */
  double min_p;                               /* 0: off */
  double repetition_penalty;                  /* 1: off */
  double presence_penalty, frequency_penalty; /* 0: off */
  const mkvm_bias *biases;                    /* a token at most once */
  size_t bias_count;                          /* of biases */
  uint32_t top_k;                             /* 0: off */
} mkvm_sampling;

/* Greedy: temperature 0 and everything off. A seed gives the same tokens every time. */
#define mkvm_sampling_init(sampling) mkvm_sampling_init_size((sampling), sizeof *(sampling))
/* The function of that macro. */
MKVM_API void mkvm_sampling_init_size(mkvm_sampling *sampling, size_t size);
/* What the model's generation_config.json asks for, and a seed from the system. */
#define mkvm_sampling_of_model(engine, sampling) mkvm_sampling_of_model_size((engine), (sampling), sizeof *(sampling))
/* The function of that macro. */
MKVM_API mkvm_status mkvm_sampling_of_model_size(const mkvm_engine *engine, mkvm_sampling *sampling, size_t size);

#define MKVM_NO_TOKEN UINT32_MAX /* no token's id */
#define MKVM_MOST_LOGPROBS 20    /* the most that top_logprobs may be */

/* A token and how probable it was. */
typedef struct mkvm_logprob {
  uint32_t token; /* its id */
  double logprob; /* the natural logarithm of its probability */
} mkvm_logprob;

/* One more token of a request. */
typedef struct mkvm_token {
  uint64_t request; /* its number */
  uint32_t token;   /* also an end-of-text token; MKVM_NO_TOKEN: no token, but text that was held back until the end */
  const char *text; /* to be shown now: whole UTF-8 characters, possibly none, up to a stop text; without a NUL */
  size_t length;    /* bytes of text */
  /* The four that follow are there where the request asks for log-probabilities. logprob: the natural logarithm of the
   * token's probability as the model gives it (at temperature 1, before penalties, biases and filters). */
  double logprob;
  uint32_t rank;           /* the token's place among all by probability, from 1 on; 0: none of the four is known */
  uint32_t top_count;      /* of top */
  const mkvm_logprob *top; /* the most probable tokens, in order, equal ones by the lower id */
  size_t prompt_tokens;    /* how many tokens the prompt has */
  uint64_t step;           /* which step of the engine, from 1, made it; 0: a token of the prompt, or MKVM_NO_TOKEN */
} mkvm_token;

/* Why a request has ended. */
typedef enum mkvm_end_reason {
  MKVM_END_STOP = 1,      /* an end-of-text token or a stop text */
  MKVM_END_LENGTH = 2,    /* max_tokens, or a full context or KV cache */
  MKVM_END_CANCELLED = 3, /* by mkvm_cancel, on_token, mkvm_shutdown or mkvm_close */
  MKVM_END_ERROR = 4,     /* status and message say why */
  MKVM_END_LATE = 5       /* queue_seconds or total_seconds were over */
} mkvm_end_reason;

/* The last that is heard of a request. */
typedef struct mkvm_end {
  uint64_t request;             /* its number */
  mkvm_end_reason reason;       /* why it has ended */
  mkvm_status status;           /* MKVM_OK without an error */
  const char *message;          /* "" without an error */
  size_t prompt_tokens, tokens; /* how many tokens the prompt has; how many were generated */
  double queue_seconds;         /* from mkvm_submit until the engine began with it */
  double prompt_seconds;        /* from then to the first token, or to the end if there is none */
  double generate_seconds;      /* from the first token to the last */
  size_t cached_tokens;         /* of the prompt, known from earlier requests and not computed again */
  uint32_t preemptions;         /* how often it gave its room to an older request */
} mkvm_end;

/* What is to be answered, and who is told. */
typedef struct mkvm_request {
  size_t size; /* of the struct; mkvm_request_init sets it */
  /* The prompt, in one of three ways: a text that the answer continues; the turns of a conversation; ids of tokens. */
  const char *text;
  size_t text_length;            /* bytes of text */
  const mkvm_turn *turns;        /* in place of text */
  size_t turn_count;             /* of turns */
  const uint32_t *tokens;        /* in place of text */
  size_t token_count;            /* of tokens */
  size_t max_tokens;             /* 0: max_new_tokens of generation_config.json, else what the context has room for */
  const mkvm_sampling *sampling; /* NULL: greedy */
  const char *const *stops;      /* texts of at least one byte at which the answer ends; they are not part of it */
  size_t stop_count;             /* of stops */
  int ignore_end;                /* not 0: goes on after an end-of-text token */
  /* For every token, and for text that was held back; not 0 cancels the request. NULL: nobody is told. */
  int (*on_token)(void *user, const mkvm_token *token);
  /* Once, the last that is heard of the request. NULL: nobody is told. */
  void (*on_end)(void *user, const mkvm_end *end);
  void *user;       /* handed to the callbacks */
  int32_t priority; /* requests of a lower number begin first, equal ones as they came; none waits for ever */
  /* Deadlines, from mkvm_submit on: until it begins, and until it ends. 0: none. */
  double queue_seconds, total_seconds;
  int logprobs;          /* not 0: on_token gets log-probabilities; on a GPU every step is then a launch of its own */
  uint32_t top_logprobs; /* how many of the most probable tokens come with them, at most MKVM_MOST_LOGPROBS */
  /* Called for every token of the prompt but the first, in order and before the answer, with log-probabilities and
   * without text. NULL: nobody is told. Otherwise the whole prompt is computed, even what is known from earlier
   * requests, and more slowly; and it leaves room for one token in the context, or is refused (MKVM_ERR_TOO_LONG). */
  void (*on_prompt)(void *user, const mkvm_token *token);
  const char *variables;   /* with turns: what mkvm_chat_text_with has; NULL: none */
  size_t variables_length; /* bytes of variables */
} mkvm_request;

/* Greedy, without a prompt, callbacks or deadlines. */
#define mkvm_request_init(request) mkvm_request_init_size((request), sizeof *(request))
/* The function of that macro. */
MKVM_API void mkvm_request_init_size(mkvm_request *request, size_t size);

/* Queues a request. Fails at once when something is wrong with it, or when it can never be computed. *id becomes its
 * number, from 1 on; `id` may be NULL. */
MKVM_API mkvm_status mkvm_submit(mkvm_engine *engine, const mkvm_request *request, uint64_t *id);
/* The request ends at the next step, without another token; one that has ended is left alone. MKVM_ERR_USAGE for
 * a number that was never given out. */
MKVM_API mkvm_status mkvm_cancel(mkvm_engine *engine, uint64_t id);

/* Does some of the work: one launch of the machine, of as many steps as possible (a launch ends when a request ends, or
 * when a waiting one can join); nothing when there is nothing to do. *left becomes the number of requests that have not
 * ended; `left` may be NULL. Fails when the machine fails: the requests that had begun then end with MKVM_END_ERROR,
 * and those that wait go on waiting. What is wrong with one request ends that request alone. */
MKVM_API mkvm_status mkvm_step(mkvm_engine *engine, size_t *left);
/* mkvm_step until it fails, or no request is left, also of those that callbacks and other threads submit meanwhile. */
MKVM_API mkvm_status mkvm_run(mkvm_engine *engine);
/* Works until mkvm_shutdown, and sleeps while there is nothing to do. Goes on with those that wait when the
 * machine has failed; when it fails again before it has computed a step, mkvm_serve fails with it. */
MKVM_API mkvm_status mkvm_serve(mkvm_engine *engine);

/* How mkvm_shutdown ends what there is. */
typedef enum mkvm_shutdown_way {
  MKVM_DRAIN = 1, /* all requests come to their ends */
  MKVM_ABORT = 2  /* they end at the next step, with MKVM_END_CANCELLED; shortens a drain, too */
} mkvm_shutdown_way;

/* For good: mkvm_submit refuses from now on, and mkvm_serve returns MKVM_OK when no request is left. */
MKVM_API mkvm_status mkvm_shutdown(mkvm_engine *engine, mkvm_shutdown_way way);

/* For a program with a loop of its own: a file descriptor for poll(2) and the like, readable while there are
 * requests and nobody works on them: call mkvm_step then. It is the engine's: neither read nor close it. -1
 * without an engine. */
MKVM_API int mkvm_event_fd(const mkvm_engine *engine);

/* Since mkvm_open, as of the last step. */
typedef struct mkvm_stats {
  size_t size;                                        /* of the struct; mkvm_get_stats sets it */
  uint64_t submitted;                                 /* requests that mkvm_submit took */
  uint64_t waiting, running;                          /* requests, now */
  uint64_t stopped, full, cancelled, failed;          /* ended: MKVM_END_STOP, _LENGTH, _CANCELLED, _ERROR */
  uint64_t prompt_tokens, tokens;                     /* of requests that have ended: of prompts; generated */
  double busy_seconds;                                /* spent in launches */
  uint64_t late, refused;                             /* MKVM_END_LATE; MKVM_ERR_BUSY */
  uint64_t launches, steps;                           /* of the machine */
  uint64_t preemptions;                               /* how often a request gave its room to an older one */
  uint64_t asked_tokens, cached_tokens;               /* of prompts that began; those of them not computed again */
  uint64_t kv_tokens, kv_tokens_used, kv_tokens_kept; /* now: room for so many; taken by requests; kept of ended ones */
} mkvm_stats;

/* Fills in *stats. */
#define mkvm_get_stats(engine, stats) mkvm_get_stats_size((engine), (stats), sizeof *(stats))
/* The function of that macro. */
MKVM_API mkvm_status mkvm_get_stats_size(mkvm_engine *engine, mkvm_stats *out, size_t size);

#ifdef __cplusplus
}
#endif

#endif
