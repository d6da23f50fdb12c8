/* See place.h. */
#include "scheduler/place.h"

#include <string.h>

static uint32_t first_tile(uint32_t tiles, uint32_t ranks, uint32_t rank) {
  enum { CHAIN_TILES = MK_CHAIN_COLS / MK_TILE, MANY_CHAINS = 16 }; /* so many for a rank that one more hardly counts */
  const uint32_t chains = mk_divide_up(tiles, CHAIN_TILES);
  const uint32_t by = chains % ranks == 0 || chains >= MANY_CHAINS * ranks ? (uint32_t)CHAIN_TILES : 1;
  const uint64_t first = (uint64_t)mk_divide_up(tiles, by) * rank / ranks * by;
  return first < tiles ? (uint32_t)first : tiles;
}

mk_share mk_rank_tiles(uint32_t tiles, uint32_t ranks, uint32_t rank) {
  const uint32_t first = first_tile(tiles, ranks, rank);
  return (mk_share){first, first_tile(tiles, ranks, rank + 1) - first};
}

mk_status mk_placer_init(mk_placer *placer, mk_placement policy, uint32_t ranks, uint32_t sms_of_rank) {
  memset(placer, 0, sizeof *placer);
  placer->policy = policy;
  placer->ranks = ranks;
  placer->sms = ranks * sms_of_rank;
  MK_TRY(mk_alloc(placer->sms, sizeof *placer->bytes, &placer->bytes));
  MK_TRY(mk_alloc(placer->sms, sizeof *placer->order, &placer->order));
  return mk_alloc(placer->sms, sizeof *placer->shares, &placer->shares);
}

void mk_placer_free(mk_placer *placer) {
  mk_free(placer->bytes);
  mk_free(placer->order);
  mk_free(placer->shares);
}

/* SMs by (bytes so far, index), by insertion: the order changes little from stage to stage. */
static void sort_by_bytes(const uint64_t *bytes, uint32_t *order, uint32_t sms) {
  for (uint32_t i = 0; i < sms; i++) {
    uint32_t at = i;
    for (; at > 0 && bytes[order[at - 1]] > bytes[i]; at--) {
      order[at] = order[at - 1];
    }
    order[at] = i;
  }
}

static void place_in(mk_placer *placer, uint32_t rank, mk_share units, uint64_t unit_bytes) {
  const uint32_t sms = placer->sms / placer->ranks, begin = rank * sms;
  const uint32_t base = units.count / sms, extra = units.count % sms;
  uint64_t *bytes = placer->bytes + begin;
  uint32_t *order = placer->order + begin;
  mk_share *shares = placer->shares + begin;
  for (uint32_t sm = 0; sm < sms; sm++) {
    order[sm] = sm;
    shares[sm].count = base;
  }
  if (placer->policy == MK_PLACE_BALANCED) {
    sort_by_bytes(bytes, order, sms);
  }
  for (uint32_t i = 0; i < extra; i++) {
    shares[order[i]].count++;
  }
  uint32_t first = units.first;
  for (uint32_t sm = 0; sm < sms; sm++) {
    shares[sm].first = first;
    bytes[sm] += shares[sm].count * unit_bytes;
    first += shares[sm].count;
  }
}

void mk_place(mk_placer *placer, uint32_t tiles, uint64_t tile_bytes) {
  for (uint32_t rank = 0; rank < placer->ranks; rank++) {
    place_in(placer, rank, mk_rank_tiles(tiles, placer->ranks, rank), tile_bytes);
  }
}

void mk_place_in(mk_placer *placer, uint32_t rank, uint32_t units, uint64_t unit_bytes) {
  place_in(placer, rank, (mk_share){0, units}, unit_bytes);
}
