/* See picture.h. */
#include "tools/profiler/picture.h"

#include <math.h>
#include <string.h>

#include "tools/profiler/bytes.h"

enum { WIDTH = 1200, GUTTER = 64, RIGHT = 14, TITLE = 26, LEGEND = 22, AXIS = 18, STRIP = 18, RANK = 15, FEW_SMS = 24 };
enum { HEAD = TITLE + LEGEND + AXIS + STRIP, PLOT = WIDTH - GUTTER - RIGHT, LEAST_COLUMNS = 60 };

/* What a column shows: nothing, a wait, or work at an opcode. */
enum { CLASS_IDLE, CLASS_WAIT, CLASS_FEED, CLASS_HAND, CLASS_OPCODES, CLASS_COUNT = CLASS_OPCODES + MK_OP_COUNT };

/* By opcode, as in page/raster.js. */
static const char *const palette[] = {"#888888", "#0072b2", "#d55e00", "#f0e442", "#009e73", "#8f6fc0",
                                      "#cc79a7", "#e69f00", "#56b4e9", "#9a6b3f", "#7f9f2f", "#b0413e",
                                      "#4f7f8f", "#c9a9e0", "#5f5f9f", "#a0a060"};
enum { PALETTE = sizeof palette / sizeof palette[0] };
static const char *const wait_colours[] = {"none", "#6d7686", "#6d7686", "#b4bbc7"};
static const char *const wait_texts[] = {"", "waits for another SM", "for weights", "for its own SM"};

typedef struct drawing {
  const mk_summary *summary;
  const mk_profile *profile;
  uint64_t from, to;
  uint32_t columns;
  uint32_t roles[MK_TRACE_ROLES], role_count; /* shown */
  uint32_t *row_of;                           /* per SM; MK_NO_INSTRUCTION: it has no row */
  uint32_t rows;
  double row, lane;             /* heights */
  double (*spent)[CLASS_COUNT]; /* per column: nanoseconds of the lane at hand */
  mk_bytes paths[CLASS_COUNT];  /* of all lanes */
  bool used[MK_OP_COUNT];
  mk_bytes out;
} drawing;

static uint32_t class_of(const drawing *d, const mk_interval *in) {
  switch (mk_activity_kind_of(in->activity)) {
    case MK_ACTIVITY_KIND_WORK:
      return in->instruction == MK_NO_INSTRUCTION
                 ? CLASS_IDLE
                 : CLASS_OPCODES + (uint32_t)d->profile->program->instructions[in->instruction].opcode;
    case MK_ACTIVITY_KIND_WAIT:
      return CLASS_WAIT;
    case MK_ACTIVITY_KIND_FEED:
      return CLASS_FEED;
    case MK_ACTIVITY_KIND_RING:
    case MK_ACTIVITY_KIND_HAND:
      return CLASS_HAND;
    default:
      return CLASS_IDLE;
  }
}

static void gather(drawing *d, const mk_profile_track *track) {
  double scale = (double)d->columns / (double)(d->to - d->from);
  memset(d->spent, 0, d->columns * sizeof *d->spent);
  for (uint32_t i = 0; i < track->count; i++) {
    const mk_interval *in = &track->intervals[i];
    if (in->end <= d->from || in->start >= d->to || in->end <= in->start) {
      continue;
    }
    double a = in->start > d->from ? (double)(in->start - d->from) * scale : 0;
    double b = fmin((double)(in->end - d->from) * scale, d->columns);
    uint32_t class = class_of(d, in);
    for (uint32_t c = (uint32_t)a; c < d->columns && c < b; c++) {
      d->spent[c][class] += fmin(b, c + 1.0) - fmax(a, c);
    }
  }
}

static uint32_t most_of(const double spent[CLASS_COUNT]) {
  uint32_t best = CLASS_IDLE;
  for (uint32_t k = 0; k < CLASS_COUNT; k++) {
    best = spent[k] > spent[best] ? k : best;
  }
  return best;
}

