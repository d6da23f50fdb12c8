/* quantization_config of config.json: what is read, and what is refused by name. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/config.h"
#include "models/family.h"

static mk_status parse(const char *model, const char *quantization, mk_config *out) {
  char text[4096];
  const int length = snprintf(text, sizeof text,
                              "{%s\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":3,"
                              "\"num_attention_heads\":4,\"vocab_size\":320,\"torch_dtype\":\"float16\","
                              "\"quantization_config\":%s}",
                              model, quantization);
  return mk_config_parse(text, (size_t)length, out);
}

static mk_config accepted(const char *quantization) {
  mk_config config = {0};
  cr_assert_eq(parse("\"model_type\":\"llama\",", quantization, &config), MK_OK, "%s: %s", quantization,
               mk_error_message());
  return config;
}

static void refused(const char *quantization, const char *message) {
  mk_config config, before;
  memset(&config, 0x5a, sizeof config);
  before = config;
  cr_expect_eq(parse("\"model_type\":\"llama\",", quantization, &config), MK_ERR_FILE, "%s", quantization);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
  cr_expect_eq(memcmp(&config, &before, sizeof config), 0, "the output changed");
}

#define GROUP(weights) "{\"g\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}}"
#define COMPRESSED(format, weights, more) \
  "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"config_groups\":" GROUP(weights) more "}"
#define FP8 "\"num_bits\":8,\"type\":\"float\","
#define INT8 "\"num_bits\":8,\"type\":\"int\","
#define INT4 "\"num_bits\":4,\"type\":\"int\","
#define NO_HEAD ",\"ignore\":[\"lm_head\"]"
enum { ALL = 7 }; /* modules of a layer: q, k, v, o, gate, up, down */

static uint32_t count(const mk_config *c, uint32_t layer) {
  return (uint32_t)__builtin_popcount(c->quant.modules[layer]);
}

Test(quant, compressed_tensors) {
  mk_config c = accepted(COMPRESSED("float-quantized", FP8 "\"strategy\":\"tensor\"", NO_HEAD));
  cr_expect(c.quant.layout == MK_QUANT_PLAIN && c.quant.codes == MK_CODES_E4M3 && c.quant.by_tensor && !c.quant.head);
  cr_expect(count(&c, 0) == ALL && count(&c, 2) == ALL && count(&c, 3) == 0 && c.quant.scale == MK_TENSOR_F16);
  c = accepted(COMPRESSED("naive-quantized", FP8 "\"strategy\":\"channel\"", ""));
  cr_expect(c.quant.layout == MK_QUANT_PLAIN && !c.quant.by_tensor && c.quant.head);
  c = accepted(
      COMPRESSED("naive-quantized", FP8 "\"strategy\":\"tensor\"", NO_HEAD ",\"quantization_status\":\"frozen\""));
  cr_expect(c.quant.by_tensor && count(&c, 1) == ALL);
  c = accepted(COMPRESSED("float-quantized", FP8 "\"strategy\":\"block\",\"block_structure\":[128,64]", NO_HEAD));
  cr_expect(c.quant.layout == MK_QUANT_BLOCKS && c.quant.block == 128 && c.quant.group == 64 && !c.quant.inverse);
  c = accepted(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", NO_HEAD));
  cr_expect(c.quant.codes == MK_CODES_INT8 && !c.quant.zeros);
  c = accepted(
      COMPRESSED("pack-quantized", INT4 "\"strategy\":\"group\",\"group_size\":64,\"symmetric\":false", NO_HEAD));
  cr_expect(c.quant.layout == MK_QUANT_PACKED && c.quant.zeros && c.quant.group == 64 && !c.quant.may_order);
  cr_expect_eq(mk_quant_scale_cols(&c.quant), 64);
  c = accepted(COMPRESSED("pack-quantized", INT4 "\"strategy\":\"channel\",\"group_size\":null", NO_HEAD));
  cr_expect(c.quant.group == 0 && mk_quant_scale_cols(&c.quant) == 128 && mk_quant_groups(&c.quant, 300) == 1);
  c = accepted(
      COMPRESSED("pack-quantized", INT4 "\"strategy\":\"group\",\"group_size\":384,\"actorder\":\"group\"", NO_HEAD));
  cr_expect(c.quant.may_order && c.quant.ordered[1] == c.quant.modules[1] && mk_quant_groups(&c.quant, 512) == 2);
  c = accepted(
      COMPRESSED("pack-quantized", INT4 "\"strategy\":\"group\",\"group_size\":32,\"actorder\":\"weight\"", NO_HEAD));
  cr_expect(!c.quant.may_order && c.quant.ordered[1] == 0);
}

Test(quant, other_methods) {
  mk_config c = accepted("{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}");
  cr_expect(c.quant.layout == MK_QUANT_BLOCKS && c.quant.inverse && !c.quant.head && c.quant.scale == MK_TENSOR_F32);
  c = accepted("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"version\":\"GEMM\",\"zero_point\":true}");
  cr_expect(c.quant.layout == MK_QUANT_AWQ && c.quant.zeros && !c.quant.head && count(&c, 1) == ALL);
  c = accepted("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1,\"sym\":true}");
  cr_expect(c.quant.layout == MK_QUANT_GPTQ && !c.quant.zeros && c.quant.less_one && c.quant.group == 0);
  c = accepted(
      "{\"quant_method\":\"gptq\",\"bits\":4,\"sym\":false,\"checkpoint_format\":\"gptq_v2\",\"lm_head\":true}");
  cr_expect(c.quant.zeros && !c.quant.less_one && c.quant.head && c.quant.group == 128);
}

Test(quant, modules_that_are_spared) {
  mk_config c =
      accepted(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"",
                          ",\"ignore\":[\"lm_head\",\"re:.*layers\\\\.1\\\\..*\",\"model.layers.2.mlp.up_proj\","
                          "\"up_proj\",\"re:mlp\"]"));
  cr_expect(count(&c, 0) == ALL && count(&c, 1) == 0 && count(&c, 2) == ALL - 1);
  c = accepted(
      "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"a\":{\"targets\":["
      "\"re:.*self_attn.*\"],\"weights\":{" INT8
      "\"strategy\":\"channel\"}},\"b\":{\"targets\":[\"model.layers.0.mlp."
      "down_proj\"],\"weights\":{" INT8 "\"strategy\":\"channel\"}}}}");
  cr_expect(count(&c, 0) == 5 && count(&c, 1) == 4 && !c.quant.head);
  c = accepted("{\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"model.layers.1\",\"k_proj\",\"model.*.up\"]}");
  cr_expect(count(&c, 0) == ALL - 1 && count(&c, 1) == 0 && count(&c, 2) == ALL - 1);
  c = accepted(
      "{\"quant_method\":\"gptq\",\"modules_in_block_to_quantize\":[[\"self_attn.q_proj\"],[\"mlp.up_proj\",\"proj\"]]"
      "}");
  cr_expect(count(&c, 0) == 2 && count(&c, 2) == 2);
}

