/* config.json and generation_config.json of a directory in Hugging Face layout.
 *
 * mk_config is a plain value; nothing in it is owned. Any thread may call. Failure: MK_ERR_FILE with a message that
 * names the file, the field and the value. Whatever the product does not compute exactly (another architecture, an
 * unknown rope type, another activation) is refused here, by name, before anything is allocated for it. */
#ifndef MK_CONFIG_H
#define MK_CONFIG_H

#include "models/quant.h"

/* What a configuration may ask for. Widths stop where a program's 16-bit tile coordinates (65535 tiles of 16) do. */
enum {
  MK_MAX_EOS = 8,
  MK_MAX_WIDTH = 65535 * 16, /* hidden_size, intermediate_size, vocab_size */
  MK_MAX_LAYERS = 1024,      /* num_hidden_layers */
  MK_MAX_HEADS = 4096,       /* num_attention_heads */
  MK_MAX_POSITION = 1 << 28, /* max_position_embeddings, in tokens */
  MK_MAX_IGNORED = 8,        /* ids of which an mk_config keeps the value */
  MK_MAX_PAIRS = 128,        /* rotated pairs of a head */
};

/* Whose configuration it is. What a family computes is data: fields of mk_config that are zero for a plain Llama. */
typedef enum mk_model_kind {
  MK_MODEL_LLAMA,
  MK_MODEL_QWEN2,
  MK_MODEL_QWEN3,
  MK_MODEL_MISTRAL,
  MK_MODEL_MINISTRAL,
  MK_MODEL_GRANITE,
  MK_MODEL_SMOLLM3,
  MK_MODEL_PHI3,
  MK_MODEL_OLMO2,
  MK_MODEL_GEMMA3,
  MK_MODEL_KINDS,
} mk_model_kind;

/* How a checkpoint names the tensors of the text model. */
typedef enum mk_naming {
  MK_NAMES_PLAIN,  /* model.layers.0...: it is the whole model */
  MK_NAMES_WITHIN, /* language_model.model.layers.0..., language_model.lm_head...: parts for images stand beside it */
  MK_NAMES_INNER,  /* model.language_model.layers.0..., lm_head...: the same, by other releases of transformers */
} mk_naming;

/* "Qwen3": for messages; "qwen3": model_type. */
const char *mk_model_title(mk_model_kind kind);
const char *mk_model_type(mk_model_kind kind);

/* RMS norms of q and k, before the rotation. */
typedef enum mk_qk_norm {
  MK_QK_PLAIN,
  MK_QK_NORM_HEAD, /* of each head by itself, with one vector of gains for all heads */
  MK_QK_NORM_ALL,  /* over all heads of q, and over all of k */
} mk_qk_norm;

/* How inverse frequencies follow from rope_theta; models/llama.h has the formulas. */
typedef enum mk_rope_type {
  MK_ROPE_DEFAULT,
  MK_ROPE_LLAMA3,   /* long wavelengths are scaled by rope_factor, short ones are not */
  MK_ROPE_LINEAR,   /* all frequencies are divided by rope_factor */
  MK_ROPE_DYNAMIC,  /* the default up to max_position, which is as far as a context goes here */
  MK_ROPE_YARN,     /* divided by rope_factor where a pair turns seldom in the original context, kept where it turns
                   often */
  MK_ROPE_LONGROPE, /* each frequency has a divisor: one list for contexts up to the original one, one for longer
                       ones */
} mk_rope_type;

/* As config.json spells it. */
const char *mk_rope_type_name(mk_rope_type type);

/* A bos, eos or pad id that no token has, and that therefore says nothing: -1, or one beyond the vocabulary. */
typedef struct mk_ignored_id {
  const char *key; /* "eos_token_id"; a constant */
  int64_t id;
} mk_ignored_id;

