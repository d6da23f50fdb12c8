/* Many schedules of an engine at work (tests/support/schedule.h), which tools/soak builds and runs.
 *
 * mk_soak [--schedules N] [--seed S] [--jobs N]: the schedules of seeds S, S + 1, ... Prints a line of progress every
 * ten seconds, and a table of what came of them. Where something is wrong it prints the first such schedule's seed, and
 * what it was; --seed S --schedules 1 prints that schedule and runs it alone.
 *
 * mk_soak --faults [...]: the same with each fault of schedule_plants in the engine, until a schedule finds it, by what
 * callers see.
 *
 * Exit code 1 when something is wrong, or a fault is not found. */
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/schedule.h"
#include "tools/lib/clock.h"

enum { MOST_JOBS = 64, PROGRESS_SECONDS = 10, HANG_SECONDS = 600, PAUSE = 100000 };

typedef struct campaign {
  uint64_t first, schedules;
  uint32_t jobs;
  bool faults;
  schedule_options options;
} campaign;

typedef struct job { /* written by its process, read by the one that started it */
  atomic_uint_least64_t done;
  uint64_t seed; /* of the schedule at work */
  schedule_counts counts;
  char message[512];
} job;

typedef struct shared {
  atomic_uint_least64_t failing; /* the lowest seed of a schedule in which something is wrong; UINT64_MAX: none */
  job jobs[MOST_JOBS];
} shared;

static void note_failure(shared *s, job *j, const char *message) {
  uint64_t lowest = atomic_load(&s->failing);
  while (j->seed < lowest && !atomic_compare_exchange_weak(&s->failing, &lowest, j->seed)) {
  }
  snprintf(j->message, sizeof j->message, "%s", message);
}

/* Every so many-th schedule, up to the lowest failing one: whatever the number of jobs, that is the same. */
static void work(const campaign *c, shared *s, uint32_t number) {
  schedule_world *world;
  job *j = &s->jobs[number];
  if (schedule_world_new(&world) != MK_OK) {
    note_failure(s, j, mk_error_message());
    return;
  }
  for (uint64_t i = number; i < c->schedules && c->first + i < atomic_load(&s->failing); i += c->jobs) {
    j->seed = c->first + i;
    alarm(HANG_SECONDS);
    if (schedule_run(world, j->seed, &c->options, &j->counts) != MK_OK) {
      note_failure(s, j, mk_error_message());
      break;
    }
    atomic_fetch_add(&j->done, 1);
  }
  schedule_world_free(world);
}

static uint64_t done_by(const campaign *c, shared *s) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < c->jobs; i++) {
    done += atomic_load(&s->jobs[i].done);
  }
  return done;
}

/* Waits until all processes have ended; one that crashes or hangs has failed. */
static void watch(const campaign *c, shared *s, const pid_t *children) {
  double started = mk_seconds(), told = started;
  uint32_t ended = 0;
  while (ended < c->jobs) {
    int status;
    pid_t child = waitpid(-1, &status, WNOHANG);
    for (uint32_t i = 0; i < c->jobs && child > 0; i++) {
      if (children[i] == child && status != 0) {
        char message[64];
        snprintf(message, sizeof message, "seed %llu: ended by signal %d", (unsigned long long)s->jobs[i].seed,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        note_failure(s, &s->jobs[i], message);
      }
    }
    ended += child > 0;
    if (child <= 0) {
      usleep(PAUSE);
    }
    if (mk_seconds() - told > PROGRESS_SECONDS) {
      told = mk_seconds();
      uint64_t done = done_by(c, s);
      printf("%llu of %llu schedules, %.0f a second\n", (unsigned long long)done, (unsigned long long)c->schedules,
             (double)done / (told - started));
      fflush(stdout);
    }
  }
}

/* The caller owns the result: munmap. NULL: there are no processes to be had. */
static shared *run(const campaign *c) {
  pid_t children[MOST_JOBS];
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) {
    perror("mmap");
    return NULL;
  }
  atomic_store(&s->failing, UINT64_MAX);
  fflush(stdout);
  for (uint32_t i = 0; i < c->jobs; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      work(c, s, i);
      _exit(0);
    }
    if (children[i] < 0) {
      perror("fork");
      exit(1);
    }
  }
  watch(c, s, children);
  return s;
}

/* What was wrong in the first failing schedule. */
static const char *message_of(const campaign *c, shared *s) {
  uint32_t at = 0;
  while (at + 1 < c->jobs && (s->jobs[at].message[0] == '\0' || s->jobs[at].seed != atomic_load(&s->failing))) {
    at++;
  }
  return s->jobs[at].message;
}