/* Draws runs of columns that show the same, as strokes of one path per class. */
static void draw_lane(drawing *d, const mk_profile_track *track, double y) {
  uint32_t end_of[CLASS_COUNT] = {0};
  gather(d, track);
  for (uint32_t c = 0, end; c < d->columns; c = end) {
    uint32_t class = most_of(d->spent[c]);
    for (end = c + 1; end < d->columns && most_of(d->spent[end]) == class; end++) {
    }
    if (class == CLASS_IDLE) {
      continue;
    }
    if (end_of[class] == 0) {
      mk_bytes_format(&d->paths[class], "M%u %.6gh%u", c, y, end - c);
    } else {
      mk_bytes_format(&d->paths[class], "m%u 0h%u", c - end_of[class], end - c);
    }
    end_of[class] = end;
    if (class >= CLASS_OPCODES) {
      d->used[class - CLASS_OPCODES] = true;
    }
  }
}

static double lane_y(const drawing *d, uint32_t sm, uint32_t role) {
  uint32_t lane = 0;
  for (uint32_t r = 0; r < d->role_count; r++) {
    lane = d->roles[r] == role ? r : lane;
  }
  return d->row_of[sm] * d->row + (lane + 0.5) * d->lane;
}

/* Draws all lanes; *bytes: of their paths. */
static mk_status draw_lanes(drawing *d, size_t *bytes) {
  *bytes = 0;
  for (uint32_t k = 0; k < CLASS_COUNT; k++) {
    d->paths[k].length = 0;
  }
  for (uint32_t sm = 0; sm < d->profile->sms; sm++) {
    for (uint32_t r = 0; d->row_of[sm] != MK_NO_INSTRUCTION && r < d->role_count; r++) {
      draw_lane(d, mk_profile_track_of(d->profile, sm, d->roles[r]), lane_y(d, sm, d->roles[r]));
    }
  }
  for (uint32_t k = 0; k < CLASS_COUNT; k++) {
    MK_TRY(d->paths[k].status);
    *bytes += d->paths[k].length;
  }
  return MK_OK;
}

/* Text as XML has it. The two last code points of the first plane are no characters there. */
static void put_text(mk_bytes *out, const char *text) {
  char printable[sizeof((mk_trace_facts *)0)->command];
  mk_printable(text, printable, sizeof printable);
  for (const char *at = printable; *at != 0; at++) {
    if (*at == '&' || *at == '<' || *at == '>' || *at == '"') {
      mk_bytes_format(out, "&#%d;", *at);
    } else if (strncmp(at, "\xef\xbf\xbe", 3) == 0 || strncmp(at, "\xef\xbf\xbf", 3) == 0) {
      mk_bytes_text(out, "?");
      at += 2;
    } else {
      mk_bytes_put(out, at, 1);
    }
  }
}

static double x_of(const drawing *d, uint64_t time) {
  double share = time <= d->from ? 0 : (double)(time - d->from) / (double)(d->to - d->from);
  return GUTTER + fmin(share, 1) * PLOT;
}

static void put_axis(drawing *d) {
  double span = (double)(d->to - d->from) * 1e-3, power = pow(10, floor(log10(span / 10))), tick = power;
  for (uint32_t i = 0; tick * 12 < span; i++) {
    tick *= i % 3 == 1 ? 2.5 : 2;
  }
  mk_bytes_format(&d->out, "<text x=\"4\" y=\"%d\" class=\"s\">us</text>", TITLE + LEGEND + 12);
  for (uint32_t i = 0; i * tick <= span; i++) {
    double t = i * tick, x = GUTTER + t / span * PLOT;
    mk_bytes_format(&d->out,
                    "<path d=\"M%.1f %dv%.1f\" stroke=\"#d4d8df\"/><text x=\"%.1f\" y=\"%d\" class=\"s\">%.6g</text>",
                    x, TITLE + LEGEND + AXIS - 4, STRIP + 4 + d->rows * d->row, x + 2, TITLE + LEGEND + 12, t);
  }
}

