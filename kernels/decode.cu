// Kernels that decode: where a tile's segments are, which all others need, and its columns alone.
//
// Launched with a multiple of 32 threads a block, 32 threads for each 1024 values.
#include "decode.cuh"

#ifndef TEAMS
#define TEAMS 4  // blocks of a stream that a block of threads works on at a time
#endif

constexpr u32 FAULT_SEGMENTS = 1;  // lengths contradict directory or header
constexpr u32 FAULT_STARTS = 2;    // starts contradict their directory
constexpr u32 FAULT_COLUMNS = 4;   // columns contradict their directory
constexpr u32 FAULT_RANGE = 8;     // a column is no node

namespace {

__device__ __forceinline__ u32* scratch() {
  __shared__ __align__(16) u32 values[TEAMS * SCRATCH];
  return values + threadIdx.x / GROUP * SCRATCH;
}

__device__ __forceinline__ void flag(u32* faults, u32 fault, bool found) {
  if (ballot<GROUP>(found) && lane<GROUP>() == 0) atomicOr(faults, fault);
}

}  // namespace

// Finds the non-empty ones among `count` segments, from the stream of lengths.
//
//   ranks_of_blocks  non-empty segments before each block of lengths
//   begins           a bit an edge, zeros before; receives where a segment begins
//   ranks            edge blocks + 1: receives how many begin before each block of edges
//   filled           a bit a segment: receives which are not empty
//   filled_before    receives how many are not empty before each 32 segments
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    expand_lengths(const u32* words, const u32* directory, const u32* wide, const u16* narrow, const u8* widths,
                   const u32* ranks_of_blocks, u32 count, u32 edges, u32 nonempty, u32* begins, u32* ranks,
                   u32* filled, u32* filled_before, u32* faults) {
  const u64 b = group_number<GROUP>();
  const u64 blocks = (u64(count) + (BLOCK - 1)) / BLOCK;
  if (b >= blocks) return;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  u32 position = unpack({words, directory, wide, narrow, widths}, b, values);
  u32 rank = read_shared(ranks_of_blocks + b);
  sync_group<GROUP>();
  // What lies behind the last segment is zero: unpacked of widths that are.
  u32 sum = 0, full = 0;
  bool overflow = false;
#pragma unroll 1
  for (int i = 0; i < GROUP; ++i) {
    const u32 length = values[PITCH * me + i];
    overflow |= sum + length < sum;
    sum += length;
    full |= u32(length != 0) << i;
  }
  u32 before = sum;
#pragma unroll
  for (int step = 1; step < GROUP; step *= 2) {
    const u32 other = shuffle_up<GROUP>(before, step);
    if (me >= step) {
      overflow |= before + other < before;
      before += other;
    }
  }
  const u32 full_before = group_scan<GROUP>(u32(count_bits(full)));
  const u32 end = position + shuffle<GROUP>(before, GROUP - 1);
  const u32 rank_end = rank + shuffle<GROUP>(full_before, GROUP - 1);
  const bool last = b + 1 == blocks;
  bool wrong = overflow || end < position || end > edges || rank_end > nonempty || (b == 0 && (position || rank));
  wrong |= read_shared(directory + 4 * b + 7) != end || read_shared(ranks_of_blocks + b + 1) != rank_end;
  wrong |= last && (end != edges || rank_end != nonempty);
  flag(faults, FAULT_SEGMENTS, wrong);
  if (ballot<GROUP>(wrong)) return;
  position += before - sum;
  rank += full_before - count_bits(full);
  if (GROUP * b + me <= (count - 1) / GROUP) {
    filled[GROUP * b + me] = full;
    filled_before[GROUP * b + me] = rank;
  }
  if (b == 0 && me == 0) ranks[0] = 0;
#pragma unroll 1
  for (int i = 0; i < GROUP; ++i) {
    const u32 length = values[PITCH * me + i];
    if (length) atomicOr(begins + position / GROUP, 1u << position % GROUP);
    // The blocks of edges whose first edge lies behind this begin and not behind the segment's end.
    const u32 low = position / BLOCK + 1;
    u32 high = u32((u64(position) + length) / BLOCK);
    if (length && position + length == edges && edges % BLOCK) ++high;
    position += length;
    rank += length != 0;
    const bool some = length && high >= low;
    u32 spans = u32(ballot<GROUP>(some));
    while (spans) {
      const int source = lowest_bit(spans);
      const u32 from = shuffle<GROUP>(low, source), to = shuffle<GROUP>(high, source);
      const u32 value = shuffle<GROUP>(rank, source);
      for (u32 k = from + me; k <= to; k += GROUP) ranks[k] = value;
      spans &= spans - 1;
    }
  }
}

