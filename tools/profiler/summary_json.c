/* See summary.h: the same as JSON. A failed allocation of jansson's makes a NULL, which every setter refuses. */
#include <math.h>

#include "tools/profiler/summary.h"

typedef struct object {
  json_t *json;
  bool bad;
} object;

static void set(object *o, const char *key, json_t *value) { o->bad |= json_object_set_new(o->json, key, value) != 0; }
static void set_number(object *o, const char *key, double value) {
  set(o, key, json_real(isfinite(value) ? round(value * 1e4) * 1e-4 : 0));
}
static void set_count(object *o, const char *key, uint64_t value) { set(o, key, json_integer((json_int_t)value)); }
static void set_text(object *o, const char *key, const char *value) { set(o, key, json_string(value)); }

static json_t *done(object *o) {
  if (o->bad) {
    json_decref(o->json);
    return NULL;
  }
  return o->json;
}

static void append(object *o, json_t *array, json_t *value) { o->bad |= json_array_append_new(array, value) != 0; }

/* As texts name it: of several ranks by its rank, and its number there. */
static void set_sm(object *o, const mk_summary *s, uint32_t sm) {
  if (mk_profile_has_ranks(s->profile)) {
    set_count(o, "rank", mk_queue_rank(s->profile->program, sm));
    sm %= s->profile->program->machine.sms;
  }
  set_count(o, "sm", sm);
}

/* Names an instruction, and says where it stands. */
static void set_instruction(object *o, const mk_summary *s, uint32_t instruction) {
  if (instruction == MK_NO_INSTRUCTION) {
    set(o, "instruction", json_null());
    return;
  }
  const mk_instruction *in = &s->profile->program->instructions[instruction];
  set_count(o, "instruction", in->uid);
  set_text(o, "opcode", mk_opcode_text(in->opcode));
  set(o, "layer", in->layer == MK_NO_LAYER ? json_null() : json_integer(in->layer));
  set_sm(o, s, s->profile->sm_of[instruction]);
}

static json_t *facts_json(const mk_summary *s) {
  const mk_trace *t = s->trace;
  object o = {.json = json_object()};
  set_text(&o, "model", t->facts.model);
  set_text(&o, "device", t->facts.device);
  set_text(&o, "driver", t->facts.driver);
  set_text(&o, "version", t->facts.version);
  set_text(&o, "command", t->facts.command);
  set_count(&o, "sms", t->sms);
  set_count(&o, "ranks", s->profile->program->machine.ranks);
  set_count(&o, "first_step", t->first_step);
  set_count(&o, "steps", s->profile->steps);
  set_count(&o, "first_position", t->first_position);
  set_count(&o, "launch_steps", t->launch_steps);
  set_number(&o, "launch_us_per_step", t->launch_steps == 0 ? 0 : t->milliseconds * 1e3 / t->launch_steps);
  set_number(&o, "us_per_step", s->profile->token_us);
  set_number(&o, "median_us", s->median_us);
  set_number(&o, "alignment_ns", t->alignment_ns);
  set_count(&o, "records", s->profile->records);
  set_count(&o, "dropped", s->profile->dropped);
  set_number(&o, "unaccounted_percent", 100 * s->profile->unaccounted);
  set(&o, "problem", s->problem[0] == 0 ? json_null() : json_string(s->problem));
  return done(&o);
}

static json_t *outliers_json(const mk_summary *s) {
  object all = {.json = json_array()};
  for (size_t i = 0; i < s->outlier_count; i++) {
    const mk_outlier *at = &s->outliers[i];
    object o = {.json = json_object()};
    set_instruction(&o, s, at->instruction);
    set_text(&o, "role", mk_trace_role_name(at->role));
    set_number(&o, "work_us", at->work);
    set_number(&o, "peers_us", at->peers);
    set(&o, "once", json_boolean(at->once));
    set_number(&o, "worst_us", at->worst);
    set_count(&o, "worst_step", at->worst_step + s->trace->first_step);
    append(&all, all.json, done(&o));
  }
  return done(&all);
}

static json_t *activities_json(const mk_summary *s) {
  object all = {.json = json_object()};
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    object o = {.json = json_object()};
    for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
      set_number(&o, mk_activity_text(a), s->statistics->by_activity[role][a]);
    }
    set(&all, mk_trace_role_name(role), done(&o));
  }
  return done(&all);
}

static json_t *opcodes_json(const mk_summary *s) {
  static const char *const kinds[] = {"work_us", "wait_us", "weights_us", "ring_us", "hand_us", "idle_us"};
  const mk_statistics *st = s->statistics;
  object all = {.json = json_array()};
  double steps = s->profile->steps == 0 ? 1 : s->profile->steps;
  for (size_t i = 0; i < st->opcode_count; i++) {
    const mk_opcode_time *at = &st->opcodes[i];
    object o = {.json = json_object()};
    set_text(&o, "opcode", mk_opcode_text(at->opcode));
    set_text(&o, "role", mk_trace_role_name(at->role));
    set_count(&o, "count", at->count);
    set_number(&o, "us_per_step", at->total / steps);
    set_number(&o, "p50_us", at->p50);
    set_number(&o, "p99_us", at->p99);
    for (uint32_t k = 0; k < MK_ACTIVITY_KIND_COUNT; k++) {
      set_number(&o, kinds[k], at->by_kind[k] / steps);
    }
    if (at->role == MK_ROLE_CONSUMER) {
      double us = st->opcode_us[at->opcode];
      set_number(&o, "bytes_per_step", st->opcode_bytes[at->opcode]);
      set_number(&o, "bandwidth_percent",
                 us > 0 && s->bandwidth > 0 ? 100 * st->opcode_bytes[at->opcode] / (us * 1e-6) / s->bandwidth : 0);
    }
    append(&all, all.json, done(&o));
  }
  return done(&all);
}

