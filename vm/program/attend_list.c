/* See attend_list.h. */
#include "vm/program/attend_list.h"

#include <stdlib.h>
#include <string.h>

static bool is_active(const mk_step_row *row) { return (row->flags & MK_ROW_ACTIVE) != 0; }

/* How many lines from `first` on form a run: one slot, neighbouring positions. */
static uint32_t run_of(const mk_step_row *rows, uint32_t first, uint32_t lines) {
  uint32_t count = 1;
  while (first + count < lines && is_active(&rows[first + count]) && rows[first + count].slot == rows[first].slot &&
         rows[first + count].position == rows[first].position + count) {
    count++;
  }
  return count;
}

/* Most tokens first; no two items have both the same line and the same head. */
static int by_tokens(const void *a, const void *b) {
  const mk_attend_item *x = a, *y = b;
  const uint32_t tokens_x = x->position + x->lines, tokens_y = y->position + y->lines;
  if (tokens_x != tokens_y) {
    return tokens_x > tokens_y ? -1 : 1;
  }
  if (x->first != y->first) {
    return x->first < y->first ? -1 : 1;
  }
  return x->head < y->head ? -1 : 1;
}

void mk_attend_list_make(const mk_program *program, const mk_step_row *rows, uint32_t tile, uint32_t group,
                         uint32_t *list) {
  const uint32_t lines = mk_line_tile(mk_program_rows(program));
  mk_attend_item *items = (mk_attend_item *)(void *)list + 1;
  uint32_t count = 0;
  rows += (size_t)tile * lines;
  for (uint32_t line = 0, run; line < lines; line += run) {
    run = 1;
    if (!is_active(&rows[line])) {
      continue;
    }
    run = run_of(rows, line, lines);
    const uint32_t most = MK_ATTEND_QUERIES / run, heads = most < group ? most : group;
    for (uint32_t head = 0; head < group; head += heads) {
      items[count++] = (mk_attend_item){.first = line,
                                        .lines = run,
                                        .slot = rows[line].slot,
                                        .position = rows[line].position,
                                        .head = head,
                                        .heads = group - head < heads ? group - head : heads};
    }
  }
  memset(list, 0, sizeof *items);
  list[0] = count;
  if (count != 0) {
    qsort(items, count, sizeof *items, by_tokens);
  }
}

/* Checks item number `number`, and that none of its queries is in an earlier item. */
static mk_status check_item(const mk_step_row *rows, uint32_t lines, uint32_t group, uint32_t number,
                            const mk_attend_item *item, bool *taken) {
  if (item->lines < 1 || item->first >= lines || item->lines > lines - item->first || item->heads < 1 ||
      item->head >= group || item->heads > group - item->head || item->lines * item->heads > MK_ATTEND_QUERIES ||
      item->zero[0] != 0 || item->zero[1] != 0) {
    return mk_error(MK_ERR_USAGE,
                    "work list: item %u has %u lines from %u on and %u heads from %u on; there are %u and %u, and an "
                    "item has at most %d queries",
                    number, item->lines, item->first, item->heads, item->head, lines, group, MK_ATTEND_QUERIES);
  }
  for (uint32_t i = 0; i < item->lines; i++) {
    const mk_step_row *row = &rows[item->first + i];
    if (!is_active(row) || row->slot != item->slot || row->position != item->position + i) {
      return mk_error(MK_ERR_USAGE,
                      "work list: item %u has line %u at position %u of slot %u; the plan has %s%u of slot %u", number,
                      item->first + i, item->position + i, item->slot, is_active(row) ? "" : "an idle row, ",
                      row->position, row->slot);
    }
    for (uint32_t head = item->head; head < item->head + item->heads; head++) {
      bool *at = &taken[(size_t)(item->first + i) * group + head];
      if (*at) {
        return mk_error(MK_ERR_USAGE, "work list: item %u has line %u and head %u, which another one has, too", number,
                        item->first + i, head);
      }
      *at = true;
    }
  }
  return MK_OK;
}

mk_status mk_attend_list_check(const mk_program *program, const mk_step_row *rows, uint32_t tile, uint32_t group,
                               const uint32_t *list) {
  const uint32_t lines = mk_line_tile(mk_program_rows(program));
  const mk_attend_item *items = (const mk_attend_item *)(const void *)list + 1;
  bool taken[MK_LINE_TILE * MK_ATTEND_MOST_HEADS] = {false};
  rows += (size_t)tile * lines;
  if (group < 1 || group > MK_ATTEND_MOST_HEADS || list[0] > lines + 2 * group) {
    return mk_error(MK_ERR_USAGE, "work list: %u items of %u heads; a tile of %u lines has fewer", list[0], group,
                    lines);
  }
  for (uint32_t i = 0; i < list[0]; i++) {
    MK_TRY(check_item(rows, lines, group, i, &items[i], taken));
  }
  for (uint32_t i = 0; i < lines * group; i++) {
    if (is_active(&rows[i / group]) && !taken[i]) {
      return mk_error(MK_ERR_USAGE, "work list: no item has line %u and head %u", i / group, i % group);
    }
  }
  return MK_OK;
}

mk_status mk_attend_lists(const mk_program *program, const mk_plan_buffers *buffers, const mk_step_row *plan,
                          uint32_t steps, uint32_t *lists) {
  const uint32_t rows = mk_program_rows(program), lines = mk_line_tile(rows);
  const uint32_t words = mk_attend_list_words(lines, buffers->group);
  for (uint32_t step = 0; step < steps; step++, plan += rows) {
    for (uint32_t tile = 0; tile < rows / lines; tile++, lists += words) {
      mk_attend_list_make(program, plan, tile, buffers->group, lists);
      const mk_status status = mk_attend_list_check(program, plan, tile, buffers->group, lists);
      MK_TRY(status == MK_OK ? MK_OK : mk_error_prefix(status, "step %u, tile %u", step, tile));
    }
  }
  return MK_OK;
}