// Decodes the first columns of the non-empty segments.
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    expand_starts(const u32* words, const u32* directory, const u32* wide, const u16* narrow, const u8* widths,
                  u32 nonempty, u32* starts, u32* faults) {
  const u64 b = group_number<GROUP>();
  if (b >= (u64(nonempty) + (BLOCK - 1)) / BLOCK) return;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  const u32 carry = unpack({words, directory, wide, narrow, widths}, b, values);
  sync_group<GROUP>();
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    const u32 value = values[PITCH * me + i];
    sum += value >> 1 ^ (0u - (value & 1));
    values[PITCH * me + i] = sum;
  }
  const u32 before = carry + group_scan<GROUP>(sum) - sum;
#pragma unroll
  for (int i = 0; i < GROUP; ++i) values[PITCH * me + i] += before;
  sync_group<GROUP>();
  const u32 rest = nonempty - u32(b) * BLOCK, last = (rest < BLOCK ? rest : BLOCK) - 1;
  flag(faults, FAULT_STARTS,
       values[PITCH * (last / GROUP) + last % GROUP] != read_shared(directory + 4 * b + 7) || (b == 0 && carry != 0));
  for (u32 i = me; i <= last; i += GROUP) starts[b * BLOCK + i] = values[PITCH * (i / GROUP) + i % GROUP];
}

// Decodes all columns, checks them, writes them where `columns` is not null, and adds to `hub_edges` how many are among
// the first `hubs` nodes.
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    decode_columns(const u32* words, const u32* directory, const u32* wide, const u16* narrow, const u8* widths,
                   const u32* begins, const u32* ranks, const u32* starts, u32 edges, u32 nodes, u32 hubs,
                   u32* columns, u64* hub_edges, u32* faults) {
  const u64 b = group_number<GROUP>();
  // Segments that contradict themselves lead anywhere.
  if (b >= (u64(edges) + (BLOCK - 1)) / BLOCK || *faults & (FAULT_SEGMENTS | FAULT_STARTS)) return;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  const Segments segments = {begins, ranks, starts};
  const u32 left = edges - u32(b) * BLOCK, count = left < BLOCK ? left : BLOCK, last = count - 1;
  u32 column[GROUP];
  decode({words, directory, wide, narrow, widths}, segments, find_begins(segments, b), b, count, 0, values, column);
  sync_group<GROUP>();
#pragma unroll
  for (int i = 0; i < GROUP; ++i) values[PITCH * me + i] = column[i];
  sync_group<GROUP>();
  flag(faults, FAULT_COLUMNS, values[PITCH * (last / GROUP) + last % GROUP] != read_shared(directory + 4 * b + 7));
  u32 most = 0, among = 0;
#pragma unroll
  for (u32 g = 0; g < GROUP; ++g) {
    const u32 i = GROUP * g + me;
    const u32 value = values[PITCH * g + me];
    if (i <= last) {
      most = max(most, value);
      among += value < hubs;
      if (columns) columns[b * BLOCK + i] = value;
    }
  }
  flag(faults, FAULT_RANGE, most >= nodes);
  among = group_sum<GROUP>(among);
  if (me == 0 && among) atomicAdd(hub_edges, u64(among));
}
