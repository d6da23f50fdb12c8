/* Sampling programs: their shape at the token boundary, and what the verifier says to them, whole and broken. */
#include <criterion/criterion.h>
#include <string.h>

#include "instructions/sampling.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"
#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/verify/verify.h"

static mk_program *compile_rows(const mk_config *config, uint32_t sms, uint32_t max_seq, bool sampling, uint32_t rows) {
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = sms, .max_seq = max_seq, .sampling = sampling, .rows = rows, .slots = rows};
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static mk_program *compile(const mk_config *config, uint32_t sms, uint32_t max_seq, bool sampling) {
  return compile_rows(config, sms, max_seq, sampling, 1);
}

/* HEAD, SCORE, the rounds (three, or three pairs), DRAW and NEXT end every queue, and nothing of these stands
 * elsewhere. */
static void expect_boundary(const mk_program *program) {
  static const mk_opcode end[] = {MK_OP_HEAD, MK_OP_SCORE, MK_OP_SIFT, MK_OP_SIFT, MK_OP_SIFT,
                                  MK_OP_SIFT, MK_OP_SIFT,  MK_OP_SIFT, MK_OP_DRAW, MK_OP_NEXT};
  enum { END = sizeof end / sizeof end[0], BEGIN = 2, MORE = 3 };
  uint32_t more = mk_program_rows(program) > 1 ? 0 : MORE, last = END - more;
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q];
    for (uint32_t i = 0; i < queue->count; i++) {
      const mk_instruction *in = &program->instructions[queue->first + i];
      bool special = in->opcode >= MK_OP_HEAD && in->opcode <= MK_OP_DRAW;
      uint32_t left = queue->count - i, at = last - left;
      cr_assert_eq(special, left <= last, "queue %zu, place %u: opcode %u", q, i, in->opcode);
      cr_assert(!special || in->opcode == end[at < BEGIN ? at : at + more]);
    }
  }
}

Test(sampling_program, small_models_on_any_number_of_sms) {
  static const uint32_t sms[] = {1, 2, 7, 132, 133, MK_MAX_SMS};
  for (size_t model = 0; model < TEST_MODELS; model++) {
    mk_config config = test_model_config(model);
    for (size_t s = 0; s < sizeof sms / sizeof sms[0]; s++) {
      for (uint32_t rows = 1; rows <= MK_MOST_DRAWING_ROWS; rows *= 2) {
        mk_program *program = compile_rows(&config, sms[s], 300, true, rows);
        expect_boundary(program);
        cr_assert_eq(mk_verify(program, NULL), MK_OK, "%u rows: %s", rows, mk_error_message());
        mk_program_free(program);
      }
    }
  }
}

Test(sampling_program, named_shapes) {
  for (size_t i = 0; mk_synth_shape_name(i) != NULL; i++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(mk_synth_shape_name(i), &config), MK_OK);
    for (uint32_t rows = 1; rows <= MK_MAX_ROWS; rows *= 4) {
      uint32_t context = 1024 < config.max_position ? 1024 : config.max_position;
      mk_program *program = compile_rows(&config, 132, context, true, rows);
      expect_boundary(program);
      cr_assert_eq(mk_verify(program, NULL), MK_OK, "%u rows: %s", rows, mk_error_message());
      mk_program_free(program);
    }
  }
}

/* Parameters, bias and counts have a line for each slot, all else one for each row. */
Test(sampling_program, lines) {
  static const char *const names[] = {"sampling", "logit_bias", "token_counts", "scores",  "fronts",
                                      "rounds.0", "rounds.1",   "rounds.2",     "choices", "logits"};
  mk_config config = test_model_config(TEST_MODEL_TINY);
  for (uint32_t rows = 1; rows <= MK_MAX_ROWS; rows *= 2) {
    mk_program *program = compile_rows(&config, 3, 100, true, rows);
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
      const mk_buffer *b = &program->buffers[mk_program_find_buffer(program, names[n])];
      bool per_sm = n >= 4 && n <= 8;
      cr_assert(b->tile_rows == rows && b->rows == rows * (per_sm ? 3 : 1), "%s: %ux%u", names[n], b->rows, b->cols);
    }
    mk_program_free(program);
  }
}

