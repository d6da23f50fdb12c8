/* The page of `mkvm trace -o out.html` in a headless Chromium: it shows what the profiler knows, by mouse, touch and
 * keys, and nothing of a trace is run or leaves the page. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/browser.h"
#include "tests/support/traced.h"
#include "tools/profiler/page.h"
#include "tools/profiler/picture.h"
#include "tools/profiler/texts.h"
#include "vm/file.h"

enum { SMS = 8, STEPS = 4, WIDTH = 1400, HEIGHT = 900 };

typedef struct fixture {
  mk_program *program;
  mk_trace *trace;
  mk_summary *summary;
  test_browser *browser;
  char path[64];
} fixture;

static void write_page(fixture *f) {
  void *data;
  size_t length;
  strcpy(f->path, "/tmp/mk-page-XXXXXX.html");
  int fd = mkstemps(f->path, 5);
  cr_assert_geq(fd, 0);
  close(fd);
  cr_assert_eq(mk_summary_new(f->trace, MK_MEDIAN_STEP, 0, &f->summary), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_page_make(f->summary, &data, &length), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_save_bytes(f->path, data, length), MK_OK, "%s", mk_error_message());
  mk_free(data);
}

static void start_browser(fixture *f) {
  if (test_browser_path() == NULL) {
    cr_skip_test("there is no Chromium (Debian: apt-get install chromium)");
  }
  f->browser = test_browser_start(WIDTH, HEIGHT, 1);
  cr_assert_not_null(f->browser, "Chromium does not start");
}

#define WORKS(call) cr_assert(call, "%s: %s", #call, test_browser_error(f.browser))
#define HOLDS(expression) \
  cr_expect(test_browser_true(f.browser, (expression)), "not so: %s (%s)", (expression), test_browser_error(f.browser))
/* What is not so at once, but when the page has had the time. */
#define COMES(expression) \
  HOLDS("new Promise(done => { const look = () => (" expression ") ? done(true) : setTimeout(look, 20); look(); })")
#define NUMBER(expression) test_browser_number(f.browser, (expression))

static void start_ranks(fixture *f, uint32_t ranks) {
  start_browser(f);
  f->program = test_traced_program_of_ranks(ranks, SMS / ranks);
  f->trace = test_traced_make(f->program,
                              &(test_traced){.steps = STEPS, .delay_uid = 20, .delay_ns = 20000, .remote_ns = 600});
  write_page(f);
  cr_assert(test_browser_open(f->browser, f->path), "%s", test_browser_error(f->browser));
}

static void start(fixture *f) { start_ranks(f, 1); }

static void stop(fixture *f) {
  cr_expect_str_empty(test_browser_complaints(f->browser));
  cr_expect_str_empty(test_browser_requests(f->browser));
  test_browser_stop(f->browser);
  unlink(f->path);
  mk_summary_free(f->summary);
  mk_trace_free(f->trace);
  mk_program_free(f->program);
}

TestSuite(page, .timeout = MK_HANG_SECONDS);

