/* See synth_text.h. */
#include "models/synth_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/config_internal.h"

enum { BYTES = 256, NUMBER = 40 };

/* The shortest decimal that reads back as the same value. */
static const char *show_double(double value, char shown[NUMBER]) {
  if (value == floor(value) && fabs(value) < 1e15) {
    snprintf(shown, NUMBER, "%.1f", value); /* 500000.0 and not 5e+05, as other writers do */
    return shown;
  }
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(shown, NUMBER, "%.*g", digits, value);
    if (strtod(shown, NULL) == value) {
      break;
    }
  }
  return shown;
}

static const char *show_float(float value, char shown[NUMBER]) {
  for (int digits = 1; digits <= 9; digits++) {
    snprintf(shown, NUMBER, "%.*g", digits, (double)value);
    if (strtof(shown, NULL) == value) {
      break;
    }
  }
  return shown;
}

static mk_status add_rope(const mk_config *c, mk_text *out) {
  char number[NUMBER];
  MK_TRY(mk_text_add(out, "  \"rope_theta\": %s,\n", show_double(c->rope_theta, number)));
  if (c->rope_type == MK_ROPE_DEFAULT) {
    return mk_text_add(out, "  \"rope_scaling\": null,\n");
  }
  MK_TRY(mk_text_add(out, "  \"rope_scaling\": {\n    \"factor\": %s,\n", show_double(c->rope_factor, number)));
  if (c->rope_type == MK_ROPE_LLAMA3) {
    MK_TRY(mk_text_add(out, "    \"high_freq_factor\": %s,\n", show_double(c->rope_high_freq_factor, number)));
    MK_TRY(mk_text_add(out, "    \"low_freq_factor\": %s,\n", show_double(c->rope_low_freq_factor, number)));
    MK_TRY(mk_text_add(out, "    \"original_max_position_embeddings\": %u,\n", c->rope_original_max_position));
  }
  return mk_text_add(out, "    \"rope_type\": \"%s\"\n  },\n", mk_rope_type_name(c->rope_type));
}

/* The members bos_token_id and eos_token_id, each with the comma that follows. */
static mk_status add_token_ids(const mk_config *c, mk_text *out) {
  if (c->has_bos) {
    MK_TRY(mk_text_add(out, "  \"bos_token_id\": %u,\n", c->bos));
  }
  if (c->eos_count == 1) {
    return mk_text_add(out, "  \"eos_token_id\": %u,\n", c->eos[0]);
  }
  for (uint32_t i = 0; i < c->eos_count; i++) {
    MK_TRY(mk_text_add(out, "%s%u%s", i == 0 ? "  \"eos_token_id\": [" : ", ", c->eos[i],
                       i + 1 == c->eos_count ? "],\n" : ""));
  }
  return MK_OK;
}

static mk_status add_layer_types(const mk_config *c, mk_text *out) {
  MK_TRY(mk_text_add(out, "  \"layer_types\": ["));
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    MK_TRY(mk_text_add(out, "%s\"%s_attention\"", layer == 0 ? "" : ", ",
                       mk_config_is_local(c, layer) ? "sliding" : "full"));
  }
  return mk_text_add(out, "],\n");
}

static mk_status add_gemma3(const mk_config *c, mk_text *out) {
  char number[NUMBER];
  const double scalar = 1 / (c->attention_multiplier * c->attention_multiplier);
  MK_TRY(add_layer_types(c, out));
  MK_TRY(mk_text_add(out, "  \"query_pre_attn_scalar\": %s,\n", show_double(scalar, number)));
  MK_TRY(mk_text_add(out, "  \"rope_local_base_freq\": %s,\n", show_double(c->rope_local_theta, number)));
  return c->window == 0 ? mk_text_add(out, "  \"sliding_window\": null,\n")
                        : mk_text_add(out, "  \"sliding_window\": %u,\n", c->window);
}

