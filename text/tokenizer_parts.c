/* The parts of tokenizer.json around the model: normaliser, post-processor, decoder; tokenizer_pre_load.c has the
 * pre-tokeniser. What is not computed exactly as Hugging Face does is refused by name. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

enum {
  GROWTH = 64,   /* times: the most that steps may lengthen a text */
  LONGEST = 256, /* bytes of a step's text: real files have one character */
};

bool mk_is_type(const json_t *object, const char *type) {
  const char *found = json_string_value(mk_json_get(object, "type"));
  return found != NULL && strcmp(found, type) == 0;
}

mk_status mk_load_bool(const json_t *object, const char *where, const char *key, bool absent, bool *out) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(object, key);
  *out = value == NULL ? absent : json_is_true(value);
  if (value != NULL && !json_is_boolean(value)) {
    return mk_error(MK_ERR_FILE, "%s.%s: is %s, must be true or false", where, key, mk_json_show(value, shown));
  }
  return MK_OK;
}

mk_status mk_unsupported(const char *field, const json_t *value, const char *supported) {
  char shown[MK_JSON_SHOWN];
  return mk_error(MK_ERR_FILE, "%s: %s is not supported; only %s", field, mk_json_show(value, shown), supported);
}

/* Steps of normalisers and decoders. */

mk_status mk_copy_text(const char *where, const char *key, const json_t *value, bool may_be_empty, uint8_t **out,
                       size_t *length) {
  char shown[MK_JSON_SHOWN];
  *length = json_string_length(value);
  if (!json_is_string(value) || (*length == 0 && !may_be_empty)) {
    return mk_error(MK_ERR_FILE, "%s.%s: is %s, must be a string%s", where, key, mk_json_show(value, shown),
                    may_be_empty ? "" : " that is not empty");
  }
  if (*length > LONGEST) {
    return mk_error(MK_ERR_FILE, "%s.%s: has %zu bytes, at most %d are supported", where, key, *length, LONGEST);
  }
  MK_TRY(mk_alloc(*length + 1, 1, out));
  memcpy(*out, json_string_value(value), *length);
  return MK_OK;
}

mk_status mk_copy_character(const char *where, const char *key, const json_t *value, uint8_t **out, size_t *length) {
  MK_TRY(mk_copy_text(where, key, value, false, out, length));
  size_t first;
  mk_utf8_step(*out, *length, &first);
  if (first != *length) {
    return mk_error(MK_ERR_FILE, "%s.%s: is \"%.100s\", must be one character", where, key, (const char *)*out);
  }
  return MK_OK;
}

static mk_status load_replace(const char *where, const json_t *object, mk_step *step) {
  const json_t *pattern = mk_json_get(object, "pattern");
  step->kind = MK_STEP_REPLACE;
  if (mk_json_get(pattern, "String") == NULL) {
    char field[128];
    snprintf(field, sizeof field, "%s.pattern", where);
    return mk_unsupported(field, pattern, "{\"String\": ...} is");
  }
  MK_TRY(mk_copy_text(where, "pattern.String", mk_json_get(pattern, "String"), false, &step->pattern,
                      &step->pattern_length));
  return mk_copy_text(where, "content", mk_json_get(object, "content"), true, &step->content, &step->content_length);
}

