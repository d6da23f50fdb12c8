/* The opcode table as data, and the names of the enumerations. See program.h. */
#include <string.h>

#include "vm/program/program.h"

/* Every operand and parameter line raises its opcode's count, and what is true of few is set beside the columns; the
 * last line stands, which is what the compiler warns of. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
const mk_opcode_info mk_opcode_table[MK_OP_COUNT] = {
#define OF(NAME) [MK_OP_##NAME]
#define SLOT(NAME, field) OF(NAME).operands[MK_SLOT_##NAME##_##field]
#define MK_OPCODE(NAME, text, use, line) \
  OF(NAME).name = (text), OF(NAME).semantics = (line), OF(NAME).state = MK_STATE_##use,
#define MK_OPERAND(NAME, slot, field, acc, rol, whn, ext, type, sto)                                                \
  OF(NAME).operand_count = (slot) + 1, SLOT(NAME, field).name = #field, SLOT(NAME, field).access = MK_ACCESS_##acc, \
  SLOT(NAME, field).role = MK_ROLE_##rol, SLOT(NAME, field).when = MK_WHEN_##whn,                                   \
  SLOT(NAME, field).extent = MK_EXTENT_##ext, SLOT(NAME, field).place = MK_##ext##_##NAME##_##field,                \
  SLOT(NAME, field).dtype = MK_DTYPE_##type, SLOT(NAME, field).store = MK_OPERAND_STORE_##sto,                      \
  COUNT_##ext(NAME, field)
#define COUNT_PART(NAME, field) OF(NAME).part_count = MK_PART_##NAME##_##field + 1,
#define COUNT_WHOLE(NAME, field)
#define MK_PARAM(NAME, index, field, type) \
  OF(NAME).param_count = (index) + 1, OF(NAME).params[index] = {#field, PARAM_IS_##type},
#define PARAM_IS_U32 false
#define PARAM_IS_F32 true
#define MK_CONTENT(NAME, field, means) SLOT(NAME, field).content = MK_CONTENT_##means,
#define MK_OPTIONAL(NAME, field) SLOT(NAME, field).optional = true,
#define MK_SUMS(NAME, kind) OF(NAME).sums = MK_SUMS_##kind,
#define MK_STREAMS(NAME) OF(NAME).streams = true,
#define MK_FAMILIES_ONLY(NAME) OF(NAME).families_only = true,
#define MK_WIDE_ONLY(NAME) OF(NAME).wide_only = true,
#define MK_FUSES(NAME, field, BEFORE, made, when)                           \
  OF(NAME).fusion = MK_FUSION_##when, OF(NAME).fused_into = MK_OP_##BEFORE, \
  OF(NAME).fused_slot = MK_SLOT_##NAME##_##field, OF(NAME).fused_made = MK_SLOT_##BEFORE##_##made,
#define MK_ENTRIES(NAME, kind) OF(NAME).entries = MK_ENTRIES_##kind,
#include "vm/program/opcodes.def"
};
#pragma GCC diagnostic pop

static const char *pick(const char *const *names, uint32_t count, uint32_t index) {
  return index < count ? names[index] : "?";
}

const char *mk_dtype_name(uint32_t dtype) {
  static const char *const names[MK_DTYPE_COUNT] = {"bf16", "f32", "u32", "e4m3", "i8", "i4"};
  return pick(names, MK_DTYPE_COUNT, dtype);
}

const char *mk_scale_name(uint32_t scale) {
  static const char *const names[MK_SCALE_COUNT] = {"none", "f32", "bf16", "f16"};
  return pick(names, MK_SCALE_COUNT, scale);
}

const char *mk_kind_name(uint32_t kind) {
  static const char *const names[MK_KIND_COUNT] = {"weight", "activation", "kv", "input", "output"};
  return pick(names, MK_KIND_COUNT, kind);
}

const char *mk_store_name(uint32_t store) {
  static const char *const names[MK_STORE_COUNT] = {"plain", "stamped", "tiles", "blocks"};
  return pick(names, MK_STORE_COUNT, store);
}

const char *mk_scope_name(uint32_t scope) {
  static const char *const names[MK_SCOPE_COUNT] = {"sm", "gpu", "sys"};
  return pick(names, MK_SCOPE_COUNT, scope);
}

const char *mk_rank_name(uint32_t rank) {
  return rank == MK_RANK_EACH ? "each" : rank == MK_RANK_DEALT ? "dealt" : NULL;
}

const char *mk_role_name(uint32_t role) {
  static const char *const names[MK_ROLE_COUNT] = {"loader", "consumer", "storer"};
  return pick(names, MK_ROLE_COUNT, role);
}

int mk_opcode_cache(const mk_opcode_info *info) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].store == MK_OPERAND_STORE_BLOCKS) {
      return (int)slot;
    }
  }
  return -1;
}

bool mk_opcode_loads_state(const mk_opcode_info *info) {
  const int cache = mk_opcode_cache(info);
  return cache >= 0 &&
         (info->operands[cache].role == MK_ROLE_LOADER || info->operands[cache].access == MK_ACCESS_UPDATE);
}

bool mk_opcode_loader_waits(const mk_opcode_info *info) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].role == MK_ROLE_LOADER && info->operands[slot].when == MK_WHEN_WAITS) {
      return true;
    }
  }
  return false;
}

bool mk_opcode_is_product(const mk_opcode_info *info) {
  bool multiplies = false;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    multiplies = multiplies || info->operands[slot].store == MK_OPERAND_STORE_TILES;
  }
  return multiplies && mk_opcode_writes(info, MK_CONTENT_LOGITS) < 0;
}

bool mk_opcode_copies(const mk_opcode_info *info, uint32_t slot) {
  const mk_operand_info *o = &info->operands[slot];
  const bool reads = o->access == MK_ACCESS_READ && o->extent == MK_EXTENT_PART && o->when == MK_WHEN_WAITS;
  return reads && (mk_opcode_is_product(info) ? o->dtype == MK_DTYPE_BF16 && o->role == MK_ROLE_CONSUMER
                                              : o->store == MK_OPERAND_STORE_BLOCKS);
}

int mk_opcode_reads(const mk_opcode_info *info, mk_content content) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].content == content && info->operands[slot].access == MK_ACCESS_READ) {
      return (int)slot;
    }
  }
  return -1;
}

int mk_opcode_writes(const mk_opcode_info *info, mk_content content) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].content == content && info->operands[slot].access != MK_ACCESS_READ) {
      return (int)slot;
    }
  }
  return -1;
}

mk_role mk_opcode_finisher(const mk_opcode_info *info) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].role == MK_ROLE_STORER) {
      return MK_ROLE_STORER;
    }
  }
  return MK_ROLE_CONSUMER;
}

uint32_t mk_param_named(const mk_instruction *instruction, const char *name) {
  const mk_opcode_info *info = mk_opcode_lookup(instruction->opcode);
  for (uint32_t i = 0; i < info->param_count; i++) {
    if (strcmp(info->params[i].name, name) == 0) {
      return instruction->params[i];
    }
  }
  return 0;
}

int mk_opcode_slot(const mk_opcode_info *info, const char *name) {
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (strcmp(info->operands[slot].name, name) == 0) {
      return (int)slot;
    }
  }
  return -1;
}
