/* The full campaigns, which tools/mutate builds and runs.
 *
 * mk_mutate [-j JOBS] [-n MUTANTS_PER_CLASS] [-i INTERLEAVINGS] [-s SEED]: mutants of valid programs.
 * mk_mutate --generate [-j JOBS] [-n PROGRAMS] [-s SEED]: generated programs (generated.h). --first: until one fails,
 * and only how many programs that took; --from NUMBER: without those before that one. --replay SEED: the program of a
 * seed that was printed, and how it fails.
 *
 * Prints a line per class: mutants, accepted, of those failing; rejected, of those failing by their footprint alone,
 * only when they are run, and never. Then the rules of what was rejected and never failed. Exit code 1 when an accepted
 * mutant fails, when more than MAX_NEVER_FAILING per cent of the rejected never fail, or when there are too few
 * mutants. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/mutation/generated.h"

enum { MAX_JOBS = 64, MIN_MUTANTS = 10000, MIN_PER_CLASS = 500, MIN_INTERLEAVINGS = 200, MAX_NEVER_FAILING = 15 };

typedef struct campaign {
  uint32_t jobs, mutants, interleavings;
  uint64_t seed;
} campaign;

/* One process's share, which begins at the job's own place of the random sequence. */
static bool work(const campaign *c, uint32_t job, mutation_counts *counts) {
  uint64_t random = (c->seed * MAX_JOBS + job + 1) * 0x9e3779b97f4a7c15u;
  bool good = true;
  for (uint32_t i = job; i < c->mutants; i += c->jobs) {
    for (mutation_class kind = 0; kind < MUTATION_CLASSES; kind++) {
      uint64_t before = random;
      mk_status status = mutation_try(kind, &random, c->interleavings, &counts[kind]);
      if (status != MK_OK) {
        fprintf(stderr, "%s, state %llu: %s\n", mutation_infos[kind].name, (unsigned long long)before,
                mk_error_message());
        good = good && status == MK_ERR_DEVICE;
      }
    }
  }
  return good;
}

static void add_counts(mutation_counts *into, const mutation_counts *from) {
  into->accepted += from->accepted;
  into->accepted_failing += from->accepted_failing;
  into->rejected += from->rejected;
  into->never_failing += from->never_failing;
  into->failing_in_a_run += from->failing_in_a_run;
  for (uint32_t r = 0; r < MUTATION_RULES && from->rules[r].rule[0] != '\0'; r++) {
    uint32_t at = 0;
    while (at < MUTATION_RULES - 1 && into->rules[at].rule[0] != '\0' &&
           strcmp(into->rules[at].rule, from->rules[r].rule) != 0) {
      at++;
    }
    memcpy(into->rules[at].rule, from->rules[r].rule, sizeof into->rules[at].rule);
    into->rules[at].rejected += from->rules[r].rejected;
    into->rules[at].never_failing += from->rules[r].never_failing;
  }
}

static bool run_job(const campaign *c, uint32_t job, int out) {
  static mutation_counts counts[MUTATION_CLASSES];
  bool good = work(c, job, counts);
  return write(out, counts, sizeof counts) == (ssize_t)sizeof counts && good;
}

static bool run_all(const campaign *c, mutation_counts *counts) {
  int ends[MAX_JOBS][2];
  bool good = true;
  for (uint32_t job = 0; job < c->jobs; job++) {
    if (pipe(ends[job]) != 0) {
      perror("pipe");
      exit(1);
    }
    pid_t child = fork();
    if (child == 0) {
      _exit(run_job(c, job, ends[job][1]) ? 0 : 1);
    }
    good &= child > 0;
    close(ends[job][1]);
  }
  for (uint32_t job = 0; job < c->jobs; job++) {
    static mutation_counts share[MUTATION_CLASSES];
    size_t have = 0;
    ssize_t more = 1;
    while (have < sizeof share && more > 0) {
      more = read(ends[job][0], (char *)share + have, sizeof share - have);
      have += more > 0 ? (size_t)more : 0;
    }
    good &= have == sizeof share;
    for (uint32_t kind = 0; have == sizeof share && kind < MUTATION_CLASSES; kind++) {
      add_counts(&counts[kind], &share[kind]);
    }
    close(ends[job][0]);
  }
  int status;
  while (wait(&status) > 0) {
    good &= status == 0;
  }
  return good;
}

static void print_row(const char *name, const char *order, const mutation_counts *n) {
  printf("| %-18s | %-5s | %7u | %8u | %4u | %8u | %9u | %6u | %5u |\n", name, order, n->accepted + n->rejected,
         n->accepted, n->accepted_failing, n->rejected, n->rejected - n->never_failing - n->failing_in_a_run,
         n->failing_in_a_run, n->never_failing);
}

