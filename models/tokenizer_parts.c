/* The parts of tokenizer.json around the model: normaliser, pre-tokeniser, post-processor, decoder. What is not computed
 * exactly as Hugging Face does is refused by name. */
#include <string.h>

#include "models/tokenizer_internal.h"
#include "models/unicode.h"

enum {
  GROWTH = 64,   /* times: the most that steps may lengthen a text */
  LONGEST = 256, /* bytes of a step's text: real files have one character */
};

/* The split patterns known to give the same pieces here as in Hugging Face tokenizers. The reference compiles them with
 * Oniguruma, whose classes are those of Unicode 16. PCRE2's may be those of Unicode 14 (Debian 12), so what has become a
 * letter or number since then is listed (adding what a newer PCRE2 has already changes nothing), and white space is spelled
 * out because PCRE2's \s has U+180E besides, which Unicode no longer calls a space. */
#define LETTER                                                                                                         \
  "\\p{L}\\x{1c89}\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"           \
  "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}"            \
  "\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"            \
  "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{"      \
  "16d6c}"                                                                                                             \
  "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}" \
  "\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NUMBER                                                                                                      \
  "\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}" \
  "\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define SPACE "\\t-\\r \\x{85}\\p{Z}"

/* What Rust's \w means, which decides whether a single_word token stands alone. */
#define WORD                                                                                                  \
  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-\\x{1c8a}"           \
  "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d40}-\\x{10d65}\\x{10d69}-\\x{10d6d}"     \
  "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}" \
  "\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"   \
  "\\x{113cc}-\\x{113d3}\\x{113e1}-\\x{113e2}\\x{116d0}-\\x{116e3}\\x{11bc0}-\\x{11be0}\\x{11bf0}-\\x{11bf9}" \
  "\\x{11f00}-\\x{11f10}\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f50}-\\x{11f5a}\\x{1342f}"            \
  "\\x{13440}-\\x{13455}\\x{13460}-\\x{143fa}\\x{16100}-\\x{16139}\\x{16d40}-\\x{16d6c}\\x{16d70}-\\x{16d79}" \
  "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1ccf0}-\\x{1ccf9}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"   \
  "\\x{1e4d0}-\\x{1e4f9}\\x{1e5d0}-\\x{1e5fa}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

/* The alternatives that all three share, and what Llama 3 and Qwen 2 begin with. */
#define RUNS_OF_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|"
#define OTHERS " ?[^" SPACE LETTER NUMBER "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" RUNS_OF_SPACE
static const struct split_pattern {
  const char *source, *pcre2;
} split_patterns[] = {
    /* Llama 3 */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     WORDS "[" NUMBER "]{1,3}|" OTHERS},
    /* Qwen 2: digits one by one */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     WORDS "[" NUMBER "]|" OTHERS},
    /* GPT-2: what ByteLevel with use_regex means */
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+|" RUNS_OF_SPACE},
};
enum { SPLIT_PATTERNS = sizeof split_patterns / sizeof split_patterns[0] };

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

static mk_status copy_text(const char *where, const char *key, const json_t *value, bool may_be_empty, uint8_t **out,
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

static mk_status copy_character(const char *where, const char *key, const json_t *value, uint8_t **out,
                                size_t *length) {
  MK_TRY(copy_text(where, key, value, false, out, length));
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
    char field[96];
    snprintf(field, sizeof field, "%s.pattern", where);
    return mk_unsupported(field, pattern, "{\"String\": ...} is");
  }
  MK_TRY(
      copy_text(where, "pattern.String", mk_json_get(pattern, "String"), false, &step->pattern, &step->pattern_length));
  return copy_text(where, "content", mk_json_get(object, "content"), true, &step->content, &step->content_length);
}

