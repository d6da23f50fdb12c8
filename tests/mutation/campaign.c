/* The campaign over many seeds, in several processes. See generated.h.
 *
 * What the processes find is in memory that they share with the one that started them, so that nothing is lost when one
 * crashes: it is started again after the program that made it crash. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/mutation/generated.h"

enum {
  MAX_JOBS = 64,
  MIN_ACCEPTED_SHARE = 30,
  FULL = 100000, /* programs, of which every opcode is to be in so many accepted ones: */
  MIN_OF_OPCODE = 1000,
};

/* Failures by the words that tell them; the first that fits. */
static const char *const kinds[] = {"uid 0",          "`next` signals nothing",
                                    "and no `next`",  "keeps to itself",
                                    "crash: it",      "crash",
                                    "deadlock",       "unordered access",
                                    "stale value",    "step state",
                                    "footprint",      " output:",
                                    " counter:",      " values:",
                                    " choice:",       " bits:",
                                    " out of memory", ""};
enum { KINDS = sizeof kinds / sizeof kinds[0], KEPT = 12 };

typedef struct failure {
  uint64_t seed;
  uint32_t kind;
  char text[400];
} failure;

typedef struct share { /* of one process */
  generated_counts counts;
  uint32_t at; /* number of the program at hand */
  bool done;
  uint32_t failures[KINDS];
  failure failed[KINDS][KEPT]; /* the first ones of each kind */
} share;

typedef struct board { /* of all */
  uint32_t first_failing;
  share shares[MAX_JOBS];
} board;

static uint64_t seed_of(const generated_campaign *c, uint32_t number) { return c->seed << 32 | number; }

static void note(share *s, uint64_t seed, const char *text) {
  uint32_t kind = 0;
  while (strstr(text, kinds[kind]) == NULL) {
    kind++;
  }
  if (s->failures[kind]++ < KEPT) {
    failure *f = &s->failed[kind][s->failures[kind] - 1];
    *f = (failure){.seed = seed, .kind = kind};
    snprintf(f->text, sizeof f->text, "%s", text);
  }
}

