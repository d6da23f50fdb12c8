/* The lines of a text, and the declarations among them. See asm.h. */
#include "vm/program/asm.h"

#include <stdio.h>
#include <string.h>

#include "vm/file.h"
#include "vm/program/asm_internal.h"
#include "vm/program/program_internal.h"

enum {
  MAX_QUEUES = 1 << 20,       /* memory that a few bytes of text may ask for */
  MAX_INSTRUCTIONS = 1 << 26, /* what a program file holds */
  MOST_TEXT = 1 << 30,        /* bytes of a file: about four million instructions */
};

static mk_status parse_number(mk_word value, const char *field, uint32_t most, uint32_t *out) {
  uint64_t number = 0;
  MK_TRY(mk_word_number(value, field, most, &number));
  *out = (uint32_t)number;
  return MK_OK;
}

/* The quoted label; `line` begins after the word `model` and ends at the line's end. */
static mk_status parse_model(mk_assembler *a, mk_word line) {
  const char *at = line.at, *end = line.at + line.length;
  size_t used = 0;
  while (at < end && (*at == ' ' || *at == '\t')) {
    at++;
  }
  if (a->has_model || at == end || *at != '"') {
    return mk_error(MK_ERR_FILE, "model is given twice or not in quotes; write model \"LABEL\" once");
  }
  for (at++; at < end && *at != '"'; at++) {
    at += *at == '\\' && at + 1 < end;
    if (*at < ' ' || *at > '~' || used + 1 >= sizeof a->model) {
      return mk_error(MK_ERR_FILE, "model: a label is at most %zu printable ASCII characters", sizeof a->model - 1);
    }
    a->model[used++] = *at;
  }
  if (at == end) {
    return mk_error(MK_ERR_FILE, "model: the label has no closing quote; add it");
  }
  a->has_model = true;
  static const char *const names[] = {"config_hash"};
  mk_word rest = {.at = at + 1, .length = (size_t)(end - at - 1)}, value, left, right;
  uint32_t seen = 0, index;
  if (mk_word_split(rest, ";", &left, &right)) {
    rest = left;
  }
  for (mk_word word = mk_word_next(&rest); word.length > 0; word = mk_word_next(&rest)) {
    MK_TRY(mk_word_field(word, "model", names, 1, &seen, &index, &value));
    MK_TRY(mk_word_number(value, names[0], UINT64_MAX, &a->config_hash));
  }
  return MK_OK;
}

static mk_status parse_machine(mk_assembler *a, mk_word line) {
  enum { FIELDS = 10 };
  static const char *const names[FIELDS] = {"sms",          "page_bytes",     "ring_pages",   "resident_bytes",
                                            "copy_bytes",   "consumer_warps", "loader_warps", "instruction_ring",
                                            "result_slots", "ranks"};
  mk_machine machine = mk_machine_latency(0);
  uint32_t *const fields[FIELDS] = {
      &machine.sms,          &machine.page_bytes,     &machine.ring_pages,   &machine.resident_bytes,
      &machine.copy_bytes,   &machine.consumer_warps, &machine.loader_warps, &machine.instruction_ring,
      &machine.result_slots, &machine.ranks};
  uint32_t seen = 0, index;
  mk_word value;
  if (a->program != NULL) {
    return mk_error(MK_ERR_FILE, "machine is given twice; keep one");
  }
  for (mk_word word = mk_word_next(&line); word.length > 0; word = mk_word_next(&line)) {
    MK_TRY(mk_word_field(word, "machine", names, FIELDS, &seen, &index, &value));
    MK_TRY(parse_number(value, names[index], UINT32_MAX, fields[index]));
  }
  if ((uint64_t)machine.sms * machine.ranks > MAX_QUEUES) {
    return mk_error(MK_ERR_FILE, "machine: sms=%u ranks=%u make more than %d queues; use fewer", machine.sms,
                    machine.ranks, MAX_QUEUES);
  }
  MK_TRY(mk_program_new(&machine, &a->program));
  a->program->ranges.batch = (mk_range){1, 1};
  return MK_OK;
}

