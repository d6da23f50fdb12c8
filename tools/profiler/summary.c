/* See summary.h: what belongs together, and the long text. */
#include "tools/profiler/summary.h"

#include <string.h>

enum { SHOWN_OUTLIERS = 10, SHOWN_ONCE = 3, SHOWN_STAGES = 32, SHOWN_WAITS = 10, SHOWN_PARTS = 12 };

static mk_status build(mk_summary *s, uint32_t step) {
  MK_TRY(mk_profile_new(s->trace, &s->profile));
  if (mk_profile_check(s->profile) != MK_OK) {
    snprintf(s->problem, sizeof s->problem, "%s", mk_error_message());
  }
  MK_TRY(mk_statistics_new(s->profile, &s->statistics));
  MK_TRY(mk_edges_new(s->profile, &s->edges));
  MK_TRY(mk_outliers_find(s->profile, &s->outliers, &s->outlier_count));
  MK_TRY(mk_waits_find(s->edges, s->profile, &s->waits));
  uint32_t first = s->trace->first_step, median;
  MK_TRY(mk_path_median_step(s->profile, &median, &s->median_us));
  if (step == MK_MEDIAN_STEP) {
    step = median;
  } else if (step < first || step - first >= s->profile->steps) {
    return mk_error(MK_ERR_USAGE, "step %u was not recorded; the trace has %u steps from step %u on", step,
                    s->profile->steps, first);
  } else {
    step -= first;
  }
  MK_TRY(mk_path_find(s->edges, step, &s->path));
  s->bandwidth_given = s->bandwidth > 0;
  if (!s->bandwidth_given && s->profile->token_us > 0) {
    s->bandwidth = s->statistics->bytes / (s->profile->token_us * 1e-6);
  }
  return MK_OK;
}

mk_status mk_summary_new(const mk_trace *trace, uint32_t step, double bandwidth, mk_summary **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->trace = trace;
  (*out)->bandwidth = bandwidth;
  mk_status status = build(*out, step);
  if (status != MK_OK) {
    mk_summary_free(*out);
    *out = NULL;
  }
  return status;
}

void mk_summary_free(mk_summary *summary) {
  if (summary != NULL) {
    mk_path_free(&summary->path);
    mk_free(summary->outliers);
    mk_waits_free(&summary->waits);
    mk_edges_free(summary->edges);
    mk_statistics_free(summary->statistics);
    mk_profile_free(summary->profile);
    mk_free(summary);
  }
}

const char *mk_opcode_text(uint32_t opcode) {
  const mk_opcode_info *info = mk_opcode_lookup(opcode);
  return info == NULL || info->name == NULL ? "none" : info->name;
}

/* C0, DEL and C1; the last are two bytes of UTF-8. */
const char *mk_printable(const char *text, char *to, size_t size) {
  snprintf(to, size, "%s", text);
  for (char *at = to; *at != 0; at++) {
    unsigned char byte = (unsigned char)at[0], next = (unsigned char)at[1];
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      at[0] = at[1] = '?';
    } else if (byte < ' ' || byte == 0x7f) {
      *at = '?';
    }
  }
  return to;
}

void mk_path_totals(const mk_summary *summary, double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT]) {
  memset(totals, 0, MK_OP_COUNT * sizeof totals[0]);
  for (size_t i = 0; i < summary->path.count; i++) {
    const mk_path_part *part = &summary->path.parts[i];
    uint32_t opcode =
        part->instruction == MK_NO_INSTRUCTION ? 0 : summary->profile->program->instructions[part->instruction].opcode;
    totals[opcode][part->activity] += (double)(part->end - part->start) * 1e-3;
  }
}

static void print_facts(const mk_summary *s, FILE *file) {
  const mk_trace *t = s->trace;
  const mk_profile *p = s->profile;
  char text[sizeof t->facts.command];
  fprintf(file, "model    %s\n", mk_printable(t->facts.model, text, sizeof text));
  fprintf(file, "device   %s", mk_printable(t->facts.device, text, sizeof text));
  if (t->facts.driver[0] != 0) {
    fprintf(file, ", driver %s", mk_printable(t->facts.driver, text, sizeof text));
  }
  fprintf(file, ", mkvm %s\n", mk_printable(t->facts.version, text, sizeof text));
  fprintf(file, "command  %s\n", mk_printable(t->facts.command, text, sizeof text));
  fprintf(file, "steps    %u, from step %u of the launch (position %u); %u SMs", p->steps, t->first_step,
          t->first_position, t->sms);
  if (mk_profile_has_ranks(p)) {
    fprintf(file, " of %u ranks", p->program->machine.ranks);
  }
  fprintf(file, "; %llu records, %llu dropped\n", (unsigned long long)p->records, (unsigned long long)p->dropped);
  fprintf(file, "token    %.2f us in the trace (median; mean %.2f), %.2f us by the launch of %u steps\n", s->median_us,
          p->token_us, t->launch_steps == 0 ? 0 : t->milliseconds * 1e3 / t->launch_steps, t->launch_steps);
  fprintf(file, "clocks   of two SMs%s agree within %.0f ns; ", mk_profile_has_ranks(p) ? ", on two ranks too," : "",
          t->alignment_ns);
  if (s->problem[0] == 0) {
    fprintf(file, "every role accounts for its time within %.2f %%%s\n", 100 * p->unaccounted,
            p->serial ? "; one thread moves all SMs, which idle without it" : "");
  } else {
    fprintf(file, "INCOMPLETE: %s\n", s->problem);
  }
}

