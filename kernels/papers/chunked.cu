// Column chunks in shared memory: step 2 of the contest report on personalized PageRank.
//
// Edges are grouped by chunks of `size` columns, and in a chunk by row. One launch takes one chunk: each block of
// threads copies the chunk's numbers to shared memory and gathers from there. Launches follow one another, so a
// row's parts are added in the order of the chunks. ROW_LANES lanes take one part.
#include "gather.cuh"

#ifndef ROW_LANES
#define ROW_LANES 4
#endif

// Parts first .. last - 1 are the chunk's; part k has edges offsets[k] .. offsets[k + 1] - 1 of row numbers[k].
// `columns` count from the chunk's first column, `begin`.
extern "C" __global__ void add_chunk(const Index* offsets, const u32* numbers, u64 first, u64 last, const u16* columns,
                                     const Stored* reads, u32 begin, u32 size, u64 window, double* pushes,
                                     float* proposals) {
  DYNAMIC_SHARED(bytes);
  Word* const chunk = reinterpret_cast<Word*>(bytes);
  const Word* const words = reinterpret_cast<const Word*>(reads) + begin;
  for (u32 k = threadIdx.x; k < size; k += blockDim.x) chunk[k] = read_struct(words + k);
  __syncthreads();
  const Rows rows = {pushes, proposals};
  for (u64 k = first + group_number<ROW_LANES>(); k < last; k += group_count<ROW_LANES>()) {
    Sum sum;
    const u64 end = offsets[k + 1];
    for (u64 e = offsets[k] + lane<ROW_LANES>(); e < end; e += ROW_LANES) {
      const u32 column = read_once(columns + e);
      sum.add(chunk[column], begin + column, window);
    }
    sum = sum.over<ROW_LANES>();
    if (lane<ROW_LANES>() == 0) rows.add(numbers[k], sum);
  }
}
