// Sums of the segments of a tile that are not empty, found by the number of the segment.
#pragma once
#include "common.cuh"

constexpr u32 NOTHING = ~0u;

// Which segments are not empty, as decode.cu expands them; null where each segment has a sum of its own.
struct Filled {
  const u32* bits;    // a bit a segment
  const u32* before;  // segments that are not empty before each 32

  // Where the sum of a segment is; NOTHING for an empty one.
  __device__ __forceinline__ u32 rank(u64 segment) const {
    if (!bits) return u32(segment);
    const u32 word = read_shared(bits + segment / 32), bit = u32(segment) & 31;
    if (!(word >> bit & 1)) return NOTHING;
    return read_shared(before + segment / 32) + u32(count_bits(word & ((1u << bit) - 1)));
  }
};