/* All intervals, texts and publishers arrive as the profiler has them. */
Test(page, shows_the_whole_trace) {
  fixture f = {0};
  start(&f);
  const mk_profile *p = f.summary->profile;
  char expression[512];
  for (uint32_t t = 0; t < SMS * MK_TRACE_ROLES; t++) {
    const mk_profile_track *track = &p->tracks[t];
    double time = 0, waits = 0, instructions = 0, activities = 0, publishers = 0, edges = 0;
    for (uint32_t i = 0; i < track->count; i++) {
      const mk_interval *in = &track->intervals[i];
      uint32_t role;
      double place = i % 7 + 1;
      const mk_execution *e = mk_activity_kind_of(in->activity) == MK_ACTIVITY_KIND_WAIT
                                  ? mk_edges_publisher(f.summary->edges, in, &role)
                                  : NULL;
      time += place * (double)in->start + (double)in->end;
      waits += place * in->step;
      instructions += place * (in->instruction == MK_NO_INSTRUCTION ? -1 : (double)in->instruction);
      activities += place * in->activity;
      publishers += place * (e == NULL ? -1 : (double)e->instruction);
      edges += place * in->edge;
    }
    snprintf(expression, sizeof expression,
             "(() => { const a = trace.first[%u], n = trace.count[%u]; let s = 0; for (let i = 0; i < n; i++) { const "
             "k = i %% 7 + 1; "
             "s += k * trace.start[a + i] + trace.start[a + i + 1] + 1e3 * k * trace.step[a + i] + 1e5 * k * "
             "trace.instruction[a + i] + "
             "1e7 * k * trace.activity[a + i] + 1e8 * k * trace.publisher[a + i] + 1e9 * k * trace.edge[a + i]; } "
             "return s + n; })()",
             t, t);
    double want =
        time + 1e3 * waits + 1e5 * instructions + 1e7 * activities + 1e8 * publishers + 1e9 * edges + track->count;
    cr_expect(NUMBER(expression) == want, "track %u: %.17g instead of %.17g", t, NUMBER(expression), want);
  }
  mk_bytes texts = {0};
  cr_assert_eq(mk_instruction_texts(f.program, &texts), MK_OK);
  mk_bytes_put(&texts, "", 1);
  json_t *text = test_browser_value(f.browser, "instructionTexts().join('\\n')");
  cr_expect_str_eq(json_string_value(text), (char *)texts.data);
  json_decref(text);
  mk_free(texts.data);
  for (uint32_t step = 0; step < STEPS; step++) {
    mk_path path;
    double sum = 0;
    cr_assert_eq(mk_path_find(f.summary->edges, step, &path), MK_OK);
    for (size_t i = 0; i < path.count; i++) {
      sum += (double)(path.parts[i].start + path.parts[i].end) + path.parts[i].sm * 4.0 + path.parts[i].role;
    }
    snprintf(
        expression, sizeof expression,
        "(() => { const p = trace.paths.get(%u); let s = 0; for (let i = 0; i < p.count; i++) s += 2 * p.start[i] + "
        "p.length[i] + "
        "p.track[i]; return s; })()",
        step);
    cr_expect(NUMBER(expression) == sum, "path of step %u", step);
    mk_path_free(&path);
  }
  stop(&f);
}

/* How many different colours the lanes have, and the share of pixels that are not empty. */
#define COLOURS "new Set(new Uint32Array(pixels.data.buffer)).size"
#define DRAWN \
  "new Uint32Array(pixels.data.buffer).filter(w => w !== colours.paperWord).length / (pixels.width * pixels.height)"

/* Column by column, lanes are what the intervals add up to. */
Test(page, pixels_are_what_was_recorded) {
  fixture f = {0};
  start(&f);
  HOLDS(
      "(() => { showStep(1); const w = 640, width = view.to - view.from; let checked = 0; prepareRaster(w, 0, w, 1);"
      " for (const track of [1, 5, 6, 12]) { gather(track); for (let c = 0; c < w; c++) {"
      " const low = view.from + width * c / w, high = view.from + width * (c + 1) / w; let work = 0, most = 0, tone = "
      "0, wait = 0;"
      " for (let i = trace.first[track]; i < trace.first[track] + trace.count[track]; i++) {"
      " const share = (Math.min(trace.start[i + 1], high) - Math.max(trace.start[i], low)) / (high - low);"
      " const kind = trace.activities[trace.activity[i]].kind; if (share <= 0 || kind === 'idle') continue;"
      " if (kind !== 'work') { wait = Math.max(wait, share); continue; } work += share;"
      " if (share > most + 1e-3) { most = share; tone = trace.program.opcode[trace.instruction[i]] + 1; } }"
      " if (Math.abs(work - raster.work[c]) > 1e-3 || Math.abs(wait - raster.wait[c]) > 1e-3) return false;"
      " if (most > 0.6 && tone !== raster.tone[c]) return false; checked += most > 0.6; } } return checked > 200; "
      "})()");
  stop(&f);
}