static json_t *hop_json(const mk_hop_time *hop) {
  object o = {.json = json_object()};
  set_count(&o, "count", hop->count);
  set_number(&o, "p50_us", hop->p50);
  set_number(&o, "p90_us", hop->p90);
  return done(&o);
}

static json_t *hops_json(const mk_summary *s) {
  object all = {.json = json_array()};
  for (size_t i = 0; i < s->waits.hop_count; i++) {
    const mk_opcode_hops *at = &s->waits.hops[i];
    object o = {.json = json_object()};
    set_text(&o, "opcode", at->opcode == 0 ? "all" : mk_opcode_text(at->opcode));
    set(&o, "local", hop_json(&at->of[MK_HOP_LOCAL]));
    if (mk_profile_has_ranks(s->profile)) {
      set(&o, "remote", hop_json(&at->of[MK_HOP_REMOTE]));
    }
    append(&all, all.json, done(&o));
  }
  return done(&all);
}

static json_t *stages_json(const mk_summary *s) {
  object all = {.json = json_array()};
  for (size_t i = 0; i < s->statistics->stage_count; i++) {
    const mk_stage_time *at = &s->statistics->stages[i];
    object o = {.json = json_object()};
    set_text(&o, "opcode", mk_opcode_text(at->opcode));
    set(&o, "layer", at->layer == MK_NO_LAYER ? json_null() : json_integer(at->layer));
    set_text(&o, "value", at->value);
    set_count(&o, "instructions", at->parts);
    set_number(&o, "begin_us", at->begin);
    set_number(&o, "us", at->length);
    set_number(&o, "start_skew_us", at->start_skew);
    set_number(&o, "end_skew_us", at->end_skew);
    set_number(&o, "ring_empty_us", at->ring_empty);
    set_number(&o, "ring_full_us", at->ring_full);
    set_number(&o, "bytes", at->bytes);
    append(&all, all.json, done(&o));
  }
  return done(&all);
}

static json_t *instruction_json(const mk_summary *s, uint32_t instruction, uint32_t role) {
  object o = {.json = json_object()};
  set_instruction(&o, s, instruction);
  set_text(&o, "role", mk_trace_role_name(role));
  return done(&o);
}

static json_t *waits_json(const mk_summary *s) {
  enum { MOST = 100 };
  object all = {.json = json_array()};
  for (size_t i = 0; i < s->waits.count && i < MOST; i++) {
    const mk_long_wait *at = &s->waits.longest[i];
    object o = {.json = json_object()};
    set_number(&o, "us", at->longest);
    set_count(&o, "step", at->example.step + s->trace->first_step);
    set(&o, "waiter", instruction_json(s, at->example.instruction, at->role));
    set(&o, "publisher", instruction_json(s, at->publisher, at->publisher_role));
    set_number(&o, "published_before_end_us", (double)at->example.end * 1e-3 - at->published);
    set_count(&o, "waits", at->waits);
    set_number(&o, "total_us", at->total);
    append(&all, all.json, done(&o));
  }
  return done(&all);
}

static json_t *path_json(const mk_summary *s) {
  double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT];
  object path = {.json = json_object()}, parts = {.json = json_array()}, sums = {.json = json_array()};
  mk_path_totals(s, totals);
  for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
    for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
      if (totals[opcode][a] > 0) {
        object o = {.json = json_object()};
        set_text(&o, "opcode", mk_opcode_text(opcode));
        set_text(&o, "activity", mk_activity_text(a));
        set_number(&o, "us", totals[opcode][a]);
        append(&sums, sums.json, done(&o));
      }
    }
  }
  for (size_t i = 0; i < s->path.count; i++) {
    const mk_path_part *at = &s->path.parts[i];
    object o = {.json = json_object()};
    set_number(&o, "start_us", (double)(at->start - s->path.parts[0].start) * 1e-3);
    set_number(&o, "us", (double)(at->end - at->start) * 1e-3);
    set_instruction(&o, s, at->instruction);
    set_sm(&o, s, at->sm);
    set_text(&o, "role", mk_trace_role_name(at->role));
    set_text(&o, "activity", mk_activity_text(at->activity));
    if (at->from != MK_NO_INSTRUCTION) {
      set_count(&o, "published_by", s->profile->program->instructions[at->from].uid);
    }
    append(&parts, parts.json, done(&o));
  }
  set_count(&path, "step", s->path.step + s->trace->first_step);
  set(&path, "totals", done(&sums));
  set(&path, "parts", done(&parts));
  return done(&path);
}

json_t *mk_summary_json(const mk_summary *summary) {
  object o = {.json = json_object()};
  set(&o, "trace", facts_json(summary));
  set(&o, "findings", outliers_json(summary));
  set(&o, "us_per_step", activities_json(summary));
  set(&o, "opcodes", opcodes_json(summary));
  set(&o, "hops", hops_json(summary));
  set(&o, "stages", stages_json(summary));
  set(&o, "waits", waits_json(summary));
  set(&o, "critical_path", path_json(summary));
  return done(&o);
}
