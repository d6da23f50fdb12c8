/* See perfetto.h. Field numbers are those of Perfetto's trace_packet.proto and the files beside it. */
#include "tools/profiler/perfetto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/profiler/texts.h"

enum { SEQUENCE = 1, FIRST_PID = 1000, PIDS_PER_SM = 10 };

enum {
  TRACE_packet = 1,
  PACKET_timestamp = 8,
  PACKET_sequence_id = 10,
  PACKET_track_event = 11,
  PACKET_interned_data = 12,
  PACKET_sequence_flags = 13,
  PACKET_track_descriptor = 60,
  TRACK_uuid = 1,
  TRACK_name = 2,
  TRACK_process = 3,
  TRACK_thread = 4,
  TRACK_parent = 5,
  TRACK_counter = 8,
  PROCESS_pid = 1,
  PROCESS_name = 6,
  THREAD_pid = 1,
  THREAD_tid = 2,
  THREAD_name = 5,
  COUNTER_unit = 3,
  EVENT_annotation = 4,
  EVENT_type = 9,
  EVENT_name_iid = 10,
  EVENT_track = 11,
  EVENT_counter = 30,
  EVENT_double_counter = 44,
  EVENT_flow = 47,
  EVENT_last_of_flow = 48,
  INTERNED_event_name = 2,
  INTERNED_annotation_name = 3,
  INTERNED_string = 29,
  INTERNED_iid = 1,
  INTERNED_text = 2,
  ANNOTATION_name_iid = 1,
  ANNOTATION_uint = 3,
  ANNOTATION_string_iid = 17,
};

enum { STATE_CLEARED = 1, NEEDS_STATE = 2 };
enum { SLICE_BEGIN = 1, SLICE_END = 2, COUNTER_VALUE = 4 };
enum { UNIT_COUNT = 2, UNIT_BYTES = 3 };
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2 };

/* What annotations are called; interned as their place here. */
enum { NAME_NONE, NAME_TOKEN, NAME_LAYER, NAME_UID, NAME_INSTRUCTION, NAME_FOR, NAME_COUNT };
static const char *const annotation_names[NAME_COUNT] = {"", "token", "layer", "uid", "instruction", "for"};

enum { COUNTER_WORK, COUNTER_WAIT, COUNTER_FEED, COUNTER_BYTES, COUNTERS };
static const char *const counter_names[COUNTERS] = {"consumers at work", "consumers waiting for other SMs",
                                                    "consumers waiting for weights", "bytes in flight"};

/* An arrow from the part that published to a wait that it ended. A flow has the number of its wait: all intervals are
 * counted from 1, track by track. */
typedef struct flow {
  uint32_t track, execution; /* of the publisher */
  uint64_t id;
} flow;

typedef struct writer {
  const mk_summary *summary;
  const mk_profile *profile;
  mk_bytes out, packet, message, part; /* the file; a packet; what is nested in it; what is nested in that */
  flow *flows;                         /* by publisher */
  size_t flow_count, next_flow;        /* next: the first one that is not written at its publisher yet */
  bool *has_flow;                      /* per interval, from 1 */
} writer;

static void put_key(mk_bytes *b, uint32_t field, uint32_t wire) { mk_bytes_number(b, field << 3 | wire); }

static void put_number(mk_bytes *b, uint32_t field, uint64_t value) {
  put_key(b, field, WIRE_VARINT);
  mk_bytes_number(b, value);
}

static void put_fixed(mk_bytes *b, uint32_t field, const void *eight) {
  put_key(b, field, WIRE_FIXED64);
  mk_bytes_put(b, eight, 8);
}

static void put_part(mk_bytes *b, uint32_t field, const void *data, size_t length) {
  put_key(b, field, WIRE_BYTES);
  mk_bytes_number(b, length);
  mk_bytes_put(b, data, length);
}

static void put_text(mk_bytes *b, uint32_t field, const char *text) { put_part(b, field, text, strlen(text)); }

/* Moves `from` into `to` as a field of it. */
static void nest(mk_bytes *to, uint32_t field, mk_bytes *from) {
  put_part(to, field, from->data, from->length);
  to->status = to->status == MK_OK ? from->status : to->status;
  from->length = 0;
}

