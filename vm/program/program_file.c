/* The .mkp file. See program.h.
 *
 *   offset  bytes
 *        0      4  magic "MKPF"
 *        4      4  version of the file format
 *        8      8  size of the file
 *       16      8  FNV-1a-64 of all that follows
 *       24    176  file_head: machine, ranges, model, config_hash, counts, arena sizes
 *      200         mk_buffer[], mk_counter[], mk_queue[], mk_instruction_word[], one after the other
 *
 * The structures have no implicit padding and are little-endian in memory as in the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/file.h"
#include "vm/program/program_internal.h"

/* In version 3 no buffer had copies or was dealt to ranks; everything else is as it was. */
enum { FILE_VERSION = 4, OLDEST_VERSION = 3, MAX_INSTRUCTIONS = 1 << 26 };

typedef struct file_lead {
  char magic[4];
  uint32_t version;
  uint64_t size;
  uint64_t checksum;
} file_lead;

typedef struct file_head {
  mk_machine machine;
  mk_step_ranges ranges;
  char model[64];
  uint64_t config_hash;
  uint32_t buffers, counters, queues, instructions;
  uint64_t weight_bytes, work_bytes;
} file_head;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the file format is the memory format of a little-endian host");
_Static_assert(sizeof(file_lead) == 24 && sizeof(file_head) == 40 + 40 + 64 + 8 + 16 + 16, "no padding in the header");
_Static_assert(sizeof(mk_buffer) == 104 && sizeof(mk_counter) == 56 && sizeof(mk_queue) == 12,
               "no padding in the tables");

static const char magic[4] = {'M', 'K', 'P', 'F'};

/* Counts are below 2^32 and elements small, so the sum stays below 2^40. */
static uint64_t file_size(const file_head *head) {
  return sizeof(file_lead) + sizeof(file_head) + head->buffers * (uint64_t)sizeof(mk_buffer) +
         head->counters * (uint64_t)sizeof(mk_counter) + head->queues * (uint64_t)sizeof(mk_queue) +
         head->instructions * (uint64_t)sizeof(mk_instruction_word);
}

static unsigned char *put(unsigned char *at, const void *from, size_t count, size_t size) {
  if (count != 0) {
    memcpy(at, from, count * size);
  }
  return at + count * size;
}

static mk_status put_instructions(const mk_program *program, unsigned char *at) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    mk_instruction_word word;
    mk_status status = mk_encode(program, &program->instructions[i], &word);
    if (status != MK_OK) {
      return mk_error_prefix(status, "instruction %zu (#%u)", i, program->instructions[i].uid);
    }
    at = put(at, &word, 1, sizeof word);
  }
  return MK_OK;
}

mk_status mk_program_serialize(const mk_program *program, void **data, size_t *length) {
  *data = NULL;
  *length = 0;
  if (program->buffer_count > MK_MAX_COORDINATE || program->counter_count > MK_MAX_COORDINATE ||
      program->instruction_count > MAX_INSTRUCTIONS) {
    return mk_error(MK_ERR_FILE,
                    "program: %zu buffers, %zu counters, %zu instructions; a file holds at most %d, %d and %d",
                    program->buffer_count, program->counter_count, program->instruction_count, MK_MAX_COORDINATE,
                    MK_MAX_COORDINATE, MAX_INSTRUCTIONS);
  }
  file_head head = {.machine = program->machine,
                    .ranges = program->ranges,
                    .config_hash = program->config_hash,
                    .buffers = (uint32_t)program->buffer_count,
                    .counters = (uint32_t)program->counter_count,
                    .queues = (uint32_t)program->queue_count,
                    .instructions = (uint32_t)program->instruction_count,
                    .weight_bytes = program->weight_bytes,
                    .work_bytes = program->work_bytes};
  size_t label = strnlen(program->model, sizeof program->model - 1);
  memcpy(head.model, program->model, label);
  file_lead lead = {.version = FILE_VERSION, .size = file_size(&head)};
  memcpy(lead.magic, magic, sizeof magic);
  unsigned char *bytes;
  MK_TRY(mk_alloc((size_t)lead.size, 1, &bytes));
  unsigned char *at = put(bytes + sizeof lead, &head, 1, sizeof head);
  at = put(at, program->buffers, program->buffer_count, sizeof(mk_buffer));
  at = put(at, program->counters, program->counter_count, sizeof(mk_counter));
  at = put(at, program->queues, program->queue_count, sizeof(mk_queue));
  mk_status status = put_instructions(program, at);
  if (status != MK_OK) {
    mk_free(bytes);
    return status;
  }
  lead.checksum = mk_fnv1a(bytes + sizeof lead, (size_t)lead.size - sizeof lead);
  put(bytes, &lead, 1, sizeof lead);
  *data = bytes;
  *length = (size_t)lead.size;
  return MK_OK;
}

