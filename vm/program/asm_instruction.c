/* One line of a queue becomes an instruction. See asm.h for what may be left out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vm/program/asm_internal.h"

enum { FIELD_PAGES = MK_MAX_OPERANDS + MK_MAX_PARAMS, FIELD_RESIDENT, FIELD_LAYER, FIELDS };
/* Words of waits and signals, in which an instruction that has fewer of them may hold what it should not. */
enum { STRAY_FIRST = 2, STRAY_END = STRAY_FIRST + MK_MAX_WAITS + MK_MAX_SIGNALS };

/* What a line is made into: the instruction, and what was written rather than left out. */
typedef struct line_state {
  const mk_opcode_info *info;
  mk_instruction instruction;
  uint32_t stray[STRAY_END]; /* words by number, applied when the rest is known */
  uint32_t stray_seen;
  uint32_t seen; /* bit per field: operands, parameters, pages, resident, layer */
} line_state;

static mk_status parse_opcode(mk_word word, line_state *s) {
  for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
    if (mk_word_is(word, mk_opcode_lookup(opcode)->name)) {
      s->instruction.opcode = (uint8_t)opcode;
      s->info = mk_opcode_lookup(opcode);
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not an opcode; docs/ISA.md lists them", MK_WORD_ARGUMENT(word));
}

/* The index of a buffer or counter, by name or as ?N. */
static mk_status parse_index(mk_word name, const char *what, const mk_name_table *table, const void *names,
                             size_t stride, uint64_t *index) {
  if (name.length > 0 && name.at[0] == '?') {
    return mk_word_number((mk_word){name.at + 1, name.length - 1}, what, MK_MAX_COORDINATE, index);
  }
  int64_t found = mk_name_find(table, names, stride, name);
  if (found < 0) {
    return mk_error(MK_ERR_FILE,
                    MK_WORD_FORMAT " is not a %s; declare it above the first queue, or write ?N for number N",
                    MK_WORD_ARGUMENT(name), what);
  }
  *index = (uint64_t)found;
  return MK_OK;
}

/* LOW:HIGH with an exclusive end. */
static mk_status parse_side(mk_word word, const char *side, uint16_t *first, uint16_t *count) {
  mk_word low, high;
  if (!mk_word_split(word, ":", &low, &high)) {
    return mk_error(MK_ERR_FILE, "%s are " MK_WORD_FORMAT "; write FIRST:END in tiles, the end exclusive", side,
                    MK_WORD_ARGUMENT(word));
  }
  uint64_t from = 0, to = 0;
  MK_TRY(mk_word_number(low, side, MK_MAX_COORDINATE, &from));
  MK_TRY(mk_word_number(high, side, 2UL * MK_MAX_COORDINATE, &to));
  if (to < from || to - from > MK_MAX_COORDINATE) {
    return mk_error(MK_ERR_FILE, "%s are " MK_WORD_FORMAT "; the end is from %llu to %llu", side,
                    MK_WORD_ARGUMENT(word), (unsigned long long)from, (unsigned long long)from + MK_MAX_COORDINATE);
  }
  *first = (uint16_t)from;
  *count = (uint16_t)(to - from);
  return MK_OK;
}

/* BUFFER, BUFFER[rows,cols], either with @token or @0xFLAGS after it. */
static mk_status parse_operand(const mk_assembler *a, mk_word value, mk_operand *operand) {
  const mk_program *p = a->program;
  mk_word place = value, flags = {0}, name, rectangle, rows, cols;
  uint64_t number = 0;
  if (mk_word_split(value, "@", &place, &flags)) {
    number = MK_OPERAND_TOKEN_ROW;
    if (!mk_word_is(flags, "token")) {
      MK_TRY(mk_word_number(flags, "flags", UINT16_MAX, &number));
    }
    operand->flags = (uint16_t)number;
  }
  bool whole = !mk_word_split(place, "[", &name, &rectangle);
  name = whole ? place : name;
  MK_TRY(parse_index(name, "buffer", &a->buffers, p->buffers, sizeof *p->buffers, &number));
  operand->buffer = (uint16_t)number;
  if (whole) {
    if (number >= p->buffer_count) {
      return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " does not exist, so it needs a rectangle: ?N[0:1,0:1]",
                      MK_WORD_ARGUMENT(name));
    }
    uint16_t given = operand->flags;
    *operand = mk_operand_whole(p, (uint16_t)number);
    operand->flags = given;
    return MK_OK;
  }
  if (rectangle.length == 0 || rectangle.at[rectangle.length - 1] != ']' ||
      !mk_word_split((mk_word){rectangle.at, rectangle.length - 1}, ",", &rows, &cols)) {
    return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not a rectangle; write NAME[ROW:END,COL:END]",
                    MK_WORD_ARGUMENT(place));
  }
  MK_TRY(parse_side(rows, "rows", &operand->row, &operand->rows));
  return parse_side(cols, "columns", &operand->col, &operand->cols);
}

