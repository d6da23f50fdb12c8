/* One generated program: how it comes of its seed, and its trial. See generated.h. */
#include "tests/mutation/generated.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "scheduler/mla_compile.h"
#include "tests/support/generate.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

/* Of 64: programs of one row, programs of one row that sample, of several rows, of which the first few sample, and with
 * work lists. */
enum { ONE_ROW = 27, SAMPLING = 16, ROWS = 18, ROWS_SAMPLING = 6, ALL = 64 };

enum { MOST_SECONDS = 20, MOST_MEGABYTES = 1024 };

void generated_limit(void) {
#ifndef __SANITIZE_ADDRESS__
  struct rlimit most = {.rlim_cur = (rlim_t)MOST_MEGABYTES << 20, .rlim_max = (rlim_t)MOST_MEGABYTES << 20};
  (void)setrlimit(RLIMIT_AS, &most);
#endif
}

static mk_status new_listed(uint64_t *random, mk_program **out) {
  mk_mla_shape shape = {.heads = 8,
                        .new_tokens = 1 + mutation_draw(random, 8) / 7,
                        .max_sequences = 1 + mutation_draw(random, 3),
                        .max_pages = 1 + mutation_draw(random, 3),
                        .scale = 0.07f};
  shape.pool_pages = 1 + shape.max_pages * shape.max_sequences / 2;
  return mk_mla_compile(&shape, 2 + mutation_draw(random, 3), out);
}

static mk_status new_program(uint64_t *random, generated *out) {
  static const uint32_t rows[] = {2, 4, 8, 16, 2, 4, 8, 16, 2, 4, 8, 16, 2, 4, 64};
  uint32_t which = mutation_draw(random, ALL);
  test_recipe recipe = {.rows = 1, .small = true, .bold = mutation_draw(random, 2) == 0};
  if (which >= ONE_ROW + SAMPLING + ROWS) {
    out->kind = GENERATED_LISTED;
    return new_listed(random, &out->program);
  }
  if (which >= ONE_ROW + SAMPLING) {
    recipe.rows = rows[mutation_draw(random, sizeof rows / sizeof rows[0])];
    recipe.sampling = which < ONE_ROW + SAMPLING + ROWS_SAMPLING && recipe.rows <= MK_MAX_ROWS;
  } else if (which >= ONE_ROW) {
    out->kind = GENERATED_SAMPLING;
    recipe.sampling = true;
  }
  return test_generate_recipe(mutation_draw(random, UINT32_MAX), &recipe, &out->program);
}

mk_status generated_new(uint64_t seed, generated *out) {
  static const uint8_t edits[] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 5};
  uint64_t random = (seed + 1) * 0x9e3779b97f4a7c15u;
  *out = (generated){.kind = GENERATED_ROWS};
  MK_TRY(new_program(&random, out));
  size_t used = 0;
  for (uint32_t i = edits[mutation_draw(&random, sizeof edits)]; i != 0; i--) {
    const char *name = generated_edit(out->program, &random, &out->reordered);
    if (name != NULL && used < sizeof out->edits) {
      used += (size_t)snprintf(out->edits + used, sizeof out->edits - used, " %s", name);
    }
  }
  if (used != 0) {
    generated_reseal(out->program, &random);
  }
  return MK_OK;
}

generated_effort generated_effort_of(const generated *g) {
  uint32_t rows = mk_program_rows(g->program);
  if (g->kind == GENERATED_LISTED) {
    return (generated_effort){.machines = 8};
  }
  if (g->kind == GENERATED_SAMPLING) {
    return (generated_effort){.accesses = g->reordered ? 64 : 24, .machines = 8};
  }
  if (rows > 1) {
    return (generated_effort){.machines = rows > MK_MAX_ROWS ? 3 : rows > 4 ? 6 : 12};
  }
  return (generated_effort){.accesses = g->reordered ? 128 : 32, .machines = g->reordered ? 14 : 6};
}

static void count_rule(generated_counts *counts, const char *rule, uint32_t rejected) {
  uint32_t i = 0;
  while (i < GENERATED_RULES - 1 && counts->rules[i].rule[0] != '\0' && strcmp(counts->rules[i].rule, rule) != 0) {
    i++;
  }
  snprintf(counts->rules[i].rule, sizeof counts->rules[i].rule, "%s", rule);
  counts->rules[i].rejected += rejected;
}

