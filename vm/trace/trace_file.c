/* The .mktrace file: a header, then one zlib stream. docs/TRACE.md draws it. See trace.h.
 *
 * In the stream a number is a varint (seven bits a byte, the lowest first, the highest bit set in all bytes but the
 * last) and a text is its length and its bytes. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "vm/file.h"
#include "vm/trace/trace.h"

enum {
  FILE_VERSION = 1,
  LEAST_RECORD_BYTES = 5, /* a byte in each of the five columns */
  LEAST_TRACK_BYTES = 2,
  MOST_INFLATION = 1032, /* zlib packs no tighter */
};
static const uint64_t kMostContent = UINT64_C(1) << 32;
static const uint64_t kMostTime = UINT64_C(1) << 53; /* nanoseconds; a double holds them all */

typedef struct file_lead {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t size;     /* of the file */
  uint64_t content;  /* of what the stream inflates to */
  uint64_t checksum; /* FNV-1a-64 of the stream */
} file_lead;
_Static_assert(sizeof(file_lead) == 40, "no padding in the header");

static const char magic[8] = {'M', 'K', 'T', 'R', 'A', 'C', 'E', '1'};

/* Length of the valid UTF-8 character without NUL at `text`; 0: none is there. */
static size_t utf8_length(const uint8_t *text, size_t left) {
  static const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};
  size_t length = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
  if (length == 0 || length > left) {
    return 0;
  }
  uint32_t code = length == 1 ? text[0] : text[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if (text[i] >> 6 != 2) {
      return 0;
    }
    code = code << 6 | (text[i] & 0x3fu);
  }
  bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < least[length] || surrogate || code > 0x10ffff ? 0 : length;
}

/* Writing. The first failure sticks. */

typedef struct writer {
  uint8_t *bytes;
  size_t length, capacity;
  mk_status status;
} writer;

static void put_bytes(writer *w, const void *from, size_t length) {
  if (w->status == MK_OK) {
    w->status = mk_grow(&w->bytes, &w->capacity, w->length + length, 1);
  }
  if (w->status == MK_OK && length != 0) {
    memcpy(w->bytes + w->length, from, length);
    w->length += length;
  }
}

static void put_number(writer *w, uint64_t value) {
  uint8_t bytes[10];
  size_t length = 0;
  for (; value >= 0x80; value >>= 7) {
    bytes[length++] = (uint8_t)(value | 0x80);
  }
  bytes[length++] = (uint8_t)value;
  put_bytes(w, bytes, length);
}

/* A file name may be any bytes: what is not UTF-8 becomes a question mark. */
static void put_text(writer *w, const char *text, size_t size) {
  size_t length = strnlen(text, size - 1);
  put_number(w, length);
  for (size_t at = 0; at < length;) {
    size_t step = utf8_length((const uint8_t *)text + at, length - at);
    put_bytes(w, step == 0 ? "?" : text + at, step == 0 ? 1 : step);
    at += step == 0 ? 1 : step;
  }
}

static void put_name(writer *w, const char *name) {
  put_number(w, strlen(name));
  put_bytes(w, name, strlen(name));
}

static void put_double(writer *w, double value) { put_bytes(w, &value, sizeof value); }

static void put_facts(writer *w, const mk_trace *trace) {
  const mk_trace_facts *f = &trace->facts;
  put_text(w, f->model, sizeof f->model);
  put_text(w, f->device, sizeof f->device);
  put_text(w, f->driver, sizeof f->driver);
  put_text(w, f->version, sizeof f->version);
  put_text(w, f->command, sizeof f->command);
  put_number(w, trace->first_position);
  put_number(w, trace->first_step);
  put_number(w, trace->steps);
  put_number(w, trace->launch_steps);
  put_double(w, trace->milliseconds);
  put_double(w, trace->alignment_ns);
}

static void put_names(writer *w) {
  put_number(w, MK_OP_COUNT - 1);
  for (uint32_t i = 1; i < MK_OP_COUNT; i++) {
    put_name(w, mk_opcode_lookup(i)->name);
  }
  put_number(w, MK_ACTIVITY_COUNT);
  for (uint32_t i = 0; i < MK_ACTIVITY_COUNT; i++) {
    put_name(w, mk_activity_name(i));
    put_name(w, mk_activity_text(i));
  }
  put_number(w, MK_TRACE_ROLES);
  for (uint32_t i = 0; i < MK_TRACE_ROLES; i++) {
    put_name(w, mk_trace_role_name(i));
  }
}