/* A number with a point or exponent, or 0x and the bits. */
static mk_status parse_float(mk_word value, uint32_t *bits) {
  char text[64];
  uint64_t number;
  if (value.length > 2 && value.at[0] == '0' && value.at[1] == 'x') {
    MK_TRY(mk_word_number(value, "the number's bits", UINT32_MAX, &number));
    *bits = (uint32_t)number;
    return MK_OK;
  }
  bool good = value.length > 0 && value.length < sizeof text;
  for (size_t i = 0; i < value.length && good; i++) {
    good = memchr("0123456789+-.eE", value.at[i], 15) != NULL;
  }
  if (good) {
    memcpy(text, value.at, value.length);
    text[value.length] = 0;
    char *end;
    float parsed = strtof(text, &end);
    good = *end == 0 && isfinite(parsed);
    *bits = mk_float_param(parsed);
  }
  return good ? MK_OK
              : mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not a finite number such as 1e-5, nor 0x and the bits of one",
                         MK_WORD_ARGUMENT(value));
}

/* COUNTER, the separator and a number. */
static mk_status parse_edge(const mk_assembler *a, mk_word value, const char *separator, uint16_t *counter,
                            uint16_t *number) {
  const mk_program *p = a->program;
  mk_word name, amount;
  uint64_t index = 0, parsed = 0;
  if (!mk_word_split(value, separator, &name, &amount)) {
    return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not an edge; write COUNTER%sN", MK_WORD_ARGUMENT(value),
                    separator);
  }
  MK_TRY(parse_index(name, "counter", &a->counters, p->counters, sizeof *p->counters, &index));
  MK_TRY(mk_word_number(amount, "the count", UINT16_MAX, &parsed));
  *counter = (uint16_t)index;
  *number = (uint16_t)parsed;
  return MK_OK;
}

static mk_status parse_wait(const mk_assembler *a, mk_word value, mk_instruction *in) {
  if (in->wait_count == MK_MAX_WAITS) {
    return mk_error(MK_ERR_FILE, "wait=" MK_WORD_FORMAT " is one too many; an instruction has at most %d",
                    MK_WORD_ARGUMENT(value), MK_MAX_WAITS);
  }
  mk_wait *wait = &in->waits[in->wait_count++];
  return parse_edge(a, value, ">=", &wait->counter, &wait->threshold);
}

static mk_status parse_signal(mk_assembler *a, mk_word value, mk_instruction *in) {
  if (in->signal_count == MK_MAX_SIGNALS) {
    return mk_error(MK_ERR_FILE, "signal=" MK_WORD_FORMAT " is one too many; an instruction has at most %d",
                    MK_WORD_ARGUMENT(value), MK_MAX_SIGNALS);
  }
  mk_signal *signal = &in->signals[in->signal_count++];
  MK_TRY(parse_edge(a, value, "+", &signal->counter, &signal->amount));
  if (signal->counter < a->program->counter_count) {
    a->sums[signal->counter].sum += signal->amount;
  }
  return MK_OK;
}