mk_status mk_load_prepend_scheme(const char *where, const json_t *object, mk_prepend *out) {
  static const char *const names[] = {
      [MK_PREPEND_NEVER] = "never", [MK_PREPEND_FIRST] = "first", [MK_PREPEND_ALWAYS] = "always"};
  const json_t *scheme = mk_json_get(object, "prepend_scheme");
  bool prefix;
  char field[128];
  snprintf(field, sizeof field, "%s.prepend_scheme", where);
  MK_TRY(mk_load_bool(object, where, "add_prefix_space", true, &prefix));
  *out = MK_PREPEND_ALWAYS;
  if (scheme != NULL) {
    size_t i = 0;
    while (i <= MK_PREPEND_ALWAYS && (!json_is_string(scheme) || strcmp(json_string_value(scheme), names[i]) != 0)) {
      i++;
    }
    if (i > MK_PREPEND_ALWAYS) {
      return mk_unsupported(field, scheme, "\"first\", \"never\" and \"always\" are");
    }
    *out = (mk_prepend)i;
  }
  if (!prefix && *out != MK_PREPEND_NEVER) {
    return mk_error(MK_ERR_FILE, "%s: is \"%s\", but add_prefix_space is false; set it to \"never\"", field,
                    names[*out]);
  }
  return MK_OK;
}

/* Replace by a pattern, which normalisers alone have. */
static mk_status load_replace_regex(mk_tokenizer *t, const char *where, const json_t *object, mk_step *step) {
  char field[128];
  bool empty;
  step->kind = MK_STEP_REPLACE_REGEX;
  snprintf(field, sizeof field, "%s.pattern", where);
  const json_t *pattern = mk_json_get(object, "pattern");
  MK_TRY(mk_regex_load(t, field, json_object_get(pattern, "Regex"), &step->code, &empty));
  if (empty) {
    return mk_error(MK_ERR_FILE, "%s.Regex: may match the empty text, which is not supported in a normalizer", field);
  }
  step->pattern_length = 1; /* the least that a match takes */
  return mk_copy_text(where, "content", mk_json_get(object, "content"), true, &step->content, &step->content_length);
}

static mk_status load_trim(const char *where, const json_t *object, mk_step *step) {
  bool left, right;
  step->kind = MK_STEP_TRIM;
  MK_TRY(mk_load_bool(object, where, "strip_left", true, &left));
  MK_TRY(mk_load_bool(object, where, "strip_right", true, &right));
  step->limit = (left ? 1u : 0u) | (right ? 2u : 0u);
  return MK_OK;
}

static mk_status load_normalizer_step(mk_tokenizer *t, const char *where, const json_t *object, mk_step *step) {
  static const char *const forms[] = {[MK_NFC] = "NFC", [MK_NFD] = "NFD", [MK_NFKC] = "NFKC", [MK_NFKD] = "NFKD"};
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (mk_is_type(object, forms[i])) {
      step->kind = MK_STEP_NORMAL_FORM;
      step->form = (mk_normal_form)i;
      return MK_OK;
    }
  }
  if (mk_is_type(object, "Lowercase")) {
    step->kind = MK_STEP_LOWERCASE;
    return MK_OK;
  }
  if (mk_is_type(object, "Strip")) {
    return load_trim(where, object, step);
  }
  if (mk_is_type(object, "Replace")) {
    return json_object_get(mk_json_get(object, "pattern"), "Regex") == NULL
               ? load_replace(where, object, step)
               : load_replace_regex(t, where, object, step);
  }
  if (mk_is_type(object, "Prepend")) {
    step->kind = MK_STEP_PREPEND;
    return mk_copy_text(where, "prepend", mk_json_get(object, "prepend"), false, &step->content, &step->content_length);
  }
  return mk_unsupported(where, object,
                        "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and a Sequence of them are");
}

static mk_status load_strip(const char *where, const json_t *object, mk_step *step) {
  char field[128], shown[MK_JSON_SHOWN];
  const json_t *start = mk_json_get(object, "start"), *stop = mk_json_get(object, "stop");
  step->kind = MK_STEP_STRIP;
  if (!json_is_integer(start) || json_integer_value(start) < 0) {
    return mk_error(MK_ERR_FILE, "%s.start: is %s, must be a whole number of at least 0", where,
                    mk_json_show(start, shown));
  }
  if (!json_is_integer(stop) || json_integer_value(stop) != 0) {
    snprintf(field, sizeof field, "%s.stop", where);
    return mk_unsupported(field, stop, "0 is");
  }
  step->limit = (size_t)json_integer_value(start);
  return mk_copy_character(where, "content", mk_json_get(object, "content"), &step->pattern, &step->pattern_length);
}