static void count_accepted(generated_counts *counts, const mk_program *p) {
  bool has[MK_OP_COUNT] = {false};
  uint32_t rows = mk_program_rows(p), kind = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    has[p->instructions[i].opcode] = true;
  }
  for (uint32_t op = 0; op < MK_OP_COUNT; op++) {
    counts->opcodes[op] += has[op];
  }
  while (1u << kind < rows) {
    kind++;
  }
  counts->rows[kind]++;
  counts->accepted++;
}

static generated_verdict judge(const generated *g, uint64_t seed, generated_counts *counts) {
  mk_verify_report report;
  mk_status verdict = mk_verify(g->program, &report);
  if (verdict == MK_ERR_REJECTED) {
    count_rule(counts, report.rule, 1);
    return GENERATED_REJECTED;
  }
  if (verdict != MK_OK) {
    return GENERATED_INCOMPLETE;
  }
  count_accepted(counts, g->program);
  mk_status found = generated_judge(g->program, seed, generated_effort_of(g));
  if (found != MK_OK) {
    (void)mk_error_prefix(found, "%u rows, edits:%s", mk_program_rows(g->program),
                          g->edits[0] == '\0' ? " none" : g->edits);
  }
  counts->unjudged += found == MK_ERR_USAGE;
  counts->failing += found != MK_OK && found != MK_ERR_USAGE && found != MK_ERR_RUNTIME;
  return found == MK_OK            ? GENERATED_ACCEPTED
         : found == MK_ERR_USAGE   ? GENERATED_UNJUDGED
         : found == MK_ERR_RUNTIME ? GENERATED_INCOMPLETE
                                   : GENERATED_FAILING;
}

/* Seconds of the processor's time, which other work on the machine takes nothing of. A program takes milliseconds. */
static void limit_time(void) {
  const struct itimerval most = {.it_value.tv_sec = MOST_SECONDS};
  (void)setitimer(ITIMER_PROF, &most, NULL);
}

generated_verdict generated_try(uint64_t seed, generated_counts *counts) {
  generated g;
  limit_time();
  counts->programs++;
  if (generated_new(seed, &g) != MK_OK) {
    return GENERATED_INCOMPLETE;
  }
  generated_verdict verdict = judge(&g, seed, counts);
  mk_program_free(g.program);
  return verdict;
}

void generated_add(generated_counts *into, const generated_counts *from) {
  into->programs += from->programs;
  into->accepted += from->accepted;
  into->unjudged += from->unjudged;
  into->failing += from->failing;
  into->crashed += from->crashed;
  for (uint32_t i = 0; i < MK_OP_COUNT; i++) {
    into->opcodes[i] += from->opcodes[i];
  }
  for (uint32_t i = 0; i < GENERATED_ROW_KINDS; i++) {
    into->rows[i] += from->rows[i];
  }
  for (uint32_t i = 0; i < GENERATED_RULES && from->rules[i].rule[0] != '\0'; i++) {
    count_rule(into, from->rules[i].rule, from->rules[i].rejected);
  }
}

bool generated_replay(uint64_t seed, FILE *out) {
  generated g;
  generated_limit();
  limit_time();
  if (generated_new(seed, &g) != MK_OK) {
    fprintf(out, "%s\n", mk_error_message());
    return false;
  }
  fprintf(out, "; seed %llu, edits:%s\n", (unsigned long long)seed, g.edits[0] == '\0' ? " none" : g.edits);
  (void)mk_disassemble(g.program, out);
  mk_status verdict = mk_verify(g.program, NULL);
  fprintf(out, "; the verifier %s\n", verdict == MK_OK ? "accepts it" : mk_error_message());
  fflush(out); /* what follows may crash */
  mk_status found = verdict == MK_OK ? generated_judge(g.program, seed, generated_effort_of(&g)) : MK_OK;
  if (verdict == MK_OK) {
    fprintf(out, "; %s\n", found == MK_OK ? "no run fails" : mk_error_message());
  }
  mk_program_free(g.program);
  return found == MK_OK || found == MK_ERR_USAGE;
}
