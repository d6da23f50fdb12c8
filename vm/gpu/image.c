/* Which kernel runs a program: by its rows and slots, its ranks, what sets its family apart or its weights are kept as,
 * and whether it draws. */
#include "vm/gpu/machine_internal.h"

mk_gpu_image_part mk_gpu_image_of(const mk_gpu *gpu) {
  static const mk_gpu_image_part tokens[2][2][3][2] = {
      /* several ranks, several rows, families or (2) quantised of any family, sampling */
      {{{MK_GPU_IMAGE_KERNEL, MK_GPU_IMAGE_SAMPLING},
        {MK_GPU_IMAGE_FAMILIES, MK_GPU_IMAGE_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_QUANTISED, MK_GPU_IMAGE_QUANTISED_SAMPLING}},
       {{MK_GPU_IMAGE_ROWS, MK_GPU_IMAGE_ROWS_SAMPLING},
        {MK_GPU_IMAGE_ROWS_FAMILIES, MK_GPU_IMAGE_ROWS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_ROWS_QUANTISED, MK_GPU_IMAGE_ROWS_QUANTISED_SAMPLING}}},
      {{{MK_GPU_IMAGE_RANKS, MK_GPU_IMAGE_RANKS_SAMPLING},
        {MK_GPU_IMAGE_RANKS_FAMILIES, MK_GPU_IMAGE_RANKS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_RANKS_QUANTISED, MK_GPU_IMAGE_RANKS_QUANTISED_SAMPLING}},
       {{MK_GPU_IMAGE_ROWS_RANKS, MK_GPU_IMAGE_ROWS_RANKS_SAMPLING},
        {MK_GPU_IMAGE_ROWS_RANKS_FAMILIES, MK_GPU_IMAGE_ROWS_RANKS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_ROWS_RANKS_QUANTISED, MK_GPU_IMAGE_ROWS_RANKS_QUANTISED_SAMPLING}}}};
  static const mk_gpu_image_part wide[2][2][3] = {
      /* several ranks, several slots, families or (2) quantised */
      {{MK_GPU_IMAGE_WIDE, MK_GPU_IMAGE_WIDE_FAMILIES, MK_GPU_IMAGE_WIDE_QUANTISED},
       {MK_GPU_IMAGE_WIDE_SLOTS, MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES, MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED}},
      {{MK_GPU_IMAGE_WIDE_RANKS, MK_GPU_IMAGE_WIDE_RANKS_FAMILIES, MK_GPU_IMAGE_WIDE_RANKS_QUANTISED},
       {MK_GPU_IMAGE_WIDE_SLOTS_RANKS, MK_GPU_IMAGE_WIDE_SLOTS_RANKS_FAMILIES,
        MK_GPU_IMAGE_WIDE_SLOTS_RANKS_QUANTISED}}};
  static const mk_gpu_image_part wide_draws[3] = {
      /* of one rank: refuse_wide.c */
      MK_GPU_IMAGE_WIDE_SLOTS_SAMPLING, MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES_SAMPLING,
      MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED_SAMPLING};
  const size_t form = mk_gpu_is_quantised(gpu->program) ? 2 : mk_gpu_is_of_family(gpu->program);
  if (gpu->mla) {
    return MK_GPU_IMAGE_MLA;
  }
  if (gpu->rows > MK_MAX_ROWS) {
    return mk_gpu_samples(gpu->program) ? wide_draws[form]
                                        : wide[gpu->ranks > 1][mk_program_slots(gpu->program) > 1][form];
  }
  return tokens[gpu->ranks > 1][gpu->rows > 1][form][mk_gpu_samples(gpu->program)];
}

bool mk_gpu_image_records(int part) {
  static const bool records[MK_GPU_IMAGES] = {[MK_GPU_IMAGE_RANKS_RECORDING] = true,
                                              [MK_GPU_IMAGE_ROWS_RANKS_RECORDING] = true,
                                              [MK_GPU_IMAGE_WIDE_RANKS_RECORDING] = true,
                                              [MK_GPU_IMAGE_WIDE_SLOTS_RANKS_RECORDING] = true};
  const bool several = part >= MK_GPU_IMAGE_RANKS && part <= MK_GPU_IMAGE_WIDE_SLOTS_RANKS_QUANTISED;
  return part != MK_GPU_IMAGE_MLA && (!several || records[part + 1]);
}