static mk_status load_decoder_step(mk_tokenizer *t, const char *where, const json_t *object, mk_step *step) {
  (void)t;
  mk_prepend prepend;
  if (step->whole && !mk_is_type(object, "Strip") && !mk_is_type(object, "Fuse")) {
    return mk_unsupported(where, object, "Strip and Fuse may come after Fuse or ByteLevel");
  }
  if (mk_is_type(object, "Replace")) {
    return load_replace(where, object, step);
  }
  if (mk_is_type(object, "Strip")) {
    return load_strip(where, object, step);
  }
  if (mk_is_type(object, "Metaspace")) {
    step->kind = MK_STEP_METASPACE;
    MK_TRY(mk_load_prepend_scheme(where, object, &prepend));
    step->limit = prepend != MK_PREPEND_NEVER;
    return mk_copy_character(where, "replacement", mk_json_get(object, "replacement"), &step->pattern,
                             &step->pattern_length);
  }
  const bool fallback = mk_is_type(object, "ByteFallback"), byte_level = mk_is_type(object, "ByteLevel");
  step->kind = fallback ? MK_STEP_BYTE_FALLBACK : byte_level ? MK_STEP_BYTE_LEVEL : MK_STEP_FUSE;
  return fallback || byte_level || mk_is_type(object, "Fuse")
             ? MK_OK
             : mk_unsupported(where, object,
                              "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and a Sequence of them are");
}

typedef mk_status step_loader(mk_tokenizer *t, const char *where, const json_t *object, mk_step *step);

/* How many times as long a step may make a text. */
static size_t growth_of(const mk_step *step) {
  switch (step->kind) {
    case MK_STEP_REPLACE:
    case MK_STEP_REPLACE_REGEX:
      return step->content_length > step->pattern_length
                 ? (step->content_length + step->pattern_length - 1) / step->pattern_length
                 : 1;
    case MK_STEP_NORMAL_FORM: /* U+0390 and U+FDFA */
      return step->form == MK_NFC || step->form == MK_NFD ? 3 : 11;
    case MK_STEP_LOWERCASE: /* U+0130 */
      return 2;
    default:
      return 1;
  }
}

/* One step or a Sequence of them; `member` is what the Sequence calls its list. */
static mk_status load_steps(mk_tokenizer *t, const char *part, const char *member, const json_t *object,
                            step_loader *load, mk_steps *steps) {
  char where[64];
  size_t growth = 1;
  const bool sequence = mk_is_type(object, "Sequence");
  const json_t *list = sequence ? mk_json_get(object, member) : NULL;
  const size_t count = sequence ? json_array_size(list) : 1;
  snprintf(where, sizeof where, "%s.%s", part, member);
  if (sequence && (!json_is_array(list) || count > MK_STEPS)) {
    return mk_error(MK_ERR_FILE, "%s: must be a list of at most %d steps", where, MK_STEPS);
  }
  for (size_t i = 0; i < count; i++) {
    mk_step *step = &steps->list[steps->count++];
    if (sequence) {
      snprintf(where, sizeof where, "%s.%s[%zu]", part, member, i);
    } else {
      snprintf(where, sizeof where, "%s", part);
    }
    step->whole = i > 0 && (step[-1].whole || step[-1].kind == MK_STEP_FUSE || step[-1].kind == MK_STEP_BYTE_LEVEL);
    MK_TRY(load(t, where, sequence ? json_array_get(list, i) : object, step));
    /* Real files make one character of one or none; texts that grow without bound come from hostile ones. */
    growth *= growth_of(step);
    if (growth > GROWTH || (step->kind == MK_STEP_PREPEND && step->content_length > GROWTH)) {
      return mk_error(MK_ERR_FILE, "%s: text may become more than %d times as long; this is not supported", where,
                      GROWTH);
    }
  }
  return MK_OK;
}

