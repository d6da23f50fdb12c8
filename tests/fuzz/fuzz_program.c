/* A program file: parsed, verified, and, if accepted, run. Magic, version, size and checksum are set right first, so
 * that mutations get past the loader; most mutations are of the program rather than of its bytes, so that they get past
 * the first rules too. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/support.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

/* Offsets in the file (vm/program/program_file.c). */
enum { VERSION = 4, SIZE = 8, CHECKSUM = 16, LEAD_END = 24, HEAD_END = 200 };

static uint32_t get_u32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

/* The version of the format, from a file that the library writes. */
static uint32_t current_version(void) {
  static uint32_t version;
  if (version == 0) {
    mk_machine machine = mk_machine_latency(1);
    mk_program *program;
    void *data;
    size_t length;
    fuzz_require(mk_program_new(&machine, &program) == MK_OK, "%s", mk_error_message());
    fuzz_require(mk_program_serialize(program, &data, &length) == MK_OK, "%s", mk_error_message());
    version = get_u32((const uint8_t *)data + VERSION);
    mk_free(data);
    mk_program_free(program);
  }
  return version;
}

static void seal(uint8_t *data, size_t size) {
  const uint32_t version = current_version();
  const uint64_t bytes = size;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  memcpy(data, "MKPF", 4);
  memcpy(data + VERSION, &version, sizeof version);
  memcpy(data + SIZE, &bytes, sizeof bytes);
  for (size_t i = LEAD_END; i < size; i++) {
    hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
  }
  memcpy(data + CHECKSUM, &hash, sizeof hash);
}

static uint32_t draw(unsigned *state, uint32_t below) {
  *state = *state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)*state * below) >> 32);
}

static mk_program *parse_sealed(const uint8_t *data, size_t size) {
  mk_program *program = NULL;
  if (size < HEAD_END) {
    return NULL;
  }
  uint8_t *sealed = malloc(size);
  memcpy(sealed, data, size);
  seal(sealed, size);
  fuzz_expect_parsed(mk_program_parse(sealed, size, &program));
  free(sealed);
  return program;
}

/* Mutations of a program: of its words here and there, and of what orders its instructions. */

static mk_instruction *any_instruction(mk_program *p, unsigned *state) {
  return &p->instructions[draw(state, (uint32_t)p->instruction_count)];
}

static void change_wait(mk_program *p, unsigned *state) {
  mk_instruction *in = any_instruction(p, state);
  uint32_t at = draw(state, MK_MAX_WAITS);
  if (draw(state, 2) == 0 && in->wait_count > 0) { /* one less */
    at %= in->wait_count;
    memmove(&in->waits[at], &in->waits[at + 1], (MK_MAX_WAITS - at - 1u) * sizeof in->waits[0]);
    in->waits[MK_MAX_WAITS - 1] = (mk_wait){0};
    in->wait_count--;
  } else if (p->counter_count > 0) { /* another one, or one more */
    at = at < in->wait_count ? at : in->wait_count < MK_MAX_WAITS ? in->wait_count++ : 0u;
    uint16_t counter = (uint16_t)draw(state, (uint32_t)p->counter_count);
    in->waits[at] = (mk_wait){.counter = counter, .threshold = (uint16_t)(1 + draw(state, p->counters[counter].total))};
  }
}

static void change_signal(mk_program *p, unsigned *state) {
  mk_instruction *in = any_instruction(p, state);
  if (draw(state, 2) == 0 && in->signal_count > 0) {
    in->signals[0] = in->signals[MK_MAX_SIGNALS - 1];
    in->signals[in->signal_count > 1 ? 1 : 0] = (mk_signal){0};
    in->signal_count--;
  } else if (p->counter_count > 0) {
    uint32_t at = in->signal_count < MK_MAX_SIGNALS ? in->signal_count++ : draw(state, MK_MAX_SIGNALS);
    in->signals[at] = (mk_signal){.counter = (uint16_t)draw(state, (uint32_t)p->counter_count), .amount = 1};
  }
}

static uint32_t any_slot(const mk_instruction *in, unsigned *state) {
  return draw(state, mk_opcode_lookup(in->opcode)->operand_count);
}

static void change_operand(mk_program *p, unsigned *state) {
  mk_instruction *in = any_instruction(p, state);
  uint32_t slot = any_slot(in, state);
  mk_operand *o = &in->operands[slot];
  if (mk_opcode_lookup(in->opcode)->operands[slot].extent == MK_EXTENT_WHOLE) { /* a file holds no part of one */
    *o = draw(state, 4) == 0 ? (mk_operand){0} : mk_operand_whole(p, (uint16_t)draw(state, (uint32_t)p->buffer_count));
    return;
  }
  uint16_t *const numbers[] = {&o->row, &o->rows, &o->col, &o->cols};
  uint16_t *number = numbers[draw(state, 4)];
  switch (draw(state, 4)) {
    case 0:
      *number = (uint16_t)(*number + (draw(state, 2) == 0 ? 1 : 65535));
      break;
    case 1:
      o->buffer = (uint16_t)draw(state, (uint32_t)p->buffer_count);
      break;
    case 2: {
      const mk_instruction *from = any_instruction(p, state);
      *o = from->operands[any_slot(from, state)];
      break;
    }
    default:
      LLVMFuzzerMutate((uint8_t *)number, sizeof *number, sizeof *number);
  }
}

