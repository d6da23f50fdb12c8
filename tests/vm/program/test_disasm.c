/* The text form: every part of a program shows, in the grammar that disasm.h states. */
#include "vm/program/disasm.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static mk_program *sample(void) {
  mk_machine machine = mk_machine_latency(2);
  mk_program *program;
  uint16_t index;
  cr_assert_eq(mk_program_new(&machine, &program), MK_OK);
  strcpy(program->model, "a \"b\"");
  program->config_hash = 0xabc;
  program->ranges.position = (mk_range){0, 127};
  program->ranges.batch = (mk_range){1, 1};
  const mk_buffer buffers[] = {
      {.name = "embed",
       .kind = MK_KIND_WEIGHT,
       .store = MK_STORE_TILES,
       .scope = MK_SCOPE_GPU,
       .proxy = 3,
       .rows = 300,
       .cols = 100,
       .tile_rows = 16,
       .tile_cols = 16},
      {.name = "gain",
       .kind = MK_KIND_WEIGHT,
       .scope = MK_SCOPE_GPU,
       .proxy = 1,
       .rows = 1,
       .cols = 100,
       .tile_rows = 1,
       .tile_cols = 16},
      {.name = "qkv.0",
       .kind = MK_KIND_ACTIVATION,
       .dtype = MK_DTYPE_F32,
       .store = MK_STORE_STAMPED,
       .scope = MK_SCOPE_GPU,
       .proxy = 1,
       .rows = 1,
       .cols = 32,
       .tile_rows = 1,
       .tile_cols = 16},
      {.name = "kv.0",
       .kind = MK_KIND_KV,
       .dtype = MK_DTYPE_E4M3,
       .store = MK_STORE_BLOCKS,
       .scale = MK_SCALE_BF16,
       .scale_cols = 64,
       .scope = MK_SCOPE_SYS,
       .proxy = 2,
       .rows = 2,
       .cols = 1,
       .tile_rows = 1,
       .tile_cols = 1,
       .head_dim = 64,
       .block_tokens = 64,
       .span_tokens = 256,
       .blocks = 2},
  };
  for (size_t i = 0; i < 4; i++) {
    cr_assert_eq(mk_program_add_buffer(program, &buffers[i], &index), MK_OK, "%s", mk_error_message());
  }
  cr_assert_eq(mk_program_add_counter(program, "go", MK_COUNTER_RELAXED, &index), MK_OK);
  cr_assert_eq(mk_program_add_counter(program, "published", MK_COUNTER_RELEASE, &index), MK_OK);
  program->counters[1].total = 3;
  cr_assert_eq(mk_alloc(3, sizeof(mk_instruction), &program->instructions), MK_OK);
  program->instruction_count = program->instruction_capacity = 3;
  program->instructions[0] = (mk_instruction){.opcode = MK_OP_QKV,
                                              .version = MK_INSTRUCTION_VERSION,
                                              .wait_count = 2,
                                              .signal_count = 1,
                                              .uid = 7,
                                              .waits = {{.counter = 0, .threshold = 5}, {.counter = 1, .threshold = 2}},
                                              .signals = {{.counter = 1, .amount = 3}},
                                              .pages = 2,
                                              .resident = 4,
                                              .layer = 0,
                                              .operands = {{.flags = MK_OPERAND_TOKEN_ROW, .rows = 19, .cols = 7},
                                                           {.buffer = 1, .rows = 1, .cols = 7},
                                                           {.row = 1, .rows = 2, .cols = 7},
                                                           {0},
                                                           {.buffer = 2, .rows = 1, .col = 1, .cols = 1}},
                                              .params = {mk_float_param(0.1f), 100, 2, 64}};
  program->instructions[1] =
      (mk_instruction){.opcode = MK_OP_NEXT, .version = MK_INSTRUCTION_VERSION, .uid = 8, .layer = MK_NO_LAYER};
  program->instructions[2] = (mk_instruction){.opcode = MK_OP_LINEAR_PART,
                                              .version = MK_INSTRUCTION_VERSION,
                                              .wait_count = 1,
                                              .uid = 9,
                                              .waits = {{.counter = 40, .threshold = 1}},
                                              .layer = 3,
                                              .operands = {{.flags = 6, .buffer = 50, .rows = 1, .cols = 1}}};
  memcpy(&program->instructions[2].signals[1], &(uint32_t){0xff}, sizeof(mk_signal));
  program->queues[0].count = 2;
  program->queues[1] = (mk_queue){.first = 2, .count = 1};
  return program;
}

