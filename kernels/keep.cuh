// What a pass keeps of a row: its proposal, and the step towards it that mixing remembers.
//
// Parameters: READS, PAIRED as in gather.cuh.
#pragma once
#include "gather.cuh"
#include "segments.cuh"

// What is remembered steers the next push, any of which is right: half of a float32 will do.
using Memory = Bits16;
using Kept = Memory::Stored;

// What a row pushed, from what it stored: the same number to the last bit wherever it is computed.
__device__ __forceinline__ double pushed_of(Stored stored, double links, double scale) {
  const double value = Reads::widen(stored);
  return (Reads::SCALED ? value * scale : value) * links;
}

__device__ __forceinline__ u32 at_least_one(u32 degree) { return degree > 0 ? degree : 1; }

// Keeps a proposal, remembers the step it makes where `step` is not null, and lets later tiles read it.
__device__ __forceinline__ void keep(float proposal, double pushed, u32 degree, double scale, float& push, Kept* step,
                                     Stored* numbers) {
  if (step) *step = Memory::narrow(pushed + (double(proposal) - double(push)), 1);
  push = proposal;
  if constexpr (PAIRED) numbers[1] = Reads::narrow(double(proposal / float(at_least_one(degree))), scale);
}
