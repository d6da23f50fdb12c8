/* The pre-tokeniser of tokenizer.json, and how its patterns become PCRE2's. What is not computed exactly as Hugging
 * Face does is refused by name. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

/* What ByteLevel with use_regex means. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* The classes of Rust's own functions, by the tables that the reference has of them: numbers are those of Unicode 17;
 * punctuation is that of Unicode 8, with the ASCII signs, so that what has become punctuation since is left out. */
#define RUST_NUMBER_NEWER "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}"
#define RUST_PUNCTUATION                                                                                     \
  "(?![\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}-\\x{1b4f}\\x{1b7d}-\\x{1b7f}\\x{2e43}-\\x{2e4f}"    \
  "\\x{2e52}-\\x{2e5d}\\x{10d6e}\\x{10ead}\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}\\x{113d4}-\\x{113d5}"   \
  "\\x{113d7}-\\x{113d8}\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}" \
  "\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}\\x{11a9e}-\\x{11aa2}" \
  "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11c41}-\\x{11c45}\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}"           \
  "\\x{11f43}-\\x{11f4f}\\x{11fff}\\x{12ff1}-\\x{12ff2}\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}\\x{16fe2}" \
  "\\x{1e5ff}\\x{1e95e}-\\x{1e95f}])[\\p{P}$+<=>^`|~\\x{166d}\\x{111c9}]"

mk_status mk_regex_compile(mk_tokenizer *t, const char *where, const char *pattern, pcre2_code **out) {
  int error;
  PCRE2_SIZE offset;
  *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                       t->compile_context);
  if (*out == NULL) {
    PCRE2_UCHAR text[128] = "";
    pcre2_get_error_message(error, text, sizeof text);
    return mk_error(error == PCRE2_ERROR_HEAP_FAILED ? MK_ERR_RUNTIME : MK_ERR_FILE,
                    "%s: PCRE2 cannot compile the pattern: %s", where, (const char *)text);
  }
  /* Where there is no JIT (no executable memory), pcre2_match interprets: slower, the same pieces. */
  pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
  return MK_OK;
}

static mk_status compile_translated(mk_tokenizer *t, const char *where, const char *pattern, size_t length,
                                    pcre2_code **out, bool *empty) {
  mk_bytes translated = {0};
  mk_status status = mk_regex_translate(where, pattern, length, &translated, empty);
  if (status == MK_OK) {
    status = mk_regex_compile(t, where, (const char *)translated.bytes, out);
  }
  mk_free(translated.bytes);
  return status;
}

mk_status mk_regex_load(mk_tokenizer *t, const char *where, const json_t *pattern, pcre2_code **out, bool *empty) {
  enum { LONGEST_PATTERN = 1 << 16 }; /* bytes: DeepSeek-V2 lists letters one by one */
  const size_t length = json_string_length(pattern);
  char shown[MK_JSON_SHOWN];
  if (!json_is_string(pattern) || length == 0 || length > LONGEST_PATTERN) {
    return mk_error(MK_ERR_FILE, "%s.Regex: is %s, must be a pattern of 1 to %d bytes", where,
                    mk_json_show(pattern, shown), LONGEST_PATTERN);
  }
  return compile_translated(t, where, json_string_value(pattern), length, out, empty);
}

static mk_status load_behavior(const char *where, const json_t *object, mk_behavior *out) {
  static const char *const names[] = {[MK_ISOLATED] = "Isolated",
                                      [MK_REMOVED] = "Removed",
                                      [MK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                      [MK_MERGED_WITH_NEXT] = "MergedWithNext",
                                      [MK_CONTIGUOUS] = "Contiguous"};
  const json_t *behavior = mk_json_get(object, "behavior");
  char field[128];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (json_is_string(behavior) && strcmp(json_string_value(behavior), names[i]) == 0) {
      *out = (mk_behavior)i;
      return MK_OK;
    }
  }
  snprintf(field, sizeof field, "%s.behavior", where);
  return mk_unsupported(field, behavior,
                        "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" and \"Contiguous\" are");
}

static mk_status load_split(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  const json_t *pattern = mk_json_get(object, "pattern");
  char field[128];
  bool empty;
  MK_TRY(mk_load_bool(object, where, "invert", false, &step->invert));
  MK_TRY(load_behavior(where, object, &step->behavior));
  snprintf(field, sizeof field, "%s.pattern", where);
  if (json_object_get(pattern, "Regex") != NULL) {
    return mk_regex_load(t, field, json_object_get(pattern, "Regex"), &step->code, &empty);
  }
  if (json_object_get(pattern, "String") != NULL) {
    return mk_copy_text(field, "String", json_object_get(pattern, "String"), false, &step->text, &step->length);
  }
  return mk_unsupported(field, pattern, "{\"Regex\": ...} and {\"String\": ...} are");
}

static mk_status load_digits(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  mk_bytes number = {0};
  bool individual, known;
  MK_TRY(mk_load_bool(object, where, "individual_digits", false, &individual));
  step->behavior = individual ? MK_ISOLATED : MK_CONTIGUOUS;
  mk_status status;
  MK_TRY_GOTO(mk_bytes_append(&number, "[", 1), done);
  MK_TRY_GOTO(mk_class_property("N", 1, &number, &known), done);
  MK_TRY_GOTO(mk_bytes_append(&number, RUST_NUMBER_NEWER "]", sizeof RUST_NUMBER_NEWER "]"), done);
  status = mk_regex_compile(t, where, (const char *)number.bytes, &step->code);
done:
  mk_free(number.bytes);
  return status;
}

