/* Formatting of values as Python does: format() with its small language, `%` of a string, and str.format().
 *
 * Private to text/template*.c. Not supported, and refused by name: %a and !a, zeros in front of grouped digits,
 * precisions above 1000. */
#ifndef MK_TEMPLATE_FORMAT_H
#define MK_TEMPLATE_FORMAT_H

#include "text/template_internal.h"

typedef struct jinja_spec {
  char fill[4]; /* one character */
  size_t fill_length;
  char align; /* < > ^ = or 0: the default of the type */
  char sign;  /* + - or space */
  char group; /* , _ or 0 */
  char type;  /* 0: the default */
  bool alternate, zeros;
  int64_t width, precision; /* -1: not given */
} jinja_spec;

/* A number by its specification, whose type fits it, or text with nothing but a width, an alignment and a fill. */
mk_status mk_jinja_format_whole(jinja *m, const jinja_spec *spec, int64_t value, jinja_output *o);
mk_status mk_jinja_format_real(jinja *m, const jinja_spec *spec, double value, jinja_output *o);
mk_status mk_jinja_format_text(jinja *m, const jinja_spec *spec, jinja_value text, jinja_output *o);
/* format(value, specification). */
mk_status mk_jinja_format_value(jinja *m, jinja_value value, jinja_value specification, jinja_output *o);

/* text % right. */
mk_status mk_jinja_format_percent(jinja *m, jinja_value text, jinja_value right, jinja_value *out);
/* text.format(arguments...), or text.format_map(map) if that is not missing. */
mk_status mk_jinja_format_braces(jinja *m, jinja_value text, const jinja_arguments *arguments, jinja_value map,
                                 jinja_value *out);

#endif
