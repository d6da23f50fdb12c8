/* The critical path where the consumer's first warp, the only one that is recorded, has long got its part of a value
 * for which other warps still wait. Traces are written record by record. */
#include <criterion/criterion.h>

#include "tests/support/traced.h"
#include "tools/profiler/path.h"

enum { SMS = 8, LATE = 20000, EARLY = 300 };

/* `writer` publishes what `reader` needs, and that what `last` needs; they are on SMs of their own. */
typedef struct fixture {
  mk_program *program;
  mk_trace *trace;
  uint32_t writer, reader, last;
  mk_profile *profile;
  mk_edges *edges;
  mk_path path;
} fixture;

/* The first of that opcode that reads the buffer, or writes it, and is on an SM that the others are not on. */
static uint32_t find(const mk_program *program, mk_opcode opcode, uint32_t slot, uint32_t buffer, uint32_t but,
                     uint32_t nor) {
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (in->opcode == opcode && in->operands[slot].buffer == buffer && test_traced_sm(program, i) != but &&
        test_traced_sm(program, i) != nor) {
      return i;
    }
  }
  cr_assert_fail("no such instruction");
  return 0;
}

/* The writer's consumer works until `late`. */
static void start(fixture *f, uint64_t late) {
  mk_program *p = f->program = test_traced_program(SMS);
  for (f->reader = 0; p->instructions[f->reader].opcode != MK_OP_GLU; f->reader++) {
  }
  const mk_instruction *reader = &p->instructions[f->reader];
  uint32_t sm = test_traced_sm(p, f->reader);
  f->writer = find(p, MK_OP_LINEAR_ADD, MK_SLOT_LINEAR_ADD_out, reader->operands[MK_SLOT_GLU_x].buffer, sm, sm);
  f->last = find(p, MK_OP_LINEAR_ADD, MK_SLOT_LINEAR_ADD_x, reader->operands[MK_SLOT_GLU_out].buffer, sm,
                 test_traced_sm(p, f->writer));
  cr_assert_eq(mk_trace_new(p, SMS, &f->trace), MK_OK, "%s", mk_error_message());
  f->trace->steps = f->trace->launch_steps = 1;
  test_traced_record_part(f->trace, f->writer, MK_ROLE_CONSUMER, 0, 0, late, MK_ACTIVITY_WORK, 0);
  test_traced_record_part(f->trace, f->writer, MK_ROLE_STORER, 200, late, late + 300, MK_ACTIVITY_RESULT_FULL, 0);
}

static void find_path(fixture *f) {
  cr_assert_eq(mk_profile_new(f->trace, &f->profile), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_profile_check(f->profile), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_edges_new(f->profile, &f->edges), MK_OK);
  cr_assert_eq(mk_path_find(f->edges, 0, &f->path), MK_OK);
  for (size_t i = 1; i < f->path.count; i++) {
    cr_expect_eq(f->path.parts[i].start, f->path.parts[i - 1].end, "part %zu", i);
  }
}

static void stop(fixture *f) {
  mk_path_free(&f->path);
  mk_edges_free(f->edges);
  mk_profile_free(f->profile);
  mk_trace_free(f->trace);
  mk_program_free(f->program);
}

/* The late writer's work is on the path, and the one wait that leads there says so. */
static void expect_writer(const fixture *f, mk_role role, mk_activity activity) {
  uint64_t work = 0, wait = 0;
  for (size_t i = 0; i < f->path.count; i++) {
    const mk_path_part *part = &f->path.parts[i];
    if (part->instruction == f->writer && part->role == MK_ROLE_CONSUMER && part->activity == MK_ACTIVITY_WORK) {
      work += part->end - part->start;
    }
    if (part->from == f->writer) {
      cr_expect(part->sm == test_traced_sm(f->program, f->reader) && part->role == role && part->activity == activity,
                "%s: %s", mk_trace_role_name(part->role), mk_activity_text(part->activity));
      wait += part->end - part->start;
    }
  }
  cr_expect_eq(work, LATE - 100, "%lu ns of the delay are on the path", (unsigned long)work);
  cr_expect(wait > 0 && wait < 2000, "%lu ns", (unsigned long)wait);
}

/* The loader finds the ring full of pages that other warps hold, while the first one waits for a later page. `page`:
 * the loader's. */
static void record_full_ring(fixture *f, uint32_t page) {
  test_traced_record_part(f->trace, f->reader, MK_ROLE_LOADER, 400, LATE + 1200, LATE + 1300, MK_ACTIVITY_PAGE_EMPTY,
                          page);
  test_traced_record_part(f->trace, f->reader, MK_ROLE_CONSUMER, 500, LATE + 1900, LATE + 2300, MK_ACTIVITY_PAGE_FULL,
                          1);
}

