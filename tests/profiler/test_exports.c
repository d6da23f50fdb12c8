/* What `mkvm trace -o` writes, on made-up traces and on the guide's: Perfetto's file as an independent decoder sees it,
 * the picture, and that no text of a trace becomes markup. The page at work is in test_page.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/traced.h"
#include "tools/profiler/page.h"
#include "tools/profiler/perfetto.h"
#include "tools/profiler/picture.h"

enum { SMS = 8, STEPS = 3, TRACKS = SMS * MK_TRACE_ROLES, MOST_UUID = 256, BYTES_TRACK = 4 };

#define HOSTILE "</script><script>hacked=1</script><img src=x onerror=hacked=1>"

typedef struct fixture {
  mk_program *program;
  mk_trace *trace;
  mk_summary *summary;
} fixture;

static void start(fixture *f) {
  f->program = test_traced_program(SMS);
  f->trace = test_traced_make(f->program, &(test_traced){.steps = STEPS});
  snprintf(f->trace->facts.model, sizeof f->trace->facts.model, "%s", HOSTILE);
  snprintf(f->trace->facts.device, sizeof f->trace->facts.device, "a\x1b[31m & \"b\" \xe2\x80\xae \xef\xbf\xbf");
  cr_assert_eq(mk_summary_new(f->trace, MK_MEDIAN_STEP, 0, &f->summary), MK_OK, "%s", mk_error_message());
}

static void stop(fixture *f) {
  mk_summary_free(f->summary);
  mk_trace_free(f->trace);
  mk_program_free(f->program);
}

static mk_status make_picture(const mk_summary *summary, void **data, size_t *length) {
  return mk_picture_make(summary, (mk_picture_window){0}, data, length);
}

typedef mk_status (*maker)(const mk_summary *summary, void **data, size_t *length);
static const maker makers[] = {mk_page_make, mk_perfetto_make, make_picture};
enum { MAKERS = sizeof makers / sizeof makers[0] };

TestSuite(exports, .timeout = MK_HANG_SECONDS);

Test(exports, out_of_memory) {
  fixture f;
  start(&f);
  for (size_t m = 0; m < MAKERS; m++) {
    for (uint64_t n = 1;; n += 1 + n / 8) {
      void *data;
      size_t length;
      mk_alloc_fail_at(n, false);
      mk_status status = makers[m](f.summary, &data, &length);
      mk_alloc_fail_at(0, false);
      cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && data == NULL), "%zu: %s", m, mk_error_message());
      mk_free(data);
      if (status == MK_OK) {
        break;
      }
    }
  }
  stop(&f);
}

Test(exports, the_same_twice) {
  fixture f;
  start(&f);
  for (size_t m = 0; m < MAKERS; m++) {
    void *a, *b;
    size_t a_length, b_length;
    cr_assert_eq(makers[m](f.summary, &a, &a_length), MK_OK, "%s", mk_error_message());
    cr_assert_eq(makers[m](f.summary, &b, &b_length), MK_OK, "%s", mk_error_message());
    cr_expect(a_length == b_length && memcmp(a, b, a_length) == 0);
    mk_free(a);
    mk_free(b);
  }
  stop(&f);
}

static bool holds(const void *data, size_t length, const char *text) {
  const char *at = data;
  for (size_t size = strlen(text); length >= size; at++, length--) {
    if (memcmp(at, text, size) == 0) {
      return true;
    }
  }
  return false;
}

Test(exports, names_are_no_markup) {
  fixture f;
  start(&f);
  void *data;
  size_t length;
  cr_assert_eq(mk_page_make(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
  cr_expect_not(holds(data, length, "hacked"));
  cr_expect_not(holds(data, length, "@DATA@"));
  mk_free(data);
  cr_assert_eq(make_picture(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
  cr_expect(holds(data, length, "&#60;script&#62;hacked=1&#60;/script&#62;"));
  cr_expect_not(holds(data, length, "<script"));
  cr_expect_not(holds(data, length, "\x1b"));
  cr_expect_not(holds(data, length, "\xef\xbf\xbf"));
  cr_expect(holds(data, length, "&#38; &#34;b&#34;"));
  mk_free(data);
  stop(&f);
}

Test(exports, picture) {
  fixture f;
  start(&f);
  void *data;
  size_t length;
  cr_assert_eq(make_picture(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
  cr_expect_lt(length, MK_PICTURE_MOST);
  cr_expect(holds(data, length, ">glu</text>"));
  cr_expect(holds(data, length, ">SM 7</text>"));
  mk_free(data);
  cr_assert_eq(mk_picture_make(f.summary, (mk_picture_window){10, 20}, &data, &length), MK_OK, "%s",
               mk_error_message());
  mk_free(data);
  cr_expect_eq(mk_picture_make(f.summary, (mk_picture_window){1e9, 2e9}, &data, &length), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "nothing was recorded there"), "%s", mk_error_message());
  cr_expect_eq(mk_picture_make(f.summary, (mk_picture_window){20, 10}, &data, &length), MK_ERR_USAGE);
  stop(&f);
}

/* Lanes that change from pixel to pixel: fewer columns, not a larger file. */
Test(exports, picture_stays_small) {
  mk_program *program = test_traced_program(24);
  mk_trace *trace = test_traced_make(program, &(test_traced){.steps = 40});
  mk_summary *summary;
  void *data;
  size_t length;
  for (uint32_t t = 0; t < 24 * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < trace->tracks[t].count; i++) {
      trace->tracks[t].records[i].activity = i % 2 == 0 ? MK_ACTIVITY_WORK : MK_ACTIVITY_MEETING;
      trace->tracks[t].records[i].time = i * 500;
    }
  }
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_picture_make(summary, (mk_picture_window){0, 560}, &data, &length), MK_OK, "%s", mk_error_message());
  cr_expect(length < MK_PICTURE_MOST && length > MK_PICTURE_MOST / 3, "%zu bytes", length);
  mk_free(data);
  mk_summary_free(summary);
  mk_trace_free(trace);
  mk_program_free(program);
}

