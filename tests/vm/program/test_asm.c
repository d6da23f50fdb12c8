/* The assembler: what the disassembler prints comes back byte for byte, what a person leaves out is filled in, and no
 * text breaks it. */
#include "vm/program/asm.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"
#include "tests/support/sequence.h"
#include "tests/support/tiny.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

static const char hand_written[] = MK_SOURCE_DIR "/tests/vm/data/two_sms.mks";

static char *disassemble(const mk_program *program, size_t *length) {
  char *text;
  FILE *out = open_memstream(&text, length);
  cr_assert_not_null(out);
  cr_assert_eq(mk_disassemble(program, out), MK_OK, "%s", mk_error_message());
  fclose(out);
  return text;
}

static void expect_same(const mk_program *a, const mk_program *b) {
  void *left, *right;
  size_t left_length, right_length;
  cr_assert_eq(mk_program_serialize(a, &left, &left_length), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_serialize(b, &right, &right_length), MK_OK, "%s", mk_error_message());
  cr_assert(left_length == right_length && memcmp(left, right, left_length) == 0, "the programs differ");
  mk_free(left);
  mk_free(right);
}

static void expect_round_trip(const mk_program *program) {
  size_t length;
  char *text = disassemble(program, &length);
  mk_program *back;
  cr_assert_eq(mk_assemble(text, length, &back), MK_OK, "%s", mk_error_message());
  expect_same(program, back);
  mk_program_free(back);
  free(text);
}

static mk_program *compile(const mk_config *config, uint32_t sms, uint32_t max_seq, mk_placement placement) {
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = sms, .max_seq = max_seq, .placement = placement};
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static void compiled_round_trip(const mk_config *config, uint32_t sms, uint32_t max_seq, mk_placement placement) {
  mk_program *program = compile(config, sms, max_seq, placement);
  memcpy(program->model, "odd; \"label\" \\", 15);
  expect_round_trip(program);
  mk_program_free(program);
}

Test(asm, round_trip_of_small_models) {
  for (size_t which = 0; which < TEST_MODELS; which++) {
    mk_config config = test_model_config(which);
    static const uint32_t sms[] = {1, 2, 7, 132};
    for (size_t i = 0; i < 4; i++) {
      compiled_round_trip(&config, sms[i], 300, i % 2 == 0 ? MK_PLACE_BALANCED : MK_PLACE_ROUND_ROBIN);
    }
  }
}

Test(asm, round_trip_of_large_models) {
  static const char *const shapes[] = {"llama-3.2-1b", "llama-3.1-8b"};
  for (size_t i = 0; i < 2; i++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(shapes[i], &config), MK_OK);
    compiled_round_trip(&config, 132, 4096, MK_PLACE_BALANCED);
    compiled_round_trip(&config, 7, 4096, MK_PLACE_BALANCED);
  }
}

/* Its recorded pages and resident bytes are not what its operands need; they must stay. */
Test(asm, round_trip_of_hand_written_programs) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  uint16_t relaxed = test_tiny_counter(&tiny, "go/1:2.a-b_", MK_COUNTER_RELAXED);
  uint16_t release = test_tiny_counter(&tiny, "done", MK_COUNTER_RELEASE);
  mk_instruction *in = tiny.program->instructions;
  test_tiny_signal(&tiny, &in[0], relaxed);
  test_tiny_signal(&tiny, &in[0], release);
  test_tiny_signal(&tiny, &in[1], release);
  test_tiny_wait(&in[7], relaxed, 1);
  test_tiny_wait(&in[7], release, 2);
  in[2].pages = 0;
  in[5].resident = 0;
  expect_round_trip(tiny.program);
  tiny.program->counters[release].total = 77;
  expect_round_trip(tiny.program);
  test_tiny_stop(&tiny);
}

/* Whatever a file can hold comes back, sound or not. */
Test(asm, round_trip_of_arbitrary_words) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  test_tiny_counter(&tiny, "c", MK_COUNTER_RELEASE);
  uint64_t seed = 5;
  for (int round = 0; round < 2000; round++) {
    for (size_t i = 0; i < tiny.program->instruction_count; i++) {
      uint32_t opcode = 1 + test_random_below(&seed, MK_OP_COUNT - 1);
      tiny.program->instructions[i] = test_any_instruction(tiny.program, opcode, &seed);
    }
    expect_round_trip(tiny.program);
  }
  test_tiny_stop(&tiny);
}

