/* See bench_mla_table.h. */
#include "tools/mkvm/bench_mla_table.h"

#include <math.h>
#include <stdio.h>

#include "mk_version.h"
#include "tools/mkvm/command.h"

static const char *placement_name(const mk_bench_mla_row *row) {
  return row->placement == MK_MLA_MAKESPAN ? "makespan" : "naive";
}

mk_status mk_bench_mla_begin(const mk_bench_mla_about *about) {
  if (about->format != MK_BENCH_MD) {
    return mk_bench_list_begin(about->format);
  }
  printf("| placement |  items | slots | reductions | schedule us | check us | simulated us |");
  if (about->gpu) {
    printf("  us warm |  MHz | sustained |  MHz |%s TFLOP/s |   GB/s | %% floor |",
           about->each ? "   alone | flushed | written |" : "");
  }
  printf("    error |   of row |\n| --------- | -----: | ----: | ---------: | ----------: | -------: | -----------: |");
  if (about->gpu) {
    printf(" -------: | ---: | --------: | ---: |%s ------: | -----: | ------: |",
           about->each ? " ------: | ------: | ------: |" : "");
  }
  printf(" -------: | -------: |\n");
  return mk_print_done();
}

static void print_times(const mk_bench_mla_about *about, const mk_bench_mla_row *row) {
  const mk_mla_time *warm = &row->times[MK_MLA_WARM], *sustained = &row->times[MK_MLA_SUSTAINED];
  printf(" %8.1f | %4.0f | %9.1f | %4.0f |", warm->us, warm->mhz, sustained->us, sustained->mhz);
  for (int i = MK_MLA_ALONE; about->each && i <= MK_MLA_WRITTEN; i++) {
    printf(" %7.1f |", row->times[i].us);
  }
  printf(" %7.0f | %6.0f | %8.1f |", row->floor.flops / warm->us * 1e-6, row->floor.bytes / warm->us * 1e-3,
         row->floor.us / warm->us * 100);
}

/* A timing's microseconds and clock, under names that begin with `name`. */
static int set_time(json_t *object, const char *name, const mk_mla_time *time) {
  char key[48];
  snprintf(key, sizeof key, "%s_us", name);
  int bad = json_object_set_new(object, key, mk_bench_real_or_null(time->us > 0, time->us));
  snprintf(key, sizeof key, "%s_sm_mhz", name);
  return bad | json_object_set_new(object, key, mk_bench_real_or_null(time->mhz > 0, time->mhz));
}

static void device_name(const mk_bench_mla_about *about, char text[24]) {
  if (about->gpu) {
    snprintf(text, 24, "cuda:%u", about->index);
  } else {
    snprintf(text, 24, "cpu");
  }
}

/* As row_object of bench_table.c. */
static json_t *row_object(const mk_bench_mla_about *about, const mk_bench_mla_row *row) {
  static const char *const names[] = {"warm", "sustained", "alone", "flushed", "written"};
  double warm = row->times[MK_MLA_WARM].us;
  char device[24];
  device_name(about, device);
  json_t *object = json_object();
  int bad = json_object_set_new(object, "build", json_string(MK_VERSION_FULL));
  bad |= json_object_set_new(object, "backend", json_string(about->gpu ? "CUDA" : "CPU"));
  bad |= json_object_set_new(object, "device", json_string(device));
  bad |= json_object_set_new(object, "sms", json_integer(about->sms));
  bad |= json_object_set_new(object, "test", json_string("mla"));
  bad |= json_object_set_new(object, "lengths", json_string(row->lengths));
  bad |= json_object_set_new(object, "n_sequences", json_integer(row->sequences));
  bad |= json_object_set_new(object, "n_tokens", json_integer((json_int_t)row->tokens));
  bad |= json_object_set_new(object, "n_new", json_integer(row->new_tokens));
  bad |= json_object_set_new(object, "n_heads", json_integer(row->heads));
  bad |= json_object_set_new(object, "placement", json_string(placement_name(row)));
  bad |= json_object_set_new(object, "items", json_integer(row->summary.items));
  bad |= json_object_set_new(object, "slots", json_integer(row->summary.slots));
  bad |= json_object_set_new(object, "reductions", json_integer(row->summary.reductions));
  bad |= json_object_set_new(object, "schedule_us", mk_bench_real_or_null(row->schedule_us > 0, row->schedule_us));
  bad |= json_object_set_new(object, "check_us", mk_bench_real_or_null(row->check_us > 0, row->check_us));
  bad |= json_object_set_new(object, "simulated_us", json_real((double)row->summary.makespan * 1e-3));
  for (int i = MK_MLA_WARM; i <= MK_MLA_WRITTEN; i++) {
    bad |= set_time(object, names[i], &row->times[i]);
  }
  double empty = row->times[MK_MLA_EMPTY].us;
  bad |= json_object_set_new(object, "empty_us", mk_bench_real_or_null(empty > 0, empty));
  bad |= json_object_set_new(object, "floor_us", json_real(row->floor.us));
  bad |= json_object_set_new(object, "bytes", json_real(row->floor.bytes));
  bad |= json_object_set_new(object, "flops", json_real(row->floor.flops));
  bad |= json_object_set_new(object, "flops_per_s", mk_bench_real_or_null(warm > 0, row->floor.flops / warm * 1e6));
  bad |= json_object_set_new(object, "bytes_per_s", mk_bench_real_or_null(warm > 0, row->floor.bytes / warm * 1e6));
  bad |= json_object_set_new(object, "floor_share", mk_bench_real_or_null(warm > 0, row->floor.us / warm));
  bad |= json_object_set_new(object, "error", mk_bench_real_or_null(isfinite(row->error), row->error));
  bad |= json_object_set_new(object, "row_error", mk_bench_real_or_null(isfinite(row->row_error), row->row_error));
  return mk_bench_object_or_null(object, bad);
}