/* word.N=0xHEX, for words of waits and signals that the instruction does not have. */
static mk_status parse_stray(mk_word key, mk_word value, line_state *s) {
  uint64_t n = 0, bits = 0;
  MK_TRY(mk_word_number((mk_word){key.at + 5, key.length - 5}, "the number of the word", 31, &n));
  MK_TRY(mk_word_number(value, "the word", UINT32_MAX, &bits));
  if (n < STRAY_FIRST || n >= STRAY_END || (s->stray_seen >> n & 1) != 0) {
    return mk_error(MK_ERR_FILE,
                    MK_WORD_FORMAT " is given twice, or no word of a wait or signal (%d to %d); write the fields",
                    MK_WORD_ARGUMENT(key), STRAY_FIRST, STRAY_END - 1);
  }
  s->stray_seen |= UINT32_C(1) << n;
  s->stray[n] = (uint32_t)bits;
  return MK_OK;
}

/* Of a WHOLE operand an instruction's word holds the number of the buffer, and of an absent one not even that. */
static mk_status check_whole(const mk_assembler *a, mk_word value, mk_operand *operand) {
  if (!mk_operand_is_whole(a->program, operand)) {
    return mk_error(MK_ERR_FILE,
                    MK_WORD_FORMAT
                    " is not a buffer from end to end; this operand takes no part of one, so write its name alone",
                    MK_WORD_ARGUMENT(value));
  }
  if (operand->rows == 0) {
    *operand = (mk_operand){0};
  }
  return MK_OK;
}

static mk_status set_field(const mk_assembler *a, uint32_t field, mk_word value, line_state *s) {
  mk_instruction *in = &s->instruction;
  uint64_t number = 0;
  if (field < MK_MAX_OPERANDS) {
    MK_TRY(parse_operand(a, value, &in->operands[field]));
    return s->info->operands[field].extent == MK_EXTENT_PART ? MK_OK : check_whole(a, value, &in->operands[field]);
  }
  if (field < FIELD_PAGES) {
    uint32_t param = field - MK_MAX_OPERANDS;
    if (s->info->params[param].is_float) {
      return parse_float(value, &in->params[param]);
    }
    MK_TRY(mk_word_number(value, s->info->params[param].name, UINT32_MAX, &number));
    in->params[param] = (uint32_t)number;
  } else if (field == FIELD_PAGES) {
    MK_TRY(mk_word_number(value, "pages", UINT32_MAX, &number));
    in->pages = (uint32_t)number;
  } else if (field == FIELD_RESIDENT) {
    MK_TRY(mk_word_number(value, "resident", UINT16_MAX * (uint64_t)MK_RESIDENT_UNIT, &number));
    if (number % MK_RESIDENT_UNIT != 0) {
      return mk_error(MK_ERR_FILE, "resident is " MK_WORD_FORMAT "; write bytes, a multiple of %d",
                      MK_WORD_ARGUMENT(value), MK_RESIDENT_UNIT);
    }
    in->resident = (uint16_t)(number / MK_RESIDENT_UNIT);
  } else {
    MK_TRY(mk_word_number(value, "layer", MK_NO_LAYER, &number));
    in->layer = (uint16_t)number;
  }
  return MK_OK;
}

