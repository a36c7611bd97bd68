// What rows gather, one load a node, and their sums: the part that all products over plain columns share.
//
// Parameters:
//   READS    format of the gathered numbers, a struct of narrow.cuh
//   PAIRED   1: each node has two numbers side by side, push and proposal, and both are summed
//   STRIPED  1: proposals of nodes outside `window`, which may wrap to the first nodes, are left out; the window's
//            first node is its lower half, the number of nodes its upper
//   WEIGHTED 1: what an edge brings is multiplied by its weight
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
#ifndef WEIGHTED
#define WEIGHTED 0
#endif

using Reads = READS;
using Stored = Reads::Stored;

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

// The sum of edges `begin` to `end` - 1, taken by a group of lanes; `weights` are null where edges have none.
template <int LANES>
__device__ __forceinline__ Sum sum_edges(const u32* columns, const double* weights, u64 begin, u64 end,
                                         const Word* reads, u64 window) {
  Sum sum;
  for (u64 e = begin + lane<LANES>(); e < end; e += LANES) {
    const u32 column = read_once(columns + e);
    const Word word = read_struct(reads + column);
    if constexpr (WEIGHTED) {
      sum.add(word, column, window, read_once(weights + e));
    } else {
      sum.add(word, column, window);
    }
  }
  return sum.over<LANES>();
}

// The last of rows low .. high - 1 that begins at or before edge e; rows without edges are passed over.
__device__ __forceinline__ u32 find_row(const u32* offsets, u32 low, u32 high, u32 e) {
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (read_shared(offsets + middle) <= e) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The row of this thread's edge, one thread an edge; all threads of a block call it. No row for threads behind the
// last edge.
__device__ __forceinline__ u32 row_of_edge(const u32* offsets, u32 rows) {
  __shared__ u32 bounds[2];
  const u32 edges = offsets[rows];
  if (threadIdx.x < 2 && edges) {
    const u64 e = u64(blockIdx.x) * blockDim.x + (threadIdx.x ? blockDim.x - 1 : 0);
    bounds[threadIdx.x] = find_row(offsets, 0, rows, e < edges ? u32(e) : edges - 1);
  }
  __syncthreads();
  return thread_number() < edges ? find_row(offsets, bounds[0], bounds[1] + 1, u32(thread_number())) : rows;
}
