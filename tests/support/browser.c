/* See browser.h. */
#define _GNU_SOURCE /* pipe2 */
#include "tests/support/browser.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SECONDS = MK_HANG_SECONDS / 4, MOST_LINES = 4096 };

struct test_browser {
  pid_t pid;
  int to, from; /* our ends of the pipes */
  char directory[64], session[64], url[512], error[512];
  bool served; /* the page is a server's, and `url` ends with its / */
  char complaints[MOST_LINES], requests[MOST_LINES];
  char *buffer; /* what came and is not read yet */
  size_t length, capacity;
  int last_id;
};

static bool fail(test_browser *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(test_browser *b, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(b->error, sizeof b->error, format, arguments);
  va_end(arguments);
  return false;
}

const char *test_browser_error(const test_browser *browser) {
  return browser == NULL ? "no browser" : browser->error[0] == 0 ? "no error" : browser->error;
}

const char *test_browser_complaints(const test_browser *browser) { return browser->complaints; }
const char *test_browser_requests(const test_browser *browser) { return browser->requests; }

const char *test_browser_path(void) {
  static const char *const paths[] = {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    if (access(paths[i], X_OK) == 0) {
      return paths[i];
    }
  }
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add_line(char lines[MOST_LINES], const char *what, const char *text) {
  size_t used = strlen(lines);
  snprintf(lines + used, MOST_LINES - used, "%s: %s\n", what, text == NULL ? "?" : text);
}

/* The child's side: it reads commands from descriptor 3 and writes to 4. */
static void become_chromium(const char *directory, int commands, int answers, int width, int height, double scale) {
  char user[96], window[48], factor[48];
  snprintf(user, sizeof user, "--user-data-dir=%s", directory);
  snprintf(window, sizeof window, "--window-size=%d,%d", width, height);
  snprintf(factor, sizeof factor, "--force-device-scale-factor=%g", scale);
  setpgid(0, 0);
  int in = fcntl(commands, F_DUPFD, 10), out = fcntl(answers, F_DUPFD, 10), nothing = open("/dev/null", O_RDWR);
  dup2(in, 3);
  dup2(out, 4);
  dup2(nothing, 0);
  dup2(nothing, 1);
  dup2(nothing, 2);
  close(in);
  close(out);
  execl(test_browser_path(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--mute-audio", user, window, factor, (char *)NULL);
  _exit(127);
}

static bool send_message(test_browser *b, const json_t *message) {
  char *text = json_dumps(message, JSON_COMPACT);
  size_t length = text == NULL ? 0 : strlen(text) + 1;
  bool good = text != NULL;
  for (size_t at = 0; good && at < length;) {
    ssize_t put = write(b->to, text + at, length - at);
    good = put > 0 || (put < 0 && errno == EINTR);
    at += put > 0 ? (size_t)put : 0;
  }
  free(text);
  return good || fail(b, "Chromium does not take commands: it has ended");
}

/* The next message; NULL at the deadline or the end. */
static json_t *receive(test_browser *b, double deadline) {
  for (;;) {
    char *end = b->length == 0 ? NULL : memchr(b->buffer, 0, b->length);
    if (end != NULL) {
      size_t size = (size_t)(end - b->buffer) + 1;
      json_t *message = json_loadb(b->buffer, size - 1, JSON_ALLOW_NUL, NULL);
      memmove(b->buffer, b->buffer + size, b->length - size);
      b->length -= size;
      if (message != NULL) {
        return message;
      }
      continue;
    }
    if (b->capacity - b->length < 65536) {
      b->capacity = b->capacity * 2 + 65536;
      b->buffer = realloc(b->buffer, b->capacity);
    }
    struct pollfd wait = {.fd = b->from, .events = POLLIN};
    double left = deadline - now();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1e3) + 1) <= 0) {
      fail(b, "Chromium did not answer within %d s", MOST_SECONDS);
      return NULL;
    }
    ssize_t got = read(b->from, b->buffer + b->length, b->capacity - b->length);
    if (got <= 0) {
      fail(b, "Chromium has ended");
      return NULL;
    }
    b->length += (size_t)got;
  }
}

static const char *text_of(const json_t *object, const char *key) {
  return json_string_value(json_object_get(object, key));
}

static void note_event(test_browser *b, const json_t *message) {
  const char *method = text_of(message, "method");
  const json_t *p = json_object_get(message, "params");
  if (method == NULL) {
    return;
  }
  if (strcmp(method, "Runtime.consoleAPICalled") == 0) {
    const char *type = text_of(p, "type");
    if (type != NULL && (strcmp(type, "error") == 0 || strcmp(type, "warning") == 0 || strcmp(type, "assert") == 0)) {
      add_line(b->complaints, type, text_of(json_array_get(json_object_get(p, "args"), 0), "value"));
    }
  } else if (strcmp(method, "Runtime.exceptionThrown") == 0) {
    const json_t *details = json_object_get(p, "exceptionDetails");
    const char *text = text_of(json_object_get(details, "exception"), "description");
    add_line(b->complaints, "exception", text != NULL ? text : text_of(details, "text"));
  } else if (strcmp(method, "Log.entryAdded") == 0) {
    const json_t *entry = json_object_get(p, "entry");
    add_line(b->complaints, text_of(entry, "level"), text_of(entry, "text"));
  } else if (strcmp(method, "Page.javascriptDialogOpening") == 0) {
    add_line(b->complaints, "dialog", text_of(p, "message"));
  } else if (strcmp(method, "Network.requestWillBeSent") == 0) {
    const char *url = text_of(json_object_get(p, "request"), "url");
    size_t own = strcspn(b->url, "#");
    bool page = url != NULL && strncmp(url, b->url, own) == 0 && (b->served || url[own] == 0 || url[own] == '#');
    bool fine = page || (url != NULL && strncmp(url, "data:", 5) == 0);
    if (!fine) {
      add_line(b->requests, "request", url);
    }
  } else if (strcmp(method, "Network.webSocketCreated") == 0) {
    add_line(b->requests, "socket", text_of(p, "url"));
  }
}

/* The result of a command; `parameters` is taken over. */
static json_t *call(test_browser *b, const char *method, json_t *parameters) {
  int id = ++b->last_id;
  json_t *command =
      json_pack("{si ss so}", "id", id, "method", method, "params", parameters == NULL ? json_object() : parameters);
  if (b->session[0] != 0) {
    json_object_set_new(command, "sessionId", json_string(b->session));
  }
  bool sent = send_message(b, command);
  json_decref(command);
  double deadline = now() + MOST_SECONDS;
  json_t *message;
  while (sent && (message = receive(b, deadline)) != NULL) {
    if (json_integer_value(json_object_get(message, "id")) == id) {
      const json_t *error = json_object_get(message, "error");
      json_t *result = json_incref(json_object_get(message, "result"));
      if (error != NULL) {
        fail(b, "%s: %s", method, text_of(error, "message"));
        json_decref(result);
        result = NULL;
      }
      json_decref(message);
      return result;
    }
    note_event(b, message);
    json_decref(message);
  }
  return NULL;
}

static bool tell(test_browser *b, const char *method, json_t *parameters) {
  json_t *result = call(b, method, parameters);
  json_decref(result);
  return result != NULL;
}

static bool attach(test_browser *b) {
  json_t *target = call(b, "Target.createTarget", json_pack("{ss}", "url", "about:blank"));
  const char *id = text_of(target, "targetId");
  json_t *attached =
      id == NULL ? NULL : call(b, "Target.attachToTarget", json_pack("{ss sb}", "targetId", id, "flatten", 1));
  const char *session = text_of(attached, "sessionId");
  snprintf(b->session, sizeof b->session, "%s", session == NULL ? "" : session);
  json_decref(target);
  json_decref(attached);
  return session != NULL && tell(b, "Page.enable", NULL) && tell(b, "Runtime.enable", NULL) &&
         tell(b, "Log.enable", NULL) && tell(b, "Network.enable", NULL);
}

test_browser *test_browser_start(int width, int height, double scale) {
  int commands[2], answers[2];
  test_browser *b = calloc(1, sizeof *b);
  strcpy(b->directory, "/tmp/mk-browser-XXXXXX");
  if (test_browser_path() == NULL || mkdtemp(b->directory) == NULL || pipe2(commands, O_CLOEXEC) != 0 ||
      pipe2(answers, O_CLOEXEC) != 0) {
    free(b);
    return NULL;
  }
  signal(SIGPIPE, SIG_IGN);
  b->pid = fork();
  if (b->pid == 0) {
    become_chromium(b->directory, commands[0], answers[1], width, height, scale);
  }
  close(commands[0]);
  close(answers[1]);
  b->to = commands[1];
  b->from = answers[0];
  if (!attach(b) || !test_browser_resize(b, width, height, scale, false)) {
    fprintf(stderr, "%s: %s\n", test_browser_path(), b->error);
    test_browser_stop(b);
    return NULL;
  }
  return b;
}

void test_browser_stop(test_browser *browser) {
  if (browser == NULL) {
    return;
  }
  close(browser->to);
  close(browser->from);
  kill(-browser->pid, SIGKILL);
  waitpid(browser->pid, NULL, 0);
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", browser->directory);
  if (system(command) != 0) {
    fprintf(stderr, "%s could not be removed\n", browser->directory);
  }
  free(browser->buffer);
  free(browser);
}

json_t *test_browser_value(test_browser *browser, const char *expression) {
  json_t *result = call(browser, "Runtime.evaluate",
                        json_pack("{ss sb sb}", "expression", expression, "awaitPromise", 1, "returnByValue", 1));
  const json_t *thrown = json_object_get(result, "exceptionDetails");
  if (thrown != NULL) {
    fail(browser, "%s: %s", expression, text_of(json_object_get(thrown, "exception"), "description"));
    json_decref(result);
    return NULL;
  }
  json_t *value = json_incref(json_object_get(json_object_get(result, "result"), "value"));
  json_decref(result);
  return value;
}

double test_browser_number(test_browser *browser, const char *expression) {
  json_t *value = test_browser_value(browser, expression);
  double number = json_is_number(value) ? json_number_value(value) : NAN;
  json_decref(value);
  return number;
}

bool test_browser_true(test_browser *browser, const char *expression) {
  json_t *value = test_browser_value(browser, expression);
  bool is = json_is_true(value);
  json_decref(value);
  return is;
}

/* Two frames later everything that an event asked for is drawn. */
static bool settle(test_browser *b) {
  return test_browser_true(
             b, "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))") ||
         fail(b, "the page draws no frames");
}

/* By way of an empty page: a new fragment alone would not load anything. */
static bool navigate(test_browser *b) {
  return tell(b, "Page.navigate", json_pack("{ss}", "url", "about:blank")) &&
         tell(b, "Page.navigate", json_pack("{ss}", "url", b->url));
}

bool test_browser_visit(test_browser *browser, const char *url) {
  snprintf(browser->url, sizeof browser->url, "%s", url);
  browser->served = true;
  for (double deadline = now() + MOST_SECONDS; navigate(browser) && now() < deadline;) {
    if (test_browser_true(browser,
                          "new Promise(done => { const look = () => document.readyState === 'complete' && "
                          "location.protocol === 'http:' ? done(true) : setTimeout(look, 20); look(); })")) {
      return settle(browser);
    }
  }
  return fail(browser, "%s is not loaded after %d s; %s", url, MOST_SECONDS, browser->complaints);
}

bool test_browser_open(test_browser *browser, const char *path) {
  snprintf(browser->url, sizeof browser->url, "file://%s", path);
  browser->served = false;
  if (!navigate(browser)) {
    return false;
  }
  for (double deadline = now() + MOST_SECONDS; now() < deadline;) {
    if (test_browser_true(browser, "typeof ready !== 'undefined' && ready > 0")) {
      return settle(browser);
    }
    if (test_browser_true(browser,
                          "document.readyState === 'complete' && !document.getElementById('problem')?.hidden")) {
      return fail(browser, "the page says that it cannot show the trace; %s", browser->complaints);
    }
    poll(NULL, 0, 10);
  }
  return fail(browser, "the page is not ready after %d s; %s", MOST_SECONDS, browser->complaints);
}

static bool mouse(test_browser *b, const char *type, double x, double y, int buttons, int clicks) {
  return tell(b, "Input.dispatchMouseEvent",
              json_pack("{ss sf sf ss si si}", "type", type, "x", x, "y", y, "button",
                        buttons != 0 || clicks != 0 ? "left" : "none", "buttons", buttons, "clickCount", clicks));
}

bool test_browser_click(test_browser *browser, double x, double y) {
  return mouse(browser, "mouseMoved", x, y, 0, 0) && mouse(browser, "mousePressed", x, y, 1, 1) &&
         mouse(browser, "mouseReleased", x, y, 0, 1) && settle(browser);
}

bool test_browser_drag(test_browser *browser, double x, double y, double to_x, double to_y) {
  return mouse(browser, "mouseMoved", x, y, 0, 0) && mouse(browser, "mousePressed", x, y, 1, 1) &&
         mouse(browser, "mouseMoved", (x + to_x) / 2, (y + to_y) / 2, 1, 0) &&
         mouse(browser, "mouseMoved", to_x, to_y, 1, 0) && mouse(browser, "mouseReleased", to_x, to_y, 0, 1) &&
         settle(browser);
}

bool test_browser_wheel(test_browser *browser, double x, double y, double amount) {
  return tell(browser, "Input.dispatchMouseEvent",
              json_pack("{ss sf sf sf sf}", "type", "mouseWheel", "x", x, "y", y, "deltaX", 0.0, "deltaY", amount)) &&
         settle(browser);
}

static bool touch(test_browser *b, const char *type, json_t *points) {
  return tell(b, "Input.dispatchTouchEvent", json_pack("{ss so}", "type", type, "touchPoints", points));
}

bool test_browser_touch(test_browser *browser, double x, double y) {
  return touch(browser, "touchStart", json_pack("[{sf sf}]", "x", x, "y", y)) &&
         touch(browser, "touchEnd", json_array()) && settle(browser);
}

static json_t *two_fingers(double x, double y, double apart) {
  return json_pack("[{sf sf si},{sf sf si}]", "x", x - apart / 2, "y", y, "id", 1, "x", x + apart / 2, "y", y, "id", 2);
}

bool test_browser_pinch(test_browser *browser, double x, double y, double from, double to) {
  return touch(browser, "touchStart", two_fingers(x, y, from)) &&
         touch(browser, "touchMove", two_fingers(x, y, (from + to) / 2)) &&
         touch(browser, "touchMove", two_fingers(x, y, to)) && touch(browser, "touchEnd", json_array()) &&
         settle(browser);
}

bool test_browser_key(test_browser *browser, const char *key) {
  bool letter = key[1] == 0, enter = strcmp(key, "Enter") == 0;
  json_t *down = json_pack("{ss ss}", "type", letter || enter ? "keyDown" : "rawKeyDown", "key", key);
  if (letter || enter) {
    json_object_set_new(down, "text", json_string(enter ? "\r" : key));
  }
  return tell(browser, "Input.dispatchKeyEvent", down) &&
         tell(browser, "Input.dispatchKeyEvent", json_pack("{ss ss}", "type", "keyUp", "key", key)) && settle(browser);
}

bool test_browser_type(test_browser *browser, const char *text) {
  return tell(browser, "Input.insertText", json_pack("{ss}", "text", text)) && settle(browser);
}

bool test_browser_scheme(test_browser *browser, const char *scheme) {
  return tell(browser, "Emulation.setEmulatedMedia",
              json_pack("{s[{ss ss}]}", "features", "name", "prefers-color-scheme", "value", scheme)) &&
         settle(browser);
}

bool test_browser_resize(test_browser *browser, int width, int height, double scale, bool by_touch) {
  return tell(browser, "Emulation.setDeviceMetricsOverride",
              json_pack("{si si sf sb}", "width", width, "height", height, "deviceScaleFactor", scale, "mobile",
                        by_touch)) &&
         tell(browser, "Emulation.setTouchEmulationEnabled", json_pack("{sb}", "enabled", by_touch)) && settle(browser);
}

static unsigned digit_of(char c) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *at = strchr(digits, c);
  return at == NULL || c == 0 ? 0 : (unsigned)(at - digits);
}

bool test_browser_picture(test_browser *browser, const char *path) {
  json_t *result = call(browser, "Page.captureScreenshot", json_pack("{ss}", "format", "png"));
  const char *text = text_of(result, "data");
  FILE *file = text == NULL ? NULL : fopen(path, "wb");
  size_t length = text == NULL ? 0 : strlen(text);
  for (size_t i = 0; file != NULL && i + 4 <= length; i += 4) {
    unsigned bits =
        digit_of(text[i]) << 18 | digit_of(text[i + 1]) << 12 | digit_of(text[i + 2]) << 6 | digit_of(text[i + 3]);
    fputc((int)(bits >> 16 & 255), file);
    if (text[i + 2] != '=') {
      fputc((int)(bits >> 8 & 255), file);
    }
    if (text[i + 3] != '=') {
      fputc((int)(bits & 255), file);
    }
  }
  json_decref(result);
  return file != NULL && fclose(file) == 0 ? true : fail(browser, "%s could not be written", path);
}