Test(page, draws_and_moves) {
  fixture f = {0};
  start(&f);
  HOLDS(COLOURS " > 8");
  HOLDS(DRAWN " > 0.1");
  HOLDS(
      "document.querySelector('meta[http-equiv=Content-Security-Policy]').content.startsWith(\"default-src 'none'; "
      "script-src 'nonce-\")");
  HOLDS("canvas.width > 500 && canvas.height > 300");
  /* The first view is the token of the critical path. */
  double first = NUMBER("view.to - view.from"), whole = NUMBER("trace.end - trace.begin");
  cr_expect(first < 0.5 * whole && first > 0.1 * whole);
  WORKS(test_browser_wheel(f.browser, 500, 500, -600));
  double zoomed = NUMBER("view.to - view.from");
  cr_expect_lt(zoomed, 0.6 * first);
  HOLDS(DRAWN " > 0.1");
  double from = NUMBER("view.from");
  WORKS(test_browser_drag(f.browser, 600, 500, 500, 500));
  cr_expect_float_eq(NUMBER("view.from") - from, zoomed * 100 / NUMBER("plotWidth()"), zoomed * 0.02);
  cr_expect_float_eq(NUMBER("view.to - view.from"), zoomed, 1);
  /* Moving the lanes as pixels gives what drawing them anew does. */
  for (int rows = 0; rows < 2; rows++) {
    WORKS(test_browser_drag(f.browser, 500, 500, 623, 500));
    WORKS(test_browser_drag(f.browser, 600, 500, 543, 500));
    double different = NUMBER(
        "(() => { const a = new Uint32Array(pixels.data.buffer).slice(); drawn.key = ''; drawChart(); const b = new "
        "Uint32Array(pixels.data.buffer); "
        "return a.filter((w, i) => w !== b[i]).length / a.length; })()");
    cr_expect(different < 1e-3, "%g of the pixels differ", different);
    WORKS(test_browser_true(f.browser, "view.rowHeight = 30.3, view.sms = '1-3', refilter(), true"));
  }
  WORKS(test_browser_true(f.browser, "view.rowHeight = 0, view.sms = '', refilter(), true"));
  WORKS(test_browser_key(f.browser, "+"));
  cr_expect_lt(NUMBER("view.to - view.from"), zoomed * 0.8);
  WORKS(test_browser_key(f.browser, "]"));
  HOLDS("view.rowHeight > 0");
  WORKS(test_browser_key(f.browser, "0"));
  cr_expect_geq(NUMBER("view.to - view.from"), whole);
  HOLDS("view.rowHeight === 0");
  /* The overview leads anywhere. */
  WORKS(test_browser_key(f.browser, "t"));
  WORKS(test_browser_click(f.browser, 120, NUMBER("overview.getBoundingClientRect().top") + 25));
  HOLDS("(view.from + view.to) / 2 < trace.begin + 0.3 * (trace.end - trace.begin)");
  stop(&f);
}

/* Where the middle of a part is in the window. */
static void place_of(test_browser *b, const char *part, double *x, double *y) {
  char expression[1024];
  snprintf(expression, sizeof expression,
           "(() => { const p = %s; return canvas.getBoundingClientRect().left + (xOf(trace.start[p.a]) + "
           "xOf(trace.start[p.b])) / 2; })()",
           part);
  *x = test_browser_number(b, expression);
  snprintf(expression, sizeof expression,
           "(() => { const p = %s, l = laneOf(p.track); return canvas.getBoundingClientRect().top + l.y + l.height / "
           "2; })()",
           part);
  *y = test_browser_number(b, expression);
}

/* The longest wait of a consumer, with a publisher, in the middle of the trace. */
static const mk_interval *some_wait(const fixture *f, uint32_t *sm, const mk_execution **publisher,
                                    uint32_t *publisher_role) {
  const mk_interval *best = NULL;
  for (uint32_t s = 0; s < SMS; s++) {
    const mk_profile_track *track = mk_profile_track_of(f->summary->profile, s, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->count; i++) {
      const mk_interval *in = &track->intervals[i];
      uint32_t role;
      const mk_execution *e =
          in->activity == MK_ACTIVITY_STAMP ? mk_edges_publisher(f->summary->edges, in, &role) : NULL;
      if (e != NULL && in->step == 1 && (best == NULL || in->end - in->start > best->end - best->start)) {
        best = in;
        *sm = s;
        *publisher = e;
        *publisher_role = role;
      }
    }
  }
  cr_assert_not_null(best);
  return best;
}

