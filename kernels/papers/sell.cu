// One thread a row over columns that lie side by side: ELL in slices of SLICE rows (SELL-C-sigma, Kreutzer et
// al. 2014), the rows of a window sorted by size so that neighbours are about equally long.
//
// Entry j of slot s is columns[slices[s / SLICE] + SLICE * j + s % SLICE]: the lanes read neighbouring words.
#include "gather.cuh"

#ifndef SLICE
#define SLICE WARP
#endif

// `sizes` and `numbers` are those of the row in each slot; what fills up a slice is never read.
extern "C" __global__ void sell(const u64* slices, const u32* sizes, const u32* numbers, const u32* columns,
                                const Stored* reads, u64 window, u32 count, double* pushes, float* proposals) {
  const u64 slot = thread_number();
  if (slot >= count) return;
  const u32* column_of = columns + slices[slot / SLICE] + slot % SLICE;
  const u32 size = sizes[slot];
  const Word* const words = reinterpret_cast<const Word*>(reads);
  Sum sum;
  for (u32 j = 0; j < size; ++j, column_of += SLICE) {
    const u32 column = read_once(column_of);
    sum.add(read_struct(words + column), column, window);
  }
  Rows{pushes, proposals}.put(numbers[slot], sum);
}
