// Makes room for a tile that has arrived: what cannot be used where it lies.
#include "common.cuh"

namespace {

// Moves the widths of a stream to where blocks of them can be loaded at once; zeros fill the last block.
__device__ __forceinline__ void move(const u8* arrived, u64 offset, u32 count, u32 whole, u8* widths, u64 k) {
  if (k < whole) widths[k] = k < count ? arrived[offset + k] : u8(0);
}

}  // namespace

// Moves the widths of the three streams of a tile and clears the bits that say where segments begin.
extern "C" __global__ void make_room(const u8* arrived, u64 lengths_offset, u32 lengths_count, u32 lengths_whole,
                                     u8* lengths, u64 starts_offset, u32 starts_count, u32 starts_whole, u8* starts,
                                     u64 gaps_offset, u32 gaps_count, u32 gaps_whole, u8* gaps, u32* begins,
                                     u32 words) {
  const u64 k = thread_number();
  move(arrived, lengths_offset, lengths_count, lengths_whole, lengths, k);
  move(arrived, starts_offset, starts_count, starts_whole, starts, k);
  move(arrived, gaps_offset, gaps_count, gaps_whole, gaps, k);
  if (k < words) begins[k] = 0;
}