Test(page, selects) {
  fixture f = {0};
  start(&f);
  uint32_t sm = 0, role = 0;
  const mk_execution *publisher = NULL;
  const mk_interval *wait = some_wait(&f, &sm, &publisher, &role);
  char expression[512];
  double x, y;
  WORKS(test_browser_true(f.browser, "showStep(1), view.rowHeight = 80, redraw(), true"));
  HOLDS(
      "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(shownRoles().length === 4))))");
  snprintf(expression, sizeof expression, "(setTop(%u * 80 - 100), partOf(%u, 1, CONSUMER))", sm, wait->instruction);
  WORKS(test_browser_true(f.browser, "redraw(), true"));
  place_of(f.browser, expression, &x, &y);
  WORKS(test_browser_click(f.browser, x, y));
  snprintf(expression, sizeof expression,
           "trace.instruction[view.selection.a] === %u && trace.step[view.selection.a] === 1", wait->instruction);
  HOLDS(expression);
  snprintf(expression, sizeof expression, "document.getElementById('selected').textContent.endsWith('#%u')",
           f.program->instructions[wait->instruction].uid);
  HOLDS(expression);
  HOLDS(
      "document.getElementById('instruction-text').textContent === "
      "instructionTexts()[trace.instruction[view.selection.a]]");
  /* Whoever ended a wait is one of those that could. */
  HOLDS(
      "[...trace.publisher.keys()].filter(i => trace.publisher[i] >= 0).slice(0, 400).every(i => "
      "publishersOf(i).includes(trace.publisher[i]))");
  /* The arrow that ends the wait starts at its publisher. */
  snprintf(expression, sizeof expression,
           "drawArrows.list.some(a => a.strong && trace.instruction[a.source.a] === %u && a.source.track === %u && "
           "trace.start[a.source.b] === %llu)",
           publisher->instruction, f.summary->profile->sm_of[publisher->instruction] * MK_TRACE_ROLES + role,
           (unsigned long long)publisher->finish);
  HOLDS(expression);
  snprintf(expression, sizeof expression,
           "[...document.querySelectorAll('#selection li button')].some(b => b.textContent.endsWith('#%u'))",
           f.program->instructions[publisher->instruction].uid);
  HOLDS(expression);
  /* w follows the wait; the publisher names this wait among those that it ended. */
  WORKS(test_browser_key(f.browser, "w"));
  snprintf(expression, sizeof expression,
           "trace.instruction[view.selection.a] === %u && "
           "document.getElementById('selection').textContent.includes('Ended ')",
           publisher->instruction);
  HOLDS(expression);
  /* Keys walk along a track and along the critical path. */
  WORKS(test_browser_true(f.browser, "window.before = view.selection.b, true"));
  WORKS(test_browser_key(f.browser, "ArrowRight"));
  HOLDS("view.selection.a === before");
  WORKS(test_browser_key(f.browser, "c"));
  HOLDS("[...trace.paths.get(1).track.keys()].some(i => trace.paths.get(1).track[i] === view.selection.track)");
  /* Hovering shows the text. */
  WORKS(test_browser_wheel(f.browser, x, y, -1));
  WORKS(test_browser_true(f.browser,
                          "canvas.dispatchEvent(new PointerEvent('pointermove', {pointerType: 'mouse', clientX: 700, "
                          "clientY: 400})), true"));
  HOLDS(
      "!tip.hidden && tip.querySelector('code') !== null && /^#[0-9]+ [a-z_]+ "
      "/.test(tip.querySelector('code').textContent)");
  WORKS(test_browser_key(f.browser, "Escape"));
  HOLDS("view.selection === null");
  stop(&f);
}

Test(page, findings_lead_to_their_place) {
  fixture f = {0};
  start(&f);
  cr_assert_gt(f.summary->outlier_count, 0);
  HOLDS("document.querySelectorAll('#findings li').length > 0");
  WORKS(test_browser_true(f.browser, "document.querySelector('#findings button').click(), true"));
  char expression[256];
  snprintf(expression, sizeof expression,
           "trace.instruction[view.selection.a] === %u && view.selection.track %% 4 === %u",
           f.summary->outliers[0].instruction, f.summary->outliers[0].role);
  HOLDS(expression);
  HOLDS("trace.program.uid[trace.instruction[view.selection.a]] === 20");
  HOLDS("xOf(trace.start[view.selection.a]) >= GUTTER && xOf(trace.start[view.selection.b]) <= size.width");
  /* Every link of the tables works. */
  double links = NUMBER("document.querySelectorAll('#summary button.link').length");
  cr_expect_gt(links, 30);
  HOLDS(
      "[...document.querySelectorAll('#summary button.link')].every(b => { view.selection = null; showWhole(); const "
      "whole = view.to - "
      "view.from; b.click(); return view.selection !== null || view.to - view.from < whole; })");
  HOLDS("document.querySelector('#waits button').click(), view.selection !== null");
  stop(&f);
}

