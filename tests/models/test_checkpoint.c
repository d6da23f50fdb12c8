/* safetensors: good files are read to the bit, each way of being bad is refused with a message that names it. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint.h"

static char directory[64];

static void make(void) {
  snprintf(directory, sizeof directory, "/tmp/mk_checkpoint_XXXXXX");
  cr_assert_not_null(mkdtemp(directory));
}

static void drop(void) {
  DIR *entries = opendir(directory);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    remove(path);
  }
  if (entries != NULL) {
    closedir(entries);
  }
  remove(directory);
}

TestSuite(checkpoint, .init = make, .fini = drop);

static const char *path_of(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

static void put_raw(const char *name, const void *bytes, size_t count) {
  FILE *file = fopen(path_of(name), "w");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(bytes, 1, count, file), count);
  fclose(file);
}

/* A safetensors file that says `length` and holds `header` and `data` bytes; the data count up from 0. */
static void put_lying(const char *name, uint64_t length, const char *header, size_t data) {
  size_t text = strlen(header);
  uint8_t *bytes = malloc(8 + text + data);
  for (int i = 0; i < 8; i++) {
    bytes[i] = (uint8_t)(length >> (8 * i));
  }
  memcpy(bytes + 8, header, text);
  for (size_t i = 0; i < data; i++) {
    bytes[8 + text + i] = (uint8_t)i;
  }
  put_raw(name, bytes, 8 + text + data);
  free(bytes);
}

static void put(const char *name, const char *header, size_t data) { put_lying(name, strlen(header), header, data); }

static void expect_message(const char *message) {
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

static void open_refused(const char *message) {
  mk_checkpoint *checkpoint = NULL;
  cr_expect_eq(mk_checkpoint_open(directory, &checkpoint), MK_ERR_FILE, "not refused: %s", message);
  cr_expect_null(checkpoint);
  expect_message(directory);
  expect_message(message);
}

/* One model.safetensors with this header and so many bytes of data. */
static void refused(const char *header, size_t data, const char *message) {
  put("model.safetensors", header, data);
  open_refused(message);
}

static mk_checkpoint *opened(void) {
  mk_checkpoint *checkpoint = NULL;
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK, "%s", mk_error_message());
  return checkpoint;
}

#define ENTRY(name, dtype, shape, begin, end) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define TWO "{" ENTRY("a", "BF16", "[2,3]", "0", "12") "," ENTRY("b", "F32", "[2]", "12", "20") "}"

Test(checkpoint, a_good_file) {
  put("model.safetensors",
      "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("b", "F32", "[2]", "12", "20") "," ENTRY("a", "BF16", "[2,3]", "0",
                                                                                              "12") "}   ",
      20);
  mk_checkpoint *checkpoint = opened();
  cr_expect_eq(mk_checkpoint_count(checkpoint), 2);
  const mk_tensor *a = mk_checkpoint_find(checkpoint, "a");
  cr_assert_not_null(a);
  cr_expect_eq(a, mk_checkpoint_tensor(checkpoint, 0));
  cr_expect(a->rank == 2 && a->shape[0] == 2 && a->shape[1] == 3 && a->shape[2] == 1 && a->shape[3] == 1);
  cr_expect(a->bytes == 12 && a->dtype == MK_TENSOR_BF16);
  cr_expect_null(mk_checkpoint_find(checkpoint, "c"));
  cr_expect_null(mk_checkpoint_tensor(checkpoint, 2));
  uint16_t values[2];
  cr_assert_eq(mk_tensor_read(checkpoint, a, 4, 2, values), MK_OK);
  cr_expect(values[0] == 0x0908 && values[1] == 0x0b0a);
  cr_expect_eq(mk_tensor_read(checkpoint, a, 5, 2, values), MK_ERR_USAGE);
  cr_expect_eq(mk_tensor_read(checkpoint, a, UINT64_MAX, 2, values), MK_ERR_USAGE);
  mk_checkpoint_close(checkpoint);
  mk_checkpoint_close(NULL);
}

static void one_tensor(const char *dtype, size_t unit, size_t count, const void *data) {
  char header[256];
  size_t length =
      (size_t)snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
                       dtype, count, count * unit);
  uint8_t *bytes = calloc(1, 8 + length + count * unit);
  bytes[0] = (uint8_t)length;
  memcpy(bytes + 8, header, length);
  memcpy(bytes + 8 + length, data, count * unit);
  put_raw("model.safetensors", bytes, 8 + length + count * unit);
  free(bytes);
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The bf16 nearest to `value`, ties to even, by comparing distances: no bit trick in common with the code under
 * test. */