typedef struct mk_config {
  uint32_t hidden;       /* residual width */
  uint32_t intermediate; /* width of gate and up */
  uint32_t layers;
  uint32_t heads;    /* query heads */
  uint32_t kv_heads; /* heads % kv_heads == 0 */
  uint32_t head_dim; /* 64, 128 or 256: "head_dim", else hidden / heads */
  uint32_t vocab;
  uint32_t max_position; /* max_position_embeddings: the longest context, in tokens */
  float rms_eps;
  double rope_theta;
  bool tied; /* the LM head is the embedding table; the weights have a say in this, see models/directory.h */
  mk_rope_type rope_type;
  double rope_factor;                                 /* not for the default type; at least 1 */
  double rope_low_freq_factor, rope_high_freq_factor; /* llama3 alone */
  uint32_t rope_original_max_position;                /* llama3, yarn, longrope */
  double rope_beta_fast, rope_beta_slow;              /* yarn alone, as the next one: turns in the original context */
  bool rope_no_truncate; /* between which the frequencies bend, not rounded to whole pairs */
  double rope_attention; /* yarn, longrope: factor on sine and cosine */
  float rope_short[MK_MAX_PAIRS], rope_long[MK_MAX_PAIRS]; /* longrope alone, as the next one */
  bool rope_is_long;                                       /* mk_config_set_context */
  /* What sets a family apart; all of it is zero for a plain Llama. */
  mk_model_kind kind;
  mk_naming naming; /* of config.json alone: plain or within; with weights (models/directory.h): as they have it */
  bool qkv_bias, o_bias, mlp_bias;
  bool fused;         /* tensors qkv_proj and gate_up_proj, each of several */
  bool norm_after;    /* norms of what attention and MLP add, in place of what they take */
  bool norm_around;   /* norms of both */
  bool norm_plus_one; /* the factors of all norms are 1 + what the checkpoint has */
  bool gelu;          /* in place of SiLU: its tanh approximation */
  mk_qk_norm qk_norm;
  uint32_t rotary; /* the first dims of a head, which are rotated, the others are not; 0: all are */
  uint8_t unrotated[MK_MAX_LAYERS / 8]; /* a bit for each layer that does not rotate at all, mk_config_rotates */
  uint32_t window; /* tokens up to its own position that a layer with a window sees; 0: as many as there are */
  uint8_t windowed[MK_MAX_LAYERS / 8]; /* a bit for each layer that has one, mk_config_window */
  double rope_local_theta;             /* of these layers, which rotate by the default type then; 0: as all others */
  /* 0: none, which is 1, but for attention, where it is 1 / sqrt(head_dim). Logits are divided by theirs. */
  double embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling;
  mk_quant quant;
  bool has_bos;
  uint32_t bos;
  uint32_t eos_count; /* generation_config's list where given, else config's */
  uint32_t eos[MK_MAX_EOS];
  uint32_t ignored_count; /* of both files; the first MK_MAX_IGNORED of them are listed */
  mk_ignored_id ignored[MK_MAX_IGNORED];
} mk_config;

static inline bool mk_config_rotates(const mk_config *config, uint32_t layer) {
  return (config->unrotated[layer / 8] >> layer % 8 & 1) == 0;
}
/* Whether the KV cache may be fp8. */
static inline bool mk_config_has_kv_fp8(const mk_config *config) { return config->head_dim <= 128; }
/* How many tokens a layer sees; 0: all. */
static inline uint32_t mk_config_window(const mk_config *config, uint32_t layer) {
  return (config->windowed[layer / 8] >> layer % 8 & 1) != 0 ? config->window : 0;
}
/* Whether it rotates by rope_local_theta. */
static inline bool mk_config_is_local(const mk_config *config, uint32_t layer) {
  return config->rope_local_theta != 0 && (config->windowed[layer / 8] >> layer % 8 & 1) != 0;
}
/* Dims of a head that are rotated. */
static inline uint32_t mk_config_rotary(const mk_config *config) {
  return config->rotary != 0 ? config->rotary : config->head_dim;
}

/* For a context of so many tokens: "longrope" rotates by other frequencies where it is longer than the original one,
 * and a window that holds all of it is none. */
void mk_config_set_context(mk_config *config, uint32_t tokens);

/* Parses the text of a config.json (need not be NUL-terminated). Both spellings of the rotation are read: rope_theta
 * with rope_scaling, and rope_parameters. A key that is absent or null takes the value that it has in the family's own
 * class of transformers 5 (docs/MODELS.md has the list), but for num_hidden_layers and num_attention_heads, which
 * nothing in the weights bears out, and which are left out where a text model is in text_config alone. Ids that no
 * token has are ignored. *out changes on success only. */
mk_status mk_config_parse(const char *text, size_t length, mk_config *out);
/* Overrides bos/eos from the text of a generation_config.json, for a vocabulary of inout->vocab. */
mk_status mk_config_parse_generation(const char *text, size_t length, mk_config *inout);
/* Reads DIR/config.json and, where present, DIR/generation_config.json. */
mk_status mk_config_load(const char *directory, mk_config *out);

#endif