Test(sampling_program, programs_for_prompts_draw_nothing) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 3, .max_seq = 100, .sampling = true, .rows = MK_PROMPT_ROWS};
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  for (uint32_t i = 0; i < 2; i++) {
    cr_assert_eq(mk_compile(graph, &options, &program), MK_ERR_USAGE);
    cr_assert_not_null(strstr(mk_error_message(), "a program of so many chooses greedily"), "%s", mk_error_message());
    options.rows = 2 * MK_MOST_DRAWING_ROWS; /* of several slots, but of several tiles of lines */
    options.slots = 0;
  }
  mk_graph_free(graph);
}

/* What a greedy program is made of does not depend on there being another kind. */
Test(sampling_program, greedy_programs_have_nothing_of_it) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_program *greedy = compile(&config, 7, 300, false), *sampling = compile(&config, 7, 300, true);
  for (size_t i = 0; i < greedy->instruction_count; i++) {
    cr_assert_leq(greedy->instructions[i].opcode, MK_OP_NEXT);
  }
  cr_assert_eq(mk_program_find_buffer(greedy, "sampling"), -1);
  cr_assert_eq(mk_program_find_buffer(greedy, "scores"), -1);
  cr_assert_eq(greedy->weight_bytes, sampling->weight_bytes);
  cr_assert_eq(greedy->config_hash, sampling->config_hash);
  mk_program_free(greedy);
  mk_program_free(sampling);
}

Test(sampling_program, as_text_and_back) {
  mk_config config = test_model_config(TEST_MODEL_ODD);
  mk_program *program = compile(&config, 3, 100, true), *back;
  char *text;
  size_t length, lengths[2];
  void *bytes[2];
  FILE *out = open_memstream(&text, &length);
  cr_assert_eq(mk_disassemble(program, out), MK_OK);
  fclose(out);
  cr_assert_eq(mk_assemble(text, length, &back), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_serialize(program, &bytes[0], &lengths[0]), MK_OK);
  cr_assert_eq(mk_program_serialize(back, &bytes[1], &lengths[1]), MK_OK);
  cr_assert(lengths[0] == lengths[1] && memcmp(bytes[0], bytes[1], lengths[0]) == 0);
  mk_free(bytes[0]);
  mk_free(bytes[1]);
  mk_program_free(program);
  mk_program_free(back);
  free(text);
}

static mk_instruction *find(mk_program *program, uint32_t queue, mk_opcode opcode, uint32_t number) {
  for (uint32_t i = 0; i < program->queues[queue].count; i++) {
    mk_instruction *in = &program->instructions[program->queues[queue].first + i];
    if (in->opcode == opcode && number-- == 0) {
      return in;
    }
  }
  cr_assert_fail("queue %u has no such instruction", queue);
  return NULL;
}

static mk_instruction *score(mk_program *p) { return find(p, 1, MK_OP_SCORE, 0); }
static mk_instruction *sift(mk_program *p) { return find(p, 1, MK_OP_SIFT, 1); }
static mk_instruction *draw(mk_program *p) { return find(p, 1, MK_OP_DRAW, 0); }