Test(path, other_warps_hold_pages) {
  const uint32_t ring = mk_machine_latency(SMS).ring_pages, pages[] = {1, 0, ring - 1};
  for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
    fixture f = {0};
    start(&f, LATE);
    record_full_ring(&f, pages[i]);
    find_path(&f);
    expect_writer(&f, MK_ROLE_LOADER, MK_ACTIVITY_PAGE_EMPTY);
    stop(&f);
  }
}

/* The first warp is at the next instruction, which needs nothing of the writer; the storer knows where the others
 * are. */
Test(path, other_warps_are_an_instruction_late) {
  fixture f = {0};
  start(&f, LATE);
  uint32_t next = f.reader + 1;
  cr_assert_eq(test_traced_sm(f.program, next), test_traced_sm(f.program, f.reader));
  test_traced_record(f.trace, f.reader, MK_ROLE_CONSUMER, 0, MK_ACTIVITY_BOUNDARY, 0);
  test_traced_record(f.trace, f.reader, MK_ROLE_CONSUMER, 100, MK_ACTIVITY_WORK, 0);
  test_traced_record(f.trace, next, MK_ROLE_CONSUMER, 500, MK_ACTIVITY_PAGE_FULL, 1);
  test_traced_record(f.trace, next, MK_ROLE_CONSUMER, LATE + 1900, MK_ACTIVITY_WORK, 0);
  test_traced_record(f.trace, next, MK_ROLE_CONSUMER, LATE + 2300, MK_ACTIVITY_BOUNDARY, 0);
  test_traced_record_part(f.trace, next, MK_ROLE_LOADER, 400, LATE + 1200, LATE + 1300, MK_ACTIVITY_PAGE_EMPTY, 0);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_STORER, 400, LATE + 1500, LATE + 1600, MK_ACTIVITY_RESULT_FULL, 0);
  find_path(&f);
  expect_writer(&f, MK_ROLE_LOADER, MK_ACTIVITY_PAGE_EMPTY);
  stop(&f);
}

/* A page after the one waited for says nothing about it: the memory is the reason. */
Test(path, the_loader_is_further) {
  fixture f = {0};
  start(&f, LATE);
  record_full_ring(&f, 4);
  find_path(&f);
  for (size_t i = 0; i < f.path.count; i++) {
    cr_expect_eq(test_traced_sm(f.program, f.reader), f.path.parts[i].sm);
    cr_expect_eq(f.path.parts[i].role, MK_ROLE_CONSUMER);
  }
  stop(&f);
}

/* Without a late value the other warps are only slow, and their consumer is what the path goes on with. */
Test(path, other_warps_are_slow) {
  fixture f = {0};
  start(&f, EARLY);
  record_full_ring(&f, 0);
  find_path(&f);
  bool full = false;
  for (size_t i = 0; i < f.path.count; i++) {
    const mk_path_part *part = &f.path.parts[i];
    cr_expect_eq(part->from, MK_NO_INSTRUCTION);
    cr_expect_eq(part->sm, test_traced_sm(f.program, f.reader));
    full |= part->activity == MK_ACTIVITY_PAGE_EMPTY && part->start == 500 && part->end == LATE + 1200;
    cr_expect(part->role == MK_ROLE_CONSUMER || part->activity == MK_ACTIVITY_PAGE_EMPTY);
  }
  cr_expect(full);
  stop(&f);
}

Test(path, other_warps_owe_sums_and_slots_are_full) {
  fixture f = {0};
  start(&f, LATE);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_STORER, 400, LATE + 1200, LATE + 1500, MK_ACTIVITY_RESULT_FULL, 0);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_CONSUMER, 500, LATE + 1600, LATE + 2300, MK_ACTIVITY_RESULT_EMPTY,
                          0);
  find_path(&f);
  expect_writer(&f, MK_ROLE_STORER, MK_ACTIVITY_RESULT_FULL);
  stop(&f);
}

Test(path, other_warps_owe_sums) {
  fixture f = {0};
  start(&f, LATE);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_STORER, 400, LATE + 1200, LATE + 1500, MK_ACTIVITY_RESULT_FULL, 0);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_CONSUMER, 0, 0, 600, MK_ACTIVITY_WORK, 0);
  test_traced_record_part(f.trace, f.last, MK_ROLE_CONSUMER, 200, LATE + 1800, LATE + 2300, MK_ACTIVITY_STAMP,
                          f.program->instructions[f.last].operands[MK_SLOT_LINEAR_ADD_x].buffer);
  find_path(&f);
  expect_writer(&f, MK_ROLE_STORER, MK_ACTIVITY_RESULT_FULL);
  stop(&f);
}

Test(path, other_warps_come_late_to_a_meeting) {
  fixture f = {0};
  start(&f, LATE);
  test_traced_record_part(f.trace, f.reader, MK_ROLE_CONSUMER, 500, LATE + 1600, LATE + 2300, MK_ACTIVITY_MEETING, 0);
  find_path(&f);
  expect_writer(&f, MK_ROLE_CONSUMER, MK_ACTIVITY_MEETING);
  stop(&f);
}