static mk_status load_prepend_scheme(const char *where, const json_t *object, mk_prepend *out) {
  static const char *const names[] = {
      [MK_PREPEND_NEVER] = "never", [MK_PREPEND_FIRST] = "first", [MK_PREPEND_ALWAYS] = "always"};
  const json_t *scheme = mk_json_get(object, "prepend_scheme");
  bool prefix;
  char field[96];
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

static mk_status load_normalizer_step(const char *where, const json_t *object, mk_step *step) {
  if (mk_is_type(object, "Replace")) {
    return load_replace(where, object, step);
  }
  if (mk_is_type(object, "Prepend")) {
    step->kind = MK_STEP_PREPEND;
    return copy_text(where, "prepend", mk_json_get(object, "prepend"), false, &step->content, &step->content_length);
  }
  return mk_unsupported(where, object, "Prepend, Replace and a Sequence of them are");
}

static mk_status load_strip(const char *where, const json_t *object, mk_step *step) {
  char field[96], shown[MK_JSON_SHOWN];
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
  return copy_character(where, "content", mk_json_get(object, "content"), &step->pattern, &step->pattern_length);
}

static mk_status load_decoder_step(const char *where, const json_t *object, mk_step *step) {
  mk_prepend prepend;
  if (step->whole && !mk_is_type(object, "Strip") && !mk_is_type(object, "Fuse")) {
    return mk_unsupported(where, object, "Strip and Fuse are behind Fuse or ByteLevel");
  }
  if (mk_is_type(object, "Replace")) {
    return load_replace(where, object, step);
  }
  if (mk_is_type(object, "Strip")) {
    return load_strip(where, object, step);
  }
  if (mk_is_type(object, "Metaspace")) {
    step->kind = MK_STEP_METASPACE;
    MK_TRY(load_prepend_scheme(where, object, &prepend));
    step->limit = prepend != MK_PREPEND_NEVER;
    return copy_character(where, "replacement", mk_json_get(object, "replacement"), &step->pattern,
                          &step->pattern_length);
  }
  const bool fallback = mk_is_type(object, "ByteFallback"), byte_level = mk_is_type(object, "ByteLevel");
  step->kind = fallback ? MK_STEP_BYTE_FALLBACK : byte_level ? MK_STEP_BYTE_LEVEL : MK_STEP_FUSE;
  return fallback || byte_level || mk_is_type(object, "Fuse")
             ? MK_OK
             : mk_unsupported(where, object,
                              "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and a Sequence of them are");
}

typedef mk_status step_loader(const char *where, const json_t *object, mk_step *step);

/* One step or a Sequence of them; `member` is what the Sequence calls its list. */
static mk_status load_steps(const char *part, const char *member, const json_t *object, step_loader *load,
                            mk_steps *steps) {
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
    MK_TRY(load(where, sequence ? json_array_get(list, i) : object, step));
    /* Real files make one character of one or none; texts that grow without bound come from hostile ones. */
    if (step->kind == MK_STEP_REPLACE && step->content_length > step->pattern_length) {
      growth *= (step->content_length + step->pattern_length - 1) / step->pattern_length;
    }
    if (growth > GROWTH || (step->kind == MK_STEP_PREPEND && step->content_length > GROWTH)) {
      return mk_error(MK_ERR_FILE, "%s: text may become more than %d times as long; this is not supported", where,
                      GROWTH);
    }
  }
  return MK_OK;
}

mk_status mk_load_normalizer(mk_tokenizer *t, const json_t *object) {
  return object == NULL ? MK_OK : load_steps("normalizer", "normalizers", object, load_normalizer_step, &t->normalizer);
}

mk_status mk_load_decoder(mk_tokenizer *t, const json_t *object) {
  if (object == NULL) { /* Hugging Face would put spaces between the tokens */
    return mk_unsupported("decoder", object, "ByteLevel or a Sequence, as Llama's files have it, is");
  }
  return load_steps("decoder", "decoders", object, load_decoder_step, &t->decoder);
}

/* Pre-tokenisers. */

static mk_status compile(mk_tokenizer *t, const char *pattern, pcre2_code **out) {
  int error;
  PCRE2_SIZE offset;
  *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                       t->compile_context);
  if (*out == NULL) {
    PCRE2_UCHAR text[128] = "";
    pcre2_get_error_message(error, text, sizeof text);
    return mk_error(MK_ERR_RUNTIME, "pre_tokenizer: PCRE2 cannot compile the split pattern: %s", (const char *)text);
  }
  /* Where there is no JIT (no executable memory), pcre2_match interprets: slower, the same pieces. */
  pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
  return MK_OK;
}

mk_status mk_load_word(mk_tokenizer *t) { return compile(t, "^[" WORD "]", &t->word); }

static mk_status load_byte_level(const json_t *object, bool *use_regex) {
  bool prefix;
  if (!mk_is_type(object, "ByteLevel")) {
    return mk_unsupported("pre_tokenizer", object, "Metaspace, ByteLevel, and a Sequence of Split and ByteLevel are");
  }
  MK_TRY(mk_load_bool(object, "pre_tokenizer", "add_prefix_space", true, &prefix));
  MK_TRY(mk_load_bool(object, "pre_tokenizer", "use_regex", true, use_regex));
  return prefix ? mk_error(MK_ERR_FILE, "pre_tokenizer.add_prefix_space: true is not supported") : MK_OK;
}