Test(disasm, whole_program) {
  static const char want[] =
      "mkvm-program 1\n"
      "model \"a \\\"b\\\"\" config_hash=0x0000000000000abc\n"
      "machine sms=2 page_bytes=16384 ring_pages=12 resident_bytes=32768 copy_bytes=4096 consumer_warps=16 "
      "loader_warps=1 "
      "instruction_ring=8 result_slots=2 ranks=1\n"
      "range position=0..127 token=0..0 block=0..0 batch=1..1 slot=0..0\n"
      "buffer embed kind=weight dtype=bf16 store=tiles shape=300x100 tile=16x16 scope=gpu proxy=generic+async rank=0 ; "
      "offset=0 bytes=68096\n"
      "buffer gain kind=weight dtype=bf16 store=plain shape=1x100 tile=1x16 scope=gpu proxy=generic rank=0 ; "
      "offset=68096 "
      "bytes=200\n"
      "buffer qkv.0 kind=activation dtype=f32 store=stamped shape=1x32 tile=1x16 scope=gpu proxy=generic rank=0 ; "
      "offset=0 "
      "bytes=256\n"
      "buffer kv.0 kind=kv dtype=e4m3 store=blocks shape=2x1 tile=1x1 scope=sys proxy=async rank=0 head_dim=64 "
      "block_tokens=64 span_tokens=256 blocks=2 scale=bf16 scale_cols=64 zeros=0 ; offset=256 bytes=16896\n"
      "counter go kind=relaxed scope=gpu rank=0 total=0\n"
      "counter published kind=release scope=gpu rank=0 total=3\n"
      "queue 0:\n"
      "#7 qkv x=embed[0:19,0:7]@token gain=gain[0:1,0:7] weight=embed[1:3,0:7] out=qkv.0[0:1,1:2] eps=0.100000001 "
      "width=100 rope_tiles=2 head_dim=64 extras=0 plus=0 "
      "wait=go>=5 wait=published>=2 signal=published+3 pages=2 resident=256 layer=0\n"
      "#8 next\n"
      "queue 1:\n"
      "#9 linear_part x=?50[0:1,0:1]@0x6 wait=?40>=1 layer=3 word.7=0x000000ff\n";
  mk_program *program = sample();
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  cr_assert_eq(mk_disassemble(program, out), MK_OK);
  fclose(out);
  cr_assert_str_eq(text, want);
  free(text);
  mk_program_free(program);
}

/* Nothing is verified before it is printed: any words must print, each on one line. */
Test(disasm, arbitrary_instructions) {
  mk_program *program = sample();
  uint64_t random = 7;
  for (int round = 0; round < 5000; round++) {
    mk_instruction instruction;
    unsigned char bytes[sizeof instruction];
    for (size_t i = 0; i < sizeof bytes; i++) {
      random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
      bytes[i] = (unsigned char)(random >> 56);
    }
    bytes[0] %= MK_OP_COUNT + 2;
    memcpy(&instruction, bytes, sizeof bytes);
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    cr_assert_eq(mk_disassemble_instruction(program, &instruction, out), MK_OK);
    fclose(out);
    cr_assert(length > 0 && strlen(text) == length && strchr(text, '\n') == NULL, "%s", text);
    free(text);
  }
  mk_program_free(program);
}

Test(disasm, a_full_disk_is_an_error) {
  mk_program *program = sample();
  FILE *out = fopen("/dev/full", "w");
  cr_assert_not_null(out);
  setvbuf(out, NULL, _IONBF, 0);
  cr_assert_eq(mk_disassemble(program, out), MK_ERR_RUNTIME);
  fclose(out);
  mk_program_free(program);
}