static bool print_one(uint64_t seed) {
  schedule_world *world;
  mk_status status = schedule_world_new(&world);
  status = status == MK_OK ? schedule_print(world, seed, stdout) : status;
  schedule_world_free(world);
  return status == MK_OK;
}

static bool soak(const campaign *c) {
  schedule_counts all = {0};
  double started = mk_seconds();
  shared *s = run(c);
  if (s == NULL) {
    return false;
  }
  for (uint32_t i = 0; i < c->jobs; i++) {
    schedule_add(&all, &s->jobs[i].counts);
  }
  printf("| what | how many |\n|---|---|\n");
  for (size_t i = 0; i < SCHEDULE_COUNTS; i++) {
    printf("| %s | %llu |\n", schedule_count_names[i], (unsigned long long)all.n[i]);
  }
  printf("| most overtaken | %u |\n", all.most_overtaken);
  double seconds = mk_seconds() - started;
  bool good = atomic_load(&s->failing) == UINT64_MAX && all.n[SCHEDULE_SCHEDULES] == c->schedules;
  printf("seeds %llu to %llu, %u jobs, %.0f s, %.1f schedules a second: %s\n", (unsigned long long)c->first,
         (unsigned long long)(c->first + c->schedules - 1), c->jobs, seconds,
         (double)all.n[SCHEDULE_SCHEDULES] / seconds, good ? "passed" : "FAILED");
  if (!good) {
    printf("%s\ntools/soak --seed %llu --schedules 1 runs it alone\n", message_of(c, s),
           (unsigned long long)atomic_load(&s->failing));
  }
  munmap(s, sizeof *s);
  return good;
}

static bool find_faults(campaign c) {
  bool good = true;
  printf("| fault | found after | how |\n|---|---|---|\n");
  for (size_t i = 0; i < schedule_plant_count; i++) {
    c.options = (schedule_options){.plant = &schedule_plants[i], .bits_alone = true};
    shared *s = run(&c);
    uint64_t failing = s == NULL ? UINT64_MAX : atomic_load(&s->failing);
    good = good && failing != UINT64_MAX;
    if (failing == UINT64_MAX) {
      printf("| %s: %s | never, of %llu |  |\n", schedule_plants[i].name, schedule_plants[i].what,
             (unsigned long long)c.schedules);
    } else {
      printf("| %s: %s | %llu | %s |\n", schedule_plants[i].name, schedule_plants[i].what,
             (unsigned long long)(failing - c.first + 1), message_of(&c, s));
    }
    if (s != NULL) {
      munmap(s, sizeof *s);
    }
  }
  return good;
}

static bool parse(int argc, char **argv, campaign *c) {
  static const struct option names[] = {{"schedules", required_argument, NULL, 'n'},
                                        {"seed", required_argument, NULL, 's'},
                                        {"jobs", required_argument, NULL, 'j'},
                                        {"faults", no_argument, NULL, 'f'},
                                        {NULL, 0, NULL, 0}};
  int option;
  while ((option = getopt_long(argc, argv, "n:s:j:f", names, NULL)) != -1) {
    char *end = NULL;
    unsigned long long value = optarg == NULL ? 0 : strtoull(optarg, &end, 10);
    if (end != NULL && (end == optarg || *end != '\0')) {
      return false;
    }
    switch (option) {
      case 'n':
        c->schedules = value;
        break;
      case 's':
        c->first = value;
        break;
      case 'j':
        c->jobs = value > MOST_JOBS ? MOST_JOBS : (uint32_t)value;
        break;
      case 'f':
        c->faults = true;
        break;
      default:
        return false;
    }
  }
  c->schedules = c->schedules != 0 ? c->schedules : c->faults ? 2000 : 10000;
  c->jobs = c->schedules < c->jobs ? (uint32_t)c->schedules : c->jobs;
  return optind == argc && c->jobs != 0;
}

int main(int argc, char **argv) {
  campaign c = {.first = 1, .jobs = 2};
  if (!parse(argc, argv, &c)) {
    fprintf(stderr, "usage: %s [--schedules N] [--seed S] [--jobs N] [--faults]\n", argv[0]);
    return 2;
  }
  if (c.schedules == 1 && !print_one(c.first)) {
    fprintf(stderr, "%s\n", mk_error_message());
    return 1;
  }
  return (c.faults ? find_faults(c) : soak(&c)) ? 0 : 1;
}