static void put_track(writer *w, const mk_trace_track *track) {
  const mk_trace_record *r = track->records;
  put_number(w, track->count);
  put_number(w, track->dropped);
  uint64_t time = 0;
  uint32_t uid = 0;
  for (uint32_t i = 0; i < track->count; time = r[i++].time) {
    put_number(w, r[i].time - time);
  }
  for (uint32_t i = 0; i < track->count; uid = r[i++].uid) {
    int64_t step = (int64_t)r[i].uid - uid;
    put_number(w, (uint64_t)step << 1 ^ (uint64_t)(step < 0 ? -1 : 0));
  }
  for (uint32_t i = 0; i < track->count; i++) {
    put_bytes(w, &r[i].activity, 1);
  }
  for (uint32_t i = 0; i < track->count; i++) {
    put_bytes(w, &r[i].epoch, 1);
  }
  for (uint32_t i = 0; i < track->count; i++) {
    put_number(w, r[i].edge);
  }
}

static mk_status write_content(const mk_trace *trace, writer *w) {
  void *program;
  size_t length;
  MK_TRY(mk_program_serialize(trace->program, &program, &length));
  put_facts(w, trace);
  put_names(w);
  put_number(w, length);
  put_bytes(w, program, length);
  mk_free(program);
  put_number(w, trace->sms);
  for (size_t t = 0; t < (size_t)trace->sms * MK_TRACE_ROLES; t++) {
    put_track(w, &trace->tracks[t]);
  }
  return w->status;
}

static mk_status pack(const writer *content, uint8_t **out, size_t *size) {
  uLongf packed = compressBound(content->length);
  file_lead lead = {.version = FILE_VERSION, .content = content->length};
  memcpy(lead.magic, magic, sizeof magic);
  MK_TRY(mk_alloc(sizeof lead + packed, 1, out));
  if (compress2(*out + sizeof lead, &packed, content->bytes, content->length, 6) != Z_OK) {
    mk_free(*out);
    *out = NULL;
    return mk_error(MK_ERR_RUNTIME, "out of memory: the trace could not be compressed");
  }
  lead.size = sizeof lead + packed;
  lead.checksum = mk_fnv1a(*out + sizeof lead, packed);
  memcpy(*out, &lead, sizeof lead);
  *size = (size_t)lead.size;
  return MK_OK;
}

mk_status mk_trace_serialize(const mk_trace *trace, void **data, size_t *length) {
  writer w = {0};
  uint8_t *bytes = NULL;
  *data = NULL;
  *length = 0;
  mk_status status = write_content(trace, &w);
  if (status == MK_OK && w.length > kMostContent) {
    status = mk_error(MK_ERR_USAGE, "the trace has %zu bytes, a file holds %llu; record fewer steps", w.length,
                      (unsigned long long)kMostContent);
  }
  if (status == MK_OK) {
    status = pack(&w, &bytes, length);
  }
  mk_free(w.bytes);
  *data = bytes;
  return status;
}

mk_status mk_trace_save(const mk_trace *trace, const char *path) {
  void *bytes;
  size_t length;
  mk_status status = mk_trace_serialize(trace, &bytes, &length);
  if (status == MK_OK) {
    status = mk_save_bytes(path, bytes, length);
  }
  mk_free(bytes);
  return status;
}

/* Reading. Nothing is allocated for a count before as many bytes are known to be there. */

typedef struct reader {
  const uint8_t *at, *end;
} reader;

static mk_status get_number(reader *r, const char *what, uint64_t most, uint64_t *out) {
  uint64_t value = 0;
  for (uint32_t shift = 0; shift < 64; shift += 7) {
    if (r->at == r->end) {
      return mk_error(MK_ERR_FILE, "%s: the content ends there; the file is damaged", what);
    }
    uint64_t bits = *r->at & 0x7fu;
    if (shift == 63 && bits > 1) {
      break;
    }
    value |= bits << shift;
    if (*r->at++ >= 0x80) {
      continue;
    }
    if (value > most) {
      return mk_error(MK_ERR_FILE, "%s: is %llu; at most %llu is possible", what, (unsigned long long)value,
                      (unsigned long long)most);
    }
    *out = value;
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE, "%s: is not a number; the file is damaged", what);
}

static mk_status get_u32(reader *r, const char *what, uint32_t *out) {
  uint64_t value = 0;
  MK_TRY(get_number(r, what, UINT32_MAX, &value));
  *out = (uint32_t)value;
  return MK_OK;
}