static mk_status parse_field(mk_assembler *a, mk_word word, line_state *s) {
  mk_word key, value;
  if (mk_word_is(word, "fused")) {
    if ((s->instruction.flags & MK_FUSED) != 0) {
      return mk_error(MK_ERR_FILE, "'fused' is given twice; once is enough");
    }
    s->instruction.flags |= MK_FUSED;
    return MK_OK;
  }
  if (mk_word_split(word, "=", &key, &value)) {
    if (mk_word_is(key, "wait")) {
      return parse_wait(a, value, &s->instruction);
    }
    if (mk_word_is(key, "signal")) {
      return parse_signal(a, value, &s->instruction);
    }
    if (key.length > 5 && memcmp(key.at, "word.", 5) == 0) {
      return parse_stray(key, value, s);
    }
  }
  const char *names[FIELDS + 2];
  uint32_t fields[FIELDS + 2], count = 0, index, seen = 0;
  for (uint32_t i = 0; i < s->info->operand_count; i++) {
    names[count] = s->info->operands[i].name;
    fields[count++] = i;
  }
  for (uint32_t i = 0; i < s->info->param_count; i++) {
    names[count] = s->info->params[i].name;
    fields[count++] = MK_MAX_OPERANDS + i;
  }
  static const char *const common[] = {"pages", "resident", "layer"};
  for (uint32_t i = 0; i < 3; i++) {
    names[count] = common[i];
    fields[count++] = FIELD_PAGES + i;
  }
  /* For the message alone: both were taken above, and may come several times. */
  names[count] = "wait";
  names[count + 1] = "signal";
  MK_TRY(mk_word_field(word, s->info->name, names, count + 2, &seen, &index, &value));
  if ((s->seen >> fields[index] & 1) != 0) {
    return mk_error(MK_ERR_FILE, MK_WORD_FORMAT ": %s is given twice; keep one", MK_WORD_ARGUMENT(word), names[index]);
  }
  s->seen |= UINT32_C(1) << fields[index];
  return set_field(a, fields[index], value, s);
}

/* What was left out and follows from the rest, then the words of unused slots. */
static mk_status complete(const mk_program *p, line_state *s) {
  mk_instruction *in = &s->instruction;
  if ((s->seen >> FIELD_PAGES & 1) == 0) {
    in->pages = mk_instruction_pages(p, in);
  }
  if ((s->seen >> FIELD_RESIDENT & 1) == 0) {
    uint32_t bytes = mk_instruction_resident(p, in);
    if (bytes / MK_RESIDENT_UNIT > UINT16_MAX) {
      return mk_error(MK_ERR_FILE,
                      "#%u %s stages %u bytes; an instruction can name at most %u, so use smaller operands", in->uid,
                      s->info->name, bytes, UINT16_MAX * (uint32_t)MK_RESIDENT_UNIT);
    }
    in->resident = (uint16_t)(bytes / MK_RESIDENT_UNIT);
  }
  uint32_t words[STRAY_END];
  memcpy(words, in, sizeof words);
  for (uint32_t n = STRAY_FIRST; n < STRAY_END; n++) {
    if ((s->stray_seen >> n & 1) != 0 && words[n] != 0) {
      return mk_error(MK_ERR_FILE, "word.%u: a field of #%u %s sets that word; write the field", n, in->uid,
                      s->info->name);
    }
    words[n] |= s->stray[n];
  }
  memcpy(in, words, sizeof words);
  return MK_OK;
}

mk_status mk_assemble_instruction(mk_assembler *a, mk_word line) {
  mk_program *p = a->program;
  line_state s = {.instruction = {.version = MK_INSTRUCTION_VERSION, .layer = MK_NO_LAYER}};
  uint64_t uid = 0;
  mk_word word = mk_word_next(&line);
  MK_TRY(mk_word_number((mk_word){word.at + 1, word.length - 1}, "#UID", UINT32_MAX, &uid));
  s.instruction.uid = (uint32_t)uid;
  MK_TRY(parse_opcode(mk_word_next(&line), &s));
  for (word = mk_word_next(&line); word.length > 0; word = mk_word_next(&line)) {
    MK_TRY(parse_field(a, word, &s));
  }
  MK_TRY(complete(p, &s));
  MK_TRY(mk_grow(&p->instructions, &p->instruction_capacity, p->instruction_count + 1, sizeof *p->instructions));
  p->instructions[p->instruction_count++] = s.instruction;
  p->queues[a->queue].count++;
  return MK_OK;
}
