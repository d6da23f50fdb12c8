/* Batches at random, and work lists: made by the scheduler, then changed at random, as far as their checker passes
 * them. */
#include <string.h>

#include "instructions/mla.h"
#include "scheduler/mla_schedule.h"
#include "tests/mutation/host.h"
#include "tests/mutation/mutation.h"
#include "vm/verify/mla_check.h"

enum { CHANGES = 12, ENTRY_BYTES = MK_MLA_ENTRY * sizeof(uint32_t) };

typedef struct lister {
  host *h;
  mk_mla_geometry g;
  mk_mla_scheduler *scheduler;
  mk_mla_checker *checker;
  uint32_t *changed; /* [sms][list_words] */
} lister;

static uint32_t draw(lister *l, uint32_t below) { return below == 0 ? 0 : mutation_draw(&l->h->random, below); }

static uint32_t *entry(const lister *l, uint32_t sm, uint32_t index) {
  return l->changed + (size_t)sm * l->g.list_words + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * index;
}

static uint32_t *head(const lister *l, uint32_t sm) { return l->changed + (size_t)sm * l->g.list_words; }

/* Takes an entry out of its row and puts it into another one, at any place of its kind. */
static void move_entry(lister *l, uint32_t sm, uint32_t index, uint32_t to) {
  uint32_t copy[MK_MLA_ENTRY], kind = index < head(l, sm)[0] ? 0 : 1, all = head(l, sm)[0] + head(l, sm)[1];
  if (head(l, to)[0] + head(l, to)[1] >= l->g.capacity) {
    return;
  }
  memcpy(copy, entry(l, sm, index), sizeof copy);
  memmove(entry(l, sm, index), entry(l, sm, index + 1), (all - index - 1) * ENTRY_BYTES);
  head(l, sm)[kind]--;
  uint32_t first = kind == 0 ? 0 : head(l, to)[0], at = first + draw(l, head(l, to)[kind] + 1);
  all = head(l, to)[0] + head(l, to)[1];
  memmove(entry(l, to, at + 1), entry(l, to, at), (all - at) * ENTRY_BYTES);
  memcpy(entry(l, to, at), copy, sizeof copy);
  head(l, to)[kind]++;
}

static void change(lister *l) {
  uint32_t sm = draw(l, l->g.sms), to = draw(l, l->g.sms), count = head(l, sm)[0] + head(l, sm)[1];
  uint32_t index = draw(l, count), copy[MK_MLA_ENTRY];
  if (count == 0) {
    return;
  }
  switch (draw(l, 4)) {
    case 0: { /* the slots of two entries change places */
      uint32_t others = head(l, to)[0];
      uint32_t *a = entry(l, sm, index), *b = entry(l, to, draw(l, others));
      if (others != 0 && index < head(l, sm)[0]) {
        copy[3] = a[3];
        a[3] = b[3];
        b[3] = copy[3];
      }
      break;
    }
    case 1:
      entry(l, sm, index)[draw(l, MK_MLA_ENTRY)] = draw(l, 16);
      break;
    default:
      move_entry(l, sm, index, to);
      break;
  }
}

/* Lengths that fit the cache, and pages in any order. */
static uint32_t fill_batch(lister *l, uint32_t *words, uint32_t *lengths) {
  uint32_t sequences = 1 + draw(l, l->g.sequences), pages = l->g.pool_pages, page = draw(l, pages);
  for (uint32_t q = 0; q < sequences; q++) {
    uint32_t *row = words + (size_t)q * (MK_MLA_SEQUENCE_HEAD + l->g.max_pages), most = l->g.max_pages;
    most = pages < most ? pages : most;
    lengths[q] = draw(l, 8) == 0 ? 0 : draw(l, most * MK_MLA_PAGE_TOKENS + 1);
    row[0] = lengths[q];
    for (uint32_t i = 0; i < mk_mla_pages_of(lengths[q]); i++) {
      row[MK_MLA_SEQUENCE_HEAD + i] = page++ % l->g.pool_pages;
    }
    pages -= mk_mla_pages_of(lengths[q]);
  }
  return sequences;
}

static mk_status list_launch(lister *l, uint32_t launch) {
  uint32_t *work, *batch, *lengths;
  size_t bytes = l->h->program->buffers[l->g.work].bytes;
  host_launch *out = &l->h->launches[launch];
  MK_TRY(host_patch_of(l->h, launch, l->g.work, &work));
  MK_TRY(host_patch_of(l->h, launch, l->g.sequence_buffer, &batch));
  MK_TRY(mk_alloc(l->g.sequences, sizeof *lengths, &lengths));
  out->sequences = fill_batch(l, batch, lengths);
  out->epochs = 1;
  mk_status status = mk_mla_schedule(l->scheduler, draw(l, 2) == 0 ? MK_MLA_MAKESPAN : MK_MLA_NAIVE, lengths,
                                     out->sequences, work, NULL);
  mk_free(lengths);
  MK_TRY(status);
  MK_TRY(mk_mla_check_batch(l->checker, batch, out->sequences));
  MK_TRY(mk_mla_check_list(l->checker, work, out->sequences));
  for (uint32_t i = draw(l, CHANGES); i != 0; i--) {
    memcpy(l->changed, work, bytes);
    change(l);
    if (mk_mla_check_list(l->checker, l->changed, out->sequences) == MK_OK) {
      memcpy(work, l->changed, bytes);
    }
  }
  return MK_OK;
}

static mk_status list_all(lister *l) {
  MK_TRY(mk_mla_scheduler_new(l->h->program, NULL, &l->scheduler));
  MK_TRY(mk_mla_checker_new(l->h->program, &l->checker));
  MK_TRY(mk_alloc(1, l->h->program->buffers[l->g.work].bytes, &l->changed));
  for (uint32_t i = 0; i < HOST_LAUNCHES; i++) {
    MK_TRY(list_launch(l, i));
    l->h->launch_count = i + 1;
  }
  return MK_OK;
}

mk_status host_lists(host *h) {
  lister l = {.h = h};
  if (!mk_mla_geometry_of(h->program, &l.g)) {
    return mk_error(MK_ERR_USAGE, "host: reductions of a list, and nobody who carries out its items");
  }
  mk_status status = list_all(&l);
  mk_mla_scheduler_free(l.scheduler);
  mk_mla_checker_free(l.checker);
  mk_free(l.changed);
  return status;
}