static void print_findings(const mk_summary *s, FILE *file) {
  char sm[MK_SM_LABEL_SIZE], label[MK_LABEL_SIZE];
  size_t once = 0, left_out = 0;
  fprintf(file, "\nfindings\n");
  for (size_t i = 0; i < s->outlier_count; i++) {
    const mk_outlier *o = &s->outliers[i];
    once += o->once;
    if (i >= SHOWN_OUTLIERS || once > SHOWN_ONCE) {
      left_out++;
      continue;
    }
    fprintf(file, "  %zu. %s, %s: %s works %.2f us", i + 1,
            mk_profile_sm_label(s->profile, s->profile->sm_of[o->instruction], sm), mk_trace_role_name(o->role),
            mk_profile_label(s->profile, o->instruction, label), o->once ? o->worst : o->work);
    if (o->once) {
      fprintf(file, " in step %u, %.2f us otherwise\n", o->worst_step + s->trace->first_step, o->work);
    } else {
      fprintf(file, " in each step, its peers %.2f us\n", o->peers);
    }
  }
  if (left_out != 0) {
    fprintf(file, "  and %zu more that work longer than their peers, always or once\n", left_out);
  }
  if (s->outlier_count == 0) {
    fprintf(file, "  no instruction works much longer than its peers\n");
  }
}

static void print_activities(const mk_summary *s, FILE *file) {
  fprintf(file, "\n%-24s", "us per step and SM");
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    fprintf(file, " %17s", mk_trace_role_name(role));
  }
  fprintf(file, "\n");
  for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
    double sum = 0;
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      sum += s->statistics->by_activity[role][a];
    }
    if (sum <= 0) {
      continue;
    }
    fprintf(file, "  %-22s", mk_activity_text(a));
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      double us = s->statistics->by_activity[role][a];
      double share = s->profile->token_us > 0 ? 100 * us / s->profile->token_us : 0;
      fprintf(file, " %9.2f (%4.1f%%)", us, share);
    }
    fprintf(file, "\n");
  }
}

static void print_opcodes(const mk_summary *s, FILE *file) {
  const mk_statistics *st = s->statistics;
  double steps = s->profile->steps == 0 ? 1 : s->profile->steps;
  fprintf(file, "\n%-12s %-10s %9s %11s %8s %8s   %5s %5s %7s %5s %5s %9s %6s\n", "opcode", "role", "per step",
          "us, all SMs", "p50", "p99", "work", "wait", "weights", "ring", "hand", "MB/step", "%band");
  for (size_t i = 0; i < st->opcode_count; i++) {
    const mk_opcode_time *o = &st->opcodes[i];
    double percent = o->total > 0 ? 100 / o->total : 0;
    fprintf(file, "%-12s %-10s %9.0f %11.1f %8.2f %8.2f   %4.0f%% %4.0f%% %6.0f%% %4.0f%% %4.0f%%",
            mk_opcode_text(o->opcode), mk_trace_role_name(o->role), (double)o->count / steps, o->total / steps, o->p50,
            o->p99, o->by_kind[MK_ACTIVITY_KIND_WORK] * percent, o->by_kind[MK_ACTIVITY_KIND_WAIT] * percent,
            o->by_kind[MK_ACTIVITY_KIND_FEED] * percent, o->by_kind[MK_ACTIVITY_KIND_RING] * percent,
            o->by_kind[MK_ACTIVITY_KIND_HAND] * percent);
    double us = st->opcode_us[o->opcode];
    if (o->role == MK_ROLE_CONSUMER && us > 0 && s->bandwidth > 0) {
      fprintf(file, " %9.2f %5.1f%%", st->opcode_bytes[o->opcode] * 1e-6,
              100 * st->opcode_bytes[o->opcode] / (us * 1e-6) / s->bandwidth);
    }
    fprintf(file, "\n");
  }
  fprintf(file, "bytes per step: %.2f MB%s; %%band: while consumers are at the opcode, of %s %.3f TB/s\n",
          st->bytes * 1e-6, mk_program_rows(s->profile->program) == 1 ? "" : " of weights, KV caches left out",
          s->bandwidth_given ? "the given" : "the mean of a step,", s->bandwidth * 1e-12);
}

