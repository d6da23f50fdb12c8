// For finding a fault: one role says what it has while it works at one instruction, as a line on standard output when
// the launch ends. Of builds with MK_DEVICE_DEBUG alone (docs/DEBUGGING.md); what says something is not kept.
//
//   MK_SAY(c.d, ROLE_CONSUMER, 8675, "row %u: %f", row, sum);
//
// prints `SM 5 warp 3 step 64 #8675: row 12: 0.25` from the first lane of each warp of that role.
#pragma once
#include <cstdio>

#include "vm/gpu/device.cuh"

#define MK_SAY(d, who, number, format, ...)                                                   \
  do {                                                                                        \
    if (mk::tile::lane() == 0 && mk::role_of((d).warp) == mk::who && (d).uid() == (number)) { \
      printf("SM %u warp %u step %u #%u: " format "\n", blockIdx.x, (d).warp, (d).epoch,      \
             static_cast<uint32_t>(number) __VA_OPT__(, ) __VA_ARGS__);                       \
    }                                                                                         \
  } while (0)
