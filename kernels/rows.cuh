// What kernels know of a row: what its rank is divided by, where the sum of its segment is, and what a pass keeps of it.
//
// Parameters:
//   READS, PAIRED  as in gather.cuh
//   WEIGHTED       0: out-degrees; 1: the weight that leaves each row, -1 where none does
//   DIVIDED        1: what rows push is divided when it is stored; 0: by whoever gathers it
#pragma once
#include "gather.cuh"

// What a row's rank is divided by, and whether anything leaves the row.
#ifndef WEIGHTED
#define WEIGHTED 0
#endif

#ifndef DIVIDED
#define DIVIDED 1
#endif

#if WEIGHTED
using Links = double;
__device__ __forceinline__ double divisor_of(Links links) { return DIVIDED ? fabs(links) : 1.0; }
__device__ __forceinline__ bool dangles(Links links) { return links < 0; }
#else
using Links = u32;
__device__ __forceinline__ double divisor_of(Links links) { return DIVIDED && links > 0 ? double(links) : 1.0; }
__device__ __forceinline__ bool dangles(Links links) { return links == 0; }
#endif

// The same in a precision that will do for proposals.
__device__ __forceinline__ float short_divisor_of(Links links) { return float(divisor_of(links)); }

// Sums of the segments of a group that are not empty, found by the number of a segment in its tile.
constexpr u32 NOTHING = ~0u;

// Which segments of a tile are not empty, as decode.cu expands them; null where each segment has a sum of its own.
struct Filled {
  const u32* bits;    // a bit a segment
  const u32* before;  // segments that are not empty before each 32, of the group's tiles before as well
  u32 first;          // where each segment has a sum: the first of the tile

  // Where the sum of a segment is; NOTHING for an empty one.
  __device__ __forceinline__ u32 rank(u64 segment) const {
    if (!bits) return first + u32(segment);
    const u32 word = read_shared(bits + segment / 32), bit = u32(segment) & 31;
    if (!(word >> bit & 1)) return NOTHING;
    return read_shared(before + segment / 32) + u32(count_bits(word & ((1u << bit) - 1)));
  }
};

// What a pass is made with; as PUSH_STEP and SWEEP_STEP of oocpr/engine/cuda/vectors.py have it.
struct PassStep {
  // Of the push.
  double scale;         // largest magnitude of what is stored, where that is scaled
  double carry;         // what the first row was owed when the last pass ended, which wrote `carry_slot` (-1: none)
  int kind;
  int carry_slot;
  u32 mixed;            // slots whose steps are subtracted, a bit each
  u32 : 32;
  // Of the sweep.
  double damping;
  double base, spread;  // a row is sent `base` times its teleport probability plus `spread`
  int slot;             // of this pass (-1: none)
  u32 live;             // slots whose products are wanted, a bit each
  u32 strongly;         // 1: dangling mass goes where teleports go; 0: to all nodes alike
  u32 : 32;
};

// What a pass keeps of a row: its proposal, and the step towards it that mixing remembers.

// What is remembered steers the next push, any of which is right: half of a float32 will do.
using Memory = Bits16;
using Kept = Memory::Stored;

// What a row pushed, from what it stored: the same number to the last bit wherever it is computed.
__device__ __forceinline__ double pushed_of(Stored stored, double divisor, double scale) {
  const double value = Reads::widen(stored);
  return (Reads::SCALED ? value * scale : value) * divisor;
}

// Keeps a proposal, remembers the step it makes where `step` is not null, and lets later tiles read it.
__device__ __forceinline__ void keep(float proposal, double pushed, Links links, double scale, float& push, Kept* step,
                                     Stored* numbers) {
  if (step) *step = Memory::narrow(pushed + (double(proposal) - double(push)), 1);
  push = proposal;
  if constexpr (PAIRED) numbers[1] = Reads::narrow(double(proposal / short_divisor_of(links)), scale);
}