static mk_status get_bytes(reader *r, const char *what, uint64_t length, const uint8_t **out) {
  *out = r->at;
  if (length > (uint64_t)(r->end - r->at)) {
    return mk_error(MK_ERR_FILE, "%s: %llu bytes are announced, %zu are left; the file is damaged", what,
                    (unsigned long long)length, (size_t)(r->end - r->at));
  }
  r->at += length;
  return MK_OK;
}

/* UTF-8 without NUL into `size` bytes. */
static mk_status get_text(reader *r, const char *what, char *to, size_t size) {
  const uint8_t *text;
  uint64_t length = 0;
  MK_TRY(get_number(r, what, size - 1, &length));
  MK_TRY(get_bytes(r, what, length, &text));
  for (uint64_t at = 0, step; at < length; at += step) {
    step = text[at] == 0 ? 0 : utf8_length(text + at, length - at);
    if (step == 0) {
      return mk_error(MK_ERR_FILE, "%s: byte %llu is not UTF-8 text", what, (unsigned long long)at);
    }
  }
  memcpy(to, text, length);
  to[length] = 0;
  return MK_OK;
}

static mk_status get_double(reader *r, const char *what, double *out) {
  const uint8_t *bytes;
  MK_TRY(get_bytes(r, what, sizeof *out, &bytes));
  memcpy(out, bytes, sizeof *out);
  return *out >= 0 && *out < 1e15 ? MK_OK : mk_error(MK_ERR_FILE, "%s: is %g; it must be from 0 to 1e15", what, *out);
}

static mk_status get_facts(reader *r, mk_trace *trace) {
  mk_trace_facts *f = &trace->facts;
  MK_TRY(get_text(r, "model", f->model, sizeof f->model));
  MK_TRY(get_text(r, "device", f->device, sizeof f->device));
  MK_TRY(get_text(r, "driver", f->driver, sizeof f->driver));
  MK_TRY(get_text(r, "version", f->version, sizeof f->version));
  MK_TRY(get_text(r, "command", f->command, sizeof f->command));
  MK_TRY(get_u32(r, "first_position", &trace->first_position));
  MK_TRY(get_u32(r, "first_step", &trace->first_step));
  MK_TRY(get_u32(r, "steps", &trace->steps));
  MK_TRY(get_u32(r, "launch_steps", &trace->launch_steps));
  MK_TRY(get_double(r, "milliseconds", &trace->milliseconds));
  MK_TRY(get_double(r, "alignment_ns", &trace->alignment_ns));
  if (trace->steps != 0 && (uint64_t)trace->first_step + trace->steps > trace->launch_steps) {
    return mk_error(MK_ERR_FILE, "steps: %u from %u on are recorded; the launch has %u", trace->steps,
                    trace->first_step, trace->launch_steps);
  }
  return MK_OK;
}

/* The numbers in the records mean the same in this build: a name it has too has the same number. More names may
 * follow. */
static mk_status get_names(reader *r, const char *what, uint32_t first, uint32_t known, const char *(*name)(uint32_t),
                           bool with_text) {
  uint32_t count;
  MK_TRY(get_u32(r, what, &count));
  for (uint32_t i = 0; i < count; i++) {
    char word[64], text[64];
    MK_TRY(get_text(r, what, word, sizeof word));
    if (with_text) {
      MK_TRY(get_text(r, what, text, sizeof text));
    }
    if (i + first >= known || strcmp(word, name(i + first)) != 0) {
      return mk_error(MK_ERR_FILE,
                      "%s: number %u is \"%s\", which this build does not know; use the build that wrote it", what,
                      i + first, word);
    }
  }
  return MK_OK;
}

static const char *opcode_name(uint32_t opcode) { return mk_opcode_lookup(opcode)->name; }

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* What the records are checked against. */
typedef struct checker {
  const mk_program *program;
  uint32_t *uids; /* sorted */
  uint32_t sm, role;
} checker;