static void end_packet(writer *w, uint32_t flags) {
  put_number(&w->packet, PACKET_sequence_id, SEQUENCE);
  put_number(&w->packet, PACKET_sequence_flags, flags);
  nest(&w->out, TRACE_packet, &w->packet);
}

static uint64_t process_uuid(uint32_t sm) { return 100 + (uint64_t)sm * PIDS_PER_SM; }
static uint64_t thread_uuid(size_t track) {
  return process_uuid((uint32_t)(track / MK_TRACE_ROLES)) + 1 + track % MK_TRACE_ROLES;
}
static uint64_t counter_uuid(uint32_t counter) { return 1 + counter; }
static uint64_t pid_of(uint32_t sm) { return FIRST_PID + (uint64_t)sm * PIDS_PER_SM; }

static void put_interned(writer *w, uint32_t field, uint64_t iid, const char *text, size_t length) {
  put_number(&w->part, INTERNED_iid, iid);
  put_part(&w->part, INTERNED_text, text, length);
  nest(&w->message, field, &w->part);
}

/* Names of events: opcodes, then activities. Strings: instructions, then buffers, then counters. */
static uint64_t opcode_iid(uint32_t opcode) { return 1 + opcode; }
static uint64_t activity_iid(uint32_t activity) { return 1 + MK_OP_COUNT + activity; }
static uint64_t edge_iid(const mk_program *p, uint32_t activity, uint32_t edge) {
  return 1 + p->instruction_count + (activity == MK_ACTIVITY_COUNTER ? p->buffer_count : 0) + edge;
}

static void put_names(writer *w) {
  const mk_program *p = w->profile->program;
  for (uint32_t i = 1; i < MK_OP_COUNT; i++) {
    put_interned(w, INTERNED_event_name, opcode_iid(i), mk_opcode_text(i), strlen(mk_opcode_text(i)));
  }
  for (uint32_t i = 0; i < MK_ACTIVITY_COUNT; i++) {
    put_interned(w, INTERNED_event_name, activity_iid(i), mk_activity_text(i), strlen(mk_activity_text(i)));
  }
  for (uint32_t i = 1; i < NAME_COUNT; i++) {
    put_interned(w, INTERNED_annotation_name, i, annotation_names[i], strlen(annotation_names[i]));
  }
  for (uint32_t i = 0; i < p->buffer_count; i++) {
    put_interned(w, INTERNED_string, edge_iid(p, MK_ACTIVITY_STAMP, i), p->buffers[i].name, strlen(p->buffers[i].name));
  }
  for (uint32_t i = 0; i < p->counter_count; i++) {
    put_interned(w, INTERNED_string, edge_iid(p, MK_ACTIVITY_COUNTER, i), p->counters[i].name,
                 strlen(p->counters[i].name));
  }
  nest(&w->packet, PACKET_interned_data, &w->message);
  end_packet(w, STATE_CLEARED | NEEDS_STATE);
}

/* Some at a time, so that no packet is very large. */
static mk_status put_instructions(writer *w) {
  enum { A_PACKET = 256 };
  const mk_program *p = w->profile->program;
  mk_bytes texts = {0};
  mk_status status = mk_instruction_texts(p, &texts);
  const char *at = (const char *)texts.data;
  for (size_t i = 0; status == MK_OK && i < p->instruction_count; i++) {
    const char *end = memchr(at, '\n', texts.length - (size_t)(at - (const char *)texts.data));
    put_interned(w, INTERNED_string, 1 + i, at, (size_t)(end - at));
    at = end + 1;
    if (i % A_PACKET == A_PACKET - 1 || i + 1 == p->instruction_count) {
      nest(&w->packet, PACKET_interned_data, &w->message);
      end_packet(w, NEEDS_STATE);
    }
  }
  mk_free(texts.data);
  return status;
}