mk_status mk_program_hash(const mk_program *program, uint64_t *out) {
  void *data;
  size_t length;
  MK_TRY(mk_program_serialize(program, &data, &length));
  *out = mk_fnv1a(data, length);
  mk_free(data);
  return MK_OK;
}

/* `size` is the length of the whole file, of which `lead` is the beginning. */
static mk_status check_lead(const file_lead *lead, uint64_t size) {
  if (memcmp(lead->magic, magic, sizeof magic) != 0) {
    return mk_error(MK_ERR_FILE, "header: magic is not \"MKPF\"; this is not a program file");
  }
  if (lead->version < OLDEST_VERSION || lead->version > FILE_VERSION) {
    return mk_error(MK_ERR_FILE,
                    "header: version is %u; this build reads versions %d and %d, so compile the program again",
                    lead->version, OLDEST_VERSION, FILE_VERSION);
  }
  if (lead->size != size) {
    return mk_error(MK_ERR_FILE, "header: size is %llu, the file has %llu bytes; it is truncated or not a program",
                    (unsigned long long)lead->size, (unsigned long long)size);
  }
  return MK_OK;
}

static mk_status check_range(const char *name, mk_range range) {
  if (range.low > range.high) {
    return mk_error(MK_ERR_FILE, "ranges: %s is %u to %u; the low end must not be above the high end", name, range.low,
                    range.high);
  }
  return MK_OK;
}

static mk_status check_label(const char *label, size_t size) {
  size_t length = strnlen(label, size);
  for (size_t i = 0; i < size; i++) {
    if (length == size || (i < length && (label[i] < ' ' || label[i] > '~')) || (i > length && label[i] != 0)) {
      return mk_error(MK_ERR_FILE, "header: model is not printable ASCII with zeros after it (byte %zu)", i);
    }
  }
  return MK_OK;
}

static mk_status check_head(const file_head *head, uint64_t size) {
  MK_TRY(mk_machine_check(&head->machine));
  MK_TRY(check_range("position", head->ranges.position));
  MK_TRY(check_range("token", head->ranges.token));
  MK_TRY(check_range("block", head->ranges.block));
  MK_TRY(check_range("batch", head->ranges.batch));
  MK_TRY(check_range("slot", head->ranges.slot));
  MK_TRY(check_label(head->model, sizeof head->model));
  uint64_t queues = (uint64_t)head->machine.sms * head->machine.ranks;
  if (head->queues != queues) {
    return mk_error(MK_ERR_FILE, "header: %u queues; %u SMs on each of %u ranks have %llu", head->queues,
                    head->machine.sms, head->machine.ranks, (unsigned long long)queues);
  }
  if (head->buffers > MK_MAX_COORDINATE || head->counters > MK_MAX_COORDINATE ||
      head->instructions > MAX_INSTRUCTIONS) {
    return mk_error(MK_ERR_FILE, "header: %u buffers, %u counters, %u instructions; at most %d, %d and %d are possible",
                    head->buffers, head->counters, head->instructions, MK_MAX_COORDINATE, MK_MAX_COORDINATE,
                    MAX_INSTRUCTIONS);
  }
  if (file_size(head) != size) {
    return mk_error(MK_ERR_FILE,
                    "header: %u buffers, %u counters, %u queues and %u instructions make %llu bytes, not %llu",
                    head->buffers, head->counters, head->queues, head->instructions,
                    (unsigned long long)file_size(head), (unsigned long long)size);
  }
  return MK_OK;
}

static int compare_names(const void *a, const void *b) {
  const char *left, *right;
  memcpy(&left, a, sizeof left);
  memcpy(&right, b, sizeof right);
  return strcmp(left, right);
}

