/* See quantised.h. */
#include "engine/quantised.h"

#include <math.h>
#include <string.h>

#include "instructions/dequantise.h"
#include "instructions/reference.h"
#include "models/family.h"

enum { PACKED = 8 /* codes of four bits in a word */, NIBBLE = 15 };

static bool is_packed(const mk_quantised *m) { return m->quant->codes == MK_CODES_INT4; }

static mk_status read_words(const mk_checkpoint *checkpoint, const mk_tensor *tensor, void **out) {
  const uint64_t count = tensor->bytes / mk_tensor_unit(tensor);
  MK_TRY(mk_alloc((size_t)count, mk_tensor_unit(tensor), out));
  return mk_tensor_read_raw(checkpoint, tensor, 0, count, *out);
}

static mk_status read_scales(mk_quantised *m, const mk_tensor *tensor) {
  const size_t count = tensor->bytes / mk_tensor_unit(tensor);
  void *raw = NULL;
  mk_status status = read_words(m->checkpoint, tensor, &raw);
  if (status == MK_OK) {
    status = mk_alloc(count, sizeof *m->scales, &m->scales);
  }
  for (size_t i = 0; status == MK_OK && i < count; i++) {
    const uint16_t *halves = raw;
    m->scales[i] = tensor->dtype == MK_TENSOR_F32    ? ((const float *)raw)[i]
                   : tensor->dtype == MK_TENSOR_BF16 ? mk_bf16_to_float(halves[i])
                                                     : mk_half_to_float(halves[i]);
  }
  mk_free(raw);
  return status;
}

/* A symmetric GPTQ file stores zeros all the same, each the same one: 8, or 7 where they are stored less one; some that
 * say the latter store 8, too. All mean 8. */
static mk_status check_symmetric(const mk_quantised *m, const mk_tensor *tensor) {
  void *raw = NULL;
  mk_status status = read_words(m->checkpoint, tensor, &raw);
  const uint32_t *words = raw;
  const uint32_t first = words == NULL ? 0 : words[0];
  const bool known = first == 0x88888888u || (first == 0x77777777u && m->quant->less_one);
  for (size_t i = 0; status == MK_OK && i < tensor->bytes / sizeof *words; i++) {
    if (!known || words[i] != first) {
      status =
          mk_error(MK_ERR_FILE, "%s: tensor %.200s: word %zu is 0x%08x; with sym true every zero is 8 (0x88888888%s)",
                   mk_checkpoint_path(m->checkpoint, tensor), tensor->name, i, words[i],
                   m->quant->less_one ? ", or 0x77777777" : "");
    }
  }
  mk_free(raw);
  return status;
}

static uint32_t nibble(uint32_t word, uint32_t index) { return word >> 4 * index & NIBBLE; }
/* Where AWQ has row `row` of eight. */
static uint32_t awq_place(uint32_t row) { return row % PACKED / 2 + row % 2 * 4; }

/* Eight words of AWQ, of eight columns k and the same eight rows, as a word of each row. */
static void turn_awq(const uint32_t *from, size_t stride, uint32_t out[PACKED]) {
  for (uint32_t row = 0; row < PACKED; row++) {
    out[row] = 0;
    for (uint32_t k = 0; k < PACKED; k++) {
      out[row] |= nibble(from[k * stride], awq_place(row)) << 4 * k;
    }
  }
}

/* The codes row by row, as PACKED stores them, whose rows are what is packed: in the files of AWQ and GPTQ a row's
 * codes lie apart. Rows go by eights, and by lines of the cache. */
static mk_status turn_rows(mk_quantised *m) {
  enum { BLOCK = 64 };
  const bool awq = m->quant->layout == MK_QUANT_AWQ;
  const size_t rows = m->rows, words = (m->cols + PACKED - 1) / PACKED, packed_rows = rows / PACKED;
  uint32_t *turned, eight[PACKED];
  MK_TRY(mk_alloc(rows * words, sizeof *turned, &turned));
  for (size_t first = 0; first < rows; first += BLOCK) {
    for (size_t w = 0; w < words; w++) {
      for (size_t row = first; row < first + BLOCK && row < rows; row += PACKED) {
        const size_t left = m->cols - w * PACKED;
        if (awq && left >= PACKED) {
          turn_awq(m->words + w * PACKED * packed_rows + row / PACKED, packed_rows, eight);
        } else if (awq) { /* the last columns */
          memset(eight, 0, sizeof eight);
          for (uint32_t i = 0; i < PACKED * left; i++) {
            const uint32_t k = i / PACKED, word = m->words[(w * PACKED + k) * packed_rows + row / PACKED];
            eight[i % PACKED] |= nibble(word, awq_place(i % PACKED)) << 4 * k;
          }
        } else {
          memcpy(eight, m->words + w * rows + row, sizeof eight);
        }
        for (uint32_t i = 0; i < PACKED; i++) {
          turned[(row + i) * words + w] = eight[i];
        }
      }
    }
  }
  mk_free(m->words);
  m->words = turned;
  return MK_OK;
}