Test(exports, empty) {
  mk_program *program = test_traced_program(2);
  mk_trace *trace;
  mk_summary *summary;
  void *data;
  size_t length;
  cr_assert_eq(mk_trace_new(program, 2, &trace), MK_OK);
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_page_make(summary, &data, &length), MK_OK, "%s", mk_error_message());
  mk_free(data);
  cr_assert_eq(mk_perfetto_make(summary, &data, &length), MK_OK, "%s", mk_error_message());
  mk_free(data);
  cr_assert_eq(make_picture(summary, &data, &length), MK_ERR_USAGE);
  mk_summary_free(summary);
  mk_trace_free(trace);
  mk_program_free(program);
}

/* The trace of the guide in docs/TRACE.md: one whole step of a GPU, of which the guide tells this. */
Test(exports, guide) {
  mk_trace *trace;
  mk_summary *summary;
  cr_assert_eq(mk_trace_load(MK_SOURCE_DIR "/docs/pictures/h200-1b.mktrace", &trace), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary), MK_OK, "%s", mk_error_message());
  cr_expect_str_empty(summary->problem, "%s", summary->problem);
  cr_expect(trace->sms == 132 && trace->steps == 1 && summary->profile->dropped == 0);
  cr_expect(fabs(summary->profile->token_us - 724.96) < 0.01, "%.17g us", summary->profile->token_us);
  cr_assert_gt(summary->outlier_count, 0);
  cr_expect_eq(trace->program->instructions[summary->outliers[0].instruction].uid, 3419);
  double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT], attention = 0;
  mk_path_totals(summary, totals);
  for (int a = 0; a < MK_ACTIVITY_COUNT; a++) {
    attention += totals[MK_OP_ATTENTION][a] + totals[MK_OP_COMBINE][a];
  }
  cr_expect(fabs(attention - 97.1) < 0.1, "%.17g us", attention);
  for (size_t m = 0; m < MAKERS; m++) {
    void *data;
    size_t length;
    cr_assert_eq(makers[m](summary, &data, &length), MK_OK, "%s", mk_error_message());
    cr_expect(length > 100000 && length < 10000000, "%zu: %zu bytes", m, length);
    mk_free(data);
  }
  mk_summary_free(summary);
  mk_trace_free(trace);
}

/* Perfetto, through protoc. */

typedef struct packet {
  uint64_t timestamp, name, track, flows, last_flows;
  char type[24];
  double counter;
} packet;

typedef struct seen {
  uint32_t depth[MOST_UUID];
  uint64_t time[MOST_UUID], opened[MOST_UUID], covered[MOST_UUID]; /* covered: by slices that lie in no other */
  size_t slices, flows, last_flows, threads, processes, counters, values, unknown;
  double most_bytes, last_bytes;
} seen;

static void take_packet(seen *s, const packet *p) {
  if (p->track == 0) {
    return;
  }
  cr_assert_lt(p->track, (uint64_t)MOST_UUID);
  cr_expect_geq(p->timestamp, s->time[p->track], "the events of track %lu go back in time", (unsigned long)p->track);
  s->time[p->track] = p->timestamp;
  if (strcmp(p->type, "TYPE_SLICE_BEGIN") == 0) {
    cr_expect_neq(p->name, 0);
    if (s->depth[p->track]++ == 0) {
      s->opened[p->track] = p->timestamp;
    }
    s->slices++;
  } else if (strcmp(p->type, "TYPE_SLICE_END") == 0) {
    cr_assert_gt(s->depth[p->track], 0);
    if (--s->depth[p->track] == 0) {
      s->covered[p->track] += p->timestamp - s->opened[p->track];
    }
  } else {
    cr_expect_str_eq(p->type, "TYPE_COUNTER");
    s->values++;
    s->most_bytes = p->counter > s->most_bytes ? p->counter : s->most_bytes;
    s->last_bytes = p->track == BYTES_TRACK ? p->counter : s->last_bytes;
  }
  s->flows += p->flows;
  s->last_flows += p->last_flows;
}