Test(quant, a_fused_matrix_is_one_module) {
  mk_config c = {0};
  cr_assert_eq(parse("\"model_type\":\"phi3\",\"num_key_value_heads\":4,",
                     "{\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"qkv_proj\"]}", &c),
               MK_OK, "%s", mk_error_message());
  cr_expect_eq(count(&c, 0), 3); /* o, gate_up, down */
}

Test(quant, refused_by_name) {
  refused("[]", "quantization_config: must be an object");
  refused("{}", "quantization_config.quant_method: none is not supported; \"compressed-tensors\"");
  refused("{\"quant_method\":\"bitsandbytes\",\"bnb_4bit_quant_type\":\"nf4\"}",
          "quant_method: \"bitsandbytes\" is not");
  refused("{\"quant_method\":\"mxfp4\"}", "quant_method: \"mxfp4\"");
  refused("{\"quant_method\":4}", "quant_method: 4");
  refused(COMPRESSED("nvfp4-pack-quantized", INT4 "\"strategy\":\"group\"", ""), "format: \"nvfp4-pack-quantized\"");
  refused(COMPRESSED("marlin-24", INT4 "\"strategy\":\"group\"", ""), "format: \"marlin-24\"");
  refused(COMPRESSED("int-quantized", FP8 "\"strategy\":\"channel\"", ""), "weights.type: \"float\"");
  refused(COMPRESSED("float-quantized", INT8 "\"strategy\":\"channel\"", ""), "weights.type: \"int\"");
  refused(COMPRESSED("pack-quantized", "\"num_bits\":3,\"type\":\"int\",\"strategy\":\"group\"", ""), "num_bits: 3");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\",\"symmetric\":false", ""), "symmetric: false");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"token\"", ""), "strategy: \"token\"");
  refused(COMPRESSED("float-quantized", FP8 "\"strategy\":\"block\"", ""), "block_structure: none");
  refused(COMPRESSED("float-quantized", FP8 "\"strategy\":\"block\",\"block_structure\":[128,48]", ""), "blocks of 32");
  refused(COMPRESSED("float-quantized", FP8 "\"strategy\":\"block\",\"block_structure\":[0,128]", ""),
          "block_structure");
  refused(COMPRESSED("pack-quantized", INT4 "\"strategy\":\"group\",\"group_size\":48", ""), "group_size: 48");
  refused(COMPRESSED("pack-quantized", INT4 "\"strategy\":\"group\",\"actorder\":\"other\"", ""),
          "actorder: \"other\"");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"quantization_status\":\"calibration\""),
          "quantization_status: \"calibration\"");
  refused(
      COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"sparsity_config\":{\"format\":\"sparse-24\"}"),
      "sparsity_config");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"ignore\":[\"re:(\"]"), "is not understood");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"ignore\":[\"re:(.+)+(.+)+[!?]\"]"),
          "takes too long");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"ignore\":[7]"), "ignore: [7]");
  refused(COMPRESSED("int-quantized", INT8 "\"strategy\":\"channel\"", ",\"ignore\":[\"Linear\"]"), "names no matrix");
  refused("{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{}}",
          "config_groups: {}");
  refused(
      "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"a\":{\"weights\":"
      "{" INT8 "\"strategy\":\"channel\"}},\"b\":{\"weights\":{" INT8 "\"strategy\":\"tensor\"}}}}",
      "the same weights");
  refused("{\"quant_method\":\"fp8\"}", "weight_block_size: none");
  refused("{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\",\"weight_block_size\":[128,128]}", "fmt: \"e5m2\"");
  refused("{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,128]}", "scale_fmt");
  refused("{\"quant_method\":\"awq\",\"version\":\"gemv\"}", "version: \"gemv\"");
  refused("{\"quant_method\":\"awq\",\"bits\":8}", "bits: 8");
  refused("{\"quant_method\":\"awq\",\"zero_point\":false}", "zero_point: false");
  refused("{\"quant_method\":\"awq\",\"group_size\":16}", "group_size: 16");
  refused("{\"quant_method\":\"gptq\",\"bits\":\"4\"}", "bits: \"4\"");
  refused("{\"quant_method\":\"gptq\",\"group_size\":-2}", "group_size: -2");
  refused("{\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\"}", "checkpoint_format: \"marlin\"");
  refused("{\"quant_method\":\"gptq\",\"dynamic\":{\"-:.*\":{}}}", "dynamic");
  refused("{\"quant_method\":\"gptq\",\"sym\":1}", "sym: 1");
}