/* SCORE reads what HEAD's storer has not written yet. */
static void score_before_head(mk_program *p) {
  mk_instruction *s = score(p), old = *s;
  s[0] = s[-1];
  s[-1] = old;
}
static void other_counts(mk_program *p) { score(p)->operands[MK_SLOT_SCORE_counts].col--; }
static void no_bias(mk_program *p) {
  mk_operand *o = &score(p)->operands[MK_SLOT_SCORE_bias];
  *o = (mk_operand){.buffer = o->buffer};
}
static void scores_of_others(mk_program *p) {
  score(p)->operands[MK_SLOT_SCORE_scores] = find(p, 0, MK_OP_SCORE, 0)->operands[MK_SLOT_SCORE_scores];
}
static void front_of_others(mk_program *p) { score(p)->operands[MK_SLOT_SCORE_front].row = 0; }
static void some_fronts(mk_program *p) { draw(p)->operands[MK_SLOT_DRAW_fronts].rows--; }
static void some_rounds(mk_program *p) { draw(p)->operands[MK_SLOT_DRAW_rounds].rows--; }
static void short_round(mk_program *p) {
  sift(p)->operands[MK_SLOT_SIFT_round] = score(p)->operands[MK_SLOT_SCORE_front];
}
static void wrong_parameters(mk_program *p) {
  sift(p)->operands[MK_SLOT_SIFT_sampling] = find(p, 1, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_plan];
}
static void part_of_scores(mk_program *p) { draw(p)->operands[MK_SLOT_DRAW_scores].cols--; }
static void rounds_in_a_circle(mk_program *p) {
  sift(p)->operands[MK_SLOT_SIFT_rounds] = draw(p)->operands[MK_SLOT_DRAW_rounds];
}
static void draw_after_next(mk_program *p) {
  mk_instruction *d = draw(p), old = *d;
  d[0] = d[1];
  d[1] = old;
}
static void written_parameters(mk_program *p) {
  p->buffers[score(p)->operands[MK_SLOT_SCORE_sampling].buffer].kind = MK_KIND_ACTIVATION;
}
/* A buffer like another, for one SM alone. */
static uint16_t twin(mk_program *p, uint16_t buffer) {
  mk_buffer copy = p->buffers[buffer];
  uint16_t index;
  copy.name[0] = 'X';
  cr_assert_eq(mk_program_add_buffer(p, &copy, &index), MK_OK, "%s", mk_error_message());
  p->buffers[index].offset = (p->work_bytes + 127) / 128 * 128;
  p->work_bytes = p->buffers[index].offset + p->buffers[index].bytes;
  return index;
}
static void other_parameters(mk_program *p) {
  mk_operand *o = &draw(p)->operands[MK_SLOT_DRAW_sampling];
  o->buffer = twin(p, o->buffer);
}
/* Its tokens are in no front that the draws look at. */
static void front_apart(mk_program *p) {
  mk_operand *o = &score(p)->operands[MK_SLOT_SCORE_front];
  o->buffer = twin(p, o->buffer);
}
static void front_by_other_parameters(mk_program *p) {
  mk_operand *o = &score(p)->operands[MK_SLOT_SCORE_sampling];
  o->buffer = twin(p, o->buffer);
}
static void choice_of_another(mk_program *p) { find(p, 1, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates].row = 0; }
static void all_choices(mk_program *p) {
  mk_operand *o = &find(p, 1, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates];
  o->row = 0;
  o->rows = 3;
}
static void two_choices(mk_program *p) { find(p, 1, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates].rows = 2; }
static void one_candidate(mk_program *p) {
  for (uint32_t q = 0; q < 3; q++) {
    find(p, q, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates] =
        find(p, 0, MK_OP_HEAD, 0)->operands[MK_SLOT_HEAD_candidate];
  }
}
/* What a machine does within neighbours must have these. */
static void sift_that_something_else_follows(mk_program *p) {
  mk_instruction *s = sift(p), old = s[1];
  memmove(&s[1], &s[2], 2 * sizeof *s); /* the draw and the next come up */
  s[3] = old;
}
static void round_left_out(mk_program *p) {
  mk_instruction *first = find(p, 1, MK_OP_SIFT, 0);
  first->operands[MK_SLOT_SIFT_rounds] = sift(p)->operands[MK_SLOT_SIFT_rounds];
}
static void sift_of_others(mk_program *p) {
  sift(p)->operands[MK_SLOT_SIFT_scores] = find(p, 0, MK_OP_SCORE, 0)->operands[MK_SLOT_SCORE_scores];
}
static void score_that_waits(mk_program *p) {
  mk_instruction *s = score(p);
  s->waits[s->wait_count++] = draw(p)->waits[0];
}
static void fewer_tokens(mk_program *p) { p->ranges.token.high--; }
static void counts_as_input(mk_program *p) {
  p->buffers[score(p)->operands[MK_SLOT_SCORE_counts].buffer].kind = MK_KIND_INPUT;
}

typedef struct spoilt {
  void (*spoil)(mk_program *program);
  const char *rules[2];
} spoilt;

static void expect_rejected(const spoilt *cases, size_t count, uint32_t rows) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  for (size_t i = 0; i < count; i++) {
    mk_program *program = compile_rows(&config, 3, 100, true, rows);
    mk_verify_report report;
    cases[i].spoil(program);
    cr_assert_eq(mk_verify(program, &report), MK_ERR_REJECTED, "%u rows: case %zu is accepted", rows, i);
    bool expected = false;
    for (size_t r = 0; r < 2 && cases[i].rules[r] != NULL; r++) {
      expected |= strncmp(mk_error_message(), cases[i].rules[r], 3) == 0;
    }
    cr_assert(expected, "%u rows: case %zu: %s", rows, i, mk_error_message());
    mk_program_free(program);
  }
}

