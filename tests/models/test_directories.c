/* Model directories as people have them: what config.json and the weights say together (models/directory.h). */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "models/directory.h"
#include "tests/support/model.h"
#include "tests/support/parts.h"

#define HEAD "lm_head.weight"
#define EMBEDDING "model.embed_tokens.weight"

static char path[TEST_PATH];
static mk_config config; /* tied, two layers */
static test_parts parts;

static void make(void) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, path);
  parts = test_parts_of(&config);
}

static void drop(void) {
  test_parts_free(&parts);
  test_model_remove(path);
}

TestSuite(directories, .init = make, .fini = drop);

static test_part *add_head(const char *like) { return test_parts_add(&parts, HEAD, like, config.vocab, config.hidden); }

static mk_directory opened(void) {
  mk_directory directory;
  test_parts_write(&parts, path);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_OK, "%s", mk_error_message());
  return directory;
}

/* Opens it, tells about the head, closes it. */
static void expect_head(mk_head head) {
  mk_directory directory = opened();
  char line[MK_NOTE_SIZE];
  cr_expect_eq(directory.head, head, "%d", (int)directory.head);
  cr_expect_eq(directory.config.tied, head == MK_HEAD_TIED || head == MK_HEAD_TIED_EQUAL);
  cr_expect_eq(mk_directory_note(&directory, MK_NOTE_HEAD, line) != NULL, head == MK_HEAD_TIED_DIFFERS);
  mk_directory_close(&directory);
}

static void expect_note(const mk_directory *directory, mk_note note, const char *want) {
  char line[MK_NOTE_SIZE];
  const char *got = mk_directory_note(directory, note, line);
  if (want == NULL) {
    cr_expect_null(got, "%s", got);
  } else {
    cr_expect_not_null(strstr(got == NULL ? "nothing" : got, want), "\"%s\" lacks \"%s\"", got, want);
  }
}

static void open_refused(const char *message) {
  mk_directory directory;
  test_parts_write(&parts, path);
  cr_expect_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_ERR_FILE);
  cr_expect_null(directory.checkpoint);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

Test(directories, tied_without_a_stored_head) { expect_head(MK_HEAD_TIED); }

Test(directories, a_tied_head_that_is_stored_and_equal_stays_tied) {
  add_head(EMBEDDING);
  expect_head(MK_HEAD_TIED_EQUAL);
}

Test(directories, a_tied_head_that_is_stored_and_differs_is_untied) {
  add_head(NULL);
  expect_head(MK_HEAD_TIED_DIFFERS);
  mk_directory directory = opened();
  expect_note(&directory, MK_NOTE_HEAD, "tie_word_embeddings is true, but the stored lm_head.weight differs");
  cr_expect_eq(directory.survey.used[MK_TENSOR_BF16], parts.count, "the head is one of them");
  mk_directory_close(&directory);
}

/* One element alone, first and last, in the same dtype and in another one. */
Test(directories, one_element_unties) {
  static const mk_tensor_dtype dtypes[] = {MK_TENSOR_BF16, MK_TENSOR_F32};
  test_part *head = add_head(EMBEDDING);
  for (size_t d = 0; d < 2; d++) {
    head->dtype = dtypes[d];
    for (int last = 0; last < 2; last++) {
      mk_directory directory = opened();
      const mk_tensor *tensor = mk_checkpoint_find(directory.checkpoint, HEAD);
      const uint64_t unit = mk_tensor_unit(tensor);
      int file = open(mk_checkpoint_path(directory.checkpoint, tensor), O_WRONLY | O_CLOEXEC);
      cr_assert_eq(pwrite(file, "\x41", 1, (off_t)(tensor->offset + (last ? tensor->bytes : unit) - 1)), 1);
      close(file);
      mk_directory_close(&directory);
      cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_OK, "%s", mk_error_message());
      cr_expect_eq(directory.head, MK_HEAD_TIED_DIFFERS, "dtype %zu, element %d", d, last);
      mk_directory_close(&directory);
    }
  }
}

/* The values that are computed with decide, not the bytes. */
Test(directories, a_tied_head_of_another_dtype_is_compared_by_value) {
  static const mk_tensor_dtype dtypes[] = {MK_TENSOR_BF16, MK_TENSOR_F16, MK_TENSOR_F32};
  add_head(EMBEDDING);
  for (size_t i = 0; i < 9; i++) {
    test_parts_find(&parts, EMBEDDING)->dtype = dtypes[i / 3];
    test_parts_find(&parts, HEAD)->dtype = dtypes[i % 3];
    expect_head(MK_HEAD_TIED_EQUAL);
  }
  snprintf(test_parts_find(&parts, HEAD)->like, sizeof parts.parts[0].like, "another");
  for (size_t i = 0; i < 9; i++) {
    test_parts_find(&parts, EMBEDDING)->dtype = dtypes[i / 3];
    test_parts_find(&parts, HEAD)->dtype = dtypes[i % 3];
    expect_head(MK_HEAD_TIED_DIFFERS);
  }
}