static void print_hop(const mk_hop_time *hop, double steps, FILE *file) {
  if (hop->count == 0) {
    fprintf(file, " %17s %8s %8s", "", "", "");
  } else {
    fprintf(file, " %17.1f %8.2f %8.2f", (double)hop->count / steps, hop->p50, hop->p90);
  }
}

static void print_hops(const mk_summary *s, FILE *file) {
  const bool ranks = mk_profile_has_ranks(s->profile);
  const double steps = s->profile->steps == 0 ? 1 : s->profile->steps;
  fprintf(file, "\n%-12s %17s %8s %8s", "hops to, us", "local, per step", "p50", "p90");
  if (ranks) {
    fprintf(file, " %17s %8s %8s", "remote, per step", "p50", "p90");
  }
  fprintf(file, "\n");
  for (size_t i = 0; i < s->waits.hop_count; i++) {
    const mk_opcode_hops *hops = &s->waits.hops[i];
    fprintf(file, "%-12s", hops->opcode == 0 ? "all" : mk_opcode_text(hops->opcode));
    print_hop(&hops->of[MK_HOP_LOCAL], steps, file);
    if (hops->of[MK_HOP_REMOTE].count != 0) {
      print_hop(&hops->of[MK_HOP_REMOTE], steps, file);
    }
    fprintf(file, "\n");
  }
  if (s->waits.hop_count == 0) {
    fprintf(file, "  none was recorded\n");
    return;
  }
  fprintf(file,
          "from the end of who published last to the end of the wait; clocks agree within %.2f us, and less means "
          "little\n",
          s->trace->alignment_ns * 1e-3);
  if (ranks) {
    fprintf(file,
            "a local hop may be the longer for a word of another rank, published a little before, where an opcode "
            "reads those too\n");
  }
}

/* The stages of all layers that make the same value. */
typedef struct stage_kind {
  const mk_stage_time *first, *longest;
  mk_stage_time sum;
  double count;
} stage_kind;

static size_t group_stages(const mk_statistics *st, stage_kind kinds[SHOWN_STAGES]) {
  size_t count = 0;
  for (size_t i = 0; i < st->stage_count; i++) {
    const mk_stage_time *stage = &st->stages[i];
    size_t k = 0;
    while (k < count && (kinds[k].first->opcode != stage->opcode || strcmp(kinds[k].first->value, stage->value) != 0)) {
      k++;
    }
    if (k == SHOWN_STAGES) {
      continue;
    }
    if (k == count) {
      kinds[count++] = (stage_kind){.first = stage, .longest = stage};
    }
    stage_kind *kind = &kinds[k];
    kind->count++;
    kind->sum.length += stage->length;
    kind->sum.start_skew += stage->start_skew;
    kind->sum.end_skew += stage->end_skew;
    kind->sum.ring_empty += stage->ring_empty;
    kind->sum.ring_full += stage->ring_full;
    kind->longest = stage->length > kind->longest->length ? stage : kind->longest;
  }
  return count;
}

static void print_stages(const mk_summary *s, FILE *file) {
  stage_kind kinds[SHOWN_STAGES];
  char label[MK_LABEL_SIZE];
  size_t count = group_stages(s->statistics, kinds);
  fprintf(file, "\n%-26s %6s %8s %11s %9s %11s %10s   %s\n", "stage", "layers", "us, mean", "start skew", "end skew",
          "ring empty", "ring full", "longest");
  for (size_t k = 0; k < count; k++) {
    const stage_kind *kind = &kinds[k];
    fprintf(file, "%-26s %6.0f %8.2f %11.2f %9.2f %11.2f %10.2f   %.2f us", mk_stage_label(kind->first, label),
            kind->count, kind->sum.length / kind->count, kind->sum.start_skew / kind->count,
            kind->sum.end_skew / kind->count, kind->sum.ring_empty / kind->count, kind->sum.ring_full / kind->count,
            kind->longest->length);
    if (kind->longest->layer != MK_NO_LAYER) {
      fprintf(file, " in layer %u", kind->longest->layer);
    }
    fprintf(file, "\n");
  }
}