/* What sets the family apart. */
static mk_status add_differences(const mk_config *c, mk_text *out) {
  if (c->kind == MK_MODEL_GEMMA3) {
    return add_gemma3(c, out);
  }
  if (c->kind == MK_MODEL_MISTRAL) {
    return c->window == 0 ? mk_text_add(out, "  \"sliding_window\": null,\n")
                          : mk_text_add(out, "  \"sliding_window\": %u,\n", c->window);
  }
  if (c->kind != MK_MODEL_SMOLLM3) {
    return MK_OK;
  }
  MK_TRY(mk_text_add(out, "  \"no_rope_layers\": ["));
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    MK_TRY(mk_text_add(out, "%s%d", layer == 0 ? "" : ", ", mk_config_rotates(c, layer)));
  }
  return mk_text_add(out, "],\n");
}

mk_status mk_synth_config_json(const mk_config *c, mk_text *out) {
  char number[NUMBER];
  MK_TRY(mk_text_add(out, "{\n  \"architectures\": [\"%s\"],\n  \"attention_bias\": %s,\n",
                     mk_kind_lookup(c->kind)->class, c->o_bias ? "true" : "false"));
  MK_TRY(mk_text_add(out, "  \"attention_dropout\": 0.0,\n"));
  MK_TRY(add_token_ids(c, out));
  MK_TRY(mk_text_add(out, "  \"head_dim\": %u,\n  \"%s\",\n  \"hidden_size\": %u,\n", c->head_dim,
                     c->gelu ? "hidden_activation\": \"gelu_pytorch_tanh" : "hidden_act\": \"silu", c->hidden));
  MK_TRY(mk_text_add(out, "  \"intermediate_size\": %u,\n  \"max_position_embeddings\": %u,\n", c->intermediate,
                     c->max_position));
  MK_TRY(mk_text_add(out, "  \"mlp_bias\": %s,\n  \"model_type\": \"%s\",\n", c->mlp_bias ? "true" : "false",
                     mk_model_type(c->kind)));
  MK_TRY(add_differences(c, out));
  MK_TRY(mk_text_add(out, "  \"num_attention_heads\": %u,\n", c->heads));
  MK_TRY(mk_text_add(out, "  \"num_hidden_layers\": %u,\n  \"num_key_value_heads\": %u,\n", c->layers, c->kv_heads));
  MK_TRY(mk_text_add(out, "  \"pretraining_tp\": 1,\n  \"rms_norm_eps\": %s,\n", show_float(c->rms_eps, number)));
  MK_TRY(add_rope(c, out));
  MK_TRY(mk_text_add(out, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"bfloat16\",\n",
                     c->tied ? "true" : "false"));
  return mk_text_add(out, "  \"use_cache\": true,\n  \"vocab_size\": %u\n}\n", c->vocab);
}

mk_status mk_synth_generation_json(const mk_config *config, mk_text *out) {
  MK_TRY(mk_text_add(out, "{\n"));
  MK_TRY(add_token_ids(config, out));
  return mk_text_add(out, "  \"do_sample\": false\n}\n");
}

/* The id from which on all tokens are special. */
static uint32_t first_special(const mk_config *c) {
  uint32_t first = c->has_bos ? c->bos : c->vocab;
  for (uint32_t i = 0; i < c->eos_count; i++) {
    first = c->eos[i] < first ? c->eos[i] : first;
  }
  return first;
}

enum { PIECE = 48 };

static const char *special_piece(const mk_config *c, uint32_t id, char piece[PIECE]) {
  if (c->has_bos && id == c->bos) {
    return "<|begin_of_text|>";
  }
  if (c->eos_count > 0 && id == c->eos[0]) {
    return "<|end_of_text|>";
  }
  snprintf(piece, PIECE, "<|reserved_special_token_%u|>", id - first_special(c));
  return piece;
}

/* The character that stands for a byte in byte-level BPE: itself where it is printable in Latin-1, else the n-th of the
 * others is U+0100 + n. Given as JSON source. */
static const char *byte_piece(uint32_t byte, char piece[PIECE]) {
  uint32_t code = byte;
  if (byte <= 32) {
    code = 0x100 + byte;
  } else if (byte >= 127 && byte <= 160) {
    code = 0x100 + 33 + (byte - 127);
  } else if (byte == 173) {
    code = 0x100 + 33 + 34;
  }
  if (code == '"' || code == '\\') {
    snprintf(piece, PIECE, "\\%c", (int)code);
  } else if (code < 128) {
    snprintf(piece, PIECE, "%c", (int)code);
  } else {
    snprintf(piece, PIECE, "\\u%04x", code);
  }
  return piece;
}

