/* See page.h. */
#include "tools/profiler/page.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tools/profiler/texts.h"

/* Made by the build from tools/profiler/page/: what stands before the data and what stands after it. */
extern const unsigned char mk_page_head[], mk_page_tail[];
extern const size_t mk_page_head_size, mk_page_tail_size;

static json_t *name_list(const mk_program *program, bool buffers) {
  json_t *list = json_array();
  size_t count = buffers ? program->buffer_count : program->counter_count;
  for (size_t i = 0; i < count; i++) {
    json_array_append_new(list, json_string(buffers ? program->buffers[i].name : program->counters[i].name));
  }
  return list;
}

static json_t *opcode_list(void) {
  static const char *const accesses[] = {"read", "write", "update"};
  json_t *list = json_array();
  for (uint32_t i = 0; i < MK_OP_COUNT; i++) {
    const mk_opcode_info *info = mk_opcode_lookup(i);
    json_t *operands = json_array();
    for (uint32_t slot = 0; info != NULL && slot < info->operand_count; slot++) {
      const mk_operand_info *o = &info->operands[slot];
      json_array_append_new(operands, json_pack("{ss ss ss}", "name", o->name, "access", accesses[o->access], "role",
                                                mk_role_name(o->role)));
    }
    json_array_append_new(
        list, json_pack("{ss ss so}", "name", mk_opcode_text(i), "does",
                        info == NULL || info->semantics == NULL ? "" : info->semantics, "operands", operands));
  }
  return list;
}

static json_t *activity_list(void) {
  static const char *const kinds[] = {"work", "wait", "feed", "ring", "hand", "idle"};
  _Static_assert(sizeof kinds / sizeof kinds[0] == MK_ACTIVITY_KIND_COUNT, "a name per kind");
  json_t *list = json_array();
  for (uint32_t i = 0; i < MK_ACTIVITY_COUNT; i++) {
    json_array_append_new(list, json_pack("{ss ss ss ss}", "name", mk_activity_name(i), "text", mk_activity_text(i),
                                          "kind", kinds[mk_activity_kind_of(i)], "edge", mk_activity_edge(i)));
  }
  return list;
}

static json_t *role_list(void) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < MK_TRACE_ROLES; i++) {
    json_array_append_new(list, json_string(mk_trace_role_name(i)));
  }
  return list;
}

static mk_status put_json(const mk_summary *s, mk_bytes *out) {
  json_t *json =
      json_pack("{so so so so so so sb}", "summary", mk_summary_json(s), "opcodes", opcode_list(), "activities",
                activity_list(), "roles", role_list(), "buffers", name_list(s->profile->program, true), "counters",
                name_list(s->profile->program, false), "serial", s->profile->serial);
  char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
  json_decref(json);
  if (text == NULL) {
    return mk_error(MK_ERR_RUNTIME,
                    "the page's names could not be made into JSON: out of memory, or a text of the trace "
                    "is not UTF-8");
  }
  mk_bytes_number(out, strlen(text));
  mk_bytes_text(out, text);
  free(text);
  return out->status;
}

static void put_operands(const mk_instruction *in, mk_bytes *out) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    mk_bytes_number(out, o->cols);
    if (o->cols != 0) {
      mk_bytes_number(out, o->buffer);
      mk_bytes_number(out, o->row);
      mk_bytes_number(out, o->rows);
      mk_bytes_number(out, o->col);
    }
  }
}

static mk_status put_texts(const mk_program *program, mk_bytes *out) {
  mk_bytes texts = {0};
  mk_status status = mk_instruction_texts(program, &texts);
  mk_bytes_number(out, texts.length);
  mk_bytes_put(out, texts.data, texts.length);
  mk_free(texts.data);
  return status;
}

static mk_status put_program(const mk_profile *p, mk_bytes *out) {
  const mk_program *program = p->program;
  const mk_instruction *in = program->instructions;
  size_t count = program->instruction_count;
  mk_bytes_number(out, count);
  for (size_t i = 0; i < count; i++) {
    mk_bytes_signed(out, (int64_t)in[i].uid - (i == 0 ? 0 : (int64_t)in[i - 1].uid));
  }
  for (size_t i = 0; i < count; i++) {
    mk_bytes_number(out, in[i].opcode);
  }
  for (size_t i = 0; i < count; i++) {
    mk_bytes_number(out, in[i].layer == MK_NO_LAYER ? 0 : in[i].layer + 1u);
  }
  for (size_t i = 0; i < count; i++) {
    mk_bytes_number(out, p->sm_of[i]);
  }
  for (size_t i = 0; i < count; i++) {
    mk_bytes_number(out, in[i].pages);
  }
  for (size_t i = 0; i < count; i++) {
    put_operands(&in[i], out);
  }
  return put_texts(program, out);
}

/* From 1 on; 0 is none. */
static uint32_t one_based(uint32_t instruction) { return instruction == MK_NO_INSTRUCTION ? 0 : instruction + 1; }

