// What a pass keeps of a row: its proposal, and the step towards it that mixing remembers.
//
// Parameters: READS, PAIRED as in gather.cuh, WEIGHTED as in links.cuh.
#pragma once
#include "gather.cuh"
#include "links.cuh"
#include "segments.cuh"

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