static bool is_nearest_bf16(uint16_t got, double value) {
  double at = (double)float_of((uint32_t)got << 16);
  if (isnan(value)) {
    return isnan(at);
  }
  if (isinf(at)) {
    return fabs(value) >= 0x1.ffp127 && signbit(at) == signbit(value);
  }
  double distance = fabs(at - value);
  double below = fabs((double)float_of((uint32_t)(uint16_t)(got - 1) << 16) - value);
  double above = fabs((double)float_of((uint32_t)(uint16_t)(got + 1) << 16) - value);
  below = (got & 0x7fff) == 0 ? INFINITY : below;
  above = (got & 0x7fff) == 0x7f7f ? INFINITY : above;
  bool even = (got & 1) == 0;
  return signbit(at) == signbit(value) && (even ? distance <= below : distance < below) &&
         (even ? distance <= above : distance < above);
}

static double half_value(uint16_t half) {
  int exponent = half >> 10 & 31;
  double fraction = half & 1023;
  double value = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(fraction, -24)
                                 : ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -value : value;
}

Test(checkpoint, every_half_is_rounded_to_the_nearest_bf16) {
  uint16_t *halves = malloc(65536 * 2), *got = malloc(65536 * 2);
  for (uint32_t i = 0; i < 65536; i++) {
    halves[i] = (uint16_t)i;
  }
  one_tensor("F16", 2, 65536, halves);
  mk_checkpoint *checkpoint = opened();
  cr_assert_eq(mk_tensor_read(checkpoint, mk_checkpoint_find(checkpoint, "t"), 0, 65536, got), MK_OK);
  for (uint32_t i = 0; i < 65536; i++) {
    cr_assert(is_nearest_bf16(got[i], half_value((uint16_t)i)), "fp16 0x%04x became 0x%04x", i, got[i]);
  }
  mk_checkpoint_close(checkpoint);
  free(halves);
  free(got);
}

Test(checkpoint, fp32_is_rounded_to_the_nearest_bf16) {
  enum { COUNT = 200000, FIRST = 777 }; /* several chunks, and a start inside one */
  uint32_t *bits = malloc(COUNT * 4);
  uint16_t *got = malloc(COUNT * 2);
  uint64_t state = 1;
  for (uint32_t i = 0; i < COUNT; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint32_t low = i % 4 == 0   ? 0x8000u
                   : i % 4 == 1 ? 0x7fffu
                   : i % 4 == 2 ? 0x8001u
                                : (uint32_t)(state >> 20 & 0xffff);
    bits[i] = (uint32_t)(state >> 48) << 16 | low;
  }
  static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff,
                                     0x7f7fffff, 0x00000001, 0x80000000, 0x00008000};
  memcpy(bits + COUNT - 8, special, sizeof special);
  one_tensor("F32", 4, COUNT, bits);
  mk_checkpoint *checkpoint = opened();
  const mk_tensor *t = mk_checkpoint_find(checkpoint, "t");
  cr_assert_eq(mk_tensor_read(checkpoint, t, FIRST, COUNT - FIRST, got), MK_OK);
  for (uint32_t i = 0; i < COUNT - FIRST; i++) {
    uint32_t source = bits[FIRST + i];
    cr_assert(is_nearest_bf16(got[i], (double)float_of(source)), "fp32 0x%08x became 0x%04x", source, got[i]);
  }
  mk_checkpoint_close(checkpoint);
  free(bits);
  free(got);
}

/* The header. */