static void put_tracks(writer *w) {
  char name[160], label[MK_SM_LABEL_SIZE], device[sizeof w->summary->trace->facts.device];
  mk_printable(w->summary->trace->facts.device, device, sizeof device);
  for (uint32_t sm = 0; sm < w->profile->sms; sm++) {
    put_number(&w->part, PROCESS_pid, pid_of(sm));
    snprintf(name, sizeof name, "%s%s%s", mk_profile_sm_label(w->profile, sm, label),
             sm == 0 && device[0] != 0 ? " of " : "", sm == 0 ? device : "");
    put_text(&w->part, PROCESS_name, name);
    put_number(&w->message, TRACK_uuid, process_uuid(sm));
    nest(&w->message, TRACK_process, &w->part);
    nest(&w->packet, PACKET_track_descriptor, &w->message);
    end_packet(w, NEEDS_STATE);
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      if (mk_profile_track_of(w->profile, sm, role)->count == 0) {
        continue;
      }
      put_number(&w->part, THREAD_pid, pid_of(sm));
      put_number(&w->part, THREAD_tid, pid_of(sm) + 1 + role);
      put_text(&w->part, THREAD_name, mk_trace_role_name(role));
      put_number(&w->message, TRACK_uuid, thread_uuid((size_t)sm * MK_TRACE_ROLES + role));
      put_number(&w->message, TRACK_parent, process_uuid(sm));
      nest(&w->message, TRACK_thread, &w->part);
      nest(&w->packet, PACKET_track_descriptor, &w->message);
      end_packet(w, NEEDS_STATE);
    }
  }
  for (uint32_t c = 0; c < COUNTERS; c++) {
    put_number(&w->part, COUNTER_unit, c == COUNTER_BYTES ? UNIT_BYTES : UNIT_COUNT);
    put_number(&w->message, TRACK_uuid, counter_uuid(c));
    put_text(&w->message, TRACK_name, counter_names[c]);
    nest(&w->message, TRACK_counter, &w->part);
    nest(&w->packet, PACKET_track_descriptor, &w->message);
    end_packet(w, NEEDS_STATE);
  }
}

static int by_publisher(const void *a, const void *b) {
  const flow *x = a, *y = b;
  if (x->track != y->track) {
    return x->track < y->track ? -1 : 1;
  }
  if (x->execution != y->execution) {
    return x->execution < y->execution ? -1 : 1;
  }
  return (x->id > y->id) - (x->id < y->id);
}

static mk_status find_flows(writer *w) {
  const mk_profile *p = w->profile;
  size_t capacity = 0, intervals = 0;
  uint64_t id = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    intervals += p->tracks[t].count;
  }
  MK_TRY(mk_alloc(intervals + 1, sizeof *w->has_flow, &w->has_flow));
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < p->tracks[t].count; i++) {
      const mk_interval *in = &p->tracks[t].intervals[i];
      uint32_t role;
      id++;
      if (mk_activity_kind_of(in->activity) != MK_ACTIVITY_KIND_WAIT || in->end <= in->start) {
        continue;
      }
      const mk_execution *e = mk_edges_publisher(w->summary->edges, in, &role);
      if (e == NULL || e->finish > in->end) { /* clocks differ a little, and a flow cannot lead back in time */
        continue;
      }
      uint32_t from = p->sm_of[e->instruction] * MK_TRACE_ROLES + role;
      MK_TRY(mk_grow(&w->flows, &capacity, w->flow_count + 1, sizeof *w->flows));
      w->flows[w->flow_count++] = (flow){from, (uint32_t)(e - p->tracks[from].executions), id};
      w->has_flow[id] = true;
    }
  }
  if (w->flow_count != 0) {
    qsort(w->flows, w->flow_count, sizeof *w->flows, by_publisher);
  }
  return MK_OK;
}

static void end_event(writer *w, uint64_t time) {
  put_number(&w->packet, PACKET_timestamp, time);
  nest(&w->packet, PACKET_track_event, &w->message);
  end_packet(w, NEEDS_STATE);
}

static void put_annotation(writer *w, uint32_t name, uint32_t field, uint64_t value) {
  put_number(&w->part, ANNOTATION_name_iid, name);
  put_number(&w->part, field, value);
  nest(&w->message, EVENT_annotation, &w->part);
}

static void begin_slice(writer *w, size_t track, uint64_t name_iid) {
  put_number(&w->message, EVENT_type, SLICE_BEGIN);
  put_number(&w->message, EVENT_track, thread_uuid(track));
  put_number(&w->message, EVENT_name_iid, name_iid);
}

static void begin_end(writer *w, size_t track) {
  put_number(&w->message, EVENT_type, SLICE_END);
  put_number(&w->message, EVENT_track, thread_uuid(track));
}