Test(directories, a_tied_head_in_another_shard) {
  add_head(EMBEDDING)->shard = 2;
  expect_head(MK_HEAD_TIED_EQUAL);
  snprintf(test_parts_find(&parts, HEAD)->like, sizeof parts.parts[0].like, "another");
  expect_head(MK_HEAD_TIED_DIFFERS);
}

/* More than one chunk of the comparison: 4 MiB of fp32, the last of which differs. */
Test(directories, a_large_head_is_compared_to_its_end) {
  config.vocab = 8192;
  test_model_remove(path);
  test_model_write(&config, path);
  test_parts_free(&parts);
  parts = test_parts_of(&config);
  test_parts_find(&parts, EMBEDDING)->dtype = MK_TENSOR_F32;
  add_head(EMBEDDING)->dtype = MK_TENSOR_F32;
  mk_directory directory = opened();
  cr_expect_eq(directory.head, MK_HEAD_TIED_EQUAL);
  const mk_tensor *head = mk_checkpoint_find(directory.checkpoint, HEAD);
  int file = open(mk_checkpoint_path(directory.checkpoint, head), O_WRONLY | O_CLOEXEC);
  cr_assert_eq(pwrite(file, "\x41", 1, (off_t)(head->offset + head->bytes - 1)), 1);
  close(file);
  mk_directory_close(&directory);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_OK, "%s", mk_error_message());
  cr_expect_eq(directory.head, MK_HEAD_TIED_DIFFERS);
  mk_directory_close(&directory);
}

Test(directories, a_tied_head_of_another_shape_is_refused) {
  test_part *head = add_head(EMBEDDING);
  head->shape[0]--;
  open_refused("tensor lm_head.weight: shape is [319, 128], config.json asks for [320, 128]");
  head->rank = 1;
  head->shape[1] = 1;
  open_refused("tensor lm_head.weight: shape is [319]");
}

Test(directories, a_tied_head_without_an_embedding_is_refused) {
  add_head(NULL);
  snprintf(test_parts_find(&parts, EMBEDDING)->name, sizeof parts.parts[0].name, "model.rotary_emb.inv_freq");
  open_refused("tensor model.embed_tokens.weight: is missing");
}

Test(directories, the_comparison_can_be_interrupted) {
  const volatile sig_atomic_t cancel = 1;
  mk_directory directory;
  add_head(EMBEDDING);
  test_parts_write(&parts, path);
  cr_expect_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, &cancel, &directory), MK_ERR_RUNTIME);
  cr_expect_not_null(strstr(mk_error_message(), "interrupted"), "%s", mk_error_message());
}

Test(directories, config_json_alone_decides_where_there_are_no_weights) {
  char file[TEST_PATH + 32];
  mk_directory directory;
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  cr_assert_eq(unlink(file), 0);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_IF_THERE, NULL, &directory), MK_OK, "%s", mk_error_message());
  cr_expect(directory.checkpoint == NULL && directory.config.tied && directory.head == MK_HEAD_TIED);
  for (int note = 0; note < MK_NOTES; note++) {
    expect_note(&directory, (mk_note)note, NULL);
  }
  cr_expect_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_ERR_FILE);
}

Test(directories, rounding_is_told_by_dtype) {
  mk_directory directory = opened();
  expect_note(&directory, MK_NOTE_ROUNDING, NULL);
  mk_directory_close(&directory);
  test_parts_find(&parts, "model.norm.weight")->dtype = MK_TENSOR_F16;
  directory = opened();
  expect_note(&directory, MK_NOTE_ROUNDING, "1 tensor of fp16 (of 20) rounded to bf16");
  mk_directory_close(&directory);
  test_parts_find(&parts, EMBEDDING)->dtype = MK_TENSOR_F32;
  test_parts_find(&parts, "model.layers.1.mlp.up_proj.weight")->dtype = MK_TENSOR_F32;
  directory = opened();
  expect_note(&directory, MK_NOTE_ROUNDING, "1 tensor of fp16 and 2 of fp32 (of 20) rounded to bf16");
  mk_directory_close(&directory);
}

/* What is not computed with is not rounded: a head that stays tied, a layer that is left aside, a table of
 * frequencies. */
Test(directories, rounding_is_told_of_what_is_computed_with) {
  add_head(EMBEDDING)->dtype = MK_TENSOR_F32;
  test_parts_add(&parts, "model.layers.2.mlp.up_proj.weight", NULL, 3, 3)->dtype = MK_TENSOR_F32;
  test_parts_add(&parts, "model.layers.1.self_attn.rotary_emb.inv_freq", NULL, 32, 0)->dtype = MK_TENSOR_F32;
  mk_directory directory = opened();
  expect_note(&directory, MK_NOTE_ROUNDING, NULL);
  mk_directory_close(&directory);
}

