// What products have in common that are balanced by edges: which blocks of 1024 edges a team of 32 lanes takes, and how the
// sums of segments are joined that pass from block to block.
//
// Parameters:
//   DECODED  1: columns were decoded before; see decode_columns of decode.cu, whose `fours` they are
//   TEAMS    teams of 32 lanes in a block of threads
#pragma once
#include "group.cuh"

#ifndef DECODED
#define DECODED 0
#endif
#if DECODED
#define DECODED_COLUMNS , const u32* fours
#else
#define DECODED_COLUMNS
#endif
#ifndef TEAMS
#define TEAMS 4
#endif

// Which blocks of edges a team takes: of the `each` of its block of threads every COUNT-th, then of `each` behind those
// of all blocks of threads.
template <int COUNT> struct Turns {
  u64 begin, block;
  int team;
  u32 each;

  __device__ __forceinline__ Turns(int team, u32 each)
      : begin(u64(blockIdx.x) * each), block(begin + team), team(team), each(each) {}

  __device__ __forceinline__ void go_on() {
    block += COUNT;
    if (block < begin + each) return;
    begin += u64(gridDim.x) * each;
    block = begin + team;
  }
};

// Adds to each segment what lies in blocks after its first, of which `heads` has the sums before the first segment that
// begins there; one thread a block of edges, and all of a warp together. Both are APART places from each other.
template <int APART = 1, class T>
__device__ __forceinline__ void join_block(const u32* begins, const u32* ranks, u32 blocks, const T* heads, T* sums) {
  const u64 b = thread_number();
  const bool there = b > 0 && b < blocks;
  const u32 rank = there ? ranks[b] : 0;
  // Here a segment goes on that began in the block before.
  const bool joins = there && rank > ranks[b - 1] && !(begins[GROUP * b] & 1);
  const bool longer = joins && b + 1 < blocks && ranks[b + 1] == rank;
  if (joins && !longer) sums[APART * u64(rank - 1)] += heads[APART * b];
  // A long one is added up by all lanes.
  for (LaneMask left = ballot<WARP>(longer); left; left &= left - 1) {
    const int source = lowest_bit(left);
    const u32 own = shuffle(rank, source);
    T sum = 0;
    for (u64 k = shuffle(b, source) + lane(); k < blocks && ranks[k] == own; k += WARP) sum += heads[APART * k];
    sum = group_sum(sum);
    if (lane() == 0) sums[APART * u64(own - 1)] += sum;
  }
}