Test(sampling_program, broken_ones_are_rejected) {
  static const spoilt cases[] = {{score_before_head, {"N07"}},
                                 {other_counts, {"S10"}},
                                 {no_bias, {"S10"}},
                                 {scores_of_others, {"S10"}},
                                 {front_of_others, {"R04"}},
                                 {some_fronts, {"S10"}},
                                 {some_rounds, {"S10"}},
                                 {short_round, {"S10"}},
                                 {wrong_parameters, {"S10"}},
                                 {part_of_scores, {"S10"}},
                                 {rounds_in_a_circle, {"N07"}},
                                 {draw_after_next, {"N07", "N02"}},
                                 {written_parameters, {"S08"}},
                                 {other_parameters, {"N05"}},
                                 {front_apart, {"N05"}},
                                 {front_by_other_parameters, {"N05"}},
                                 {choice_of_another, {"N07"}},
                                 {all_choices, {"N07"}},
                                 {two_choices, {"S10"}},
                                 {one_candidate, {"N07"}},
                                 {sift_that_something_else_follows, {"N07", "N02"}},
                                 {round_left_out, {"N07"}},
                                 {sift_of_others, {"N07"}},
                                 {score_that_waits, {"N07"}},
                                 {fewer_tokens, {"B02"}},
                                 {counts_as_input, {"S07"}}};
  for (uint32_t rows = 1; rows <= MK_MAX_ROWS; rows *= 4) {
    expect_rejected(cases, sizeof cases / sizeof cases[0], rows);
  }
}

/* What is wrong with lines. */
enum { ROWS = 4 };

/* A buffer of other lines in tiles of so many, and operands as before. */
static void other_lines(mk_program *p, const char *name, uint32_t rows, uint32_t tile_rows) {
  mk_buffer *b = &p->buffers[mk_program_find_buffer(p, name)];
  b->rows = rows;
  b->tile_rows = tile_rows;
  b->bytes = mk_buffer_bytes(b);
  b->offset = (p->work_bytes + 127) / 128 * 128; /* it may have grown */
  p->work_bytes = b->offset + b->bytes;
}
static void parameters_of_too_few_slots(mk_program *p) { other_lines(p, "sampling", ROWS - 1, ROWS); }
static void parameters_of_one_slot(mk_program *p) { other_lines(p, "sampling", 1, 1); }
static void bias_of_one_slot(mk_program *p) { other_lines(p, "logit_bias", 1, 1); }
static void counts_of_one_slot(mk_program *p) { other_lines(p, "token_counts", 1, 1); }
static void counts_in_tiles_of_their_own(mk_program *p) { other_lines(p, "token_counts", ROWS, 1); }
static void counts_of_too_many_slots(mk_program *p) { other_lines(p, "token_counts", ROWS + 1, ROWS + 1); }
static void scores_of_too_few_lines(mk_program *p) { other_lines(p, "scores", ROWS - 1, ROWS); }
static void fronts_of_one_line(mk_program *p) { other_lines(p, "fronts", 3, 1); }
static void fronts_of_too_few_lines(mk_program *p) { other_lines(p, "fronts", 3 * (ROWS - 1), ROWS - 1); }
static void rounds_of_one_line(mk_program *p) { other_lines(p, "rounds.1", 3, 1); }
static void rounds_of_too_many_lines(mk_program *p) { other_lines(p, "rounds.1", 6 * ROWS, 2 * ROWS); }
static void choices_of_one_line(mk_program *p) { other_lines(p, "choices", 3, 1); }
static void choices_of_too_few_sms(mk_program *p) { other_lines(p, "choices", 3 * ROWS - 1, ROWS); }
/* As many lines as the program has rows, but of three SMs. */
static void lines_of_several_sms(mk_program *p) { other_lines(p, "fronts", 3 * ROWS, 3 * ROWS); }
static void choice_over_anothers(mk_program *p) { draw(p)->operands[MK_SLOT_DRAW_choice].row = 0; }
static void choice_over_anothers_and_taken(mk_program *p) {
  choice_over_anothers(p);
  choice_of_another(p);
}
static void round_over_anothers(mk_program *p) { sift(p)->operands[MK_SLOT_SIFT_round].row = 0; }
static void candidates_of_heads(mk_program *p) {
  find(p, 1, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates] =
      find(p, 1, MK_OP_HEAD, 0)->operands[MK_SLOT_HEAD_candidate];
}
static void something_after_next(mk_program *p) {
  mk_instruction *glu = find(p, 1, MK_OP_GLU, 0), moved = *glu, *next = find(p, 1, MK_OP_NEXT, 0);
  memmove(glu, glu + 1, (size_t)(next - glu) * sizeof *glu);
  *next = moved;
}
/* The storer of a value of a layer clears the value's other half, here after the head that tells that this is done. */
static void something_after_score(mk_program *p) {
  mk_instruction *glu = find(p, 1, MK_OP_GLU, 0), moved = *glu, *last = score(p);
  memmove(glu, glu + 1, (size_t)(last - glu) * sizeof *glu);
  *last = moved;
}
static void for_prompts(mk_program *p) { p->ranges.batch.high = MK_PROMPT_ROWS; }