Test(page, filters_and_searches) {
  fixture f = {0};
  start(&f);
  WORKS(test_browser_true(
      f.browser,
      "view.path = false, showWhole(), redraw(), document.querySelector('#legend [data-opcode=glu]').click(), true"));
  HOLDS(
      "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(view.opcodes.size === 1 && "
      "location.hash !== null))))");
  /* Only glu keeps its colour. */
  HOLDS(
      "(() => { const words = new Set(new Uint32Array(pixels.data.buffer)); const full = (name) => "
      "words.has(colours.tones[(trace.opcodes.findIndex(o => o.name === name) + 1) * 16 + 15]);"
      " return full('glu') && !full('qkv') && !full('linear_add'); })()");
  HOLDS("document.querySelector('#legend [data-opcode=glu]').getAttribute('aria-pressed') === 'true'");
  WORKS(test_browser_true(f.browser, "document.querySelector('#legend [data-opcode=glu]').click(), true"));
  HOLDS("view.opcodes.size === 0");
#define SET(id, value, event)                                                                                      \
  "(() => { const e = document.getElementById('" id "'); e.value = '" value "'; e.dispatchEvent(new Event('" event \
  "')); return true; })()"
  WORKS(test_browser_true(f.browser, SET("sms", "2-4, 7", "input")));
  HOLDS("rows.sms.join() === '2,3,4,7'");
  WORKS(test_browser_true(f.browser, SET("layer", "0", "change")));
  HOLDS("rows.match.every((m, i) => m === (trace.program.layer[i] === 0 ? 1 : 0))");
  WORKS(test_browser_true(f.browser, SET("token", "2", "change")));
  HOLDS("view.token === 2 && Math.abs(view.from - trace.stepStart[2]) < 0.1 * (view.to - view.from)");
  WORKS(test_browser_true(f.browser, "document.querySelector('#roles [data-role=loader]').click(), true"));
  HOLDS("rows.roles.map(r => trace.roles[r]).join() === 'consumer,storer,controller'");
  WORKS(test_browser_true(f.browser, "document.getElementById('clear').click(), true"));
  HOLDS("rows.sms.length === 8 && rows.roles.length === 4 && rows.match.every(m => m === 1) && view.token === -1");
  /* Searches by uid, then by words. */
  WORKS(test_browser_key(f.browser, "/"));
  HOLDS("document.activeElement.id === 'search'");
  WORKS(test_browser_type(f.browser, "33"));
  WORKS(test_browser_key(f.browser, "Enter"));
  HOLDS("trace.program.uid[trace.instruction[view.selection.a]] === 33");
  WORKS(test_browser_true(f.browser, SET("search", "glu layers.1", "input")));
  HOLDS("document.querySelectorAll('#results button').length > 0");
  HOLDS(
      "findInstructions('glu layers.1').every(i => trace.opcodes[trace.program.opcode[i]].name === 'glu' && "
      "trace.program.layer[i] === 1)");
  HOLDS("findInstructions('no such text').length === 0");
  stop(&f);
}

Test(page, the_address_holds_the_view) {
  fixture f = {0};
  start(&f);
  WORKS(test_browser_wheel(f.browser, 500, 500, -400));
  WORKS(test_browser_key(f.browser, "ArrowRight"));
  WORKS(test_browser_key(f.browser, "]"));
  WORKS(test_browser_true(
      f.browser,
      "document.querySelector('#legend [data-opcode=qkv]').click(), document.getElementById('theme').click(), true"));
  COMES("location.hash === stateText()");
  json_t *hash = test_browser_value(f.browser, "location.hash"), *state = test_browser_value(f.browser, "stateText()");
  char path[1024];
  snprintf(path, sizeof path, "%s%s", f.path, json_string_value(hash));
  cr_expect_not_null(strstr(path, "sel="));
  cr_expect_not_null(strstr(path, "theme=dark"));
  cr_assert(test_browser_open(f.browser, path), "%s", test_browser_error(f.browser));
  json_t *again = test_browser_value(f.browser, "stateText()");
  cr_expect_str_eq(json_string_value(again), json_string_value(state));
  HOLDS("view.opcodes.size === 1 && view.selection !== null && document.documentElement.dataset.theme === 'dark'");
  json_decref(again);
  json_decref(state);
  json_decref(hash);
  /* A link within the page. */
  WORKS(test_browser_true(f.browser, "location.hash = '#layer=0&sm=3&q=glu', true"));
  COMES(
      "view.layer === 0 && rows.sms.join() === '3' && view.selection === null && "
      "document.getElementById('sms').value === '3' && !document.getElementById('results').hidden");
  /* Nonsense in the address is no error. */
  snprintf(path, sizeof path, "%s#t=9,-3&sel=99.9.x.y&op=zzz&layer=-7&token=1e99&h=NaN&y=-5&theme=<b>&role=,&sm=--",
           f.path);
  cr_assert(test_browser_open(f.browser, path), "%s", test_browser_error(f.browser));
  HOLDS("view.to > view.from && view.selection === null && " DRAWN " > 0.1");
  stop(&f);
}