static void decode(const void *data, size_t length, seen *s) {
  char path[] = "/tmp/mk-perfetto-XXXXXX", command[512], line[4096], word[64], value[24];
  int fd = mkstemp(path);
  cr_assert(fd >= 0 && write(fd, data, length) == (ssize_t)length);
  close(fd);
  snprintf(command, sizeof command,
           "protoc --decode=Trace --proto_path=" MK_SOURCE_DIR "/tests/profiler/data track_event.proto <%s 2>&1", path);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  packet p = {0};
  while (fgets(line, sizeof line, pipe) != NULL) {
    int words = sscanf(line, " %63[^: ]: %23s", word, value);
    if (line[0] == '}') {
      take_packet(s, &p);
    } else if (line[0] == 'p') {
      p = (packet){0};
    } else if (word[0] >= '0' && word[0] <= '9') {
      s->unknown++;
    } else if (strncmp(line, "    thread {", 12) == 0) {
      s->threads++;
    } else if (strncmp(line, "    process {", 13) == 0) {
      s->processes++;
    } else if (strncmp(line, "    counter {", 13) == 0) {
      s->counters++;
    } else if (words == 2 && strncmp(line, "    name_iid", 12) == 0) {
      p.name = strtoull(value, NULL, 10);
    } else if (words == 2 && strcmp(word, "timestamp") == 0) {
      p.timestamp = strtoull(value, NULL, 10);
    } else if (words == 2 && strcmp(word, "track_uuid") == 0) {
      p.track = strtoull(value, NULL, 10);
    } else if (words == 2 && strcmp(word, "type") == 0) {
      snprintf(p.type, sizeof p.type, "%s", value);
    } else if (words == 2 && strcmp(word, "counter_value") == 0) {
      p.counter = strtod(value, NULL);
    }
    p.flows += words == 2 && strcmp(word, "flow_ids") == 0;
    p.last_flows += words == 2 && strcmp(word, "terminating_flow_ids") == 0;
  }
  cr_assert_eq(pclose(pipe), 0, "protoc cannot decode the file: %s", line);
  unlink(path);
}

/* What slices that lie in no other should cover: all intervals but idling and the work of no instruction. */
static uint64_t covered_time(const mk_profile *p, uint32_t track) {
  uint64_t sum = 0;
  const mk_profile_track *t = &p->tracks[track];
  for (uint32_t i = 0; i < t->execution_count; i++) {
    sum += t->executions[i].finish - t->executions[i].start;
  }
  for (uint32_t i = 0, e = 0; i < t->count; i++) {
    const mk_interval *in = &t->intervals[i];
    while (e < t->execution_count && t->executions[e].end <= i) {
      e++;
    }
    bool within = e < t->execution_count && t->executions[e].first <= i;
    mk_activity_kind kind = mk_activity_kind_of(in->activity);
    sum += within || kind == MK_ACTIVITY_KIND_WORK || kind == MK_ACTIVITY_KIND_IDLE ? 0 : in->end - in->start;
  }
  return sum;
}

Test(exports, perfetto) {
  if (access("/usr/bin/protoc", X_OK) != 0) {
    cr_skip_test("there is no protoc (Debian: apt-get install protobuf-compiler)");
  }
  fixture f;
  seen s = {0};
  void *data;
  size_t length, waits = 0;
  start(&f);
  cr_assert_eq(mk_perfetto_make(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
  decode(data, length, &s);
  mk_free(data);
  cr_expect_eq(s.unknown, 0, "%zu fields have numbers that the schema does not know", s.unknown);
  cr_expect_eq(s.processes, (size_t)SMS);
  cr_expect_eq(s.threads, (size_t)TRACKS);
  cr_expect_eq(s.counters, 4);
  for (uint32_t t = 0; t < TRACKS; t++) {
    uint32_t uuid = 100 + t / MK_TRACE_ROLES * 10 + 1 + t % MK_TRACE_ROLES;
    cr_expect_eq(s.depth[uuid], 0, "track %u ends inside of a slice", t);
    cr_expect_eq(s.covered[uuid], covered_time(f.summary->profile, t), "track %u: slices cover %lu ns, not %lu", t,
                 (unsigned long)s.covered[uuid], (unsigned long)covered_time(f.summary->profile, t));
    for (uint32_t i = 0; i < f.summary->profile->tracks[t].count; i++) {
      const mk_interval *in = &f.summary->profile->tracks[t].intervals[i];
      uint32_t role;
      const mk_execution *e =
          in->activity == MK_ACTIVITY_STAMP ? mk_edges_publisher(f.summary->edges, in, &role) : NULL;
      waits += e != NULL && e->finish <= in->end;
    }
  }
  cr_expect_gt(waits, 0);
  cr_expect_eq(s.flows, waits);
  cr_expect_eq(s.last_flows, waits);
  cr_expect_gt(s.values, 100);
  cr_expect(s.most_bytes > 0 && s.most_bytes < 1e9, "%g bytes in flight", s.most_bytes);
  cr_expect(s.last_bytes < 1e-3 * s.most_bytes, "%g bytes are in flight at the end", s.last_bytes);
  stop(&f);
}