static mk_status load_punctuation(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  step->behavior = MK_ISOLATED;
  if (mk_json_get(object, "behavior") != NULL) {
    MK_TRY(load_behavior(where, object, &step->behavior));
  }
  return mk_regex_compile(t, where, RUST_PUNCTUATION, &step->code);
}

static mk_status load_byte_level(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  bool use_regex, empty;
  step->kind = MK_PRE_BYTE_LEVEL;
  MK_TRY(mk_load_bool(object, where, "add_prefix_space", true, &step->prefix));
  MK_TRY(mk_load_bool(object, where, "use_regex", true, &use_regex));
  return use_regex ? compile_translated(t, where, gpt2, sizeof gpt2 - 1, &step->code, &empty) : MK_OK;
}

static bool one_character(const uint8_t *text, size_t size) {
  size_t length = 0;
  return size > 0 && mk_utf8_step(text, size, &length) == MK_UTF8_VALID && length == size;
}

/* "first" asks which part begins where the original text does: easy as long as characters keep their places. */
static mk_status check_first(const mk_tokenizer *t, const char *where) {
  for (size_t i = 0; i < t->normalizer.count; i++) {
    const mk_step *step = &t->normalizer.list[i];
    if (step->kind != MK_STEP_REPLACE || !one_character(step->pattern, step->pattern_length) ||
        !one_character(step->content, step->content_length)) {
      return mk_error(MK_ERR_FILE,
                      "%s.prepend_scheme: \"first\" is supported only with a normalizer that replaces one character by "
                      "one",
                      where);
    }
  }
  return MK_OK;
}

static mk_status load_metaspace(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  step->kind = MK_PRE_METASPACE;
  step->behavior = MK_MERGED_WITH_NEXT;
  MK_TRY(mk_load_bool(object, where, "split", true, &step->cut));
  MK_TRY(mk_load_prepend_scheme(where, object, &step->prepend));
  MK_TRY(mk_copy_character(where, "replacement", mk_json_get(object, "replacement"), &step->text, &step->length));
  return step->prepend == MK_PREPEND_FIRST ? check_first(t, where) : MK_OK;
}

static mk_status load_step(mk_tokenizer *t, const char *where, const json_t *object, mk_pre_step *step) {
  typedef mk_status loader(mk_tokenizer * t, const char *where, const json_t *object, mk_pre_step *step);
  static const struct {
    const char *type;
    loader *load;
  } loaders[] = {{"Split", load_split},
                 {"Digits", load_digits},
                 {"Punctuation", load_punctuation},
                 {"ByteLevel", load_byte_level},
                 {"Metaspace", load_metaspace}};
  for (size_t i = 0; i < sizeof loaders / sizeof loaders[0]; i++) {
    if (mk_is_type(object, loaders[i].type)) {
      return loaders[i].load(t, where, object, step);
    }
  }
  step->behavior = MK_REMOVED;
  if (mk_is_type(object, "WhitespaceSplit")) {
    return mk_regex_compile(t, where, "[" MK_CLASS_SPACE "]", &step->code);
  }
  if (mk_is_type(object, "Whitespace")) {
    step->invert = true;
    return mk_regex_compile(
        t, where, "[" MK_CLASS_WORD MK_CLASS_JOINERS "]+|[^" MK_CLASS_WORD MK_CLASS_JOINERS MK_CLASS_SPACE "]+",
        &step->code);
  }
  return mk_unsupported(where, object,
                        "Split, Digits, Punctuation, Whitespace, WhitespaceSplit, ByteLevel, Metaspace and a Sequence "
                        "of them are");
}

static mk_status load_steps(mk_tokenizer *t, const char *where, const json_t *object, unsigned depth) {
  enum { MOST_DEPTH = 4 };
  char inner[96];
  if (!mk_is_type(object, "Sequence")) {
    if (t->pre.count == MK_PRE_STEPS) {
      return mk_error(MK_ERR_FILE, "%s: more than %d steps are not supported", where, MK_PRE_STEPS);
    }
    return load_step(t, where, object, &t->pre.list[t->pre.count++]);
  }
  const json_t *list = mk_json_get(object, "pretokenizers");
  if (!json_is_array(list) || depth == MOST_DEPTH) {
    return mk_unsupported(where, object, "a Sequence of a few steps is");
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    snprintf(inner, sizeof inner, "%.40s.pretokenizers[%zu]", where, i);
    MK_TRY(load_steps(t, inner, json_array_get(list, i), depth + 1));
  }
  return MK_OK;
}

mk_status mk_load_pre_tokenizer(mk_tokenizer *t, const json_t *object) {
  MK_TRY(object == NULL ? MK_OK : load_steps(t, "pre_tokenizer", object, 0));
  t->byte_level = t->pre.count > 0 && t->pre.list[t->pre.count - 1].kind == MK_PRE_BYTE_LEVEL;
  return MK_OK;
}