Test(page, themes_and_touch) {
  fixture f = {0};
  start(&f);
  WORKS(test_browser_scheme(f.browser, "light"));
  HOLDS("document.documentElement.dataset.theme === 'light' && colours.paper === '#ffffff'");
  WORKS(test_browser_scheme(f.browser, "dark"));
  HOLDS("document.documentElement.dataset.theme === 'dark' && colours.paper !== '#ffffff' && " DRAWN " > 0.1");
  WORKS(test_browser_resize(f.browser, 390, 844, 2, true));
  HOLDS("document.documentElement.scrollWidth <= 390 && canvas.getBoundingClientRect().width > 300");
  HOLDS("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(" DRAWN " > 0.1))))");
  double before = NUMBER("view.to - view.from");
  double y = NUMBER("canvas.getBoundingClientRect().top") + 200;
  WORKS(test_browser_pinch(f.browser, 220, y, 60, 240));
  cr_expect_lt(NUMBER("view.to - view.from"), 0.5 * before);
  WORKS(test_browser_touch(f.browser, 220, y));
  HOLDS("view.selection !== null && !tip.hidden");
  /* A 4k screen. */
  WORKS(test_browser_resize(f.browser, 3840, 2160, 1, false));
  HOLDS("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(canvas.width > 3000 && " DRAWN
        " > 0.1))))");
  stop(&f);
}

#define BAND \
  "canvas.getContext('2d').getImageData(2, HEAD + 4, 1, 1).data.slice(0, 3).join() === rgb(colours.line).join()"

/* Rows, texts and the filter have an SM's rank and its number there; with one rank the page is as without ranks. */
Test(page, several_ranks) {
  for (uint32_t ranks = 1; ranks <= 2; ranks++) {
    fixture f = {0};
    char expression[512];
    start_ranks(&f, ranks);
    const mk_opcode_hops *hops = f.summary->waits.hops;
    for (; hops < &f.summary->waits.hops[f.summary->waits.hop_count] && hops->opcode != MK_OP_GLU; hops++) {
    }
    cr_assert_lt(hops, &f.summary->waits.hops[f.summary->waits.hop_count]);
    const mk_hop_time *local = &hops->of[MK_HOP_LOCAL], *remote = &hops->of[MK_HOP_REMOTE];
    cr_assert(local->count != 0 && (remote->count != 0) == (ranks == 2));
    cr_assert_gt(f.summary->outlier_count, 0);
    HOLDS("document.querySelectorAll('#hops tbody tr').length === trace.summary.hops.length");
    if (ranks == 1) {
      HOLDS("GUTTER === 74 && smLabel(5) === 'SM 5' && !(" BAND ")");
      HOLDS("!/ranks|rank 0/.test(document.body.textContent.replace(document.scripts[1].textContent, ''))");
      HOLDS("document.querySelectorAll('#hops th').length === 4");
      stop(&f);
      continue;
    }
    HOLDS("smLabel(5) === 'rank 1, SM 1' && " BAND);
    HOLDS("document.getElementById('facts').textContent.includes(' 8 SMs of 2 ranks')");
    HOLDS("document.getElementById('summary').textContent.includes('of two SMs agree within 32 ns, on two ranks too')");
    const uint32_t sm = f.summary->profile->sm_of[f.summary->outliers[0].instruction];
    snprintf(expression, sizeof expression,
             "document.querySelector('#findings li').textContent.startsWith('rank %u, SM %u,')",
             mk_queue_rank(f.program, sm), sm % (SMS / ranks));
    HOLDS(expression);
    snprintf(expression, sizeof expression,
             "[...document.querySelectorAll('#hops tbody tr')].some(r => [...r.cells].map(c => c.textContent).join() "
             "=== 'glu,%.1f,%.2f,%.2f,%.1f,%.2f,%.2f')",
             (double)local->count / STEPS, local->p50, local->p90, (double)remote->count / STEPS, remote->p50,
             remote->p90);
    HOLDS(expression);
    HOLDS("parseSms('2').has(2) && parseSms('2').has(6) && parseSms('2').size === 2 && parseSms('9').size === 0");
    WORKS(test_browser_true(f.browser, SET("sms", "1:0-2, 3", "input")));
    HOLDS("rows.sms.join() === '3,4,5,6,7'");
    WORKS(test_browser_true(
        f.browser, "view.selection = null, view.sms = '1:2', refilter(), showStep(1), zoomTime(0.2, 700), true"));
    WORKS(test_browser_true(f.browser,
                            "canvas.dispatchEvent(new PointerEvent('pointermove', {pointerType: 'mouse', clientX: 700, "
                            "clientY: 600})), true"));
    HOLDS("!tip.hidden && tip.textContent.includes('rank 1, SM 2, ')");
    WORKS(test_browser_true(f.browser,
                            "select(partAround(5 * trace.roleCount + CONSUMER, 20 + trace.first[5 * "
                            "trace.roleCount + CONSUMER])), true"));
    HOLDS("document.getElementById('selection').textContent.includes('rank 1, SM 1, consumer')");
    HOLDS("document.getElementById('status').textContent.includes('rank 1, SM 1, consumer')");
    stop(&f);
  }
}