static mk_status check_record(const checker *c, const mk_trace_record *record, uint32_t uid_before, uint32_t i) {
  const mk_program *program = c->program;
  const char *role = mk_trace_role_name(c->role);
  if (record->uid != 0 && record->uid != uid_before &&
      bsearch(&record->uid, c->uids, program->instruction_count, sizeof *c->uids, by_value) == NULL) {
    return mk_error(MK_ERR_FILE, "SM %u, %s: record %u names instruction %u, which the program does not have", c->sm,
                    role, i, record->uid);
  }
  if (record->activity >= MK_ACTIVITY_COUNT) {
    return mk_error(MK_ERR_FILE, "SM %u, %s: the activity of record %u is %u; activities are 0 to %d", c->sm, role, i,
                    record->activity, MK_ACTIVITY_COUNT - 1);
  }
  const char *edge = mk_activity_edge(record->activity), *place = strchr(edge, '%');
  size_t most = place == NULL                             ? 1
                : record->activity == MK_ACTIVITY_COUNTER ? program->counter_count
                : record->activity == MK_ACTIVITY_STAMP   ? program->buffer_count
                                                          : MK_MAX_COORDINATE;
  if (record->edge >= most) {
    return mk_error(MK_ERR_FILE, "SM %u, %s: the edge of record %u (%s) is %u; it must be below %zu", c->sm, role, i,
                    mk_activity_text(record->activity), record->edge, most);
  }
  return MK_OK;
}