static mk_status read_parts(mk_quantised *m, const char *name, const mk_quant_part parts[MK_QUANT_PARTS]) {
  const mk_tensor *zeros = mk_quant_find(m->checkpoint, name, &parts[MK_PART_ZEROS]),
                  *order = mk_quant_find(m->checkpoint, name, &parts[MK_PART_ORDER]);
  void *words = NULL, *list = NULL;
  mk_status status = read_scales(m, mk_quant_find(m->checkpoint, name, &parts[MK_PART_SCALES]));
  if (status == MK_OK && is_packed(m)) {
    status = read_words(m->checkpoint, m->codes, &words);
    m->words = words;
    if (status == MK_OK && m->quant->layout != MK_QUANT_PACKED) {
      status = turn_rows(m);
    }
  }
  if (status == MK_OK && zeros != NULL && !m->quant->zeros) {
    status = check_symmetric(m, zeros);
  } else if (status == MK_OK && zeros != NULL) {
    status = read_words(m->checkpoint, zeros, &words);
    m->zero_words = words;
  }
  if (status == MK_OK && order != NULL) {
    status = read_words(m->checkpoint, order, &list);
    m->order = list;
  }
  return status;
}

mk_status mk_quantised_open(const mk_checkpoint *checkpoint, const mk_config *config, const char *name,
                            mk_quantised *out) {
  mk_quant_part parts[MK_QUANT_PARTS];
  mk_wanted_tensor want;
  *out = (mk_quantised){.checkpoint = checkpoint, .quant = &config->quant};
  if (mk_family_find(config, name, &want) != MK_TENSOR_WANTED || !mk_quant_has(config, &want)) {
    return mk_error(MK_ERR_FILE, "tensor %.200s is of no quantised module", name);
  }
  mk_quant_parts(config, &want, parts);
  out->codes = mk_quant_find(checkpoint, name, &parts[MK_PART_CODES]);
  if (out->codes == NULL || mk_quant_find(checkpoint, name, &parts[MK_PART_SCALES]) == NULL) {
    return mk_error(MK_ERR_FILE, "the checkpoint has no quantised %.200s", name);
  }
  out->rows = (uint32_t)want.shape[0];
  out->cols = (uint32_t)want.shape[1];
  out->groups = (uint32_t)mk_quant_groups(&config->quant, want.shape[1]);
  mk_status status = read_parts(out, name, parts);
  if (status == MK_OK && !mk_quant_is_ordered(config, &want)) {
    mk_free(out->order);
    out->order = NULL;
  }
  if (status != MK_OK) {
    mk_quantised_close(out);
  }
  return status;
}

void mk_quantised_close(mk_quantised *m) {
  mk_free(m->words);
  mk_free(m->zero_words);
  mk_free(m->scales);
  mk_free(m->order);
  *m = (mk_quantised){.words = NULL};
}

mk_status mk_quantised_codes(const mk_quantised *m, uint32_t row, uint8_t *out) {
  if (!is_packed(m)) {
    return mk_tensor_read_raw(m->checkpoint, m->codes, (uint64_t)row * m->cols, m->cols, out);
  }
  const uint32_t *words = m->words + (size_t)row * ((m->cols + PACKED - 1) / PACKED);
  for (uint32_t k = 0; k < m->cols; k++) {
    out[k] = (uint8_t)nibble(words[k / PACKED], k % PACKED);
  }
  return MK_OK;
}

float mk_quantised_scale(const mk_quantised *m, uint32_t row, uint32_t group) {
  switch ((mk_quant_layout)m->quant->layout) {
    case MK_QUANT_PLAIN:
      return m->scales[m->quant->by_tensor ? 0 : row];
    case MK_QUANT_BLOCKS:
      return m->scales[(size_t)(row / m->quant->block) * m->groups + group];
    case MK_QUANT_AWQ:
    case MK_QUANT_GPTQ:
      return m->scales[(size_t)group * m->rows + row];
    default:
      return m->scales[(size_t)row * m->groups + group];
  }
}