Test(sampling_program, broken_lines_are_rejected) {
  static const spoilt cases[] = {{parameters_of_too_few_slots, {"S10"}},
                                 {parameters_of_one_slot, {"S10"}},
                                 {bias_of_one_slot, {"S10"}},
                                 {counts_of_one_slot, {"S10"}},
                                 {counts_in_tiles_of_their_own, {"S10"}},
                                 {counts_of_too_many_slots, {"S10"}},
                                 {scores_of_too_few_lines, {"S10"}},
                                 {fronts_of_one_line, {"S10"}},
                                 {fronts_of_too_few_lines, {"S10"}},
                                 {rounds_of_one_line, {"S10"}},
                                 {rounds_of_too_many_lines, {"B01", "S10"}},
                                 {choices_of_one_line, {"S10"}},
                                 {choices_of_too_few_sms, {"S10"}},
                                 {lines_of_several_sms, {"B01", "S10"}},
                                 {choice_over_anothers, {"N07"}},
                                 {choice_over_anothers_and_taken, {"R04"}},
                                 {round_over_anothers, {"R04"}},
                                 {candidates_of_heads, {"N07"}},
                                 {something_after_next, {"N02", "N06"}},
                                 {something_after_score, {"N07"}},
                                 {for_prompts, {"S02"}}};
  expect_rejected(cases, sizeof cases / sizeof cases[0], ROWS);
}

/* A greedy `next` of several rows takes the candidates of all SMs, not those of one. */
Test(sampling_program, greedy_rows_take_all_candidates) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_program *program = compile_rows(&config, 3, 100, false, ROWS);
  for (uint32_t q = 0; q < 3; q++) {
    find(program, q, MK_OP_NEXT, 0)->operands[MK_SLOT_NEXT_candidates].rows = 1;
  }
  cr_assert_eq(mk_verify(program, NULL), MK_ERR_REJECTED);
  cr_assert_eq(strncmp(mk_error_message(), "N04", 3), 0, "%s", mk_error_message());
  mk_program_free(program);
}

/* Buffers with a word for each token are read by the tile of 16, so they have no others. */
Test(sampling_program, wider_tiles_are_rejected) {
  static const char *const names[] = {"logits", "logit_bias", "token_counts", "scores"};
  mk_config config = test_model_config(TEST_MODEL_TINY);
  for (size_t n = 0; n < 2 * sizeof names / sizeof names[0]; n++) {
    mk_program *program = compile_rows(&config, 1, 100, true, n % 2 == 0 ? 1 : 8);
    int index = mk_program_find_buffer(program, names[n / 2]);
    mk_buffer *buffer = &program->buffers[index];
    buffer->tile_cols *= 2;
    for (size_t i = 0; i < program->instruction_count; i++) {
      for (uint32_t slot = 0; slot < MK_MAX_OPERANDS; slot++) {
        mk_operand *o = &program->instructions[i].operands[slot];
        if (o->rows != 0 && o->buffer == index) {
          o->cols = (uint16_t)mk_buffer_grid_cols(buffer);
        }
      }
    }
    cr_assert_eq(mk_verify(program, NULL), MK_ERR_REJECTED, "%s", names[n / 2]);
    cr_assert_not_null(strstr(mk_error_message(), "tile width is 32"), "%s", mk_error_message());
    mk_program_free(program);
  }
}

Test(sampling_program, tokens_beyond_the_range_are_rejected_when_greedy_too) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_program *program = compile(&config, 3, 100, false);
  fewer_tokens(program);
  cr_assert_eq(mk_verify(program, NULL), MK_ERR_REJECTED);
  cr_assert_eq(strncmp(mk_error_message(), "B02", 3), 0, "%s", mk_error_message());
  mk_program_free(program);
}
