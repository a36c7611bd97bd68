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

// Finds the blocks of each row, 32 lanes a row; they lie from where the row has its first edge. Columns from `nodes` on are
// in no block.
//
//   counts        receives the number of blocks of each row
//   blocks, bits  receive the number and the bits of each block
extern "C" __global__ void find_blocks(const u32* offsets, const u32* columns, u32 rows, u32 nodes, u32* counts,
                                       u32* blocks, u8* bits) {
  const u64 row = group_number<32>();
  if (row >= rows) return;
  const u64 begin = offsets[row], end = offsets[row + 1];
  u64 place = begin;
  for (u64 from = begin; from < end; from += 32) {
    const u64 e = from + lane<32>();
    const bool node = e < end && columns[e] < nodes;
    const u32 block = node ? columns[e] / WIDTH : 0;
    const bool first = node && (e == begin || columns[e - 1] >= nodes || columns[e - 1] / WIDTH != block);
    const u32 firsts = u32(ballot<32>(first));
    if (first) {
      u32 there = 0;
      for (u64 k = e; k < end && columns[k] < nodes && columns[k] / WIDTH == block; ++k) {
        there |= 1u << columns[k] % WIDTH;
      }
      const u64 own = place + count_bits(firsts & u32(lanes_before<32>()));
      blocks[own] = block;
      bits[own] = u8(there);
    }
    place += count_bits(firsts);
  }
  if (lane<32>() == 0) counts[row] = u32(place - begin);
}

extern "C" __global__ void bcsr(const u32* offsets, const u32* counts, const u32* blocks, const u8* bits,
                                const Stored* reads, u64 window, u32 rows, double* pushes, float* proposals) {
  const u64 row = group_number<ROW_LANES>();
  if (row >= rows) return;
  const Four* const fours = reinterpret_cast<const Four*>(reads);
  Sum sum;
  const u64 begin = offsets[row], end = begin + counts[row];
  for (u64 k = begin + lane<ROW_LANES>(); k < end; k += ROW_LANES) {
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