Test(directories, layers_that_the_configuration_does_not_have_are_left_aside) {
  mk_directory directory = opened();
  expect_note(&directory, MK_NOTE_ASIDE, NULL);
  mk_directory_close(&directory);
  test_parts_add(&parts, "model.layers.2.mlp.up_proj.weight", NULL, 3, 3);
  directory = opened();
  expect_note(&directory, MK_NOTE_ASIDE, "1 tensor of 1 layer beyond num_hidden_layers 2 left aside");
  mk_directory_close(&directory);
  test_parts_add(&parts, "model.layers.2.whatever", NULL, 5, 0);
  test_parts_add(&parts, "model.layers.10.mlp.up_proj.weight", NULL, 3, 3);
  directory = opened();
  expect_note(&directory, MK_NOTE_ASIDE, "3 tensors of 2 layers beyond num_hidden_layers 2 left aside");
  mk_directory_close(&directory);
  test_parts_add(&parts, "model.layers.1.whatever", NULL, 5, 0);
  open_refused("tensor model.layers.1.whatever: is not part of a Llama of 2 layers");
}

/* ---- Models of text and images ---- */

Test(directories, the_text_of_a_model_with_images) {
  for (int inner = 0; inner < 2; inner++) {
    test_parts_make_whole(&parts, path, inner != 0);
    mk_directory directory = opened();
    cr_expect_eq(directory.config.naming, inner ? MK_NAMES_INNER : MK_NAMES_WITHIN);
    cr_expect(directory.config.kind == MK_MODEL_MISTRAL && directory.head == MK_HEAD_TIED);
    expect_note(&directory, MK_NOTE_IMAGES, "images are not read: the text model alone is computed, 2 tensors beside");
    expect_note(&directory, MK_NOTE_ROUNDING, NULL); /* the one in fp32 is not computed with */
    expect_note(&directory, MK_NOTE_ASIDE, NULL);
    mk_directory_close(&directory);
    drop();
    make();
  }
}

Test(directories, the_head_of_a_model_with_images) {
  for (int inner = 0; inner < 2; inner++) {
    add_head(EMBEDDING);
    test_parts_make_whole(&parts, path, inner != 0);
    expect_head(MK_HEAD_TIED_EQUAL);
    snprintf(test_parts_find(&parts, inner ? HEAD : "language_model." HEAD)->like, sizeof parts.parts[0].like,
             "another");
    expect_head(MK_HEAD_TIED_DIFFERS);
    drop();
    make();
  }
}

Test(directories, a_model_with_images_alone_says_so) {
  char file[TEST_PATH + 32];
  mk_directory directory;
  test_parts_make_whole(&parts, path, false);
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  cr_assert_eq(unlink(file), 0);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_IF_THERE, NULL, &directory), MK_OK, "%s", mk_error_message());
  expect_note(&directory, MK_NOTE_IMAGES, "images are not read");
  mk_directory_close(&directory);
}

/* A tensor of the other naming, of none, and one that is missing. */
Test(directories, models_with_images_that_are_refused) {
  for (int inner = 0; inner < 2; inner++) {
    static const char *const strange[] = {"vision_model.x", "model.norm.weight", "language_model.norm.weight",
                                          "model.language_model.lm_head.weight"};
    const char *norm = inner ? "model.language_model.norm.weight" : "language_model.model.norm.weight";
    char message[160];
    test_parts_make_whole(&parts, path, inner != 0);
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
      test_parts_add(&parts, strange[i], NULL, 3, 0);
      snprintf(message, sizeof message, "tensor %s: is not part of a Mistral of 2 layers", strange[i]);
      open_refused(message);
      parts.count--;
    }
    snprintf(test_parts_find(&parts, norm)->name, sizeof parts.parts[0].name, "%svision_tower.norm",
             inner ? "model." : "");
    snprintf(message, sizeof message, "tensor %s: is missing", norm);
    open_refused(message);
    drop();
    make();
  }
  test_parts_make_whole(&parts, path, false); /* one of the text model has the other name */
  test_parts_add(&parts, "model.language_model.norm.weight", NULL, config.hidden, 0);
  open_refused("is not part of a Mistral of 2 layers");
}

Test(directories, every_allocation_may_fail) {
  add_head(EMBEDDING);
  test_parts_write(&parts, path);
  for (uint64_t n = 1;; n++) {
    mk_directory directory;
    mk_alloc_fail_at(n, false);
    mk_status status = mk_directory_open(path, MK_WEIGHTS_IF_THERE, NULL, &directory);
    uint64_t calls = mk_alloc_calls();
    mk_alloc_fail_at(0, false);
    mk_directory_close(&directory);
    if (calls < n) {
      cr_assert_eq(status, MK_OK, "%s", mk_error_message());
      break;
    }
    cr_assert_eq(status, MK_ERR_RUNTIME, "allocation %llu", (unsigned long long)n);
  }
}