mk_status mk_load_normalizer(mk_tokenizer *t, const json_t *object) {
  return object == NULL ? MK_OK
                        : load_steps(t, "normalizer", "normalizers", object, load_normalizer_step, &t->normalizer);
}

mk_status mk_load_decoder(mk_tokenizer *t, const json_t *object) {
  if (object == NULL) { /* Hugging Face would put spaces between the tokens */
    return mk_unsupported("decoder", object, "ByteLevel or a Sequence, as Llama's files have it, is");
  }
  return load_steps(t, "decoder", "decoders", object, load_decoder_step, &t->decoder);
}

mk_status mk_load_word(mk_tokenizer *t) {
  return mk_regex_compile(t, "added_tokens: single_word", "^[" MK_CLASS_WORD MK_CLASS_JOINERS "]", &t->word);
}

static mk_status load_template(mk_tokenizer *t, const json_t *object) {
  const json_t *single = mk_json_get(object, "single");
  bool seen = false;
  size_t capacity = 0;
  if (t->template_ids != NULL) {
    return mk_error(MK_ERR_FILE, "post_processor: more than one TemplateProcessing is not supported");
  }
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *sequence = json_object_get(json_array_get(single, i), "Sequence");
    if (sequence != NULL) {
      const char *name = json_string_value(json_object_get(sequence, "id"));
      if (seen || name == NULL || strcmp(name, "A") != 0) {
        return mk_unsupported("post_processor.single", single, "a template with the sequence A once is");
      }
      seen = true;
      continue;
    }
    const char *name =
        json_string_value(json_object_get(json_object_get(json_array_get(single, i), "SpecialToken"), "id"));
    const json_t *ids =
        name == NULL ? NULL : json_object_get(json_object_get(mk_json_get(object, "special_tokens"), name), "ids");
    if (json_array_size(ids) == 0) {
      return mk_error(MK_ERR_FILE,
                      "post_processor.single[%zu]: must be a Sequence or a SpecialToken that special_tokens lists", i);
    }
    for (size_t k = 0; k < json_array_size(ids); k++) {
      const json_t *id = json_array_get(ids, k);
      if (!json_is_integer(id) || json_integer_value(id) < 0 || (uint64_t)json_integer_value(id) >= t->count) {
        char shown[MK_JSON_SHOWN];
        return mk_error(MK_ERR_FILE, "post_processor.special_tokens: \"%.100s\": id %s is not below the %zu tokens",
                        name, mk_json_show(id, shown), t->count);
      }
      size_t used = t->template_before + t->template_after;
      MK_TRY(mk_grow(&t->template_ids, &capacity, used + 1, sizeof *t->template_ids));
      t->template_ids[used] = (uint32_t)json_integer_value(id);
      *(seen ? &t->template_after : &t->template_before) += 1;
    }
  }
  return seen ? MK_OK : mk_unsupported("post_processor.single", single, "a template with the sequence A once is");
}

static mk_status load_processors(mk_tokenizer *t, const json_t *object, unsigned depth) {
  if (object == NULL || mk_is_type(object, "ByteLevel")) { /* ByteLevel moves offsets only */
    return MK_OK;
  }
  if (mk_is_type(object, "TemplateProcessing")) {
    return load_template(t, object);
  }
  const json_t *list = mk_json_get(object, "processors");
  if (!mk_is_type(object, "Sequence") || !json_is_array(list) || depth > 0) {
    return mk_unsupported("post_processor", object, "TemplateProcessing, ByteLevel or a Sequence of them is");
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    MK_TRY(load_processors(t, json_array_get(list, i), depth + 1));
  }
  return MK_OK;
}

mk_status mk_load_post_processor(mk_tokenizer *t, const json_t *object) { return load_processors(t, object, 0); }