static mk_status parse_ranges(mk_assembler *a, mk_word line) {
  enum { RANGES = 5, SLOT = 4 };
  static const char *const names[] = {"position", "token", "block", "batch", "slot"};
  mk_step_ranges *r = &a->program->ranges;
  mk_range *const ranges[] = {&r->position, &r->token, &r->block, &r->batch, &r->slot};
  uint32_t seen = 0, index;
  mk_word value, low, high;
  if (a->has_ranges) {
    return mk_error(MK_ERR_FILE, "range is given twice; put all ranges on one line");
  }
  a->has_ranges = true;
  for (mk_word word = mk_word_next(&line); word.length > 0; word = mk_word_next(&line)) {
    MK_TRY(mk_word_field(word, "range", names, RANGES, &seen, &index, &value));
    if (!mk_word_split(value, "..", &low, &high)) {
      return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not a range; write %s=LOW..HIGH, both inclusive",
                      MK_WORD_ARGUMENT(word), names[index]);
    }
    MK_TRY(parse_number(low, names[index], UINT32_MAX, &ranges[index]->low));
    MK_TRY(parse_number(high, names[index], UINT32_MAX, &ranges[index]->high));
    if (ranges[index]->low > ranges[index]->high) {
      return mk_error(MK_ERR_FILE, MK_WORD_FORMAT ": the low end must not be above the high end",
                      MK_WORD_ARGUMENT(word));
    }
  }
  if ((seen & 1U << SLOT) == 0) { /* as many sequences as rows */
    r->slot.high = r->batch.high < 1 ? 0 : r->batch.high - 1;
  }
  return MK_OK;
}

/* Index of the word among the names that `name_of` gives. */
static mk_status parse_choice(mk_word value, const char *field, const char *(*name_of)(uint32_t), uint32_t count,
                              uint8_t *out) {
  char list[128];
  size_t used = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (mk_word_is(value, name_of(i))) {
      *out = (uint8_t)i;
      return MK_OK;
    }
    int more = used < sizeof list ? snprintf(list + used, sizeof list - used, i == 0 ? "%s" : ", %s", name_of(i)) : 0;
    used += more < 0 ? 0 : (size_t)more;
  }
  return mk_error(MK_ERR_FILE, "%s is " MK_WORD_FORMAT "; choose one of %s", field, MK_WORD_ARGUMENT(value), list);
}

static const char *proxy_name(uint32_t proxy) {
  static const char *const names[4] = {"none", "generic", "async", "generic+async"};
  return names[proxy];
}

static const char *counter_kind_name(uint32_t kind) { return kind == MK_COUNTER_RELEASE ? "release" : "relaxed"; }

/* ROWSxCOLS */
static mk_status parse_pair(mk_word value, const char *field, uint32_t *rows, uint32_t *cols) {
  mk_word left, right;
  if (!mk_word_split(value, "x", &left, &right)) {
    return mk_error(MK_ERR_FILE, "%s is " MK_WORD_FORMAT "; write ROWSxCOLS, such as 1x16", field,
                    MK_WORD_ARGUMENT(value));
  }
  MK_TRY(parse_number(left, field, UINT32_MAX, rows));
  return parse_number(right, field, UINT32_MAX, cols);
}

/* Takes the name that follows `buffer` or `counter`, which no other has. */
static mk_status parse_name(mk_word *line, const char *what, const mk_name_table *table, const void *names,
                            size_t stride, char out[48]) {
  mk_word word = mk_word_next(line);
  if (word.length < 48) {
    memcpy(out, word.at, word.length);
  }
  if (word.length >= 48 || !mk_name_valid(out, 48) || memchr(word.at, 0, word.length) != NULL) {
    return mk_error(MK_ERR_FILE,
                    "%s " MK_WORD_FORMAT ": a name is 1 to 47 of the characters A-Z a-z 0-9 _ . - / :", what,
                    MK_WORD_ARGUMENT(word));
  }
  if (mk_name_find(table, names, stride, word) >= 0) {
    return mk_error(MK_ERR_FILE, "%s %s: another one above has that name; names are unique", what, out);
  }
  return MK_OK;
}