static void put_legend(drawing *d) {
  double x = GUTTER;
  int y = TITLE;
  for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
    if (d->used[opcode]) {
      mk_bytes_format(
          &d->out,
          "<rect x=\"%.0f\" y=\"%d\" width=\"22\" height=\"11\" fill=\"%s\"/><text x=\"%.0f\" y=\"%d\">%s</text>", x, y,
          palette[opcode % PALETTE], x + 27, y + 10, mk_opcode_text(opcode));
      x += 42 + 6.6 * (double)strlen(mk_opcode_text(opcode));
    }
  }
  for (uint32_t k = CLASS_WAIT; k <= CLASS_HAND; k++) {
    if (d->paths[k].length != 0) {
      mk_bytes_format(
          &d->out,
          "<path d=\"M%.0f %dh22\" stroke=\"%s\" stroke-width=\"3\"%s/><text x=\"%.0f\" y=\"%d\" class=\"s\">%s</text>",
          x, y + 6, wait_colours[k], k == CLASS_FEED ? " stroke-dasharray=\"3 2\"" : "", x + 27, y + 10, wait_texts[k]);
      x += 42 + 6.2 * (double)strlen(wait_texts[k]);
    }
  }
  if (d->profile->serial) {
    return;
  }
  mk_bytes_format(&d->out,
                  "<path d=\"M%.0f %dh22\" stroke=\"#000\" stroke-width=\"1.5\"/><text x=\"%.0f\" y=\"%d\" "
                  "class=\"s\">critical path</text>",
                  x, y + 6, x + 27, y + 10);
}

/* Draws the path: its parts on a strip, and a line over the rows. On one thread the path is everything, and the line
 * would cover the rows. */
static void put_path(drawing *d) {
  const mk_path *path = &d->summary->path;
  mk_bytes line = {0};
  mk_bytes_format(&d->out, "<text x=\"4\" y=\"%d\" class=\"s\">crit. path</text>", HEAD - 5);
  for (size_t i = 0; i < path->count; i++) {
    const mk_path_part *part = &path->parts[i];
    if (part->end <= d->from || part->start >= d->to) {
      continue;
    }
    double a = x_of(d, part->start), b = x_of(d, part->end);
    bool work = mk_activity_kind_of(part->activity) == MK_ACTIVITY_KIND_WORK && part->instruction != MK_NO_INSTRUCTION;
    if (b - a >= 0.3) {
      mk_bytes_format(
          &d->out, "<path d=\"M%.1f %dh%.1f\" stroke=\"%s\" stroke-width=\"%d\"/>", a, HEAD - STRIP / 2 - 1, b - a,
          work ? palette[d->profile->program->instructions[part->instruction].opcode % PALETTE] : wait_colours[1],
          work ? STRIP - 5 : 3);
    }
    if (d->row_of[part->sm] != MK_NO_INSTRUCTION && !d->profile->serial) {
      mk_bytes_format(&line, "%s%.1f %.1fH%.1f", line.length == 0 ? "M" : "L", a,
                      HEAD + lane_y(d, part->sm, part->role), b);
    }
  }
  if (line.length != 0) {
    mk_bytes_text(&d->out, "<path d=\"");
    mk_bytes_put(&d->out, line.data, line.length);
    mk_bytes_text(&d->out, "\" fill=\"none\" stroke=\"#fff\" stroke-width=\"3\" stroke-opacity=\".7\"/><path d=\"");
    mk_bytes_put(&d->out, line.data, line.length);
    mk_bytes_text(&d->out, "\" fill=\"none\" stroke=\"#000\"/>");
  }
  d->out.status = d->out.status == MK_OK ? line.status : d->out.status;
  mk_free(line.data);
}

