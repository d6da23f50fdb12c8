/* Quantised checkpoints: what quantization_config of config.json says, and which tensors stand for a matrix then.
 *
 * A *module* is what a matrix of the family's table belongs to: "model.layers.0.self_attn.q_proj". In a quantised one
 * the tensor "weight" gives way to several (mk_quant_parts), and a weight is scale * (q - zero), rounded to bf16
 * (docs/NUMERICS.md). docs/MODELS.md lists the formats. What is not read is refused by name.
 *
 * mk_quant is a plain value in mk_config, all zero where nothing is quantised. Any thread may call; a checkpoint is one
 * thread's at a time. Failure: MK_ERR_FILE, with the key, or the tensor and the value. */
#ifndef MK_QUANT_H
#define MK_QUANT_H

#include "vm/status.h"

typedef enum mk_tensor_dtype {
  MK_TENSOR_BF16,
  MK_TENSOR_F16,
  MK_TENSOR_F32,
  MK_TENSOR_E4M3,
  MK_TENSOR_I8,
  MK_TENSOR_I32,
  MK_TENSOR_I64,
  MK_TENSOR_DTYPES
} mk_tensor_dtype;
/* "BF16", as files have it. */
const char *mk_tensor_dtype_name(mk_tensor_dtype dtype);
uint64_t mk_tensor_dtype_bytes(mk_tensor_dtype dtype);

/* What is stored for an element. */
typedef enum mk_codes { MK_CODES_NONE, MK_CODES_E4M3, MK_CODES_INT8, MK_CODES_INT4 } mk_codes;
const char *mk_codes_name(mk_codes codes); /* "fp8 (e4m3)" */

typedef enum mk_quant_layout {
  MK_QUANT_NONE,
  MK_QUANT_PLAIN,  /* weight [N, K] of 8 bits; weight_scale: one, or [N, 1] */
  MK_QUANT_BLOCKS, /* weight; weight_scale or weight_scale_inv, one for each block of rows and columns */
  MK_QUANT_PACKED, /* weight_packed [N, K / 8], lowest nibble first, q + 8; weight_scale [N, groups] */
  MK_QUANT_AWQ,    /* qweight [K, N / 8], nibbles in the order 0 2 4 6 1 3 5 7; scales [groups, N]; qzeros alike */
  MK_QUANT_GPTQ,   /* qweight [K / 8, N], lowest nibble first; scales [groups, N]; qzeros [groups, N / 8]; g_idx [K] */
} mk_quant_layout;

enum { MK_QUANT_LAYERS = 1024 };
typedef struct mk_quant {
  uint8_t layout; /* mk_quant_layout */
  uint8_t codes;  /* mk_codes */
  uint8_t scale;  /* mk_tensor_dtype: as config.json lets one expect it, until the weights have a say */
  bool zeros;     /* asymmetric: zeros are stored */
  bool by_tensor; /* PLAIN: one scale for all of a tensor */
  bool inverse;   /* BLOCKS: the scales' tensor is called weight_scale_inv, though one multiplies by them as well */
  bool may_order; /* columns may be in groups by a list (g_idx) */
  bool less_one;  /* GPTQ: zeros are stored less one */
  bool head;      /* lm_head is quantised */
  uint32_t group; /* columns that share a scale; 0: all of a row */
  uint32_t block; /* BLOCKS: rows that do */
  /* By layer, a bit for each module (mk_family_module): it is quantised; its columns are in groups by a list that is
   * not the plain one, until the weights have a say wherever it may be. */
  uint16_t modules[MK_QUANT_LAYERS], ordered[MK_QUANT_LAYERS];
} mk_quant;

/* Columns that share a scale, as weights are packed: a divisor of 128. */
static inline uint32_t mk_quant_scale_cols(const mk_quant *quant) {
  return quant->group == 32 || quant->group == 64 ? quant->group : 128;
}

struct mk_config;
struct mk_wanted_tensor;
struct mk_checkpoint;
struct mk_tensor;

bool mk_quant_has(const struct mk_config *config, const struct mk_wanted_tensor *tensor);
/* Whether its groups are not the plain ones. */
bool mk_quant_is_ordered(const struct mk_config *config, const struct mk_wanted_tensor *tensor);
/* Groups of columns that it has. */
uint64_t mk_quant_groups(const mk_quant *quant, uint64_t cols);

/* A tensor of a quantised module. */
typedef struct mk_quant_part {
  const char *name; /* in place of "weight" */
  uint32_t dtypes;  /* a bit for each mk_tensor_dtype that it may have; 0: it is ignored, whatever it is */
  bool needed;
  uint64_t shape[2]; /* missing sizes are 1 */
} mk_quant_part;
typedef enum mk_quant_role {
  MK_PART_CODES,
  MK_PART_SCALES,
  MK_PART_ZEROS, /* the name is NULL: there are none */
  MK_PART_ORDER, /* the same */
  MK_PART_SHAPE, /* the same */
  MK_PART_IGNORED,
  MK_QUANT_PARTS = MK_PART_IGNORED + 4
} mk_quant_role;
/* By role; from IGNORED on as many as there are, then names that are NULL. */
void mk_quant_parts(const struct mk_config *config, const struct mk_wanted_tensor *tensor,
                    mk_quant_part parts[MK_QUANT_PARTS]);

/* The part of a module; NULL: it has none. `name`: of the tensor that the family's table has, "....weight". */
const struct mk_tensor *mk_quant_find(const struct mk_checkpoint *checkpoint, const char *name,
                                      const mk_quant_part *part);

/* Whose part a tensor of a checkpoint is; false: of no quantised module. */
bool mk_quant_owner(const struct mk_config *config, const char *name, struct mk_wanted_tensor *tensor,
                    mk_quant_part *part);
mk_status mk_quant_check_part(const struct mk_checkpoint *checkpoint, const struct mk_tensor *tensor,
                              const mk_quant_part *part);
mk_status mk_quant_check_present(const struct mk_checkpoint *checkpoint, const struct mk_config *config,
                                 const struct mk_wanted_tensor *tensor);

/* What a checkpoint that passed its check settles: the dtype of scales, and which modules are ordered. Reads lists of
 * groups and stored shapes, and checks them. */
mk_status mk_quant_settle(const struct mk_checkpoint *checkpoint, struct mk_config *config);

#endif