/* A number below `ranks`, or where on all of them a thing lies. */
static mk_status parse_rank(mk_word value, uint32_t most, bool buffer, uint16_t *rank) {
  uint32_t number = 0;
  for (uint32_t special = MK_RANK_DEALT; special <= MK_RANK_EACH; special++) {
    if (mk_word_is(value, mk_rank_name(special)) && (buffer || special == MK_RANK_EACH)) {
      *rank = (uint16_t)special;
      return MK_OK;
    }
  }
  MK_TRY(parse_number(value, "rank", most, &number));
  *rank = (uint16_t)number;
  return MK_OK;
}

static mk_status parse_buffer_field(uint32_t index, const char *name, mk_word value, mk_buffer *b) {
  uint32_t *const numbers[] = {&b->block_tokens, &b->span_tokens, &b->blocks};
  uint32_t number = 0;
  switch (index) {
    case 0:
      return parse_choice(value, name, mk_kind_name, MK_KIND_COUNT, &b->kind);
    case 1:
      return parse_choice(value, name, mk_dtype_name, MK_DTYPE_COUNT, &b->dtype);
    case 2:
      return parse_choice(value, name, mk_store_name, MK_STORE_COUNT, &b->store);
    case 3:
      return parse_pair(value, name, &b->rows, &b->cols);
    case 4:
      return parse_pair(value, name, &b->tile_rows, &b->tile_cols);
    case 5:
      return parse_choice(value, name, mk_scope_name, MK_SCOPE_COUNT, &b->scope);
    case 6:
      return parse_choice(value, name, proxy_name, 4, &b->proxy);
    case 7:
      return parse_rank(value, MK_RANK_DEALT - 1, true, &b->rank);
    case 8:
      MK_TRY(parse_number(value, name, UINT16_MAX, &number));
      b->head_dim = (uint16_t)number;
      return MK_OK;
    case 12:
      return parse_choice(value, name, mk_scale_name, MK_SCALE_COUNT, &b->scale);
    case 13:
    case 14:
      MK_TRY(parse_number(value, name, UINT8_MAX, &number));
      *(index == 13 ? &b->scale_cols : &b->zeros) = (uint8_t)number;
      return MK_OK;
    default:
      return parse_number(value, name, UINT32_MAX, numbers[index - 9]);
  }
}

static mk_status parse_buffer(mk_assembler *a, mk_word line) {
  enum { REQUIRED = 5, FIELDS = 15 };
  static const char *const names[FIELDS] = {"kind",        "dtype",  "store", "shape",      "tile",
                                            "scope",       "proxy",  "rank",  "head_dim",   "block_tokens",
                                            "span_tokens", "blocks", "scale", "scale_cols", "zeros"};
  mk_program *p = a->program;
  mk_buffer buffer = {.scope = MK_SCOPE_GPU, .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC};
  uint32_t seen = 0, field;
  uint16_t index;
  mk_word value;
  MK_TRY(parse_name(&line, "buffer", &a->buffers, p->buffers, sizeof *p->buffers, buffer.name));
  for (mk_word word = mk_word_next(&line); word.length > 0; word = mk_word_next(&line)) {
    MK_TRY(mk_word_field(word, "buffer", names, FIELDS, &seen, &field, &value));
    MK_TRY(parse_buffer_field(field, names[field], value, &buffer));
  }
  for (uint32_t i = 0; i < REQUIRED; i++) {
    if ((seen >> i & 1) == 0) {
      return mk_error(MK_ERR_FILE, "buffer %s: %s is missing; add %s=...", buffer.name, names[i], names[i]);
    }
  }
  MK_TRY(mk_program_append_buffer(p, &buffer, &index));
  return mk_name_add(&a->buffers, p->buffers, sizeof *p->buffers, index);
}

