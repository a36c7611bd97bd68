// ROW_LANES neighbouring lanes a row: CSR-scalar with 1, CSR-vector with a warp, and what lies between.
//
// The three baselines of Wu et al. 2010; 1 is kernel C of Jiang 2014 and step 0 of the contest report too.
// Launched with ROW_LANES threads for each row.
#include "gather.cuh"

#ifndef ROW_LANES
#define ROW_LANES WARP
#endif

extern "C" __global__ void rows(const u32* offsets, const u32* columns, const double* weights, const Stored* reads,
                                u64 window, u32 count, double* pushes, float* proposals) {
  const u64 row = group_number<ROW_LANES>();
  if (row >= count) return;
  const Word* const words = reinterpret_cast<const Word*>(reads);
  const Sum sum = sum_edges<ROW_LANES>(columns, weights, offsets[row], offsets[row + 1], words, window);
  if (lane<ROW_LANES>() == 0) Rows{pushes, proposals}.put(row, sum);
}
