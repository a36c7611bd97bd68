// What rows gather, one load a node, and their sums: the part that all products over plain columns share.
//
// Parameters:
//   READS    format of the gathered numbers, a struct of narrow.cuh
//   PAIRED   1: each node has two numbers side by side, push and proposal, and both are summed
//   STRIPED  1: proposals of nodes outside `window` are another stripe's and left out; the window's first node is
//            its lower half, the number of nodes its upper
//   INDEX    type of edge numbers: u32, or u64 for 2^32 edges and more
#pragma once
#include "narrow.cuh"

#ifndef READS
#define READS Bits16
#endif
#ifndef PAIRED
#define PAIRED 0
#endif
#ifndef STRIPED
#define STRIPED 0
#endif
#ifndef INDEX
#define INDEX u32
#endif

using Reads = READS;
using Stored = Reads::Stored;
using Index = INDEX;

#if PAIRED
struct __align__(2 * sizeof(Stored)) Word {
  Stored push, proposal;
  __device__ __forceinline__ Stored proposal_from(u32 column, u64 window) const {
    return !STRIPED || column - u32(window) < u32(window >> 32) ? proposal : Stored(0);
  }
};
#else
struct Word {
  Stored push;
  __device__ __forceinline__ Stored proposal_from(u32, u64) const { return Stored(0); }
};
#endif

// What has been delivered to part of a row. Proposals need no precision: any proposal is right.
struct Sum {
  double push = 0;
  float proposal = 0;

  __device__ __forceinline__ void add(const Word& word, u32 column, u64 window) {
    push = add_widened<Reads>(push, word.push);
    if constexpr (PAIRED) proposal += float(Reads::widen(word.proposal_from(column, window)));
  }

  // The same for a link of that weight.
  __device__ __forceinline__ void add(const Word& word, u32 column, u64 window, double weight) {
    push += Reads::widen(word.push) * weight;
    if constexpr (PAIRED) proposal += float(Reads::widen(word.proposal_from(column, window)) * weight);
  }

  // Adds another part of the same row.
  __device__ __forceinline__ void join(const Sum& other) {
    push += other.push;
    if constexpr (PAIRED) proposal += other.proposal;
  }

  // The sum over a group, in every lane.
  template <int LANES> __device__ __forceinline__ Sum over() const {
    Sum all;
    all.push = group_sum<LANES>(push);
    if constexpr (PAIRED) all.proposal = group_sum<LANES>(proposal);
    return all;
  }
};

// Where sums of rows go; `proposals` may be null where nothing is paired.
struct Rows {
  double* pushes;
  float* proposals;

  __device__ __forceinline__ void put(u64 row, const Sum& sum) const {
    pushes[row] = sum.push;
    if constexpr (PAIRED) proposals[row] = sum.proposal;
  }

  __device__ __forceinline__ void add(u64 row, const Sum& sum) const {
    pushes[row] += sum.push;
    if constexpr (PAIRED) proposals[row] += sum.proposal;
  }

  // In no fixed order: the bits of the result change from run to run.
  __device__ __forceinline__ void add_atomically(u64 row, const Sum& sum) const {
    atomicAdd(pushes + row, sum.push);
    if constexpr (PAIRED) atomicAdd(proposals + row, sum.proposal);
  }
};

// The sum of edges `begin` to `end` - 1, taken by a group of lanes.
template <int LANES>
__device__ __forceinline__ Sum sum_edges(const u32* columns, u64 begin, u64 end, const Word* reads, u64 window) {
  Sum sum;
  for (u64 e = begin + lane<LANES>(); e < end; e += LANES) {
    const u32 column = read_once(columns + e);
    sum.add(read_struct(reads + column), column, window);
  }
  return sum.over<LANES>();
}
