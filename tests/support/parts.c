/* See parts.h. */
#include "tests/support/parts.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/synth.h"
#include "tests/support/raw_model.h"
#include "tests/support/text.h"

enum { HEADER = 1 << 16, SHARDS = 4 };

test_part *test_parts_add(test_parts *parts, const char *name, const char *like, uint64_t rows, uint64_t columns) {
  cr_assert_eq(mk_grow(&parts->parts, &parts->capacity, parts->count + 1, sizeof *parts->parts), MK_OK);
  test_part *part = &parts->parts[parts->count++];
  *part = (test_part){.rank = columns == 0 ? 1 : 2, .shape = {rows, columns == 0 ? 1 : columns}};
  snprintf(part->name, sizeof part->name, "%s", name);
  snprintf(part->like, sizeof part->like, "%s", like == NULL ? name : like);
  return part;
}

test_parts test_parts_of(const mk_config *config) {
  test_parts parts = {.count = 0};
  for (uint64_t i = 0; i < mk_synth_tensor_count(config); i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(config, i, &tensor);
    test_parts_add(&parts, tensor.name, NULL, tensor.shape[0], tensor.rank == 1 ? 0 : tensor.shape[1]);
  }
  return parts;
}

void test_parts_free(test_parts *parts) { mk_free(parts->parts); }

test_part *test_parts_find(test_parts *parts, const char *name) {
  for (size_t i = 0; i < parts->count; i++) {
    if (strcmp(parts->parts[i].name, name) == 0) {
      return &parts->parts[i];
    }
  }
  cr_assert_fail("no tensor %s", name);
  return NULL;
}

static uint64_t unit_of(const test_part *part) { return part->dtype == MK_TENSOR_F32 ? 4 : 2; }

static void put_element(const test_part *part, uint64_t key, uint64_t index, FILE *file) {
  int8_t hash = (int8_t)(mk_synth_hash(key, index) >> 56);
  float value = (float)(hash % 64) / 512 + (part->rank == 1 ? 1 : 0);
  _Float16 half = (_Float16)value;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t upper = (uint16_t)(bits >> 16);
  const void *from = part->dtype == MK_TENSOR_F32   ? (const void *)&bits
                     : part->dtype == MK_TENSOR_F16 ? (const void *)&half
                                                    : &upper;
  cr_assert_eq(fwrite(from, (size_t)unit_of(part), 1, file), 1);
}

static void write_file(const test_parts *parts, uint32_t shard, const char *path) {
  char *header = calloc(1, HEADER);
  size_t used = (size_t)snprintf(header, HEADER, "{\"__metadata__\":{\"format\":\"pt\"}");
  uint64_t at = 0;
  for (size_t i = 0; i < parts->count; i++) {
    const test_part *part = &parts->parts[i];
    const uint64_t bytes = part->shape[0] * part->shape[1] * unit_of(part);
    char shape[64];
    if (part->shard != shard) {
      continue;
    }
    snprintf(shape, sizeof shape, part->rank == 1 ? "%llu" : "%llu,%llu", (unsigned long long)part->shape[0],
             (unsigned long long)part->shape[1]);
    used += (size_t)snprintf(
        header + used, HEADER - used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
        part->name, test_raw_dtype(part->dtype), shape, (unsigned long long)at, (unsigned long long)(at + bytes));
    at += bytes;
  }
  used += (size_t)snprintf(header + used, HEADER - used, "}");
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file, "%s", path);
  const uint64_t length = used;
  cr_assert_eq(fwrite(&length, sizeof length, 1, file), 1);
  cr_assert_eq(fwrite(header, used, 1, file), 1);
  for (size_t i = 0; i < parts->count; i++) {
    const test_part *part = &parts->parts[i];
    const uint64_t key = mk_synth_key(1, part->like);
    for (uint64_t e = 0; part->shard == shard && e < part->shape[0] * part->shape[1]; e++) {
      put_element(part, key, e, file);
    }
  }
  cr_assert_eq(fclose(file), 0);
  free(header);
}

static void write_index(const test_parts *parts, const char *directory) {
  char path[TEST_RAW_PATH + 64];
  snprintf(path, sizeof path, "%s/model.safetensors", directory);
  (void)remove(path); /* which would be preferred */
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory);
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file, "%s", path);
  for (size_t i = 0; i < parts->count; i++) {
    fprintf(file, "%s\"%s\":\"part-%u.safetensors\"", i == 0 ? "{\"weight_map\":{" : ",", parts->parts[i].name,
            parts->parts[i].shard);
  }
  fputs("}}", file);
  cr_assert_eq(fclose(file), 0);
}

void test_parts_write(const test_parts *parts, const char *directory) {
  char path[TEST_RAW_PATH + 64];
  size_t of_shard[SHARDS] = {0};
  for (size_t i = 0; i < parts->count; i++) {
    of_shard[parts->parts[i].shard]++;
  }
  if (of_shard[0] == parts->count) {
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    write_file(parts, 0, path);
    return;
  }
  for (uint32_t shard = 0; shard < SHARDS; shard++) {
    snprintf(path, sizeof path, "%s/part-%u.safetensors", directory, shard);
    if (of_shard[shard] != 0) {
      write_file(parts, shard, path);
    }
  }
  write_index(parts, directory);
}

/* Writes `text` with the one `from` in it replaced. */
static void put_with(FILE *file, const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  cr_assert_not_null(at, "%s is not in %s", from, text);
  cr_assert_gt(fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
}

static void wrap_config(const char *directory) {
  char path[512];
  snprintf(path, sizeof path, "%s/config.json", directory);
  char *text = test_read_file(path), *end = strstr(text, "\"model_type\"");
  cr_assert_not_null(end, "%s", text);
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file, "%s", path);
  cr_assert_gt(fprintf(file, "{\"model_type\": \"mistral3\", \"vision_config\": {}, \"text_config\": "), 0);
  char *classes = strstr(text, "LlamaForCausalLM");
  cr_assert(classes != NULL && classes < end, "%s", text);
  cr_assert_gt(fprintf(file, "%.*sMistral", (int)(classes - text), text), 0);
  put_with(file, classes + strlen("Llama"), "\"llama\"", "\"mistral\"");
  cr_assert_gt(fprintf(file, "}\n"), 0);
  cr_assert_eq(fclose(file), 0);
  free(text);
}

void test_parts_make_whole(test_parts *parts, const char *directory, bool inner) {
  char name[sizeof parts->parts[0].name];
  wrap_config(directory);
  for (size_t i = 0; i < parts->count; i++) {
    test_part *part = &parts->parts[i];
    const bool of_model = strncmp(part->name, "model.", 6) == 0;
    snprintf(name, sizeof name, "%s", part->name);
    if (inner && of_model) {
      snprintf(part->name, sizeof part->name, "model.language_model.%.70s", name + 6);
    } else if (!inner) {
      snprintf(part->name, sizeof part->name, "language_model.%.70s", name);
    }
  }
  snprintf(name, sizeof name, "%svision_tower.patch_conv.weight", inner ? "model." : "");
  test_parts_add(parts, name, NULL, 7, 0)->dtype = MK_TENSOR_F32;
  snprintf(name, sizeof name, "%smulti_modal_projector.linear_1.weight", inner ? "model." : "");
  test_parts_add(parts, name, NULL, 5, 3)->shard = 1;
}
