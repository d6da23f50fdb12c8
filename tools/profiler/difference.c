/* See summary.h: what takes longer in one trace than in another. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/profiler/summary.h"

enum { SHOWN = 12 };
static const double kLeastUs = 0.005; /* less is not shown */

typedef struct row {
  char text[96];
  double a, b;
} row;

typedef struct table {
  row *rows;
  size_t count, capacity;
} table;

static double change(const row *r) { return r->b - r->a; }

static int by_change(const void *a, const void *b) {
  double x = fabs(change(a)), y = fabs(change(b));
  return (x < y) - (x > y);
}

static mk_status add(table *t, row r) {
  MK_TRY(mk_grow(&t->rows, &t->capacity, t->count + 1, sizeof *t->rows));
  t->rows[t->count++] = r;
  return MK_OK;
}

/* The time per step, and per SM that takes part in steps at all. */
static double time_at(const mk_summary *s, uint32_t opcode, uint32_t role, uint32_t kind) {
  uint32_t sms = 0;
  for (uint32_t sm = 0; sm < s->profile->sms; sm++) {
    sms += mk_profile_track_of(s->profile, sm, role)->count != 0;
  }
  for (size_t i = 0; i < s->statistics->opcode_count; i++) {
    const mk_opcode_time *o = &s->statistics->opcodes[i];
    if (o->opcode == opcode && o->role == role && sms != 0 && s->profile->steps != 0) {
      return o->by_kind[kind] / sms / s->profile->steps;
    }
  }
  return 0;
}

static mk_status add_opcodes(const mk_summary *a, const mk_summary *b, table *t) {
  static const char *const kinds[] = {"work",           "waits for other SMs", "waits for weights",
                                      "waits for room", "waits within the SM", "idle"};
  for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      for (uint32_t kind = 0; kind < MK_ACTIVITY_KIND_COUNT; kind++) {
        row r = {.a = time_at(a, opcode, role, kind), .b = time_at(b, opcode, role, kind)};
        snprintf(r.text, sizeof r.text, "%s, %s %s", mk_opcode_text(opcode), mk_trace_role_name(role), kinds[kind]);
        if (fabs(change(&r)) >= kLeastUs) {
          MK_TRY(add(t, r));
        }
      }
    }
  }
  return MK_OK;
}

static const mk_stage_time *stage_of(const mk_summary *s, const mk_stage_time *like) {
  for (size_t i = 0; i < s->statistics->stage_count; i++) {
    const mk_stage_time *at = &s->statistics->stages[i];
    if (at->opcode == like->opcode && at->layer == like->layer && strcmp(at->value, like->value) == 0) {
      return at;
    }
  }
  return NULL;
}

static mk_status add_stages(const mk_summary *a, const mk_summary *b, table *t) {
  for (size_t i = 0; i < b->statistics->stage_count; i++) {
    const mk_stage_time *now = &b->statistics->stages[i], *before = stage_of(a, now);
    row r = {.a = before == NULL ? 0 : before->length, .b = now->length};
    char label[MK_LABEL_SIZE];
    if (now->layer == MK_NO_LAYER) {
      snprintf(r.text, sizeof r.text, "%s", mk_stage_label(now, label));
    } else {
      snprintf(r.text, sizeof r.text, "%s, layer %u", mk_stage_label(now, label), now->layer);
    }
    if (fabs(change(&r)) >= kLeastUs) {
      MK_TRY(add(t, r));
    }
  }
  return MK_OK;
}

static void print_row(const char *text, double a, double b, FILE *file) {
  fprintf(file, "  %-46s %10.2f %10.2f %+10.2f", text, a, b, b - a);
  if (a > 0) {
    fprintf(file, "  %+6.1f %%", 100 * (b - a) / a);
  }
  fprintf(file, "\n");
}

static void print_table(const char *title, table *t, FILE *file) {
  fprintf(file, "\n%s\n", title);
  if (t->count != 0) {
    qsort(t->rows, t->count, sizeof *t->rows, by_change);
  }
  for (size_t i = 0; i < t->count && i < SHOWN; i++) {
    print_row(t->rows[i].text, t->rows[i].a, t->rows[i].b, file);
  }
  if (t->count == 0) {
    fprintf(file, "  nothing changed\n");
  }
}

mk_status mk_summary_print_difference(const mk_summary *a, const mk_summary *b, FILE *file) {
  table opcodes = {0}, stages = {0};
  mk_status status = add_opcodes(a, b, &opcodes);
  if (status == MK_OK) {
    status = add_stages(a, b, &stages);
  }
  if (status == MK_OK) {
    fprintf(file, "%-48s %10s %10s %10s\n", "us per step", "A", "B", "B - A");
    print_row("token", a->profile->token_us, b->profile->token_us, file);
    print_table("stages, from the first part's start to the last part's end; largest changes first", &stages, file);
    print_table("roles, mean of the SMs; largest changes first", &opcodes, file);
  }
  mk_free(opcodes.rows);
  mk_free(stages.rows);
  return status;
}
