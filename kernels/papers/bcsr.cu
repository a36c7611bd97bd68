// Blocks of one row and four columns (1x4 BCSR, Shan et al. 2010): one load brings four neighbouring numbers.
//
// A block is a number, of its first column divided by four, and four bits that say which of its columns are
// there. ROW_LANES lanes take a row. Behind the last node's number there are at least three zeros.
#include "gather.cuh"

#ifndef ROW_LANES
#define ROW_LANES 16
#endif

constexpr int WIDTH = 4;

struct __align__(sizeof(Word) * WIDTH < 16 ? sizeof(Word) * WIDTH : 16) Four {
  Word word[WIDTH];
};

extern "C" __global__ void bcsr(const Index* offsets, const u32* blocks, const u8* bits, const Stored* reads, u64 window,
                                u32 count, double* pushes, float* proposals) {
  const u64 row = group_number<ROW_LANES>();
  if (row >= count) return;
  const Four* const fours = reinterpret_cast<const Four*>(reads);
  Sum sum;
  const u64 end = offsets[row + 1];
  for (u64 k = offsets[row] + lane<ROW_LANES>(); k < end; k += ROW_LANES) {
    const u32 block = read_once(blocks + k);
    const u32 there = read_once(bits + k);
    const Four four = read_struct(fours + block);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      if (there >> i & 1) sum.add(four.word[i], WIDTH * block + i, window);
    }
  }
  sum = sum.over<ROW_LANES>();
  if (lane<ROW_LANES>() == 0) Rows{pushes, proposals}.put(row, sum);
}
