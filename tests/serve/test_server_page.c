/* The page at / in a headless Chromium, against a real server: a person talks, stops, changes the sampling, sees what
 * goes on; by mouse and by keys, with a key where one is wanted; and nothing leaves the server. */
#include "tests/serve/server.h"

#include "tests/support/browser.h"

TestSuite(server_page, .timeout = MK_HANG_SECONDS);

typedef struct fixture {
  rig r;
  test_browser *browser;
} fixture;

static void open_page(fixture *f) {
  char url[64];
  if (test_browser_path() == NULL) {
    cr_skip_test("there is no Chromium (Debian: apt-get install chromium)");
  }
  start_ready(&f->r);
  f->browser = test_browser_start(1100, 800, 1);
  cr_assert_not_null(f->browser, "Chromium does not start");
  snprintf(url, sizeof url, "http://127.0.0.1:%u/", mk_server_port(f->r.server));
  cr_assert(test_browser_visit(f->browser, url), "%s", test_browser_error(f->browser));
}

static void close_page(fixture *f, const char *complaints) {
  cr_expect_str_eq(test_browser_complaints(f->browser), complaints);
  cr_expect_str_empty(test_browser_requests(f->browser));
  test_browser_stop(f->browser);
  stop(&f->r);
}

#define HOLDS(expression) \
  cr_expect(test_browser_true(f.browser, (expression)), "not so: %s (%s)", (expression), test_browser_error(f.browser))
/* What is not so at once, but when the page has had the time. */
#define COMES(expression) \
  HOLDS("new Promise(done => { const look = () => (" expression ") ? done(true) : setTimeout(look, 20); look(); })")
#define WORKS(call) cr_assert(call, "%s: %s", #call, test_browser_error(f.browser))

#define LAST_ANSWER "[...document.querySelectorAll('#log .assistant')].at(-1)"

/* Sends by the Enter key, sees the answer and its speed: of few tokens, which may all come at once, it would have
 * none. */
Test(server_page, a_conversation) {
  fixture f;
  prepare(&f.r);
  f.r.options.engine.max_context = 4000;
  open_page(&f);
  COMES("document.getElementById('model').textContent.startsWith('tiny, context of 4000')");
  COMES("document.getElementById('queue').textContent === '0, 0'");
  HOLDS("document.activeElement.id === 'say'");
  WORKS(test_browser_true(f.browser,
                          "document.getElementById('mode').value = 'text', "
                          "document.getElementById('max_tokens').value = '300', "
                          "document.getElementById('temperature').value = '0', true"));
  WORKS(test_browser_type(f.browser, "abc <b>x</b>"));
  WORKS(test_browser_key(f.browser, "Enter"));
  COMES("!document.getElementById('send').disabled && document.querySelectorAll('#log .assistant').length === 1");
  HOLDS("document.querySelector('#log .user div').textContent === 'abc <b>x</b>' && !document.querySelector('#log b')");
  HOLDS(LAST_ANSWER ".querySelector('div').textContent.length > 0");
  HOLDS("/^300 tokens, .* a second, the first after \\d+ ms$/.test(document.getElementById('rate').textContent)");
  HOLDS(LAST_ANSWER ".textContent.includes('used up')");
  HOLDS("document.getElementById('problem').hidden");
  close_page(&f, "");
}

/* Escape stops an answer, and what ran for it is cancelled. A field that cannot be is named, and nothing is sent. */
Test(server_page, stopping_and_mistakes) {
  fixture f;
  prepare(&f.r);
  f.r.options.engine.max_context = 100000;
  f.r.options.engine.max_batch = 1;
  open_page(&f);
  COMES("document.getElementById('model').textContent.startsWith('tiny')");
  WORKS(test_browser_true(f.browser,
                          "document.getElementById('mode').value = 'text', "
                          "document.getElementById('max_tokens').value = '90000', "
                          "document.getElementById('temperature').value = '7', true"));
  WORKS(test_browser_type(f.browser, "abc"));
  WORKS(test_browser_key(f.browser, "Enter"));
  COMES("document.getElementById('problem').textContent === 'Temperature: a number from 0 to 2'");
  HOLDS("document.activeElement.id === 'temperature' && document.querySelectorAll('#log article').length === 0");
  WORKS(test_browser_true(f.browser,
                          "document.getElementById('temperature').value = '0', "
                          "document.getElementById('say').focus(), true"));
  WORKS(test_browser_key(f.browser, "Enter"));
  COMES(
      "document.getElementById('stop').disabled === false && document.querySelectorAll('#log .assistant').length === "
      "1");
  COMES(LAST_ANSWER
        ".querySelector('div').textContent.length > 3 || /^\\d\\d+ tokens/.test("
        "document.getElementById('rate').textContent)");
  COMES("document.getElementById('queue').textContent === '1, 0'");
  WORKS(test_browser_key(f.browser, "Escape"));
  COMES("document.getElementById('stop').disabled && " LAST_ANSWER ".textContent.includes('Stopped.')");
  until_metric(&f.r, "vllm:num_requests_running", 0, 0);
  close_page(&f, "");
}

Test(server_page, a_key_and_themes) {
  fixture f;
  prepare(&f.r);
  cr_assert_eq(mk_keys_add(&f.r.keys, "secret"), MK_OK);
  /* The probe of start_ready needs none. */
  open_page(&f);
  COMES("document.getElementById('key-dialog').open");
  WORKS(test_browser_type(f.browser, "secret"));
  WORKS(test_browser_key(f.browser, "Enter"));
  COMES("document.getElementById('model').textContent.startsWith('tiny')");
  HOLDS("!document.getElementById('key-dialog').open");
  WORKS(test_browser_scheme(f.browser, "dark"));
  HOLDS("getComputedStyle(document.body).backgroundColor === 'rgb(20, 22, 26)'");
  WORKS(test_browser_true(f.browser, "document.getElementById('theme').click(), true"));
  HOLDS("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'");
  WORKS(test_browser_resize(f.browser, 390, 800, 2, true));
  HOLDS("document.documentElement.scrollWidth <= 390");
  /* Everything that takes input has a name for a screen reader. */
  HOLDS("[...document.querySelectorAll('input:not([hidden]), select, textarea')].every(e => e.labels.length === 1)");
  HOLDS("[...document.querySelectorAll('button')].every(e => e.textContent.trim() !== '')");
  cr_expect_not_null(strstr(test_browser_complaints(f.browser), "401"), "Chromium's own note of the first answer");
  test_browser_stop(f.browser);
  stop(&f.r);
}