/* `first` is the name of the first of `count` structures of `size` bytes; all names are known to be terminated. */
static mk_status check_unique(const char *what, const char *first, size_t count, size_t size) {
  const char **names;
  mk_status status = MK_OK;
  MK_TRY(mk_alloc(count, sizeof *names, &names));
  for (size_t i = 0; i < count; i++) {
    names[i] = first + i * size;
  }
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 1; i < count && status == MK_OK; i++) {
    if (strcmp(names[i - 1], names[i]) == 0) {
      status = mk_error(MK_ERR_FILE, "%s %s: two of them have that name; names are unique", what, names[i]);
    }
  }
  mk_free(names);
  return status;
}

static mk_status parse_buffers(const unsigned char *at, const file_head *head, mk_program *program) {
  for (uint32_t i = 0; i < head->buffers; i++) {
    mk_buffer buffer;
    uint16_t index;
    memcpy(&buffer, at + i * sizeof buffer, sizeof buffer);
    MK_TRY(mk_program_append_buffer(program, &buffer, &index));
    const mk_buffer *added = &program->buffers[index];
    if (added->bytes != buffer.bytes || added->offset != buffer.offset) {
      return mk_error(MK_ERR_FILE, "buffer %s: %llu bytes at offset %llu; its shape and place make it %llu at %llu",
                      buffer.name, (unsigned long long)buffer.bytes, (unsigned long long)buffer.offset,
                      (unsigned long long)added->bytes, (unsigned long long)added->offset);
    }
  }
  if (program->weight_bytes != head->weight_bytes || program->work_bytes != head->work_bytes) {
    return mk_error(MK_ERR_FILE, "header: arenas of %llu and %llu bytes; the buffers make %llu and %llu",
                    (unsigned long long)head->weight_bytes, (unsigned long long)head->work_bytes,
                    (unsigned long long)program->weight_bytes, (unsigned long long)program->work_bytes);
  }
  return program->buffer_count == 0
             ? MK_OK
             : check_unique("buffer", program->buffers[0].name, program->buffer_count, sizeof(mk_buffer));
}

static mk_status parse_counters(const unsigned char *at, const file_head *head, mk_program *program) {
  MK_TRY(mk_alloc(head->counters, sizeof(mk_counter), &program->counters));
  program->counter_capacity = head->counters;
  for (uint32_t i = 0; i < head->counters; i++) {
    mk_counter *counter = &program->counters[i];
    memcpy(counter, at + i * sizeof *counter, sizeof *counter);
    if (!mk_name_valid(counter->name, sizeof counter->name)) {
      return mk_error(MK_ERR_FILE,
                      "counter %u: name must be 1 to 47 of the characters A-Z a-z 0-9 _ . - / :, then zeros", i);
    }
    if (counter->kind >= MK_COUNTER_KIND_COUNT || counter->scope >= MK_SCOPE_COUNT ||
        (counter->rank >= head->machine.ranks && counter->rank != MK_RANK_EACH)) {
      return mk_error(MK_ERR_FILE, "counter %s: kind %u, scope %u, rank %u; they must be below %d, %d and %u",
                      counter->name, counter->kind, counter->scope, counter->rank, MK_COUNTER_KIND_COUNT,
                      MK_SCOPE_COUNT, head->machine.ranks);
    }
  }
  program->counter_count = head->counters;
  return program->counter_count == 0
             ? MK_OK
             : check_unique("counter", program->counters[0].name, program->counter_count, sizeof(mk_counter));
}

static mk_status parse_queues(const unsigned char *at, const file_head *head, mk_program *program) {
  uint64_t next = 0;
  for (uint32_t i = 0; i < head->queues; i++) {
    mk_queue queue;
    memcpy(&queue, at + i * sizeof queue, sizeof queue);
    if (queue.rank != i / head->machine.sms) {
      return mk_error(MK_ERR_FILE, "queue %u: rank is %u; with %u SMs it is %u", i, queue.rank, head->machine.sms,
                      i / head->machine.sms);
    }
    if (queue.first != next) {
      return mk_error(MK_ERR_FILE, "queue %u: first is %u; the queue before it ends at %llu", i, queue.first,
                      (unsigned long long)next);
    }
    next += queue.count;
    program->queues[i] = queue;
  }
  if (next != head->instructions) {
    return mk_error(MK_ERR_FILE, "queues: they hold %llu instructions, the file %u", (unsigned long long)next,
                    head->instructions);
  }
  return MK_OK;
}