static mk_status parse_counter(mk_assembler *a, mk_word line) {
  static const char *const names[] = {"kind", "scope", "rank", "total"};
  mk_program *p = a->program;
  mk_counter counter = {.scope = MK_SCOPE_GPU};
  uint32_t seen = 0, field;
  mk_word value;
  MK_TRY(parse_name(&line, "counter", &a->counters, p->counters, sizeof *p->counters, counter.name));
  for (mk_word word = mk_word_next(&line); word.length > 0; word = mk_word_next(&line)) {
    MK_TRY(mk_word_field(word, "counter", names, 4, &seen, &field, &value));
    if (field == 0) {
      MK_TRY(parse_choice(value, "kind", counter_kind_name, MK_COUNTER_KIND_COUNT, &counter.kind));
    } else if (field == 1) {
      MK_TRY(parse_choice(value, "scope", mk_scope_name, MK_SCOPE_COUNT, &counter.scope));
    } else if (field == 2) {
      MK_TRY(parse_rank(value, p->machine.ranks - 1, false, &counter.rank));
    } else {
      MK_TRY(parse_number(value, "total", UINT32_MAX, &counter.total));
    }
  }
  if ((seen & 1) == 0) {
    return mk_error(MK_ERR_FILE, "counter %s: kind is missing; add kind=release or kind=relaxed", counter.name);
  }
  if (p->counter_count >= MK_MAX_COORDINATE) {
    return mk_error(MK_ERR_FILE, "counter %s: a program has at most %d counters", counter.name, MK_MAX_COORDINATE);
  }
  MK_TRY(mk_grow(&a->sums, &a->sum_capacity, p->counter_count + 1, sizeof *a->sums));
  MK_TRY(mk_grow(&p->counters, &p->counter_capacity, p->counter_count + 1, sizeof counter));
  a->sums[p->counter_count] = (mk_counter_sum){.given = (seen & 8) != 0};
  p->counters[p->counter_count] = counter;
  return mk_name_add(&a->counters, p->counters, sizeof *p->counters, (uint32_t)p->counter_count++);
}

static mk_status parse_queue(mk_assembler *a, mk_word line) {
  mk_program *p = a->program;
  mk_word word = mk_word_next(&line);
  if (word.length == 0 || word.at[word.length - 1] != ':' || mk_word_next(&line).length != 0) {
    return mk_error(MK_ERR_FILE, "queue " MK_WORD_FORMAT "; write `queue N:' alone on a line", MK_WORD_ARGUMENT(word));
  }
  uint64_t number = 0;
  MK_TRY(mk_word_number((mk_word){word.at, word.length - 1}, "queue", p->queue_count - 1, &number));
  if ((int64_t)number <= a->queue) {
    return mk_error(MK_ERR_FILE, "queue " MK_WORD_FORMAT " after queue %d; queues come once and in rising order",
                    MK_WORD_ARGUMENT(word), (int)a->queue);
  }
  while (a->queue < (int64_t)number) {
    p->queues[++a->queue].first = (uint32_t)p->instruction_count;
  }
  return MK_OK;
}