/* A band beside the rows of a rank, with its name, and a line above them. */
static void put_rank(drawing *d, uint32_t rank) {
  uint32_t sms = d->profile->program->machine.sms, first = MK_NO_INSTRUCTION, rows = 0;
  for (uint32_t sm = rank * sms; sm < (rank + 1) * sms; sm++) {
    if (d->row_of[sm] != MK_NO_INSTRUCTION) {
      first = rows == 0 ? d->row_of[sm] : first;
      rows++;
    }
  }
  if (rows == 0) {
    return;
  }
  double y = HEAD + first * d->row, height = rows * d->row;
  mk_bytes_format(&d->out,
                  "<path d=\"M0 %.1fH%d\" stroke=\"#5b6270\"/><rect y=\"%.1f\" width=\"%d\" height=\"%.1f\" "
                  "fill=\"#e6e8ec\"/><text transform=\"translate(%d %.1f) rotate(-90)\" text-anchor=\"middle\">%s%u"
                  "</text>\n",
                  y, GUTTER + PLOT, y + 1, RANK, height - 2, RANK - 4, y + height / 2, height < 44 ? "" : "rank ",
                  rank);
}

static void put_rows(drawing *d) {
  double thin = fmax(d->lane * 0.35, 0.8);
  mk_bytes_format(&d->out, "<g transform=\"translate(%d %d) scale(%.6g 1)\" fill=\"none\">", GUTTER, HEAD,
                  (double)PLOT / d->columns);
  for (uint32_t k = CLASS_WAIT; k < CLASS_COUNT; k++) {
    if (d->paths[k].length != 0) {
      const char *colour = k < CLASS_OPCODES ? wait_colours[k] : palette[(k - CLASS_OPCODES) % PALETTE];
      mk_bytes_format(&d->out, "<path stroke=\"%s\" stroke-width=\"%.2f\"%s d=\"", colour,
                      k < CLASS_OPCODES ? thin : d->lane * 0.95, k == CLASS_FEED ? " stroke-dasharray=\"3 2\"" : "");
      mk_bytes_put(&d->out, d->paths[k].data, d->paths[k].length);
      mk_bytes_text(&d->out, "\"/>\n");
    }
  }
  mk_bytes_text(&d->out, "</g>\n");
  uint32_t every = 1;
  while (every * d->row < 13) {
    every *= 2;
  }
  bool ranks = mk_profile_has_ranks(d->profile);
  for (uint32_t sm = 0; sm < d->profile->sms; sm++) {
    if (d->row_of[sm] != MK_NO_INSTRUCTION && d->row_of[sm] % every == 0) {
      mk_bytes_format(&d->out, "<text x=\"%d\" y=\"%.1f\" class=\"s\">SM %u</text>", ranks ? RANK + 3 : 4,
                      HEAD + (d->row_of[sm] + 0.5) * d->row + 4, sm % d->profile->program->machine.sms);
    }
  }
  for (uint32_t rank = 0; ranks && rank < d->profile->program->machine.ranks; rank++) {
    put_rank(d, rank);
  }
}

static void put_picture(drawing *d) {
  const mk_trace *t = d->summary->trace;
  double height = HEAD + d->rows * d->row + 8;
  mk_bytes_format(
      &d->out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" role=\"img\">\n"
      "<style>text{font:11px system-ui,'DejaVu "
      "Sans',sans-serif;fill:#16181d}.s{fill:#5b6270}.t{font-size:13px;font-weight:600}"
      "</style>\n<rect width=\"%d\" height=\"%.0f\" fill=\"#fff\"/>\n<text x=\"4\" y=\"17\" class=\"t\">",
      WIDTH, height, WIDTH, height, WIDTH, height);
  put_text(&d->out, t->facts.model);
  mk_bytes_text(&d->out, t->facts.model[0] != 0 ? " on " : "");
  put_text(&d->out, t->facts.device);
  mk_bytes_format(&d->out, ": token %u, %.2f us per token, %u SMs", d->summary->path.step + t->first_step,
                  d->profile->token_us, d->rows);
  if (mk_profile_has_ranks(d->profile)) {
    mk_bytes_format(&d->out, " of %u ranks", d->profile->program->machine.ranks);
  }
  mk_bytes_text(&d->out, "</text>\n");
  put_axis(d);
  put_legend(d);
  put_rows(d);
  put_path(d);
  mk_bytes_text(&d->out, "\n</svg>\n");
}

