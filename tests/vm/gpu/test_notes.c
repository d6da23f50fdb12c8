/* What the host makes of the notes that a recording kernel leaves. */
#include <criterion/criterion.h>
#include <string.h>

#include "vm/gpu/machine_internal.h"

static mk_gpu_note boundary(uint64_t time, uint32_t step) {
  return (mk_gpu_note){.since = (uint32_t)(time >> 32),
                       .now = (uint32_t)time,
                       .uid = step,
                       .activity = MK_ACTIVITY_BOUNDARY,
                       .records = 1};
}

static mk_gpu_note work(uint64_t now, uint32_t uid) {
  return (mk_gpu_note){.now = (uint32_t)now, .uid = uid, .activity = MK_ACTIVITY_WORK, .records = 1};
}

static mk_gpu_note wait(uint64_t since, uint64_t now, uint16_t edge) {
  return (mk_gpu_note){
      .since = (uint32_t)since, .now = (uint32_t)now, .activity = MK_ACTIVITY_STAMP, .records = 2, .edge = edge};
}

static void expect_record(const mk_trace_record *record, uint64_t time, uint32_t uid, mk_activity activity,
                          uint8_t epoch, uint16_t edge) {
  cr_expect_eq(record->time, time, "%llx instead of %llx", (unsigned long long)record->time, (unsigned long long)time);
  cr_expect(record->uid == uid && record->activity == activity && record->epoch == epoch && record->edge == edge,
            "uid %u, activity %u, epoch %u, edge %u", record->uid, record->activity, record->epoch, record->edge);
}

/* The clock's lower half comes round within a wait, between two notes, and between two boundaries. Turns of eight notes
 * lie apart. */
Test(gpu_notes, times_are_made_whole) {
  const uint64_t start = 0x7fffffff0;
  mk_gpu_note notes[8 + 16];
  memset(notes, 0xff, sizeof notes); /* another track's lie between */
  notes[0] = boundary(start, 299);
  notes[1] = work(start + 4, 7);
  notes[2] = wait(start + 8, start + 24, 65535);
  notes[3] = work(start + 0xfffffff0, 8);
  notes[4] = boundary(start + 0x500000000, 300);
  notes[5] = wait(start + 0x5fffffff0, start + 0x5fffffff1, 1);
  notes[6] = work(start + 0x600000000, 10);
  notes[7] = wait(start + 0x600000002, start + 0x600000003, 2);
  notes[16] = wait(start + 0x600000005, start + 0x600000006, 3);
  notes[17] = boundary(start + 0x600000007, 301);
  mk_trace_record records[20];
  memset(records, 0xff, sizeof records);
  cr_assert_eq(mk_gpu_records_of(notes, 16, 10, records), 14);
  expect_record(&records[0], start, 0, MK_ACTIVITY_BOUNDARY, 299 - 256, 0);
  expect_record(&records[1], start + 4, 7, MK_ACTIVITY_WORK, 299 - 256, 0);
  expect_record(&records[2], start + 8, 7, MK_ACTIVITY_STAMP, 299 - 256, 65535);
  expect_record(&records[3], start + 24, 7, MK_ACTIVITY_WORK, 299 - 256, 0);
  expect_record(&records[4], start + 0xfffffff0, 8, MK_ACTIVITY_WORK, 299 - 256, 0);
  expect_record(&records[5], start + 0x500000000, 0, MK_ACTIVITY_BOUNDARY, 300 - 256, 0);
  expect_record(&records[6], start + 0x5fffffff0, 0, MK_ACTIVITY_STAMP, 300 - 256,
                1); /* between steps: of no instruction */
  expect_record(&records[7], start + 0x5fffffff1, 0, MK_ACTIVITY_WORK, 300 - 256, 0);
  expect_record(&records[8], start + 0x600000000, 10, MK_ACTIVITY_WORK, 300 - 256, 0);
  expect_record(&records[9], start + 0x600000002, 10, MK_ACTIVITY_STAMP, 300 - 256, 2);
  expect_record(&records[10], start + 0x600000003, 10, MK_ACTIVITY_WORK, 300 - 256, 0);
  expect_record(&records[11], start + 0x600000005, 10, MK_ACTIVITY_STAMP, 300 - 256, 3);
  expect_record(&records[12], start + 0x600000006, 10, MK_ACTIVITY_WORK, 300 - 256, 0);
  expect_record(&records[13], start + 0x600000007, 0, MK_ACTIVITY_BOUNDARY, 301 - 256, 0);
}