static mk_status parse_instructions(const unsigned char *at, const file_head *head, mk_program *program) {
  MK_TRY(mk_alloc(head->instructions, sizeof(mk_instruction), &program->instructions));
  program->instruction_capacity = head->instructions;
  program->instruction_count = head->instructions;
  for (uint32_t i = 0; i < head->instructions; i++) {
    mk_instruction_word word;
    memcpy(&word, at + i * sizeof word, sizeof word);
    if (word.version != MK_INSTRUCTION_VERSION) {
      return mk_error(MK_ERR_FILE, "instruction %u: version is %u; this build knows %d", i, word.version,
                      MK_INSTRUCTION_VERSION);
    }
    if (word.wait_count > MK_MAX_WAITS || word.signal_count > MK_MAX_SIGNALS || (word.flags & ~MK_FUSED) != 0) {
      return mk_error(MK_ERR_FILE, "instruction %u: %u waits, %u signals, flags 0x%x; at most %d, %d and 0x%x", i,
                      word.wait_count, word.signal_count, word.flags, MK_MAX_WAITS, MK_MAX_SIGNALS, MK_FUSED);
    }
    mk_status status = mk_decode(program, &word, &program->instructions[i]);
    if (status != MK_OK) {
      return mk_error_prefix(status, "instruction %u", i);
    }
  }
  return MK_OK;
}

mk_status mk_program_parse(const void *data, size_t length, mk_program **out) {
  const unsigned char *bytes = data;
  file_lead lead;
  file_head head;
  *out = NULL;
  if (length < sizeof lead + sizeof head) {
    return mk_error(MK_ERR_FILE, "header: %zu bytes; a program has at least %zu", length, sizeof lead + sizeof head);
  }
  memcpy(&lead, bytes, sizeof lead);
  memcpy(&head, bytes + sizeof lead, sizeof head);
  MK_TRY(check_lead(&lead, length));
  uint64_t checksum = mk_fnv1a(bytes + sizeof lead, length - sizeof lead);
  if (checksum != lead.checksum) {
    return mk_error(MK_ERR_FILE, "header: checksum is %016llx, the content has %016llx; the file is damaged",
                    (unsigned long long)lead.checksum, (unsigned long long)checksum);
  }
  MK_TRY(check_head(&head, length));

  mk_program *program;
  mk_status status;
  MK_TRY(mk_program_new(&head.machine, &program));
  program->ranges = head.ranges;
  memcpy(program->model, head.model, sizeof program->model);
  program->config_hash = head.config_hash;
  const unsigned char *at = bytes + sizeof lead + sizeof head;
  MK_TRY_GOTO(parse_buffers(at, &head, program), fail);
  at += head.buffers * sizeof(mk_buffer);
  MK_TRY_GOTO(parse_counters(at, &head, program), fail);
  at += head.counters * sizeof(mk_counter);
  MK_TRY_GOTO(parse_queues(at, &head, program), fail);
  at += head.queues * sizeof(mk_queue);
  MK_TRY_GOTO(parse_instructions(at, &head, program), fail);
  *out = program;
  return MK_OK;
fail:
  mk_program_free(program);
  return status;
}

_Static_assert(sizeof(file_lead) + sizeof(file_head) <= MK_FILE_START, "the start of a file is looked at first");

static mk_status check_start(const void *start, uint64_t size) {
  file_lead lead;
  file_head head;
  memcpy(&lead, start, sizeof lead);
  memcpy(&head, (const unsigned char *)start + sizeof lead, sizeof head);
  MK_TRY(check_lead(&lead, size));
  return check_head(&head, size);
}

mk_status mk_program_load(const char *path, mk_program **out) {
  static const mk_file_kind kind = {"a program", "`mkvm compile`", sizeof(file_lead) + sizeof(file_head), check_start};
  void *bytes;
  size_t length;
  *out = NULL;
  MK_TRY(mk_load_bytes(path, &kind, &bytes, &length));
  mk_status status = mk_program_parse(bytes, length, out);
  mk_free(bytes);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}

mk_status mk_program_save(const mk_program *program, const char *path) {
  void *bytes;
  size_t length;
  MK_TRY(mk_program_serialize(program, &bytes, &length));
  mk_status status = mk_save_bytes(path, bytes, length);
  mk_free(bytes);
  return status;
}