static void put_execution_begin(writer *w, size_t track, const mk_execution *e) {
  const mk_instruction *in = &w->profile->program->instructions[e->instruction];
  begin_slice(w, track, opcode_iid(in->opcode));
  put_annotation(w, NAME_TOKEN, ANNOTATION_uint, w->summary->trace->first_step + e->step);
  if (in->layer != MK_NO_LAYER) {
    put_annotation(w, NAME_LAYER, ANNOTATION_uint, in->layer);
  }
  put_annotation(w, NAME_UID, ANNOTATION_uint, in->uid);
  put_annotation(w, NAME_INSTRUCTION, ANNOTATION_string_iid, 1 + (uint64_t)e->instruction);
  end_event(w, e->start);
}

static void put_execution_end(writer *w, size_t track, uint32_t index, const mk_execution *e) {
  begin_end(w, track);
  for (; w->next_flow < w->flow_count && w->flows[w->next_flow].track == track &&
         w->flows[w->next_flow].execution == index;
       w->next_flow++) {
    put_fixed(&w->message, EVENT_flow, &w->flows[w->next_flow].id);
  }
  end_event(w, e->finish);
}

/* Writes an interval, unless it is work or idling, which show by what is around them. */
static void put_interval(writer *w, size_t track, const mk_interval *in, uint64_t id) {
  mk_activity_kind kind = mk_activity_kind_of(in->activity);
  if (kind == MK_ACTIVITY_KIND_WORK || kind == MK_ACTIVITY_KIND_IDLE || in->end <= in->start) {
    return;
  }
  begin_slice(w, track, activity_iid(in->activity));
  if (kind == MK_ACTIVITY_KIND_WAIT) {
    put_annotation(w, NAME_FOR, ANNOTATION_string_iid, edge_iid(w->profile->program, in->activity, in->edge));
  }
  end_event(w, in->start);
  begin_end(w, track);
  if (w->has_flow[id]) {
    put_fixed(&w->message, EVENT_last_of_flow, &id);
  }
  end_event(w, in->end);
}

static void put_slices(writer *w) {
  const mk_profile *p = w->profile;
  uint64_t id = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    const mk_profile_track *track = &p->tracks[t];
    uint32_t e = 0; /* the execution at hand, or the next one */
    for (uint32_t i = 0; i < track->count; i++) {
      if (e < track->execution_count && track->executions[e].first == i) {
        put_execution_begin(w, t, &track->executions[e]);
      }
      put_interval(w, t, &track->intervals[i], ++id);
      if (e < track->execution_count && track->executions[e].end == i + 1) {
        put_execution_end(w, t, e, &track->executions[e]);
        e++;
      }
    }
  }
}

/* Counters: sums over spans of equal length. */

typedef struct spans {
  double *sums[COUNTERS];
  uint64_t first, length;
  size_t count;
} spans;

/* Adds `rate` for the time from start to end to the sums, in units of rate times nanoseconds. */
static void add_time(const spans *s, uint32_t counter, uint64_t start, uint64_t end, double rate) {
  uint64_t most = s->first + s->count * s->length;
  start = start > s->first ? start : s->first;
  end = end < most ? end : most;
  while (start < end) {
    size_t at = (size_t)((start - s->first) / s->length);
    uint64_t until = s->first + (at + 1) * s->length;
    until = until < end ? until : end;
    s->sums[counter][at] += rate * (double)(until - start);
    start = until;
  }
}

static void add_even(const spans *s, uint64_t start, uint64_t end, double amount) {
  end = end > start ? end : start + 1;
  add_time(s, COUNTER_BYTES, start, end, amount / (double)(end - start));
}

/* The loader's part of the bytes counts up and the consumer's down, the latter from where it waits for no other SM any
 * more. */
static void add_bytes(const writer *w, const spans *s, uint32_t role, const mk_profile_track *track) {
  for (uint32_t i = 0; i < track->execution_count; i++) {
    const mk_execution *e = &track->executions[i];
    double bytes = mk_profile_bytes(w->profile, e->instruction, e->step);
    uint32_t other = role == MK_ROLE_LOADER ? MK_ROLE_CONSUMER : MK_ROLE_LOADER;
    if (bytes <= 0 || mk_profile_find(w->profile, e->instruction, e->step, other) == NULL) {
      continue;
    }
    uint64_t start = e->start;
    for (uint32_t k = e->first; k < e->end; k++) {
      if (mk_activity_kind_of(track->intervals[k].activity) == MK_ACTIVITY_KIND_WAIT) {
        start = track->intervals[k].end;
      }
    }
    add_even(s, start, e->finish, role == MK_ROLE_LOADER ? bytes : -bytes);
  }
}