Test(checkpoint, empty_file) {
  put_raw("model.safetensors", "", 0);
  open_refused("model.safetensors: is empty");
}
Test(checkpoint, shorter_than_the_length_field) {
  put_raw("model.safetensors", "\5\0\0", 3);
  open_refused("has 3 bytes");
}
Test(checkpoint, header_length_0) {
  put_lying("model.safetensors", 0, TWO, 20);
  open_refused("header length is 0 bytes");
}
Test(checkpoint, header_length_7) {
  put_lying("model.safetensors", 7, TWO, 20);
  open_refused("header length is 7 bytes");
}
Test(checkpoint, header_longer_than_the_file) {
  put_lying("model.safetensors", sizeof TWO + 20, TWO, 20);
  open_refused("the file has");
}
Test(checkpoint, header_length_2_to_the_63) {
  put_lying("model.safetensors", UINT64_C(1) << 63, TWO, 20);
  open_refused("header length is 9223372036854775808 bytes");
}
Test(checkpoint, header_length_2_to_the_64_less_1) {
  put_lying("model.safetensors", UINT64_MAX, TWO, 20);
  open_refused("header length is 18446744073709551615 bytes");
}
Test(checkpoint, header_not_utf8) {
  refused("{" ENTRY("a\xff", "BF16", "[1]", "0", "2") "}", 2, "not valid JSON: unable to decode byte 0xff");
}
Test(checkpoint, header_not_json) { refused("{\"a\":nonsense}", 2, "not valid JSON"); }
Test(checkpoint, header_no_object) { refused("[1,2,3,4,5]", 2, "must start with '{'"); }
Test(checkpoint, header_without_tensors) { refused("{\"__metadata__\":{}}", 0, "the header lists no tensor"); }
Test(checkpoint, header_nested_without_end) {
  char *deep = malloc(100001);
  deep[0] = '{';
  memset(deep + 1, '[', 99999);
  deep[100000] = '\0';
  refused(deep, 2, "not valid JSON");
  free(deep);
}
Test(checkpoint, duplicate_names) {
  refused("{" ENTRY("a", "BF16", "[1]", "0", "2") "," ENTRY("a", "BF16", "[1]", "2", "4") "}", 4,
          "duplicate object key near '\"a\"'");
}
Test(checkpoint, entry_no_object) { refused("{\"a\":17,\"b\":18}", 2, "tensor a: must be an object"); }

/* Shapes and types. */

Test(checkpoint, negative_dimension) {
  refused("{" ENTRY("a", "BF16", "[-1]", "0", "2") "}", 2, "tensor a: shape [-1]");
}
Test(checkpoint, fractional_dimension) {
  refused("{" ENTRY("a", "BF16", "[1.5]", "0", "3") "}", 3, "tensor a: shape [1.5]");
}
Test(checkpoint, dimension_beyond_64_bits) {
  refused("{" ENTRY("a", "BF16", "[18446744073709551617]", "0", "2") "}", 2, "18446744073709551617");
}
Test(checkpoint, dimensions_whose_product_wraps) {
  refused("{" ENTRY("a", "BF16", "[4194305,4194305,211106198978564]", "0", "8") "}", 8,
          "tensor a: shape [4194305,4194305,211106198978564]: the product of the sizes does not fit 64 bits");
}
Test(checkpoint, product_of_bytes_wraps) {
  refused("{" ENTRY("a", "F32", "[4611686018427387904]", "0", "0") "}", 0, "does not fit 64 bits");
}
Test(checkpoint, shape_no_list) {
  refused("{" ENTRY("a", "BF16", "2", "0", "4") "}", 4, "tensor a: shape 2 must be a list");
}
Test(checkpoint, five_dimensions) {
  refused("{" ENTRY("a", "BF16", "[1,1,1,1,1]", "0", "2") "}", 2, "at most 4 sizes");
}
Test(checkpoint, unknown_dtype) {
  refused("{" ENTRY("a", "F8_E5M2", "[2]", "0", "2") "}", 2, "tensor a: dtype \"F8_E5M2\" is not supported");
}
Test(checkpoint, no_dtype) { refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "tensor a: dtype null"); }

/* Offsets. */

Test(checkpoint, size_unlike_offsets) {
  refused("{" ENTRY("a", "BF16", "[2,3]", "0", "14") "}", 14, "span 14 bytes, but dtype and shape [2, 3] need 12");
}
Test(checkpoint, hole) {
  refused("{" ENTRY("a", "BF16", "[1]", "0", "2") "," ENTRY("b", "BF16", "[1]", "4", "6") "}", 6,
          "tensor b: starts at byte 4 of the data, but the one before it ends at 2: there is a hole");
}
Test(checkpoint, hole_at_the_start) { refused("{" ENTRY("a", "BF16", "[1]", "2", "4") "}", 4, "there is a hole"); }
Test(checkpoint, overlap) {
  refused("{" ENTRY("a", "BF16", "[2]", "0", "4") "," ENTRY("b", "BF16", "[2]", "2", "6") "}", 6,
          "tensor b: starts at byte 2");
  expect_message("they overlap");
}
Test(checkpoint, begin_after_end) {
  refused("{" ENTRY("a", "BF16", "[1]", "2", "0") "}", 2, "begin is greater than end");
}
Test(checkpoint, end_after_the_file) {
  refused("{" ENTRY("a", "BF16", "[8]", "0", "16") "}", 14, "end is greater than the 14 bytes");
}
Test(checkpoint, trailing_bytes) {
  refused("{" ENTRY("a", "BF16", "[1]", "0", "2") "}", 5, "3 bytes follow the last tensor");
}
Test(checkpoint, negative_offset) { refused("{" ENTRY("a", "BF16", "[1]", "-2", "0") "}", 2, "data_offsets [-2,0]"); }
Test(checkpoint, fractional_offset) {
  refused("{" ENTRY("a", "BF16", "[1]", "0", "2.0") "}", 2, "must be two whole numbers");
}
Test(checkpoint, one_offset) {
  refused("{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2]}}", 2, "data_offsets [2]");
}

