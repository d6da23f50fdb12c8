/* mk_page_bench [--pictures FOLDER] [FILE.mktrace]: how fast the page of `mkvm trace -o out.html` opens and pans in a
 * headless Chromium that draws by software. Without a file: a made-up trace of llama-3.2-1b, 8 tokens on 132 SMs. With
 * a folder: screenshots for documents as well. The file is a trace whose path is absolute or from the working
 * directory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/browser.h"
#include "tests/support/traced.h"
#include "tools/profiler/page.h"
#include "vm/file.h"

enum { SMS = 132, STEPS = 8 };

static mk_trace *make_trace(void) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = SMS, .max_seq = 4096};
  if (mk_synth_shape("llama-3.2-1b", &config) != MK_OK || mk_llama_graph(&config, &graph) != MK_OK) {
    return NULL;
  }
  mk_status status = mk_compile(graph, &options, &program);
  mk_graph_free(graph);
  if (status != MK_OK) {
    return NULL;
  }
  mk_trace *trace = test_traced_make(program, &(test_traced){.steps = STEPS});
  mk_program_free(program);
  return trace;
}

static mk_status write_page(mk_trace *trace, const char *path) {
  mk_summary *summary;
  void *data;
  size_t length;
  MK_TRY(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary));
  printf("trace: %u SMs, %u tokens, %llu records\n", trace->sms, summary->profile->steps,
         (unsigned long long)summary->profile->records);
  mk_status status = mk_page_make(summary, &data, &length);
  if (status == MK_OK) {
    printf("page: %.2f MB\n", (double)length * 1e-6);
    status = mk_save_bytes(path, data, length);
    mk_free(data);
  }
  mk_summary_free(summary);
  return status;
}

/* Frames per second while the window moves by 16 pixels in every frame, as when it is dragged. */
static double pan(test_browser *browser, bool whole) {
  char script[640];
  snprintf(script, sizeof script,
           "(async () => { %s; redraw(); const frame = () => new Promise(requestAnimationFrame); await frame(); await "
           "frame(); "
           "const frames = 120, start = performance.now(); for (let k = 0; k < frames; k++) { "
           "pan(k %% 40 < 20 ? 16 : -16); drawChart(); drawOverview(); await frame(); } return frames * 1000 / "
           "(performance.now() - start); })()",
           whole ? "zoomTime(0.8, 400)" : "showStep(Math.floor(trace.steps / 2))");
  return test_browser_number(browser, script);
}

static bool measure(test_browser *browser, const char *page, int width, int height) {
  double ready = 1e9;
  if (!test_browser_resize(browser, width, height, 1, false)) {
    return false;
  }
  for (int i = 0; i < 3; i++) {
    if (!test_browser_open(browser, page)) {
      return false;
    }
    double now = test_browser_number(browser, "ready");
    ready = now < ready ? now : ready;
  }
  double token = pan(browser, false);
  test_browser_true(browser, "showWhole(), true");
  double whole = pan(browser, true);
  printf("%d x %d: opens in %.0f ms (best of 3), pans a token at %.1f frames/s, all tokens at %.1f frames/s\n", width,
         height, ready, token, whole);
  return true;
}

/* A picture in each theme of the first view, and one of a long wait with its arrow. */
static bool take_pictures(test_browser *browser, const char *page, const char *folder) {
  char path[512];
  bool good = test_browser_resize(browser, 1280, 760, 1, false) && test_browser_open(browser, page);
  for (int dark = 0; good && dark < 2; dark++) {
    snprintf(path, sizeof path, "%s/page-%s.png", folder, dark ? "dark" : "light");
    good = test_browser_scheme(browser, dark ? "dark" : "light") && test_browser_picture(browser, path);
  }
  snprintf(path, sizeof path, "%s/page-wait.png", folder);
  good = good && test_browser_scheme(browser, "light") &&
         test_browser_true(
             browser,
             "(() => { const step = stepAtHand(), path = trace.paths.get(step); let best = 0; for (let i = 0; i "
             "< path.count; i++) "
             "if (path.from[i] >= 0 && path.length[i] > path.length[best]) best = i; view.rowHeight = 60; "
             "view.sms = [...new Set([trace.program.sm[path.from[best]], Math.floor(path.track[best] / "
             "trace.roleCount), 0, 1, 2, 3, 20, 40])]"
             ".sort((a, b) => a - b).map(sm => trace.ranks > 1 ? rankOf(sm) + ':' + sm % trace.smsOfRank : "
             "sm).join(', '); showControls(); refilter(); goToPathPart(path, best); "
             "const part = view.selection, middle = (trace.start[part.a] + trace.start[part.b]) / 2; "
             "setWindow(middle - 15000, middle + 15000); redraw(); return true; })()") &&
         test_browser_key(browser, "Shift") && test_browser_picture(browser, path);
  snprintf(path, sizeof path, "%s/page-phone.png", folder);
  return good && test_browser_resize(browser, 390, 780, 1, true) && test_browser_open(browser, page) &&
         test_browser_picture(browser, path);
}

int main(int count, char **arguments) {
  const char *folder = NULL;
  if (count > 2 && strcmp(arguments[1], "--pictures") == 0) {
    folder = arguments[2];
    arguments += 2;
    count -= 2;
  }
  mk_trace *trace = NULL;
  char page[] = "/tmp/mk-page-XXXXXX.html";
  int fd = mkstemps(page, 5);
  mk_status status = count > 1                        ? mk_trace_load(arguments[1], &trace)
                     : (trace = make_trace()) != NULL ? MK_OK
                                                      : MK_ERR_RUNTIME;
  if (status == MK_OK && fd >= 0) {
    close(fd);
    status = write_page(trace, page);
  }
  mk_trace_free(trace);
  if (status != MK_OK) {
    fprintf(stderr, "%s\n", mk_error_message());
    unlink(page);
    return 1;
  }
  test_browser *browser = test_browser_start(1600, 1000, 1);
  bool good = browser != NULL && measure(browser, page, 1600, 1000) && measure(browser, page, 3840, 2160) &&
              (folder == NULL || take_pictures(browser, page, folder));
  if (!good) {
    fprintf(stderr, "%s\n", test_browser_error(browser));
  }
  test_browser_stop(browser);
  unlink(page);
  return !good;
}