uint32_t mk_quantised_zero(const mk_quantised *m, uint32_t row, uint32_t group) {
  const size_t packed_rows = (m->rows + PACKED - 1) / PACKED;
  if (m->quant->codes != MK_CODES_INT4) {
    return 0;
  }
  if (m->zero_words == NULL) {
    return MK_PLAIN_ZERO;
  }
  switch ((mk_quant_layout)m->quant->layout) {
    case MK_QUANT_AWQ:
      return nibble(m->zero_words[group * packed_rows + row / PACKED], awq_place(row));
    case MK_QUANT_GPTQ: /* one that is stored less one may have wrapped around */
      return (nibble(m->zero_words[group * packed_rows + row / PACKED], row % PACKED) + m->quant->less_one) & NIBBLE;
    default:
      return nibble(m->zero_words[(size_t)(row / PACKED) * m->groups + group], row % PACKED);
  }
}

static uint32_t group_of(const mk_quantised *m, uint32_t col) {
  return m->order != NULL ? (uint32_t)m->order[col] : m->quant->group == 0 ? 0 : col / m->quant->group;
}

mk_status mk_quantised_row(const mk_quantised *m, uint32_t row, uint8_t *codes, uint16_t *out) {
  MK_TRY(mk_quantised_codes(m, row, codes));
  for (uint32_t k = 0; k < m->cols; k++) {
    const uint32_t group = group_of(m, k);
    const float number = m->quant->codes == MK_CODES_E4M3   ? mk_e4m3_to_float(codes[k])
                         : m->quant->codes == MK_CODES_INT8 ? (float)(int8_t)codes[k]
                                                            : (float)codes[k] - (float)mk_quantised_zero(m, row, group);
    out[k] = mk_float_to_bf16(mk_quantised_scale(m, row, group) * number);
  }
  return MK_OK;
}

static void put_scale(uint8_t *scales, uint32_t scale, uint32_t index, float value) {
  const uint32_t bits = mk_float_param(value);
  const uint16_t half = scale == MK_SCALE_BF16 ? (uint16_t)(bits >> 16) : mk_float_to_half(value); /* both exact */
  memcpy(scales + (size_t)index * mk_scale_bytes(scale), scale == MK_SCALE_F32 ? (const void *)&bits : &half,
         mk_scale_bytes(scale));
}

typedef struct place { /* of a code in a strip */
  uint16_t byte;
  uint8_t shift;
} place;

mk_status mk_quantised_pack(const mk_quantised *m, uint32_t row, uint8_t *codes, const mk_buffer *buffer, uint32_t at,
                            uint8_t *row_tile) {
  const uint32_t ranges = mk_strip_ranges(buffer), bytes = mk_strip_bytes(buffer), own = mk_strip_row(at);
  const uint32_t mask = buffer->dtype == MK_DTYPE_I4 ? NIBBLE : 255;
  const uint32_t padding = mk_quantised_zero(m, row, group_of(m, m->cols - 1));
  place places[MK_STRIP_COLS];
  for (uint32_t c = 0; c < MK_STRIP_COLS; c++) {
    uint32_t shift;
    places[c].byte = (uint16_t)mk_strip_offset(buffer->dtype, at, c, &shift);
    places[c].shift = (uint8_t)shift;
  }
  MK_TRY(mk_quantised_codes(m, row, codes));
  for (uint32_t first = 0; first < m->cols; first += MK_STRIP_COLS) {
    uint8_t *strip = row_tile + (size_t)(first / MK_STRIP_COLS) * bytes, *scales = strip + mk_strip_codes(buffer);
    for (uint32_t i = 0; i < ranges; i++) {
      const uint32_t col = first + i * buffer->scale_cols;
      const uint32_t group = group_of(m, col < m->cols ? col : m->cols - 1); /* all of a range is in one */
      put_scale(scales, buffer->scale, i * MK_TILE + own, mk_quantised_scale(m, row, group));
      if (buffer->zeros != 0) {
        scales[mk_strip_scales(buffer) + (size_t)i * MK_TILE + own] = (uint8_t)mk_quantised_zero(m, row, group);
      }
    }
    for (uint32_t c = 0; c < MK_STRIP_COLS; c++) {
      const uint32_t value = first + c < m->cols ? codes[first + c] : padding;
      if (buffer->dtype == MK_DTYPE_E4M3 && (value & 0x7f) == 0x7f) {
        put_scale(scales, buffer->scale, c / buffer->scale_cols * MK_TILE + own, NAN);
      }
      uint8_t *code = strip + places[c].byte;
      *code = (uint8_t)((*code & ~(mask << places[c].shift)) | value << places[c].shift);
    }
  }
  return MK_OK;
}