/* Files. */

Test(checkpoint, a_directory_instead_of_the_file) {
  cr_assert_eq(mkdir(path_of("model.safetensors"), 0700), 0);
  open_refused("model.safetensors: is a directory");
}
Test(checkpoint, a_fifo_instead_of_the_file, .timeout = MK_HANG_SECONDS) {
  cr_assert_eq(mkfifo(path_of("model.safetensors"), 0600), 0);
  open_refused("model.safetensors: is a FIFO");
}
Test(checkpoint, nothing_there) { open_refused("neither model.safetensors nor model.safetensors.index.json is there"); }
Test(checkpoint, no_such_directory) {
  mk_checkpoint *checkpoint;
  cr_expect_eq(mk_checkpoint_open("/nonexistent/model", &checkpoint), MK_ERR_FILE);
  expect_message("/nonexistent/model");
}
Test(checkpoint, only_bin) {
  put_raw("pytorch_model.bin", "x", 1);
  open_refused("pytorch_model.bin is not supported; convert it to model.safetensors");
}
Test(checkpoint, truncated_while_it_is_read) {
  put("model.safetensors", TWO, 20);
  mk_checkpoint *checkpoint = opened();
  uint16_t values[6];
  cr_assert_eq(truncate(path_of("model.safetensors"), (off_t)(8 + strlen(TWO) + 15)), 0);
  cr_expect_eq(mk_tensor_read(checkpoint, mk_checkpoint_find(checkpoint, "a"), 0, 6, values), MK_OK);
  cr_expect_eq(mk_tensor_read(checkpoint, mk_checkpoint_find(checkpoint, "b"), 0, 2, values), MK_ERR_FILE);
  expect_message("tensor b: ");
  expect_message("model.safetensors: truncated while it was read");
  mk_checkpoint_close(checkpoint);
}
Test(checkpoint, every_truncation_is_refused) {
  size_t header = strlen(TWO);
  for (size_t length = 1; length < 8 + header + 20; length++) {
    put("model.safetensors", TWO, 20);
    cr_assert_eq(truncate(path_of("model.safetensors"), (off_t)length), 0);
    mk_checkpoint *checkpoint;
    cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_ERR_FILE, "%zu bytes", length);
  }
}

/* Shards. */

#define INDEX "model.safetensors.index.json"

static void put_index(const char *map) {
  char text[1024];
  size_t length = (size_t)snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":4},\"weight_map\":%s}", map);
  put_raw(INDEX, text, length);
}

static void put_shards(void) {
  put("one.safetensors", "{" ENTRY("a", "BF16", "[1]", "0", "2") "}", 2);
  put("two.safetensors", "{" ENTRY("b", "BF16", "[1]", "2", "4") "," ENTRY("c", "BF16", "[1]", "0", "2") "}", 4);
}