static void put_publishers(const mk_summary *s, const mk_profile_track *track, mk_bytes *out) {
  for (uint32_t i = 0; i < track->count; i++) {
    const mk_interval *in = &track->intervals[i];
    uint32_t role;
    if (mk_activity_kind_of(in->activity) == MK_ACTIVITY_KIND_WAIT) {
      const mk_execution *e = mk_edges_publisher(s->edges, in, &role);
      if (e == NULL) {
        mk_bytes_number(out, 0);
      } else {
        int64_t distance = (int64_t)e->instruction - (int64_t)in->instruction;
        mk_bytes_number(out, 1 + ((uint64_t)distance << 1 ^ (uint64_t)(distance < 0 ? -1 : 0)));
      }
    }
  }
}

static void put_track(const mk_summary *s, const mk_profile_track *track, mk_bytes *out) {
  const mk_interval *in = track->intervals;
  mk_bytes_number(out, track->count);
  mk_bytes_number(out, track->count == 0 ? 0 : in[0].start);
  for (uint32_t i = 0; i < track->count; i++) {
    mk_bytes_number(out, in[i].end > in[i].start ? in[i].end - in[i].start : 0);
  }
  for (uint32_t i = 0; i < track->count; i++) {
    mk_bytes_signed(out,
                    (int64_t)one_based(in[i].instruction) - (i == 0 ? 0 : (int64_t)one_based(in[i - 1].instruction)));
  }
  for (uint32_t i = 0; i < track->count; i++) {
    mk_bytes_put(out, &in[i].activity, 1);
  }
  for (uint32_t i = 0; i < track->count; i++) {
    mk_bytes_number(out, in[i].step - (i == 0 ? 0 : in[i - 1].step));
  }
  for (uint32_t i = 0; i < track->count; i++) {
    mk_bytes_number(out, in[i].edge);
  }
  put_publishers(s, track, out);
}

static mk_status put_path(const mk_summary *s, uint32_t step, mk_bytes *out) {
  mk_path path;
  MK_TRY(mk_path_find(s->edges, step, &path));
  const mk_path_part *part = path.parts;
  mk_bytes_number(out, step);
  mk_bytes_number(out, path.count);
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, part[i].start - (i == 0 ? 0 : part[i - 1].start));
  }
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, part[i].end - part[i].start);
  }
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, (uint64_t)part[i].sm * MK_TRACE_ROLES + part[i].role);
  }
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, one_based(part[i].instruction));
  }
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, one_based(part[i].from));
  }
  for (size_t i = 0; i < path.count; i++) {
    mk_bytes_number(out, part[i].activity);
  }
  mk_path_free(&path);
  return out->status;
}

static mk_status put_content(const mk_summary *s, mk_bytes *out) {
  const mk_profile *p = s->profile;
  MK_TRY(put_json(s, out));
  MK_TRY(put_program(p, out));
  mk_bytes_number(out, p->sms);
  mk_bytes_number(out, MK_TRACE_ROLES);
  size_t intervals = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    intervals += p->tracks[t].count;
  }
  mk_bytes_number(out, intervals);
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    put_track(s, &p->tracks[t], out);
  }
  uint32_t first = s->path.step > MK_PAGE_PATHS / 2 ? s->path.step - MK_PAGE_PATHS / 2 : 0;
  uint32_t end = p->steps - first < MK_PAGE_PATHS ? p->steps : first + MK_PAGE_PATHS;
  mk_bytes_number(out, end - first);
  for (uint32_t step = first; step < end; step++) {
    MK_TRY(put_path(s, step, out));
  }
  return out->status;
}

static mk_status put_base64(const unsigned char *from, size_t length, mk_bytes *out) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t start = out->length;
  MK_TRY(mk_grow(&out->data, &out->capacity, start + (length + 2) / 3 * 4, 1));
  unsigned char *to = out->data + start;
  for (size_t i = 0; i < length; i += 3) {
    size_t left = length - i;
    uint32_t bits =
        (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) | (left > 2 ? from[i + 2] : 0u);
    *to++ = (unsigned char)digits[bits >> 18];
    *to++ = (unsigned char)digits[bits >> 12 & 63];
    *to++ = left > 1 ? (unsigned char)digits[bits >> 6 & 63] : '=';
    *to++ = left > 2 ? (unsigned char)digits[bits & 63] : '=';
  }
  out->length = start + (length + 2) / 3 * 4;
  return MK_OK;
}

static mk_status put_packed(const mk_bytes *content, mk_bytes *page) {
  uLongf packed = compressBound(content->length);
  unsigned char *stream;
  MK_TRY(mk_alloc(packed, 1, &stream));
  mk_status status = compress2(stream, &packed, content->data, content->length, 6) == Z_OK
                         ? put_base64(stream, packed, page)
                         : mk_error(MK_ERR_RUNTIME, "out of memory: the page's data could not be compressed");
  mk_free(stream);
  return status;
}

mk_status mk_page_make(const mk_summary *summary, void **data, size_t *length) {
  mk_bytes content = {0}, page = {0};
  *data = NULL;
  *length = 0;
  mk_status status = put_content(summary, &content);
  mk_bytes_put(&page, mk_page_head, mk_page_head_size);
  status = status == MK_OK ? page.status : status;
  if (status == MK_OK) {
    status = put_packed(&content, &page);
  }
  mk_bytes_put(&page, mk_page_tail, mk_page_tail_size);
  status = status == MK_OK ? page.status : status;
  mk_free(content.data);
  if (status != MK_OK) {
    mk_free(page.data);
    return status;
  }
  *data = page.data;
  *length = page.length;
  return MK_OK;
}
