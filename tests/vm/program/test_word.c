/* The word of an instruction: where things lie in it, that it comes back, and what has no word or is none. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "tests/support/tiny.h"

static mk_instruction_word encoded(const mk_program *program, const mk_instruction *in) {
  mk_instruction_word word;
  cr_assert_eq(mk_encode(program, in, &word), MK_OK, "%s", mk_error_message());
  return word;
}

static uint32_t at(const mk_instruction_word *word, uint32_t index) {
  uint32_t words[32];
  memcpy(words, word, sizeof words);
  return words[index];
}

/* Written out for one opcode, as instruction.h draws it: a kernel counts on it. */
Test(word, layout) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  mk_instruction in = {.opcode = MK_OP_QKV,
                       .version = MK_INSTRUCTION_VERSION,
                       .wait_count = 1,
                       .signal_count = 2,
                       .uid = 0x1234567,
                       .waits = {{.counter = 3, .threshold = 4}},
                       .signals = {{.counter = 5, .amount = 6}, {.counter = 7, .amount = 8}},
                       .pages = 9,
                       .resident = 10,
                       .layer = 11};
  in.operands[MK_SLOT_QKV_x] = (mk_operand){.flags = 1, .buffer = 2, .rows = 3, .row = 4, .cols = 5, .col = 6};
  in.operands[MK_SLOT_QKV_gain] = mk_operand_whole(tiny.program, tiny.gain);
  in.operands[MK_SLOT_QKV_weight] = (mk_operand){.buffer = 12, .rows = 13, .row = 14, .cols = 15, .col = 16};
  in.operands[MK_SLOT_QKV_out] = (mk_operand){.buffer = 22, .rows = 23, .row = 24, .cols = 25, .col = 26};
  in.operands[MK_SLOT_QKV_squares] = (mk_operand){.buffer = 32, .rows = 33, .row = 34, .cols = 35, .col = 36};
  for (uint32_t i = 0; i < 4; i++) {
    in.params[i] = 100 + i;
  }
  mk_instruction_word word = encoded(tiny.program, &in);
  const uint32_t want[32] = {(uint32_t)MK_OP_QKV + (MK_INSTRUCTION_VERSION << 8) + (1u << 16) + (2u << 20),
                             0x1234567,
                             3 << 16 | 4,
                             0,
                             0,
                             0,
                             5 << 16 | 6,
                             7 << 16 | 8,
                             9,
                             11 << 16 | 10,
                             2 << 16 | 1,
                             4 << 16 | 3,
                             6 << 16 | 5, /* x */
                             12 << 16,
                             14 << 16 | 13,
                             16 << 16 | 15, /* weight */
                             22 << 16,
                             24 << 16 | 23,
                             26 << 16 | 25, /* out */
                             32 << 16,
                             34 << 16 | 33,
                             36 << 16 | 35,                         /* squares */
                             (uint32_t)MK_ABSENT << 16 | tiny.gain, /* gain, and inv_freq, which is left out */
                             [28] = 103,
                             [29] = 102,
                             [30] = 101,
                             [31] = 100};
  for (uint32_t i = 0; i < 32; i++) {
    cr_expect_eq(at(&word, i), want[i], "word %u is 0x%x, not 0x%x", i, at(&word, i), want[i]);
  }
  test_tiny_stop(&tiny);
}

/* Every operand and parameter of every opcode has a place of its own: arbitrary ones come back. */
Test(word, round_trip) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  uint64_t seed = 7;
  for (uint32_t round = 0; round < 500; round++) {
    for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
      mk_instruction in = test_any_instruction(tiny.program, opcode, &seed), back;
      mk_instruction_word word = encoded(tiny.program, &in);
      cr_assert_eq(mk_decode(tiny.program, &word, &back), MK_OK, "%s", mk_error_message());
      cr_assert_eq(memcmp(&in, &back, sizeof in), 0, "%s", mk_opcode_lookup(opcode)->name);
    }
  }
  test_tiny_stop(&tiny);
}

