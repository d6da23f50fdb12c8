/* What the parts of the assembler share: the words of a line, and the program as far as it is read. Same rules as
 * asm.h. */
#ifndef MK_ASM_INTERNAL_H
#define MK_ASM_INTERNAL_H

#include "vm/program/asm.h"

/* A piece of the text; not terminated. */
typedef struct mk_word {
  const char *at;
  size_t length;
} mk_word;

/* For "%.*s" and the like: what a message quotes of a word. */
#define MK_WORD_FORMAT "'%s'"
#define MK_WORD_ARGUMENT(word) mk_word_quote((word), (char[64]){0}, 64)
const char *mk_word_quote(mk_word word, char *out,
                          size_t size); /* printable and at most size - 1 characters; returns out */

bool mk_word_is(mk_word word, const char *text);
/* The next word of a line, which moves past it; length 0 at its end. */
mk_word mk_word_next(mk_word *line);
/* Splits at the first `separator`, which may be of several characters; false, and nothing changed, when there is
 * none. */
bool mk_word_split(mk_word word, const char *separator, mk_word *left, mk_word *right);
/* MK_ERR_FILE unless the word is a whole number of at most `most`. */
mk_status mk_word_number(mk_word word, const char *field, uint64_t most, uint64_t *out);

/* Index of the field that a word KEY=VALUE sets, among `count` names; `what` the field belongs to. Refuses unknown
 * fields and those that *seen has; adds to it. */
mk_status mk_word_field(mk_word word, const char *what, const char *const *names, uint32_t count, uint32_t *seen,
                        uint32_t *index, mk_word *value);

/* Names and their indices: open addressing, a power of two of slots, index + 1 in each. */
typedef struct mk_name_table {
  uint32_t *slots;
  size_t capacity, count;
} mk_name_table;

typedef struct mk_counter_sum {
  uint64_t sum;
  bool given; /* the total was written */
} mk_counter_sum;

typedef struct mk_assembler {
  mk_program *program; /* NULL until the machine is known */
  char model[64];
  uint64_t config_hash;
  bool has_version, has_model, has_ranges;
  mk_name_table buffers, counters;
  mk_counter_sum *sums; /* by counter */
  size_t sum_capacity;
  int64_t queue; /* -1 before the first */
} mk_assembler;

/* Index of a name, or -1. `names` is the first of the structures of `stride` bytes that begin with a name. */
int64_t mk_name_find(const mk_name_table *table, const void *names, size_t stride, mk_word name);
/* Adds the index of a name that is not there yet: the structures in front of it are in the table. */
mk_status mk_name_add(mk_name_table *table, const void *names, size_t stride, uint32_t index);

/* Appends the instruction of a line, `#UID` included, to the current queue. */
mk_status mk_assemble_instruction(mk_assembler *a, mk_word line);

#endif