static mk_status load_split(mk_tokenizer *t, const json_t *object) {
  bool invert;
  if (!mk_is_type(object, "Split")) {
    return mk_unsupported("pre_tokenizer.pretokenizers[0]", object, "Split is");
  }
  MK_TRY(mk_load_bool(object, "pre_tokenizer", "invert", false, &invert));
  const json_t *behavior = mk_json_get(object, "behavior");
  if (invert || !json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0) {
    return mk_unsupported(invert ? "pre_tokenizer.invert" : "pre_tokenizer.behavior", invert ? json_true() : behavior,
                          invert ? "false is" : "\"Isolated\" is");
  }
  const json_t *pattern = json_object_get(mk_json_get(object, "pattern"), "Regex");
  for (size_t i = 0; json_is_string(pattern) && i < SPLIT_PATTERNS; i++) {
    if (strcmp(json_string_value(pattern), split_patterns[i].source) == 0) {
      return compile(t, split_patterns[i].pcre2, &t->split);
    }
  }
  return mk_unsupported("pre_tokenizer.pattern", mk_json_get(object, "pattern"),
                        "the patterns of Llama 3, Qwen 2 and GPT-2 are");
}

static bool one_character(const uint8_t *text, size_t size) {
  size_t length = 0;
  return size > 0 && mk_utf8_step(text, size, &length) == MK_UTF8_VALID && length == size;
}

/* "first" asks which part begins where the original text does: easy as long as characters keep their places. */
static mk_status check_first(const mk_tokenizer *t) {
  for (size_t i = 0; i < t->normalizer.count; i++) {
    const mk_step *step = &t->normalizer.list[i];
    if (step->kind != MK_STEP_REPLACE || !one_character(step->pattern, step->pattern_length) ||
        !one_character(step->content, step->content_length)) {
      return mk_error(MK_ERR_FILE,
                      "pre_tokenizer.prepend_scheme: \"first\" is supported only with a normalizer that replaces one "
                      "character by one");
    }
  }
  return MK_OK;
}

static mk_status load_metaspace(mk_tokenizer *t, const json_t *object) {
  uint8_t *character = NULL;
  t->pre_tokenizer = MK_PRE_METASPACE;
  MK_TRY(mk_load_bool(object, "pre_tokenizer", "split", true, &t->metaspace.split));
  MK_TRY(load_prepend_scheme("pre_tokenizer", object, &t->metaspace.prepend));
  mk_status status = copy_character("pre_tokenizer", "replacement", mk_json_get(object, "replacement"), &character,
                                    &t->metaspace.length);
  if (status == MK_OK) {
    memcpy(t->metaspace.replacement, character, t->metaspace.length);
  }
  mk_free(character);
  return status == MK_OK && t->metaspace.prepend == MK_PREPEND_FIRST ? check_first(t) : status;
}

mk_status mk_load_pre_tokenizer(mk_tokenizer *t, const json_t *object) {
  bool use_regex;
  if (object == NULL) {
    t->pre_tokenizer = MK_PRE_NONE;
    return MK_OK;
  }
  if (mk_is_type(object, "Metaspace")) {
    return load_metaspace(t, object);
  }
  t->pre_tokenizer = MK_PRE_BYTE_LEVEL;
  if (!mk_is_type(object, "Sequence")) {
    MK_TRY(load_byte_level(object, &use_regex));
    if (!use_regex) {
      return mk_error(MK_ERR_FILE, "pre_tokenizer.use_regex: false without a Split before it is not supported");
    }
    return compile(t, split_patterns[SPLIT_PATTERNS - 1].pcre2, &t->split);
  }
  const json_t *list = mk_json_get(object, "pretokenizers");
  if (json_array_size(list) != 2) {
    return mk_unsupported("pre_tokenizer.pretokenizers", list, "Split followed by ByteLevel is");
  }
  MK_TRY(load_byte_level(json_array_get(list, 1), &use_regex));
  if (use_regex) {
    return mk_error(MK_ERR_FILE, "pre_tokenizer.use_regex: true behind a Split is not supported; only false is");
  }
  return load_split(t, json_array_get(list, 0));
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