static bool report(const mutation_counts *counts) {
  mutation_counts all = {0};
  uint32_t order = 0, fewest = UINT32_MAX;
  printf(
      "| class              | order | mutants | accepted | fail | rejected | footprint | in run | never |\n"
      "|--------------------|-------|---------|----------|------|----------|-----------|--------|-------|\n");
  for (uint32_t kind = 0; kind < MUTATION_CLASSES; kind++) {
    const mutation_counts *n = &counts[kind];
    uint32_t mutants = n->accepted + n->rejected;
    print_row(mutation_infos[kind].name, mutation_infos[kind].order ? "yes" : "", n);
    add_counts(&all, n);
    order += mutation_infos[kind].order ? mutants : 0;
    fewest = mutants < fewest ? mutants : fewest;
  }
  print_row("all", "", &all);
  printf("\nrejected, by rule:");
  for (uint32_t r = 0; r < MUTATION_RULES && all.rules[r].rule[0] != '\0'; r++) {
    printf(" %s %u", all.rules[r].rule, all.rules[r].rejected);
  }
  printf("\n\nrejected, never failing, by class and rule:\n");
  for (uint32_t kind = 0; kind < MUTATION_CLASSES; kind++) {
    for (uint32_t r = 0; r < MUTATION_RULES; r++) {
      if (counts[kind].rules[r].never_failing != 0) {
        printf("%-18s %-4s %5u of %5u\n", mutation_infos[kind].name, counts[kind].rules[r].rule,
               counts[kind].rules[r].never_failing, counts[kind].rules[r].rejected);
      }
    }
  }
  uint32_t mutants = all.accepted + all.rejected;
  double share = all.rejected == 0 ? 100 : 100.0 * all.never_failing / all.rejected;
  printf(
      "\n%u mutants, %.0f %% about order, at least %u of a class; %.1f %% of the rejected never fail (limit %d %%)\n",
      mutants, mutants == 0 ? 0 : 100.0 * order / mutants, fewest, share, MAX_NEVER_FAILING);
  if (mutants < MIN_MUTANTS || 2 * order < mutants || fewest < MIN_PER_CLASS) {
    printf("too few for a verdict: it takes %d, %d of each class, half of them about order\n", MIN_MUTANTS,
           MIN_PER_CLASS);
    return false;
  }
  return all.accepted_failing == 0 && share <= MAX_NEVER_FAILING;
}

/* Mutants of valid programs. */
static bool run_mutants(campaign c) {
  static mutation_counts counts[MUTATION_CLASSES];
  time_t started = time(NULL);
  bool good = run_all(&c, counts);
  good &= report(counts);
  good &= c.interleavings >= MIN_INTERLEAVINGS;
  printf("%u interleavings of each mutant that does not fail, seed %llu, %u jobs, %lld s: %s\n", c.interleavings,
         (unsigned long long)c.seed, c.jobs, (long long)(time(NULL) - started), good ? "passed" : "FAILED");
  return good;
}

typedef struct request {
  campaign mutants;
  generated_campaign generated;
  bool generate, replay;
  uint64_t seed; /* to replay */
} request;

static bool parse(int argc, char **argv, request *r) {
  static const struct option names[] = {{"generate", no_argument, NULL, 'g'},
                                        {"first", no_argument, NULL, 'f'},
                                        {"from", required_argument, NULL, 'b'},
                                        {"replay", required_argument, NULL, 'r'},
                                        {NULL, 0, NULL, 0}};
  int option;
  while ((option = getopt_long(argc, argv, "j:n:i:s:", names, NULL)) != -1) {
    unsigned long long value = optarg == NULL ? 0 : strtoull(optarg, NULL, 10);
    switch (option) {
      case 'g':
        r->generate = true;
        break;
      case 'f':
        r->generated.until_failing = true;
        break;
      case 'b':
        r->generated.from = (uint32_t)value;
        break;
      case 'r':
        r->replay = true;
        r->seed = value;
        break;
      case 'j':
        r->mutants.jobs = value < 1 ? 1 : value > MAX_JOBS ? MAX_JOBS : (uint32_t)value;
        r->generated.jobs = r->mutants.jobs;
        break;
      case 'n':
        r->mutants.mutants = r->generated.programs = (uint32_t)value;
        break;
      case 'i':
        r->mutants.interleavings = (uint32_t)value;
        break;
      case 's':
        r->mutants.seed = r->generated.seed = value;
        break;
      default:
        return false;
    }
  }
  return optind == argc;
}

int main(int argc, char **argv) {
  request r = {.mutants = {.jobs = 2, .mutants = 1000, .interleavings = MIN_INTERLEAVINGS, .seed = 1},
               .generated = {.jobs = 2, .programs = 100000, .seed = 1}};
  if (!parse(argc, argv, &r)) {
    fprintf(stderr,
            "usage: %s [-j JOBS] [-n MUTANTS_PER_CLASS] [-i INTERLEAVINGS] [-s SEED]\n"
            "       %s --generate [-j JOBS] [-n PROGRAMS] [-s SEED] [--first] [--from NUMBER] [--replay SEED]\n",
            argv[0], argv[0]);
    return 2;
  }
  bool good = r.replay     ? generated_replay(r.seed, stdout)
              : r.generate ? generated_run(&r.generated)
                           : run_mutants(r.mutants);
  return good ? 0 : 1;
}