mk_status mk_bench_mla_put(const mk_bench_mla_about *about, const mk_bench_mla_row *row, bool first) {
  if (about->format != MK_BENCH_MD) {
    return mk_bench_list_object(about->format, row_object(about, row), first);
  }
  printf("| %-9s | %6u | %5u | %10u | %11.1f | %8.1f | %12.1f |", placement_name(row), row->summary.items,
         row->summary.slots, row->summary.reductions, row->schedule_us, row->check_us,
         (double)row->summary.makespan * 1e-3);
  if (about->gpu) {
    print_times(about, row);
  }
  printf(" %8.2e | %8.2e |\n", row->error, row->row_error);
  return mk_print_done();
}

mk_status mk_bench_mla_begin_sweep(const mk_bench_mla_about *about) {
  if (about->format != MK_BENCH_MD) {
    return mk_bench_list_begin(about->format);
  }
  printf(
      "| lengths                | new | heads |  us warm |  MHz | floor us | ratio |    error |\n"
      "| ---------------------- | --: | ----: | -------: | ---: | -------: | ----: | -------: |\n");
  return mk_print_done();
}

mk_status mk_bench_mla_put_sweep(const mk_bench_mla_about *about, const mk_bench_mla_row *row, bool first) {
  if (about->format != MK_BENCH_MD) {
    return mk_bench_list_object(about->format, row_object(about, row), first);
  }
  const mk_mla_time *warm = &row->times[MK_MLA_WARM];
  printf("| %-22s | %3u | %5u | %8.1f | %4.0f | %8.1f | %5.1f | %8.2e |\n", row->lengths, row->new_tokens, row->heads,
         warm->us, warm->mhz, row->floor.us, warm->us / row->floor.us, row->error);
  return mk_print_done();
}

mk_status mk_bench_mla_end(const mk_bench_mla_about *about) { return mk_bench_list_end(about->format, true); }

static mk_status put_costs_object(const mk_bench_mla_about *about, const mk_mla_costs *c) {
  const struct {
    const char *name;
    uint32_t nanoseconds;
  } costs[] = {{"item_ns", c->item},         {"page_ns", c->page},           {"out_row_ns", c->out_row},
               {"slot_row_ns", c->slot_row}, {"reduction_ns", c->reduction}, {"unit_ns", c->unit}};
  char device[24];
  device_name(about, device);
  json_t *object = json_object();
  int bad = json_object_set_new(object, "build", json_string(MK_VERSION_FULL));
  bad |= json_object_set_new(object, "device", json_string(device));
  for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++) {
    bad |= json_object_set_new(object, costs[i].name, json_integer(costs[i].nanoseconds));
  }
  object = mk_bench_object_or_null(object, bad);
  MK_TRY(mk_bench_list_begin(about->format));
  MK_TRY(mk_bench_list_object(about->format, object, true));
  return mk_bench_list_end(about->format, true);
}

mk_status mk_bench_mla_put_costs(const mk_bench_mla_about *about, const mk_mla_costs *c) {
  if (about->format != MK_BENCH_MD) {
    return put_costs_object(about, c);
  }
  printf(
      "costs in ns: item %u, page %u, output row %u, slot row %u, reduction %u, unit %u\n--costs %u,%u,%u,%u,%u,%u\n",
      c->item, c->page, c->out_row, c->slot_row, c->reduction, c->unit, c->item, c->page, c->out_row, c->slot_row,
      c->reduction, c->unit);
  return mk_print_done();
}