/* The mark of a fusion is a word, which shows after the opcode. */
Test(asm, fused) {
  mk_program *program;
  cr_assert_eq(mk_assemble_file(MK_SOURCE_DIR "/tests/vm/data/layer.mks", &program), MK_OK, "%s", mk_error_message());
  uint32_t marked = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    marked += program->instructions[i].flags == MK_FUSED;
    cr_expect_eq(program->instructions[i].flags, program->instructions[i].uid == 3 ? MK_FUSED : 0);
  }
  cr_assert_eq(marked, 1);
  size_t length;
  char *text = disassemble(program, &length);
  cr_assert_not_null(strstr(text, "#3 combine fused parts="), "%s", text);
  free(text);
  expect_round_trip(program);
  mk_program_free(program);
}

Test(asm, what_is_left_out_is_filled_in) {
  mk_program *program;
  cr_assert_eq(mk_assemble_file(hand_written, &program), MK_OK, "%s", mk_error_message());
  mk_machine machine = mk_machine_latency(2);
  cr_assert_eq(memcmp(&program->machine, &machine, sizeof machine), 0);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    cr_assert_eq(in->pages, mk_instruction_pages(program, in));
    cr_assert_eq(in->resident * (uint32_t)MK_RESIDENT_UNIT, mk_instruction_resident(program, in));
  }
  cr_assert_eq(program->instructions[0].operands[MK_SLOT_QKV_x].rows, 2);
  cr_assert_eq(program->instructions[0].operands[MK_SLOT_QKV_x].flags, MK_OPERAND_TOKEN_ROW);
  expect_round_trip(program);
  mk_program_free(program);
  static const char sums[] =
      "mkvm-program 1\nmachine sms=3\ncounter c kind=release\r\nqueue 1:\n\n"
      "#1 next signal=c+3 ; comment\n#2 next signal=c+0x10 wait=c>=19\n";
  cr_assert_eq(mk_assemble(sums, sizeof sums - 1, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(program->counters[0].total, 19);
  cr_assert(program->queues[0].count == 0 && program->queues[1].count == 2 && program->queues[2].first == 2);
  expect_round_trip(program);
  mk_program_free(program);
}

/* The tutorial's program: verified, and run on the CPU machine under several interleavings. */
Test(asm, hand_written_program_runs) {
  mk_program *program;
  cr_assert_eq(mk_assemble_file(hand_written, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  uint32_t first[6] = {0};
  for (uint64_t seed = 0; seed < 10; seed++) {
    mk_cpu_options options = {.seed = seed, .check_races = true};
    mk_cpu *cpu;
    uint64_t random = 11;
    cr_assert_eq(mk_cpu_new(program, &options, &cpu), MK_OK, "%s", mk_error_message());
    for (size_t b = 0; b < program->buffer_count; b++) {
      uint16_t *elements = mk_cpu_memory(cpu, b);
      for (size_t i = 0; program->buffers[b].kind == MK_KIND_WEIGHT && i < program->buffers[b].bytes / 2; i++) {
        elements[i] = (uint16_t)(mk_float_param(test_random_float(&random)) >> 16);
      }
    }
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 5), MK_OK, "%s", mk_error_message());
    const uint32_t *ring = mk_cpu_memory(cpu, (size_t)mk_program_find_buffer(program, "token_ring"));
    if (seed == 0) {
      memcpy(first, ring, sizeof first);
    }
    cr_assert_eq(memcmp(first, ring, sizeof first), 0, "seed %d gives other tokens", (int)seed);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

#define HEAD "mkvm-program 1\nmachine sms=2\n"
#define BUFFER "buffer b kind=activation dtype=f32 store=plain shape=4x4 tile=1x1\n"
#define COUNTER "counter c kind=release\n"
#define QUEUE HEAD BUFFER COUNTER "queue 0:\n"

Test(asm, malformed_texts) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "ends without a `machine"},
      {"machine sms=2\n", "line 1: 'machine': a program begins"},
      {"mkvm-program 2\n", "line 1: "},
      {"mkvm-program 1\nbuffer b\n", "line 2: buffer stands before the machine"},
      {"mkvm-program 1\nmachine sms=0\n", "line 2: machine: sms is 0"},
      {"mkvm-program 1\nmachine sms=65535 ranks=4096\n", "queues"},
      {"mkvm-program 1\nmachine sms=1 sms=1\n", "given twice"},
      {"mkvm-program 1\nmachine sms=x\n", "sms is 'x'"},
      {"mkvm-program 1\nmachine sms=18446744073709551617\n", "sms is '18446744073709551617'"},
      {"mkvm-program 1\nmachine cores=1\n", "'cores=1' is not a FIELD=VALUE of machine"},
      {HEAD HEAD, "line 3: 'mkvm-program' begins no statement"},
      {HEAD "machine sms=2\n", "machine is given twice"},
      {HEAD "model label\n", "quotes"},
      {HEAD "model \"label\n", "closing quote"},
      {HEAD "model \"\\", "line 3: model"},
      {HEAD "model \"0123456789012345678901234567890123456789012345678901234567890123\"", "at most 63"},
      {HEAD "model \"a\" hash=1\n", "'hash=1'"},
      {HEAD "range position=3\n", "'position=3' is not a range"},
      {HEAD "range position=3..2\n", "low end"},
      {HEAD "range position=0..1\nrange token=0..1\n", "line 4: range is given twice"},
      {HEAD "buffer\n", "buffer ''"},
      {HEAD "buffer b[ kind=weight\n", "buffer 'b['"},
      {HEAD "buffer b kind=weight\n", "buffer b: dtype is missing"},
      {HEAD "buffer b kind=wait\n", "kind is 'wait'; choose one of weight"},
      {HEAD "buffer b shape=4\n", "shape is '4'"},
      {HEAD BUFFER BUFFER, "line 4: buffer b: another one"},
      {HEAD "buffer b kind=weight dtype=f32 store=tiles shape=4x4 tile=16x16\n", "line 3: buffer b: dtype f32"},
      {HEAD "buffer b kind=weight dtype=f32 store=plain shape=0x4 tile=1x1\n", "no side may be 0"},
      {HEAD COUNTER COUNTER, "line 4: counter c: another one"},
      {HEAD "counter c\n", "kind is missing"},
      {HEAD "counter c kind=release rank=1\n", "rank is '1'"},
      {HEAD "queue 2:\n", "queue is '2'"},
      {HEAD "queue 0\n", "queue '0'"},
      {HEAD "queue :\n", "queue is ''"},
      {HEAD "queue 1:\nqueue 1:\n", "line 4: queue '1:' after queue 1"},
      {HEAD "#1 next\n", "stands in no queue"},
      {QUEUE BUFFER, "line 6: buffer stands below a queue"},
      {QUEUE "# next\n", "line 6: #UID is ''"},
      {QUEUE "#1\n", "'' is not an opcode"},
      {QUEUE "#1 ?77\n", "'?77' is not an opcode"},
      {QUEUE "#1 next x=b\n", "'x=b' is not a FIELD=VALUE of next; its fields are candidates"},
      {QUEUE "#1 next ring\n", "'ring' is not a FIELD=VALUE"},
      {QUEUE "#1 next ring=d\n", "'d' is not a buffer"},
      {QUEUE "#1 next ring=?9\n", "needs a rectangle"},
      {QUEUE "#1 next ring=?x[0:1,0:1]\n", "buffer is 'x'"},
      {QUEUE "#1 next ring=b[\n", "not a rectangle"},
      {QUEUE "#1 next ring=b[0:1]\n", "not a rectangle"},
      {QUEUE "#1 next ring=b[0,1]\n", "rows are '0'"},
      {QUEUE "#1 next ring=b[2:1,0:1]\n", "rows are '2:1'"},
      {QUEUE "#1 next ring=b[0:1,0:65536]\n", "columns are '0:65536'"},
      {QUEUE "#1 next ring=b@row\n", "flags is 'row'"},
      {QUEUE "#1 next ring=b@token\n", "'b@token' is not a buffer from end to end"},
      {QUEUE "#1 next ring=b[0:4,1:4]\n", "'b[0:4,1:4]' is not a buffer from end to end"},
      {QUEUE "#1 next ring=?7[0:1,0:1]\n", "is not a buffer from end to end"},
      {QUEUE "#1 next ring=b[0:0,1:1]\n", "is not a buffer from end to end"},
      {QUEUE "#1 next ring=b ring=b\n", "ring is given twice"},
      {QUEUE "#1 head eps=nan\n", "'nan' is not a finite number"},
      {QUEUE "#1 head eps=1e99\n", "'1e99' is not a finite number"},
      {QUEUE "#1 head eps=\n", "'' is not a finite number"},
      {QUEUE "#1 head width=1.5\n", "width is '1.5'"},
      {QUEUE "#1 next wait=c\n", "'c' is not an edge; write COUNTER>=N"},
      {QUEUE "#1 next wait=d>=1\n", "'d' is not a counter"},
      {QUEUE "#1 next wait=c>=1 wait=c>=1 wait=c>=1 wait=c>=1 wait=c>=1\n", "one too many"},
      {QUEUE "#1 next signal=c+1 signal=c+1 signal=c+1\n", "one too many"},
      {QUEUE "#1 next signal=c+65536\n", "'65536'"},
      {QUEUE "#1 next resident=65\n", "multiple of 64"},
      {QUEUE "#1 next layer=65536\n", "layer is '65536'"},
      {QUEUE "#1 next word.1=0x1\n", "no word of a wait or signal"},
      {QUEUE "#1 next word.8=0x1\n", "no word of a wait or signal"},
      {QUEUE "#1 next word.3=0x1 word.3=0x1\n", "is given twice"},
      {QUEUE "#1 next word.32=0x1\n", "number of the word is '32'"},
      {QUEUE "#1 next wait=c>=1 word.2=0x1\n", "word.2: a field of #1 next"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_program *program;
    cr_expect_eq(mk_assemble(cases[i].text, strlen(cases[i].text), &program), MK_ERR_FILE, "%s", cases[i].text);
    cr_expect(program == NULL && strstr(mk_error_message(), cases[i].message) != NULL, "%s\ngives: %s\nnot: %s",
              cases[i].text, mk_error_message(), cases[i].message);
  }
}

/* Bytes, words and lines of a valid text changed, moved and lost: an error or a program that prints and reads back. */
Test(asm, mutated_texts) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  uint16_t counter = test_tiny_counter(&tiny, "go", MK_COUNTER_RELEASE);
  test_tiny_signal(&tiny, tiny.program->instructions, counter);
  test_tiny_wait(&tiny.program->instructions[6], counter, 1);
  size_t length, refused = 0, rounds = 20000;
  char *text = disassemble(tiny.program, &length);
  static const char alphabet[] = "\n\n \"\\=:;#?@[],.+->x0123456789abyz\t\r\x80";
  uint64_t seed = 9;
  for (size_t round = 0; round < rounds; round++) {
    size_t size = test_random_below(&seed, 20) == 0 ? test_random_below(&seed, (uint32_t)length) : length;
    /* Exactly as long as the text: a read past its end shows under AddressSanitizer. */
    char *changed = malloc(size == 0 ? 1 : size);
    memcpy(changed, text, size);
    for (uint32_t n = 1 + test_random_below(&seed, 3); n > 0 && size > 0; n--) {
      uint32_t at = test_random_below(&seed, (uint32_t)size), from = test_random_below(&seed, (uint32_t)size);
      size_t room = size - (at > from ? at : from);
      if (test_random_below(&seed, 4) == 0) {
        memmove(changed + at, changed + from, room < 20 ? room : 20);
      } else {
        changed[at] = alphabet[test_random_below(&seed, sizeof alphabet)];
      }
    }
    mk_program *program;
    mk_status status = mk_assemble(changed, size, &program);
    free(changed);
    cr_assert(status == MK_OK || status == MK_ERR_FILE, "%s", mk_error_message());
    refused += status != MK_OK;
    if (status == MK_OK) {
      expect_round_trip(program);
    } else {
      cr_assert(program == NULL && strncmp(mk_error_message(), "line ", 5) == 0, "%s", mk_error_message());
    }
    mk_program_free(program);
  }
  cr_assert(refused > rounds / 10 && refused < rounds, "%zu of %zu refused", refused, rounds);
  free(text);
  test_tiny_stop(&tiny);
}

Test(asm, every_allocation_may_fail) {
  mk_program *program;
  mk_status status = MK_ERR_RUNTIME;
  uint64_t n = 0;
  while (status != MK_OK) {
    mk_alloc_fail_at(++n, false);
    status = mk_assemble_file(hand_written, &program);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && program == NULL), "%s", mk_error_message());
  }
  cr_assert_gt(n, 5);
  mk_program_free(program);
}

Test(asm, files) {
  mk_program *program;
  cr_assert_eq(mk_assemble_file("/nowhere/a.mks", &program), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), "/nowhere/a.mks: cannot be opened"));
  cr_assert_eq(mk_assemble_file("/dev", &program), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), "/dev: is not a regular file"));
}