static mk_status add_specials(const mk_config *c, uint32_t special, mk_text *out) {
  char piece[PIECE];
  MK_TRY(mk_text_add(out, "  \"added_tokens\": ["));
  for (uint32_t id = special; id < c->vocab; id++) {
    MK_TRY(mk_text_add(out, "%s\n    {\"id\": %u, \"content\": \"%s\"", id == special ? "" : ",", id,
                       special_piece(c, id, piece)));
    MK_TRY(mk_text_add(out,
                       ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                       "\"special\": true}"));
  }
  return mk_text_add(out, "],\n");
}

static mk_status add_post_processor(const mk_config *c, mk_text *out) {
  static const char *const byte_level =
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, \"use_regex\": true}";
  if (!c->has_bos) {
    return mk_text_add(out, "  \"post_processor\": %s,\n", byte_level);
  }
  char piece[PIECE];
  const char *bos = special_piece(c, c->bos, piece);
  MK_TRY(mk_text_add(out, "  \"post_processor\": {\"type\": \"Sequence\", \"processors\": [%s,\n", byte_level));
  MK_TRY(mk_text_add(out,
                     "    {\"type\": \"TemplateProcessing\",\n"
                     "     \"single\": [{\"SpecialToken\": {\"id\": \"%s\", \"type_id\": 0}}, "
                     "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n",
                     bos));
  MK_TRY(mk_text_add(out,
                     "     \"pair\": [{\"SpecialToken\": {\"id\": \"%s\", \"type_id\": 0}}, "
                     "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}},\n"
                     "       {\"SpecialToken\": {\"id\": \"%s\", \"type_id\": 1}}, "
                     "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}],\n",
                     bos, bos));
  return mk_text_add(out,
                     "     \"special_tokens\": {\"%s\": {\"id\": \"%s\", \"ids\": [%u], \"tokens\": [\"%s\"]}}}]},\n",
                     bos, bos, c->bos, bos);
}

mk_status mk_synth_tokenizer_json(const mk_config *c, mk_text *out) {
  uint32_t special = first_special(c);
  if (special < BYTES) {
    return mk_error(MK_ERR_USAGE, "%s %u: a byte-level tokenizer needs ids 0 to 255 for bytes; use at least 256",
                    c->vocab < BYTES ? "vocab_size" : "bos_token_id or eos_token_id", special);
  }
  char piece[PIECE];
  MK_TRY(mk_text_add(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"));
  MK_TRY(add_specials(c, special, out));
  MK_TRY(mk_text_add(out,
                     "  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"));
  MK_TRY(mk_text_add(out, "    {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"},\n",
                     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|"
                     " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"));
  MK_TRY(mk_text_add(out,
                     "     \"behavior\": \"Isolated\", \"invert\": false},\n"
                     "    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                     "\"use_regex\": false}]},\n"));
  MK_TRY(add_post_processor(c, out));
  MK_TRY(mk_text_add(out,
                     "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                     "\"use_regex\": true},\n"));
  MK_TRY(mk_text_add(out,
                     "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,\n"
                     "    \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false,\n"
                     "    \"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {\n"));
  for (uint32_t id = 0; id < special; id++) {
    if (id < BYTES) {
      MK_TRY(mk_text_add(out, "      \"%s\": %u", byte_piece(id, piece), id));
    } else {
      MK_TRY(mk_text_add(out, "      \"<extra_%u>\": %u", id, id));
    }
    MK_TRY(mk_text_add(out, id + 1 < special ? ",\n" : "\n"));
  }
  return mk_text_add(out, "    },\n    \"merges\": []\n  }\n}\n");
}

mk_status mk_synth_tokenizer_config_json(const mk_config *c, mk_text *out) {
  char piece[PIECE];
  MK_TRY(mk_text_add(out, "{\n"));
  if (c->has_bos) {
    MK_TRY(mk_text_add(out, "  \"bos_token\": \"%s\",\n", special_piece(c, c->bos, piece)));
  }
  if (c->eos_count > 0) {
    MK_TRY(mk_text_add(out, "  \"eos_token\": \"%s\",\n", special_piece(c, c->eos[0], piece)));
  }
  return mk_text_add(out,
                     "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %u,\n"
                     "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
                     c->max_position);
}