#define HOSTILE "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"

Test(page, names_are_shown_as_text) {
  fixture f = {0};
  start_browser(&f);
  f.program = test_traced_program(SMS);
  f.trace = test_traced_make(f.program, &(test_traced){.steps = STEPS});
  snprintf(f.trace->facts.model, sizeof f.trace->facts.model, "%s", HOSTILE);
  snprintf(f.trace->facts.device, sizeof f.trace->facts.device, "dev\x01\x1b[31m\xe2\x80\xae\xc2\x85 &lt;\"'`${1+1}");
  snprintf(f.trace->facts.command, sizeof f.trace->facts.command,
           "<iframe src=\"http://127.0.0.1:9/\"></iframe><svg/onload=window.hacked=1>\\u003c");
  write_page(&f);
  cr_assert(test_browser_open(f.browser, f.path), "%s", test_browser_error(f.browser));
  HOLDS("typeof window.hacked === 'undefined'");
  HOLDS(
      "document.images.length === 0 && document.querySelectorAll('iframe, svg').length === 0 && "
      "document.scripts.length === 2");
  HOLDS(
      "document.getElementById('facts').textContent.includes('"
      "</scr' + 'ipt><scr' + 'ipt>window.hacked=1"
      "')");
  HOLDS(
      "document.getElementById('facts').textContent.includes('dev\\\\u{1}\\\\u{1b}[31m\\\\u{202e}\\\\u{85} "
      "&lt;\"\\'`${1+1}')");
  HOLDS("document.getElementById('summary').textContent.includes('<iframe src=')");
  HOLDS("!/[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202e]/.test(document.body.innerText + document.title)");
  stop(&f);
}

Test(page, without_records) {
  fixture f = {0};
  start_browser(&f);
  f.program = test_traced_program(SMS);
  cr_assert_eq(mk_trace_new(f.program, SMS, &f.trace), MK_OK);
  write_page(&f);
  cr_assert(test_browser_open(f.browser, f.path), "%s", test_browser_error(f.browser));
  WORKS(test_browser_click(f.browser, 500, 500));
  for (const char *const *key = (const char *const[]){"c", "n", "w", "t", "0", "+", "ArrowRight", NULL}; *key != NULL;
       key++) {
    WORKS(test_browser_key(f.browser, *key));
  }
  HOLDS("document.getElementById('summary').textContent.includes('INCOMPLETE')");
  stop(&f);
}

/* The picture is well-formed, and the browser draws it. */
Test(page, picture) {
  fixture f = {0};
  start(&f);
  void *data;
  size_t length;
  char *script;
  cr_assert_eq(mk_picture_make(f.summary, (mk_picture_window){0}, &data, &length), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_alloc(length + 512, 1, &script), MK_OK);
  int used = snprintf(script, 256, "(() => { const d = new DOMParser().parseFromString(String.raw`");
  memcpy(script + used, data, length);
  snprintf(script + used + length, 256,
           "`, 'image/svg+xml'); return d.querySelector('parsererror') === null && d.querySelectorAll('path').length > "
           "8; })()");
  HOLDS(script);
  mk_free(script);
  mk_free(data);
  stop(&f);
}