static void found(board *b, uint32_t number) {
  uint32_t known = __atomic_load_n(&b->first_failing, __ATOMIC_RELAXED);
  while (number < known &&
         !__atomic_compare_exchange_n(&b->first_failing, &known, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

static bool goes_on(const generated_campaign *c, const board *b, uint32_t number) {
  return number < c->programs && (!c->until_failing || number < __atomic_load_n(&b->first_failing, __ATOMIC_RELAXED));
}

static void work(const generated_campaign *c, board *b, share *s) {
  generated_limit();
  for (; goes_on(c, b, s->at); s->at += c->jobs) {
    generated_verdict verdict = generated_try(seed_of(c, s->at), &s->counts);
    if (verdict == GENERATED_FAILING || verdict == GENERATED_INCOMPLETE) {
      note(s, seed_of(c, s->at), mk_error_message());
      s->counts.failing += verdict == GENERATED_INCOMPLETE;
      found(b, s->at);
    }
  }
  s->done = true;
}

static pid_t start(const generated_campaign *c, board *b, share *s) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    work(c, b, s);
    _exit(0);
  }
  return child;
}

/* The process ended in the middle of a program, which therefore fails. */
static void note_crash(const generated_campaign *c, board *b, share *s, int status) {
  char text[80];
  snprintf(text, sizeof text, "crash: %s",
           !WIFSIGNALED(status)          ? "the process ended by itself"
           : WTERMSIG(status) == SIGPROF ? "it does not come to an end"
                                         : strsignal(WTERMSIG(status)));
  note(s, seed_of(c, s->at), text);
  s->counts.failing++;
  s->counts.crashed++;
  found(b, s->at);
  s->at += c->jobs;
}

static bool run_jobs(const generated_campaign *c, board *b) {
  pid_t children[MAX_JOBS];
  uint32_t running = 0;
  for (uint32_t job = 0; job < c->jobs; job++) {
    b->shares[job].at = c->from + job;
    children[job] = start(c, b, &b->shares[job]);
    running += children[job] > 0;
  }
  bool all = running == c->jobs;
  while (running != 0) {
    int status;
    pid_t ended = wait(&status);
    for (uint32_t job = 0; job < c->jobs; job++) {
      share *s = &b->shares[job];
      if (children[job] != ended) {
        continue;
      }
      running--;
      children[job] = 0;
      if (!s->done) {
        note_crash(c, b, s, status);
        children[job] = start(c, b, s);
        running += children[job] > 0;
        all &= children[job] > 0;
      }
    }
    if (ended < 0) {
      return false;
    }
  }
  return all;
}

/* What came of it. */

static int by_kind(const void *a, const void *b) {
  const failure *x = a, *y = b;
  if (x->kind != y->kind) {
    return x->kind < y->kind ? -1 : 1;
  }
  return x->seed < y->seed ? -1 : x->seed > y->seed;
}

/* The first ones of every kind. */
static void print_failures(const generated_campaign *c, const board *b) {
  static failure all[MAX_JOBS * KINDS * KEPT];
  size_t count = 0;
  uint32_t totals[KINDS] = {0}, printed[KINDS] = {0};
  for (uint32_t job = 0; job < c->jobs; job++) {
    const share *s = &b->shares[job];
    for (uint32_t kind = 0; kind < KINDS; kind++) {
      uint32_t kept = s->failures[kind] < KEPT ? s->failures[kind] : KEPT;
      memcpy(&all[count], s->failed[kind], kept * sizeof *all);
      count += kept;
      totals[kind] += s->failures[kind];
    }
  }
  qsort(all, count, sizeof *all, by_kind);
  for (size_t i = 0; i < count; i++) {
    uint32_t kind = all[i].kind;
    if (c->until_failing ? all[i].seed == seed_of(c, b->first_failing) : printed[kind]++ < KEPT) {
      printf("FAILING seed %llu: %s\n", (unsigned long long)all[i].seed, all[i].text);
    }
  }
  for (uint32_t kind = 0; kind < KINDS && !c->until_failing; kind++) {
    if (totals[kind] != 0) {
      printf("failing by `%s`: %u\n", kinds[kind], totals[kind]);
    }
  }
}

static void print_counts(const generated_counts *n) {
  printf("accepted, by opcode:");
  for (uint32_t op = MK_OP_NONE + 1; op < MK_OP_COUNT; op++) {
    printf(" %s %u", mk_opcode_lookup(op)->name, n->opcodes[op]);
  }
  printf("\naccepted, by rows of a step:");
  for (uint32_t i = 0; i < GENERATED_ROW_KINDS; i++) {
    printf(" %u: %u", 1u << i, n->rows[i]);
  }
  printf("\nrejected, by rule:");
  for (uint32_t r = 0; r < GENERATED_RULES && n->rules[r].rule[0] != '\0'; r++) {
    printf(" %s %u", n->rules[r].rule, n->rules[r].rejected);
  }
  printf("\n");
}

static bool enough(const generated_counts *n) {
  bool shares = n->programs != 0 && (uint64_t)n->accepted * 100 >= (uint64_t)n->programs * MIN_ACCEPTED_SHARE;
  for (uint32_t op = MK_OP_NONE + 1; op < MK_OP_COUNT; op++) {
    shares &= (uint64_t)n->opcodes[op] * FULL >= (uint64_t)n->programs * MIN_OF_OPCODE;
  }
  if (!shares) {
    printf("too few for a verdict: it takes %d %% that are accepted, and each opcode in %d of them for %d programs\n",
           MIN_ACCEPTED_SHARE, MIN_OF_OPCODE, FULL);
  }
  return shares;
}

static bool report(const generated_campaign *c, const board *b, bool complete, double seconds) {
  generated_counts all = {0};
  for (uint32_t job = 0; job < c->jobs; job++) {
    generated_add(&all, &b->shares[job].counts);
  }
  print_failures(c, b);
  if (c->until_failing) { /* of the first one alone, as what the processes have done beyond it is up to chance */
    printf(b->first_failing == UINT32_MAX ? "found never, of %u programs\n" : "found after %u programs\n",
           b->first_failing == UINT32_MAX ? c->programs : b->first_failing + 1);
    return complete && b->first_failing == UINT32_MAX;
  }
  printf("%u programs, %u accepted (%.1f %%), %u of them not judged; %u failing, of which %u crashed\n", all.programs,
         all.accepted, all.programs == 0 ? 0 : 100.0 * all.accepted / all.programs, all.unjudged, all.failing,
         all.crashed);
  print_counts(&all);
  bool good = complete & enough(&all) & (all.failing == 0) & (all.programs + c->from == c->programs);
  printf("seed %llu, %u jobs, %.0f s: %s\n", (unsigned long long)c->seed, c->jobs, seconds, good ? "passed" : "FAILED");
  return good;
}

bool generated_run(const generated_campaign *campaign) {
  generated_campaign c = *campaign;
  struct timespec began, ended;
  c.jobs = c.jobs < 1 ? 1 : c.jobs > MAX_JOBS ? MAX_JOBS : c.jobs;
  board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (b == MAP_FAILED) {
    perror("mmap");
    return false;
  }
  b->first_failing = UINT32_MAX;
  clock_gettime(CLOCK_MONOTONIC, &began);
  bool complete = run_jobs(&c, b);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  bool good =
      report(&c, b, complete, (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec));
  munmap(b, sizeof *b);
  return good;
}