static void add_up(const writer *w, const spans *s) {
  const mk_profile *p = w->profile;
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *consumer = mk_profile_track_of(p, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < consumer->count; i++) {
      const mk_interval *in = &consumer->intervals[i];
      mk_activity_kind kind = mk_activity_kind_of(in->activity);
      if (kind <= MK_ACTIVITY_KIND_FEED) {
        add_time(s,
                 kind == MK_ACTIVITY_KIND_WORK   ? COUNTER_WORK
                 : kind == MK_ACTIVITY_KIND_WAIT ? COUNTER_WAIT
                                                 : COUNTER_FEED,
                 in->start, in->end, 1);
      }
    }
    add_bytes(w, s, MK_ROLE_CONSUMER, consumer);
    add_bytes(w, s, MK_ROLE_LOADER, mk_profile_track_of(p, sm, MK_ROLE_LOADER));
  }
}

static void put_value(writer *w, uint32_t counter, uint64_t time, double value) {
  put_number(&w->message, EVENT_type, COUNTER_VALUE);
  put_number(&w->message, EVENT_track, counter_uuid(counter));
  if (counter == COUNTER_BYTES) {
    put_number(&w->message, EVENT_counter, (uint64_t)(value > 0 ? value : 0));
  } else {
    put_fixed(&w->message, EVENT_double_counter, &value);
  }
  end_event(w, time);
}

static mk_status put_counters(writer *w) {
  enum { MOST_SPANS = 20000, LEAST_LENGTH = 200 };
  const mk_profile *p = w->profile;
  spans s = {.first = UINT64_MAX};
  uint64_t last = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    if (p->tracks[t].count != 0) {
      const mk_interval *in = p->tracks[t].intervals;
      s.first = in->start < s.first ? in->start : s.first;
      last = in[p->tracks[t].count - 1].end > last ? in[p->tracks[t].count - 1].end : last;
    }
  }
  if (s.first >= last) {
    return MK_OK;
  }
  s.length = (last - s.first) / MOST_SPANS > LEAST_LENGTH ? (last - s.first) / MOST_SPANS : LEAST_LENGTH;
  s.count = (size_t)((last - s.first) / s.length) + 2;
  mk_status status = MK_OK;
  for (uint32_t c = 0; status == MK_OK && c < COUNTERS; c++) {
    status = mk_alloc(s.count, sizeof *s.sums[c], &s.sums[c]);
  }
  if (status == MK_OK) {
    add_up(w, &s);
    for (uint32_t c = 0; c < COUNTERS; c++) {
      double sum = 0;
      for (size_t i = 0; i < s.count; i++) {
        sum += s.sums[c][i];
        put_value(w, c, s.first + i * s.length,
                  c == COUNTER_BYTES ? round(sum) : round(s.sums[c][i] / (double)s.length * 1e3) * 1e-3);
      }
    }
  }
  for (uint32_t c = 0; c < COUNTERS; c++) {
    mk_free(s.sums[c]);
  }
  return status;
}

mk_status mk_perfetto_make(const mk_summary *summary, void **data, size_t *length) {
  writer w = {.summary = summary, .profile = summary->profile};
  *data = NULL;
  *length = 0;
  put_names(&w);
  mk_status status = put_instructions(&w);
  if (status == MK_OK) {
    status = find_flows(&w);
  }
  if (status == MK_OK) {
    put_tracks(&w);
    put_slices(&w);
    status = put_counters(&w);
  }
  status = status == MK_OK ? w.out.status : status;
  mk_free(w.packet.data);
  mk_free(w.message.data);
  mk_free(w.part.data);
  mk_free(w.flows);
  mk_free(w.has_flow);
  if (status != MK_OK) {
    mk_free(w.out.data);
    return status;
  }
  *data = w.out.data;
  *length = w.out.length;
  return MK_OK;
}