static mk_status parse_line(mk_assembler *a, mk_word line) {
  static const struct {
    const char *name;
    mk_status (*parse)(mk_assembler *a, mk_word line);
  } statements[] = {{"model", parse_model},   {"machine", parse_machine}, {"range", parse_ranges},
                    {"buffer", parse_buffer}, {"counter", parse_counter}, {"queue", parse_queue}};
  enum { FIRST_OF_MACHINE = 2, QUEUE = 5 };
  mk_word whole = line, code = line, comment;
  mk_word_split(line, ";", &code, &comment);
  line = code;
  mk_word word = mk_word_next(&line);
  if (word.length == 0) {
    return MK_OK;
  }
  if (!a->has_version) {
    a->has_version =
        mk_word_is(word, "mkvm-program") && mk_word_is(mk_word_next(&line), "1") && mk_word_next(&line).length == 0;
    return a->has_version ? MK_OK
                          : mk_error(MK_ERR_FILE, MK_WORD_FORMAT ": a program begins with the line `mkvm-program 1'",
                                     MK_WORD_ARGUMENT(word));
  }
  if (word.at[0] == '#') {
    if (a->queue < 0) {
      return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " stands in no queue; write `queue 0:' above it",
                      MK_WORD_ARGUMENT(word));
    }
    if (a->program->instruction_count >= MAX_INSTRUCTIONS) {
      return mk_error(MK_ERR_FILE, MK_WORD_FORMAT ": a program has at most %d instructions", MK_WORD_ARGUMENT(word),
                      MAX_INSTRUCTIONS);
    }
    return mk_assemble_instruction(a, code);
  }
  for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
    if (!mk_word_is(word, statements[i].name)) {
      continue;
    }
    if (i >= FIRST_OF_MACHINE && a->program == NULL) {
      return mk_error(MK_ERR_FILE, "%s stands before the machine; write `machine sms=N' above it", statements[i].name);
    }
    if (i < QUEUE && a->queue >= 0) {
      return mk_error(MK_ERR_FILE, "%s stands below a queue; move it above the first one", statements[i].name);
    }
    /* A label may hold a semicolon, so its line keeps what looks like a comment. */
    mk_word rest = i == 0 ? (mk_word){line.at, (size_t)(whole.at + whole.length - line.at)} : line;
    return statements[i].parse(a, rest);
  }
  return mk_error(MK_ERR_FILE,
                  MK_WORD_FORMAT " begins no statement; write model, machine, range, buffer, counter, queue or #UID",
                  MK_WORD_ARGUMENT(word));
}

static mk_status parse_lines(mk_assembler *a, const char *text, size_t length) {
  size_t number = 0;
  for (size_t at = 0; at < length;) {
    const char *newline = memchr(text + at, '\n', length - at);
    size_t end = newline == NULL ? length : (size_t)(newline - text);
    number++;
    mk_status status = parse_line(a, (mk_word){.at = text + at, .length = end - at});
    if (status != MK_OK) {
      return mk_error_prefix(status, "line %zu", number);
    }
    at = end + 1;
  }
  return a->program != NULL
             ? MK_OK
             : mk_error(MK_ERR_FILE, "line %zu: the text ends without a `machine sms=N' line; add it", number);
}

static mk_status finish(mk_assembler *a) {
  mk_program *p = a->program;
  while (a->queue + 1 < (int64_t)p->queue_count) {
    p->queues[++a->queue].first = (uint32_t)p->instruction_count;
  }
  memcpy(p->model, a->model, sizeof p->model);
  p->config_hash = a->config_hash;
  for (size_t i = 0; i < p->counter_count; i++) {
    if (!a->sums[i].given && a->sums[i].sum > UINT32_MAX) {
      return mk_error(MK_ERR_FILE, "counter %s: its signals add up to %llu; use smaller amounts", p->counters[i].name,
                      (unsigned long long)a->sums[i].sum);
    }
    p->counters[i].total = a->sums[i].given ? p->counters[i].total : (uint32_t)a->sums[i].sum;
  }
  return MK_OK;
}

mk_status mk_assemble(const char *text, size_t length, mk_program **out) {
  mk_assembler a = {.queue = -1};
  *out = NULL;
  mk_status status = parse_lines(&a, text, length);
  if (status == MK_OK) {
    status = finish(&a);
  }
  mk_free(a.buffers.slots);
  mk_free(a.counters.slots);
  mk_free(a.sums);
  if (status != MK_OK) {
    mk_program_free(a.program);
    return status;
  }
  *out = a.program;
  return MK_OK;
}

static mk_status check_size(const void *start, uint64_t size) {
  (void)start;
  return size <= MOST_TEXT ? MK_OK
                           : mk_error(MK_ERR_FILE, "has %llu bytes; a program in text form has at most %d",
                                      (unsigned long long)size, MOST_TEXT);
}

mk_status mk_assemble_file(const char *path, mk_program **out) {
  static const mk_file_kind kind = {"a program in text form", "you or `mkvm disasm`", 0, check_size};
  void *text;
  size_t length;
  *out = NULL;
  MK_TRY(mk_load_bytes(path, &kind, &text, &length));
  mk_status status = mk_assemble(text, length, out);
  mk_free(text);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}