/* One instruction leaves its place for another one, in its queue or in another. */
static void move_instruction(mk_program *p, unsigned *state) {
  uint32_t count = (uint32_t)p->instruction_count, from = draw(state, count), to = draw(state, count);
  mk_instruction moved = p->instructions[from];
  if (draw(state, 2) == 0) {
    p->instructions[from] = p->instructions[to];
    p->instructions[to] = moved;
    return;
  }
  memmove(&p->instructions[from], &p->instructions[from + 1], (count - from - 1) * sizeof moved);
  memmove(&p->instructions[to + 1], &p->instructions[to], (count - to - 1) * sizeof moved);
  p->instructions[to] = moved;
  for (size_t q = 0; q < p->queue_count; q++) {
    mk_queue *queue = &p->queues[q];
    uint32_t end = queue->first + queue->count;
    queue->count -= from >= queue->first && from < end;
    queue->count += to >= queue->first && to < end;
  }
}

static void change_table(mk_program *p, unsigned *state) {
  uint32_t *const machine[] = {&p->machine.result_slots, &p->machine.ring_pages,   &p->machine.resident_bytes,
                               &p->ranges.position.low,  &p->ranges.position.high, &p->ranges.token.high,
                               &p->ranges.block.high,    &p->ranges.token.low};
  uint32_t *number = machine[draw(state, 8)];
  mk_buffer *buffer = &p->buffers[draw(state, (uint32_t)p->buffer_count)];
  switch (draw(state, 4)) {
    case 0:
      *number = draw(state, 2) == 0 ? draw(state, 2048) : *number + draw(state, 3) - 1;
      break;
    case 1:
      if (p->counter_count > 0) {
        p->counters[draw(state, (uint32_t)p->counter_count)].kind ^= 1;
      }
      break;
    case 2:
      buffer->scope = (uint8_t)draw(state, MK_SCOPE_COUNT);
      buffer->proxy = (uint8_t)draw(state, 4);
      break;
    default: {
      mk_instruction *in = any_instruction(p, state);
      if (mk_opcode_lookup(in->opcode)->param_count > 0) {
        LLVMFuzzerMutate((uint8_t *)in->params, sizeof *in->params, sizeof *in->params);
      }
    }
  }
}

/* What follows from the rest, so that the change itself is what is judged. */
static void repair(mk_program *p) {
  for (size_t q = 1; q < p->queue_count; q++) {
    p->queues[q].first = p->queues[q - 1].first + p->queues[q - 1].count;
  }
  for (size_t c = 0; c < p->counter_count; c++) {
    p->counters[c].total = 0;
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    bool known = true;
    for (uint32_t s = 0; s < in->signal_count; s++) {
      if (in->signals[s].counter < p->counter_count) {
        p->counters[in->signals[s].counter].total += in->signals[s].amount;
      }
    }
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      known = known && in->operands[slot].buffer < p->buffer_count;
    }
    if (known) {
      in->pages = mk_instruction_pages(p, in);
      in->resident = (uint16_t)(mk_instruction_resident(p, in) / MK_RESIDENT_UNIT);
    }
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t w = 0; w < in->wait_count; w++) {
      uint32_t total = in->waits[w].counter < p->counter_count ? p->counters[in->waits[w].counter].total : 0;
      if (in->waits[w].threshold > total) {
        in->waits[w].threshold = (uint16_t)total;
      }
    }
  }
}

static size_t mutate_program(mk_program *p, uint8_t *data, size_t most, unsigned *state) {
  static void (*const changes[])(mk_program *, unsigned *) = {change_wait, change_signal, change_operand,
                                                              move_instruction, change_table};
  void *bytes;
  size_t length;
  for (uint32_t n = 1 + draw(state, 3); n > 0; n--) {
    changes[draw(state, 5)](p, state);
    repair(p);
  }
  fuzz_require(mk_program_serialize(p, &bytes, &length) == MK_OK, "%s", mk_error_message());
  if (length <= most) {
    memcpy(data, bytes, length);
  }
  mk_free(bytes);
  return length <= most ? length : 0;
}

/* Numbers of 1, 2, 4 or 8 bytes, mutated in their places. */
static size_t change_bytes(uint8_t *data, size_t size, unsigned *state) {
  for (uint32_t n = 1 + draw(state, 3); n > 0; n--) {
    size_t width = (size_t)1 << draw(state, 4);
    uint8_t *at = data + LEAD_END + draw(state, (uint32_t)((size - LEAD_END) / width)) * width;
    LLVMFuzzerMutate(at, width, width);
  }
  return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  unsigned state = seed;
  size_t changed = 0;
  mk_program *program = parse_sealed(data, size);
  uint32_t way = draw(&state, 16);
  if (program != NULL && program->instruction_count > 0 && program->buffer_count > 0 && way < 12) {
    changed = mutate_program(program, data, most, &state);
  } else if (size >= HEAD_END && way < 15) {
    changed = change_bytes(data, size, &state);
  }
  mk_program_free(program);
  return changed != 0 ? changed : LLVMFuzzerMutate(data, size, most);
}

static void print(const mk_program *program) {
  static FILE *nowhere;
  if (nowhere == NULL) {
    nowhere = fopen("/dev/null", "we");
  }
  fuzz_require(nowhere != NULL && mk_disassemble(program, nowhere) == MK_OK, "%s", mk_error_message());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_program *program;
  mk_status status = mk_program_parse(data, size, &program); /* as it is: any bytes may come */
  fuzz_expect_parsed(status);
  if (status == MK_OK) {
    mk_program_free(program);
  }
  program = parse_sealed(data, size);
  if (program == NULL) {
    return 0;
  }
  print(program);
  mk_verify_report report;
  status = mk_verify(program, &report);
  fuzz_require(status == MK_OK || (status == MK_ERR_REJECTED && report.rule[0] != '\0'), "status %d: %s", (int)status,
               mk_error_message());
  if (status == MK_OK) {
    fuzz_run_accepted(program);
  }
  mk_program_free(program);
  return 0;
}