Test(checkpoint, two_shards) {
  put_shards();
  put_index("{\"c\":\"two.safetensors\",\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
  mk_checkpoint *checkpoint = opened();
  uint16_t value;
  cr_expect_eq(mk_checkpoint_count(checkpoint), 3);
  const mk_tensor *b = mk_checkpoint_find(checkpoint, "b");
  cr_assert_eq(mk_tensor_read(checkpoint, b, 0, 1, &value), MK_OK);
  cr_expect_eq(value, 0x0302);
  cr_expect_not_null(strstr(mk_checkpoint_path(checkpoint, b), "two.safetensors"));
  mk_checkpoint_close(checkpoint);
}

static void index_refused(const char *map, const char *message) {
  put_shards();
  put_index(map);
  open_refused(message);
}

Test(checkpoint, shard_name_with_a_slash) {
  index_refused("{\"a\":\"sub/one.safetensors\"}", "weight_map: a: \"sub/one.safetensors\" must be");
}
Test(checkpoint, shard_name_from_the_root) {
  index_refused("{\"a\":\"/etc/x.safetensors\"}", "must be the name of a .safetensors file");
}
Test(checkpoint, shard_name_with_dots) { index_refused("{\"a\":\"..safetensors\"}", "\"..safetensors\" must be"); }
Test(checkpoint, shard_of_another_kind) { index_refused("{\"a\":\"config.json\"}", "\"config.json\" must be"); }
Test(checkpoint, shard_name_no_string) { index_refused("{\"a\":3}", "weight_map: a: 3 must be"); }
Test(checkpoint, shard_missing) {
  index_refused("{\"a\":\"three.safetensors\"}", "three.safetensors: cannot be opened");
}
Test(checkpoint, tensor_missing_from_its_shard) {
  index_refused("{\"a\":\"one.safetensors\",\"x\":\"one.safetensors\"}", "tensor x is not in one.safetensors");
}
Test(checkpoint, tensor_not_listed) {
  index_refused("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}",
                "tensor c is in two.safetensors but not listed");
}
Test(checkpoint, tensor_in_another_shard) {
  index_refused("{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}", "also or only in");
}
Test(checkpoint, tensor_in_two_shards) {
  put_shards();
  put("three.safetensors", "{" ENTRY("a", "BF16", "[1]", "0", "2") "," ENTRY("d", "BF16", "[1]", "2", "4") "}", 4);
  put_index(
      "{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\",\"d\":\"three.safetensors\"}");
  open_refused("tensor a is listed in one.safetensors but also or only in three.safetensors");
}
Test(checkpoint, tensor_listed_twice) {
  index_refused("{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}", "duplicate object key");
}
Test(checkpoint, index_without_map) { index_refused("[]", "weight_map: must be an object"); }
Test(checkpoint, index_empty) {
  put_raw(INDEX, "", 0);
  open_refused("index.json: is empty");
}
Test(checkpoint, bad_shard_is_named) {
  put_shards();
  put("two.safetensors", "{" ENTRY("b", "U8", "[1]", "0", "1") "}", 1);
  put_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
  open_refused("two.safetensors: tensor b: dtype \"U8\"");
}

/* Against a configuration: hidden 8, intermediate 6, 2 layers, 2 heads of 64, 1 kv head, vocabulary 5. */

static const mk_config config = {
    .hidden = 8, .intermediate = 6, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 64, .vocab = 5};

typedef struct item {
  char name[80];
  unsigned rows, columns; /* columns 0: a vector */
} item;
enum { ITEMS = 21 };

static void llama(item *items) {
  static const item layer[] = {{"input_layernorm.weight", 8, 0},    {"self_attn.q_proj.weight", 128, 8},
                               {"self_attn.k_proj.weight", 64, 8},  {"self_attn.v_proj.weight", 64, 8},
                               {"self_attn.o_proj.weight", 8, 128}, {"post_attention_layernorm.weight", 8, 0},
                               {"mlp.gate_proj.weight", 6, 8},      {"mlp.up_proj.weight", 6, 8},
                               {"mlp.down_proj.weight", 8, 6}};
  size_t n = 0;
  items[n++] = (item){"model.embed_tokens.weight", 5, 8};
  for (unsigned l = 0; l < 2; l++) {
    for (size_t i = 0; i < 9; i++) {
      items[n] = layer[i];
      snprintf(items[n++].name, sizeof items[0].name, "model.layers.%u.%.60s", l, layer[i].name);
    }
  }
  items[n++] = (item){"model.norm.weight", 8, 0};
  items[n++] = (item){"lm_head.weight", 5, 8};
  cr_assert_eq(n, ITEMS);
}

static mk_status check(const item *items, size_t count, const mk_config *c) {
  char header[8192] = "{";
  size_t used = 1, offset = 0;
  for (size_t i = 0; i < count; i++) {
    size_t bytes = 2 * (size_t)items[i].rows * (items[i].columns == 0 ? 1 : items[i].columns);
    char shape[40];
    snprintf(shape, sizeof shape, items[i].columns == 0 ? "%u" : "%u,%u", items[i].rows, items[i].columns);
    used += (size_t)snprintf(header + used, sizeof header - used,
                             "%s\"%s\":{\"dtype\":\"F16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                             i == 0 ? "" : ",", items[i].name, shape, offset, offset + bytes);
    offset += bytes;
  }
  snprintf(header + used, sizeof header - used, "}");
  put("model.safetensors", header, offset);
  mk_checkpoint *checkpoint = opened();
  mk_status status = mk_checkpoint_check(checkpoint, c);
  mk_checkpoint_close(checkpoint);
  return status;
}

Test(checkpoint, agrees_with_the_configuration) {
  item items[ITEMS + 2];
  mk_config tied = config;
  tied.tied = true;
  llama(items);
  cr_expect_eq(check(items, ITEMS, &config), MK_OK, "%s", mk_error_message());
  cr_expect_eq(check(items, ITEMS - 1, &tied), MK_OK, "%s", mk_error_message());
  cr_expect_eq(check(items, ITEMS, &tied), MK_OK, "a tied head that is written too: %s", mk_error_message());
  items[ITEMS] = (item){"model.layers.1.self_attn.rotary_emb.inv_freq", 32, 0};
  items[ITEMS + 1] = (item){"model.rotary_emb.inv_freq", 32, 0};
  cr_expect_eq(check(items, ITEMS + 2, &config), MK_OK, "%s", mk_error_message());
}

Test(checkpoint, each_missing_tensor_is_named) {
  for (size_t i = 0; i < ITEMS; i++) {
    item items[ITEMS];
    char message[128];
    llama(items);
    snprintf(message, sizeof message, "tensor %.79s: is missing", items[i].name);
    items[i] = items[ITEMS - 1];
    cr_expect_eq(check(items, ITEMS - 1, &config), MK_ERR_FILE);
    expect_message(message);
  }
}

Test(checkpoint, each_wrong_shape_is_named) {
  for (size_t i = 0; i < ITEMS; i++) {
    for (unsigned way = 0; way < 3; way++) {
      item items[ITEMS];
      char message[128];
      llama(items);
      snprintf(message, sizeof message, "tensor %.79s: shape is [", items[i].name);
      items[i].rows += way == 0;
      items[i].columns += way == 1; /* a vector becomes a matrix of one column */
      if (way == 2) {
        items[i].columns = items[i].columns == 0 ? items[i].rows : 0;
      }
      cr_expect_eq(check(items, ITEMS, &config), MK_ERR_FILE, "%s, way %u", items[i].name, way);
      expect_message(message);
    }
  }
  item items[ITEMS];
  llama(items);
  items[3].rows = 128;
  check(items, ITEMS, &config);
  expect_message("tensor model.layers.0.self_attn.k_proj.weight: shape is [128, 8], config.json asks for [64, 8]");
}

Test(checkpoint, surplus_tensors_are_named) {
  static const char *const names[] = {"model.layers.01.input_layernorm.weight",
                                      "model.layers.0.self_attn.q_proj.bias",
                                      "model.layers.1.mlp.up_proj.bias",
                                      "model.layers.4294967296.input_layernorm.weight",
                                      "model.layers..input_layernorm.weight",
                                      "score.weight",
                                      ""};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    item items[ITEMS + 1];
    char message[128];
    llama(items);
    items[ITEMS] = (item){"", 8, 0};
    snprintf(items[ITEMS].name, sizeof items[0].name, "%s", names[i]);
    snprintf(message, sizeof message, "tensor %s: is not part of a Llama of 2 layers", names[i]);
    cr_expect_eq(check(items, ITEMS + 1, &config), MK_ERR_FILE, "%s", names[i]);
    expect_message(message);
  }
}

Test(checkpoint, every_allocation_may_fail) {
  put_shards();
  put_index("{\"c\":\"two.safetensors\",\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
  for (int forever = 0; forever < 2; forever++) {
    uint64_t n = 1;
    for (;; n++) {
      mk_checkpoint *checkpoint;
      mk_alloc_fail_at(n, forever);
      mk_status status = mk_checkpoint_open(directory, &checkpoint);
      uint64_t calls = mk_alloc_calls();
      mk_alloc_fail_at(0, false);
      if (calls < n) {
        cr_assert_eq(status, MK_OK);
        mk_checkpoint_close(checkpoint);
        break;
      }
      cr_assert_eq(status, MK_ERR_RUNTIME);
      cr_assert_null(checkpoint);
      cr_assert_not_null(strstr(mk_error_message(), "out of memory"), "%s", mk_error_message());
    }
    cr_assert_gt(n, 10);
  }
}