static mk_status get_columns(reader *r, const checker *c, mk_trace_record *records, uint32_t count) {
  const uint8_t *activities, *epochs;
  uint64_t time = 0, value = 0;
  int64_t uid = 0;
  for (uint32_t i = 0; i < count; i++) {
    MK_TRY(get_number(r, "time of a record", kMostTime - time, &value));
    records[i].time = time += value;
  }
  for (uint32_t i = 0; i < count; i++) {
    MK_TRY(get_number(r, "uid of a record", UINT64_C(1) << 33, &value));
    uid += (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    if (uid < 0 || uid > UINT32_MAX) {
      return mk_error(MK_ERR_FILE, "uid of a record: is %lld; it must be from 0 to %u", (long long)uid, UINT32_MAX);
    }
    records[i].uid = (uint32_t)uid;
  }
  MK_TRY(get_bytes(r, "activities of a track", count, &activities));
  MK_TRY(get_bytes(r, "epochs of a track", count, &epochs));
  for (uint32_t i = 0; i < count; i++) {
    records[i].activity = activities[i];
    records[i].epoch = epochs[i];
    MK_TRY(get_number(r, "edge of a record", UINT16_MAX, &value));
    records[i].edge = (uint16_t)value;
    MK_TRY(check_record(c, &records[i], i == 0 ? 0 : records[i - 1].uid, i));
  }
  return MK_OK;
}

static mk_status get_track(reader *r, const checker *c, mk_trace_track *track) {
  uint64_t count = 0, most = (uint64_t)(r->end - r->at) / LEAST_RECORD_BYTES;
  MK_TRY(get_number(r, "count of a track", most < UINT32_MAX ? most : UINT32_MAX, &count));
  MK_TRY(get_u32(r, "dropped of a track", &track->dropped));
  MK_TRY(mk_alloc(count, sizeof *track->records, &track->records));
  track->count = (uint32_t)count;
  return get_columns(r, c, track->records, track->count);
}

static mk_status get_tracks(reader *r, mk_trace *trace) {
  const mk_program *program = trace->program;
  checker c = {.program = program};
  uint32_t sms;
  MK_TRY(get_u32(r, "sms", &sms));
  if (sms != program->queue_count || sms > (uint64_t)(r->end - r->at) / LEAST_TRACK_BYTES / MK_TRACE_ROLES) {
    return mk_error(MK_ERR_FILE, "sms: is %u; the program has %zu queues, and %zu bytes of tracks follow", sms,
                    program->queue_count, (size_t)(r->end - r->at));
  }
  MK_TRY(mk_alloc((size_t)sms * MK_TRACE_ROLES, sizeof *trace->tracks, &trace->tracks));
  trace->sms = sms;
  MK_TRY(mk_alloc(program->instruction_count, sizeof *c.uids, &c.uids));
  for (size_t i = 0; i < program->instruction_count; i++) {
    c.uids[i] = program->instructions[i].uid;
  }
  qsort(c.uids, program->instruction_count, sizeof *c.uids, by_value);
  mk_status status = MK_OK;
  for (c.sm = 0; c.sm < sms && status == MK_OK; c.sm++) {
    for (c.role = 0; c.role < MK_TRACE_ROLES && status == MK_OK; c.role++) {
      status = get_track(r, &c, mk_trace_track_of(trace, c.sm, c.role));
    }
  }
  mk_free(c.uids);
  return status;
}

static mk_status parse_content(reader *r, mk_trace *trace) {
  const uint8_t *program;
  uint64_t length = 0;
  MK_TRY(get_facts(r, trace));
  MK_TRY(get_names(r, "opcodes", 1, MK_OP_COUNT, opcode_name, false));
  MK_TRY(get_names(r, "activities", 0, MK_ACTIVITY_COUNT, mk_activity_name, true));
  MK_TRY(get_names(r, "roles", 0, MK_TRACE_ROLES, mk_trace_role_name, false));
  MK_TRY(get_number(r, "size of the program", UINT64_MAX, &length));
  MK_TRY(get_bytes(r, "program", length, &program));
  mk_status status = mk_program_parse(program, length, &trace->program);
  if (status != MK_OK) {
    return mk_error_prefix(status, "program");
  }
  MK_TRY(get_tracks(r, trace));
  return r->at == r->end
             ? MK_OK
             : mk_error(MK_ERR_FILE, "%zu bytes follow the last track; the file is damaged", (size_t)(r->end - r->at));
}

static mk_status check_lead(const file_lead *lead, uint64_t size) {
  if (memcmp(lead->magic, magic, sizeof magic) != 0) {
    return mk_error(MK_ERR_FILE, "header: magic is not \"MKTRACE1\"; this is not a trace file");
  }
  if (lead->version != FILE_VERSION || lead->zero != 0) {
    return mk_error(MK_ERR_FILE, "header: version is %u.%u; this build reads version %d.0", lead->version, lead->zero,
                    FILE_VERSION);
  }
  if (lead->size != size) {
    return mk_error(MK_ERR_FILE, "header: size is %llu, the file has %llu bytes; it is truncated or not a trace",
                    (unsigned long long)lead->size, (unsigned long long)size);
  }
  if (lead->content > kMostContent || lead->content > (size - sizeof *lead) * MOST_INFLATION) {
    return mk_error(MK_ERR_FILE, "header: content is %llu bytes; %llu bytes of file cannot hold them",
                    (unsigned long long)lead->content, (unsigned long long)size);
  }
  if (size - sizeof *lead > compressBound(lead->content)) {
    return mk_error(MK_ERR_FILE, "header: content is %llu bytes; it never takes %llu bytes of file",
                    (unsigned long long)lead->content, (unsigned long long)size);
  }
  return MK_OK;
}

static mk_status inflate_content(const uint8_t *from, size_t length, uint8_t *to, uint64_t content) {
  uLongf have = content;
  uLong used = length;
  int result = uncompress2(to, &have, from, &used);
  if (result == Z_MEM_ERROR) {
    return mk_error(MK_ERR_RUNTIME, "out of memory: the content could not be inflated");
  }
  if (result != Z_OK || have != content || used != length) {
    return mk_error(MK_ERR_FILE, "content: does not inflate to the %llu bytes that the header states; it is damaged",
                    (unsigned long long)content);
  }
  return MK_OK;
}

mk_status mk_trace_parse(const void *data, size_t length, mk_trace **out) {
  const uint8_t *bytes = data;
  file_lead lead;
  *out = NULL;
  if (length < sizeof lead) {
    return mk_error(MK_ERR_FILE, "header: %zu bytes; a trace has at least %zu", length, sizeof lead);
  }
  memcpy(&lead, bytes, sizeof lead);
  MK_TRY(check_lead(&lead, length));
  uint64_t checksum = mk_fnv1a(bytes + sizeof lead, length - sizeof lead);
  if (checksum != lead.checksum) {
    return mk_error(MK_ERR_FILE, "header: checksum is %016llx, the content has %016llx; the file is damaged",
                    (unsigned long long)lead.checksum, (unsigned long long)checksum);
  }
  uint8_t *content;
  mk_trace *trace = NULL;
  MK_TRY(mk_alloc(lead.content, 1, &content));
  reader r = {.at = content, .end = content + lead.content};
  mk_status status = inflate_content(bytes + sizeof lead, length - sizeof lead, content, lead.content);
  if (status == MK_OK) {
    status = mk_alloc(1, sizeof *trace, &trace);
  }
  if (status == MK_OK) {
    status = parse_content(&r, trace);
  }
  mk_free(content);
  if (status != MK_OK) {
    mk_trace_free(trace);
    return status;
  }
  *out = trace;
  return MK_OK;
}

static mk_status check_start(const void *start, uint64_t size) {
  file_lead lead;
  memcpy(&lead, start, sizeof lead);
  return check_lead(&lead, size);
}

mk_status mk_trace_load(const char *path, mk_trace **out) {
  static const mk_file_kind kind = {"a trace", "`mkvm run --trace`", sizeof(file_lead), check_start};
  void *bytes;
  size_t length;
  *out = NULL;
  MK_TRY(mk_load_bytes(path, &kind, &bytes, &length));
  mk_status status = mk_trace_parse(bytes, length, out);
  mk_free(bytes);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}