static void print_waits(const mk_summary *s, FILE *file) {
  char sm[MK_SM_LABEL_SIZE], waiter[MK_LABEL_SIZE], publisher[MK_LABEL_SIZE];
  fprintf(file, "\nlongest waits for other SMs\n");
  for (size_t i = 0; i < s->waits.count && i < SHOWN_WAITS; i++) {
    const mk_long_wait *w = &s->waits.longest[i];
    double end = (double)w->example.end * 1e-3;
    fprintf(file, "  %8.2f us in step %u: %s, %s, %s\n", w->longest, w->example.step + s->trace->first_step,
            mk_profile_sm_label(s->profile, w->sm, sm), mk_trace_role_name(w->role),
            mk_profile_label(s->profile, w->example.instruction, waiter));
    fprintf(file, "              for %s, %s, %s, done %.2f us %s its end; with it %u waits, %.1f us in all\n",
            mk_profile_sm_label(s->profile, s->profile->sm_of[w->publisher], sm), mk_trace_role_name(w->publisher_role),
            mk_profile_label(s->profile, w->publisher, publisher),
            w->published < end ? end - w->published : w->published - end, w->published < end ? "before" : "after",
            w->waits, w->total);
  }
  if (s->waits.count == 0) {
    fprintf(file, "  none was recorded\n");
  }
}

static double path_us(const mk_path *path) {
  return path->count == 0 ? 0 : (double)(path->parts[path->count - 1].end - path->parts[0].start) * 1e-3;
}

static void print_part(const mk_summary *s, const mk_path_part *part, FILE *file) {
  char sm[MK_SM_LABEL_SIZE], label[MK_LABEL_SIZE];
  uint64_t start = s->path.parts[0].start;
  fprintf(file, "  %10.2f %9.2f  %-*s %-10s %-22s %s", (double)(part->start - start) * 1e-3,
          (double)(part->end - part->start) * 1e-3, mk_profile_has_ranks(s->profile) ? 15 : 7,
          mk_profile_sm_label(s->profile, part->sm, sm), mk_trace_role_name(part->role),
          mk_activity_text(part->activity), mk_profile_label(s->profile, part->instruction, label));
  if (part->from != MK_NO_INSTRUCTION) {
    fprintf(file, " <- %s, %s", mk_profile_sm_label(s->profile, s->profile->sm_of[part->from], sm),
            mk_profile_label(s->profile, part->from, label));
  }
  fprintf(file, "\n");
}

static void print_path_head(const mk_summary *s, FILE *file) {
  fprintf(file, "\ncritical path of step %u: %.2f us, %zu parts\n", s->path.step + s->trace->first_step,
          path_us(&s->path), s->path.count);
}

void mk_summary_print_path(const mk_summary *summary, FILE *file) {
  print_path_head(summary, file);
  fprintf(file, "  %10s %9s\n", "at us", "us");
  for (size_t i = 0; i < summary->path.count; i++) {
    print_part(summary, &summary->path.parts[i], file);
  }
}

static void print_path_totals(const mk_summary *s, FILE *file) {
  double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT], all = path_us(&s->path);
  mk_path_totals(s, totals);
  for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
    double sum = 0;
    for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
      sum += totals[opcode][a];
    }
    if (sum <= 0) {
      continue;
    }
    fprintf(file, "  %-12s %9.2f us %5.1f%%:", mk_opcode_text(opcode), sum, 100 * sum / all);
    const char *comma = "";
    for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
      if (totals[opcode][a] > 0) {
        fprintf(file, "%s %s %.2f", comma, mk_activity_text(a), totals[opcode][a]);
        comma = ",";
      }
    }
    fprintf(file, "\n");
  }
}

/* Prints the longest parts, in the order of time. */
static void print_longest_parts(const mk_summary *s, FILE *file) {
  size_t shown[SHOWN_PARTS], count = 0; /* indices, by length */
  for (size_t i = 0; i < s->path.count; i++) {
    uint64_t length = s->path.parts[i].end - s->path.parts[i].start;
    size_t at = count;
    while (at > 0 && s->path.parts[shown[at - 1]].end - s->path.parts[shown[at - 1]].start < length) {
      at--;
    }
    if (at < SHOWN_PARTS) {
      count += count < SHOWN_PARTS;
      memmove(&shown[at + 1], &shown[at], (count - 1 - at) * sizeof shown[0]);
      shown[at] = i;
    }
  }
  fprintf(file, "  its longest parts:\n  %10s %9s\n", "at us", "us");
  for (size_t printed = 0, after = 0; printed < count; printed++) {
    size_t next = SIZE_MAX; /* the earliest that is not printed yet */
    for (size_t k = 0; k < count; k++) {
      next = shown[k] >= after && shown[k] < next ? shown[k] : next;
    }
    print_part(s, &s->path.parts[next], file);
    after = next + 1;
  }
}

void mk_summary_print_short(const mk_summary *summary, FILE *file) {
  print_findings(summary, file);
  print_activities(summary, file);
  print_opcodes(summary, file);
  print_hops(summary, file);
}

void mk_summary_print(const mk_summary *summary, FILE *file) {
  print_facts(summary, file);
  mk_summary_print_short(summary, file);
  print_stages(summary, file);
  print_waits(summary, file);
  if (summary->path.count != 0) {
    print_path_head(summary, file);
    print_path_totals(summary, file);
    print_longest_parts(summary, file);
  }
}