/* Any bytes: refused, or the word of what they decode to. */
Test(word, any_bytes) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  uint64_t seed = 8;
  uint32_t accepted = 0, refused = 0;
  for (uint32_t round = 0; round < 20000; round++) {
    mk_instruction in = test_any_instruction(tiny.program, 1 + test_random_below(&seed, MK_OP_COUNT - 1), &seed);
    mk_instruction_word word = encoded(tiny.program, &in);
    unsigned char bytes[sizeof word];
    memcpy(bytes, &word, sizeof word);
    for (uint32_t n = test_random_below(&seed, 4); n > 0; n--) {
      bytes[test_random_below(&seed, sizeof bytes)] = (unsigned char)test_random(&seed);
    }
    memcpy(&word, bytes, sizeof word);
    mk_status status = mk_decode(tiny.program, &word, &in);
    cr_assert(status == MK_OK || status == MK_ERR_FILE);
    accepted += status == MK_OK;
    refused += status != MK_OK;
    if (status == MK_OK) {
      mk_instruction_word again = encoded(tiny.program, &in);
      cr_assert_eq(memcmp(&again, bytes, sizeof again), 0);
    }
  }
  cr_assert(accepted > 1000 && refused > 1000, "%u accepted, %u refused", accepted, refused);
  test_tiny_stop(&tiny);
}

static void no_word(const mk_program *program, const mk_instruction *in, const char *words) {
  mk_instruction_word word;
  cr_expect_eq(mk_encode(program, in, &word), MK_ERR_FILE, "%s", words);
  cr_expect_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

static void no_instruction(const mk_program *program, const mk_instruction_word *word, const char *words) {
  mk_instruction in;
  cr_expect_eq(mk_decode(program, word, &in), MK_ERR_FILE, "%s", words);
  cr_expect_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

Test(word, what_has_no_word) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  const mk_instruction good = *test_tiny_qkv(&tiny, 0, test_tiny_floats(&tiny, "q", 16, 16));
  const struct {
    mk_operand gain;
    const char *words;
  } cases[] = {
      {{.buffer = tiny.wide, .rows = 2, .cols = 1}, "gain: tiles [0:2,0:1] of buffer wide (number"},
      {{.buffer = tiny.wide, .rows = 3, .row = 1, .cols = 1}, "gain: tiles [1:4,0:1] of buffer wide"},
      {{.buffer = tiny.gain, .rows = 1, .cols = 1, .col = 1}, "gain: tiles [0:1,1:2]"},
      {{.buffer = tiny.gain, .rows = 1, .cols = 1, .flags = 1}, "flags 0x1"},
      {{.buffer = 999, .rows = 1, .cols = 1}, "of buffer ? (number 999)"},
      {{.buffer = MK_ABSENT, .rows = 1, .cols = 1}, "(number 65535)"},
      {{.buffer = tiny.gain, .col = 1}, "tiles [0:0,1:1]"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_instruction in = good;
    in.operands[MK_SLOT_QKV_gain] = cases[i].gain;
    no_word(tiny.program, &in, cases[i].words);
  }
  mk_instruction in = good;
  in.opcode = MK_OP_COUNT;
  no_word(tiny.program, &in, "opcodes are 1 to");
  in = good;
  in.operands[6].row = 1;
  no_word(tiny.program, &in, "operand 6 of qkv is not zero; it has 6");
  in = good;
  in.params[7] = 1;
  no_word(tiny.program, &in, "parameter 7 of qkv is 0x1; it has 6");
  /* Which buffer an absent operand names is not kept. */
  in = good;
  in.operands[MK_SLOT_QKV_gain] = (mk_operand){.buffer = 7};
  mk_instruction_word word = encoded(tiny.program, &in);
  mk_operand none = {0};
  cr_assert_eq(mk_decode(tiny.program, &word, &in), MK_OK);
  cr_assert_eq(memcmp(&in.operands[MK_SLOT_QKV_gain], &none, sizeof none), 0);
  test_tiny_stop(&tiny);
}

Test(word, what_is_no_word) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  const mk_instruction good = *test_tiny_qkv(&tiny, 0, test_tiny_floats(&tiny, "q", 16, 16));
  mk_instruction_word word = encoded(tiny.program, &good);
  word.opcode = 0;
  no_instruction(tiny.program, &word, "opcode is 0");
  word.opcode = 255;
  no_instruction(tiny.program, &word, "opcode is 255");
  word = encoded(tiny.program, &good);
  word.halves[4 * MK_PART_HALVES + MK_WHOLE_QKV_inv_freq] = (uint16_t)tiny.program->buffer_count;
  no_instruction(tiny.program, &word, "inv_freq of qkv: buffer is");
  /* Every byte between the operands and the parameters. */
  for (uint32_t byte = 4 * MK_PART_BYTES + 2 * MK_WHOLE_BYTES; byte < MK_POOL_BYTES - 6 * MK_PARAM_BYTES; byte++) {
    word = encoded(tiny.program, &good);
    word.halves[byte / 2] = (uint16_t)(1 << byte % 2 * 8);
    no_instruction(tiny.program, &word, "nothing is there, so they are zero");
  }
  test_tiny_stop(&tiny);
}
