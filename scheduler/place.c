/* See place.h. */
#include "scheduler/place.h"

#include <string.h>

mk_status mk_placer_init(mk_placer *placer, mk_placement policy, uint32_t sms) {
  memset(placer, 0, sizeof *placer);
  placer->policy = policy;
  placer->sms = sms;
  MK_TRY(mk_alloc(sms, sizeof *placer->bytes, &placer->bytes));
  MK_TRY(mk_alloc(sms, sizeof *placer->order, &placer->order));
  return mk_alloc(sms, sizeof *placer->shares, &placer->shares);
}

void mk_placer_free(mk_placer *placer) {
  mk_free(placer->bytes);
  mk_free(placer->order);
  mk_free(placer->shares);
}

/* SMs by (bytes so far, index), by insertion: the order changes little from stage to stage. */
static void sort_by_bytes(mk_placer *placer) {
  for (uint32_t i = 0; i < placer->sms; i++) {
    uint32_t at = i;
    for (; at > 0 && placer->bytes[placer->order[at - 1]] > placer->bytes[i]; at--) {
      placer->order[at] = placer->order[at - 1];
    }
    placer->order[at] = i;
  }
}

void mk_place(mk_placer *placer, uint32_t units, uint64_t unit_bytes) {
  uint32_t base = units / placer->sms, extra = units % placer->sms;
  for (uint32_t sm = 0; sm < placer->sms; sm++) {
    placer->order[sm] = sm;
    placer->shares[sm].count = base;
  }
  if (placer->policy == MK_PLACE_BALANCED) {
    sort_by_bytes(placer);
  }
  for (uint32_t i = 0; i < extra; i++) {
    placer->shares[placer->order[i]].count++;
  }
  uint32_t first = 0;
  for (uint32_t sm = 0; sm < placer->sms; sm++) {
    placer->shares[sm].first = first;
    placer->bytes[sm] += placer->shares[sm].count * unit_bytes;
    first += placer->shares[sm].count;
  }
}