/* The time from the step's first record of a consumer to its last; a step that was not recorded has none. */
static void step_window(const mk_profile *p, uint32_t step, uint64_t *from, uint64_t *to) {
  *from = UINT64_MAX;
  *to = 0;
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(p, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->count; i++) {
      const mk_interval *in = &track->intervals[i];
      if (in->step == step) {
        *from = in->start < *from ? in->start : *from;
        *to = in->end > *to ? in->end : *to;
      }
    }
  }
}

static mk_status choose_window(drawing *d, mk_picture_window window) {
  if (window.from == 0 && window.to == 0) {
    step_window(d->profile, d->summary->path.step, &d->from, &d->to);
    return d->from < d->to ? MK_OK : mk_error(MK_ERR_USAGE, "the trace holds nothing of that step to draw");
  }
  uint64_t last = 0;
  for (size_t t = 0; t < (size_t)d->profile->sms * MK_TRACE_ROLES; t++) {
    const mk_profile_track *track = &d->profile->tracks[t];
    uint64_t end = track->count == 0 ? 0 : track->intervals[track->count - 1].end;
    last = end > last ? end : last;
  }
  if (!(window.from >= 0 && window.from < window.to && window.from * 1e3 < (double)last)) {
    return mk_error(MK_ERR_USAGE, "from %g to %g us: nothing was recorded there; the trace lasts for %.3f us",
                    window.from, window.to, (double)last * 1e-3);
  }
  d->from = (uint64_t)(window.from * 1e3);
  d->to = (uint64_t)fmin(window.to * 1e3, (double)last);
  d->to = d->to > d->from ? d->to : d->from + 1;
  return MK_OK;
}

static mk_status choose_rows(drawing *d) {
  const mk_profile *p = d->profile;
  bool seen[MK_TRACE_ROLES] = {false};
  MK_TRY(mk_alloc(p->sms, sizeof *d->row_of, &d->row_of));
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    d->row_of[sm] = MK_NO_INSTRUCTION;
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      if (mk_profile_track_of(p, sm, role)->count != 0) {
        d->row_of[sm] = d->rows;
        seen[role] = true;
      }
    }
    d->rows += d->row_of[sm] != MK_NO_INSTRUCTION;
  }
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    if (seen[role] && (role == MK_ROLE_CONSUMER || d->rows <= FEW_SMS)) {
      d->roles[d->role_count++] = role;
    }
  }
  d->lane = d->rows <= FEW_SMS ? 9 : fmax(3, fmin(12, 560.0 / d->rows));
  d->row = d->role_count * d->lane + (d->rows <= FEW_SMS ? 4 : d->lane > 5 ? 1 : 0);
  return MK_OK;
}

static mk_status draw(drawing *d, mk_picture_window window) {
  MK_TRY(choose_window(d, window));
  MK_TRY(choose_rows(d));
  MK_TRY(mk_alloc(PLOT, sizeof *d->spent, &d->spent));
  size_t bytes = SIZE_MAX;
  uint32_t drawn = 0;
  for (d->columns = PLOT; bytes > MK_PICTURE_MOST * 3 / 4 && d->columns >= LEAST_COLUMNS;
       d->columns = d->columns * 3 / 4) {
    MK_TRY(draw_lanes(d, &bytes));
    drawn = d->columns;
  }
  d->columns = drawn;
  put_picture(d);
  return d->out.status;
}

mk_status mk_picture_make(const mk_summary *summary, mk_picture_window window, void **data, size_t *length) {
  drawing d = {.summary = summary, .profile = summary->profile};
  *data = NULL;
  *length = 0;
  mk_status status = draw(&d, window);
  mk_free(d.row_of);
  mk_free(d.spent);
  for (uint32_t k = 0; k < CLASS_COUNT; k++) {
    mk_free(d.paths[k].data);
  }
  if (status != MK_OK) {
    mk_free(d.out.data);
    return status;
  }
  *data = d.out.data;
  *length = d.out.length;
  return MK_OK;
}
