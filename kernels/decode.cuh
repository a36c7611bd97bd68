// Packed streams (oocpr/store/format.py), block by block: 32 lanes unpack 1024 values.
//
// Lane l of the packed words has value l of each group of 32, so the lanes read neighbouring words and all
// stand at the same bit. Whoever works with the values has them the other way round, lane g those of group g,
// because running sums and sums of rows then add within a lane: they change places in shared memory.
//
// Nothing is checked here that oocpr.store.codec.layout.parse_tile has checked: widths, directories, the numbers of
// words and of exceptions. What it cannot know is checked where segments are expanded, see decode.cu; columns
// are checked or cut by whoever gathers with them.
#pragma once
#include "common.cuh"

constexpr int GROUP = 32;               // values that share a width, and lanes that work together
constexpr int BLOCK = GROUP * GROUP;    // values of a block
constexpr int FOUR = 4;                 // words that a lane moves at a time
constexpr int PITCH = GROUP + FOUR;     // words between two groups in shared memory: no FOUR meet others' banks
constexpr int SCRATCH = GROUP * PITCH;  // words of shared memory that a block takes, aligned to FOUR

// A packed stream, arrays as in oocpr.store.codec.layout.Stream; behind the widths, zeros up to a whole block. Directory
// and widths begin at multiples of 16 bytes.
struct Stream {
  const u32* words;
  const u32* directory;
  const u32* wide;
  const u16* narrow;
  const u8* widths;
};

// A lane's own 32 values, from and to shared memory.
__device__ __forceinline__ void take_own(const u32* values, u32 (&own)[GROUP]) {
  const uint4* const from = reinterpret_cast<const uint4*>(values + PITCH * lane<GROUP>());
#pragma unroll
  for (int i = 0; i < GROUP / FOUR; ++i) {
    const uint4 four = from[i];
    own[FOUR * i] = four.x;
    own[FOUR * i + 1] = four.y;
    own[FOUR * i + 2] = four.z;
    own[FOUR * i + 3] = four.w;
  }
}

__device__ __forceinline__ void give_own(const u32 (&own)[GROUP], u32* values) {
  uint4* const to = reinterpret_cast<uint4*>(values + PITCH * lane<GROUP>());
#pragma unroll
  for (int i = 0; i < GROUP / FOUR; ++i) {
    to[i] = make_uint4(own[FOUR * i], own[FOUR * i + 1], own[FOUR * i + 2], own[FOUR * i + 3]);
  }
}

// The same from and to memory, of block b: four of a lane side by side, so that lanes read and write in one go.
__device__ __forceinline__ void read_own(const u32* fours, u64 b, u32 (&own)[GROUP]) {
  const uint4* const from = reinterpret_cast<const uint4*>(fours + BLOCK * b) + lane<GROUP>();
#pragma unroll
  for (int i = 0; i < GROUP / FOUR; ++i) {
    const uint4 four = read_once(from + GROUP * i);
    own[FOUR * i] = four.x;
    own[FOUR * i + 1] = four.y;
    own[FOUR * i + 2] = four.z;
    own[FOUR * i + 3] = four.w;
  }
}

__device__ __forceinline__ void write_own(const u32 (&own)[GROUP], u32* fours, u64 b) {
  uint4* const to = reinterpret_cast<uint4*>(fours + BLOCK * b) + lane<GROUP>();
#pragma unroll
  for (int i = 0; i < GROUP / FOUR; ++i) {
    to[GROUP * i] = make_uint4(own[FOUR * i], own[FOUR * i + 1], own[FOUR * i + 2], own[FOUR * i + 3]);
  }
}

// The low `width` bits, 0 to 32 of them.
__device__ __forceinline__ u32 low_bits(u32 value, u32 width) {
  return value & ~u32(~u64(0) << width);
}

// Adds exceptions first .. last - 1 to the values of their block; `width` is that of this lane's group.
template <class T>
__device__ __forceinline__ void patch(const T* exceptions, u32 first, u32 last, u32 width, u32* values) {
  for (u32 base = first; base < last; base += GROUP) {
    const u32 q = base + lane<GROUP>();
    const u32 entry = q < last ? read_once(exceptions + q) : 0;
    const int group = int(entry >> 5 & 31);
    const u32 shift = shuffle<GROUP>(width, group) & 31;
    if (q < last) atomicAdd(values + PITCH * group + (entry & 31), entry >> 10 << shift);
  }
}

// Unpacks the words of a block, which begins at bit `position` of the row of words at `row`, up to 31; `widths` are those
// of its groups, aligned to 16 bytes. Value i of group g goes to values[PITCH * g + i]. Other lanes may read the values
// after sync_group.
__device__ __forceinline__ void unpack_words(const u32* row, u32 position, const u8* widths, u32* values) {
  const int me = lane<GROUP>();
  const uint4 first = read_shared(reinterpret_cast<const uint4*>(widths));
  const uint4 second = read_shared(reinterpret_cast<const uint4*>(widths) + 1);
  const u32 four_widths[] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  // There are 32 words a row and 32 bits a word, so a position less its low bits is where its row begins. The
  // bits of a group end in the row where those of the next begin: one load a group, and none waits for another.
  const u32* const words = row + me;
  u32 word = read_once(words);
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    const u32 width = four_widths[g / 4] >> 8 * (g % 4) & 255;
    const u32 end = position + width;
    const u32 next_word = read_once(words + (end & ~31u));
    values[PITCH * g + me] = low_bits(__funnelshift_r(word, next_word, position), width);
    position = end;
    word = next_word;
  }
}

// Unpacks block b of a stream. Returns the carry of its directory entry.
__device__ __forceinline__ u32 unpack(const Stream& stream, u64 b, u32* values) {
  const uint4* const directory = reinterpret_cast<const uint4*>(stream.directory);
  const uint4 entry = read_shared(directory + b), next = read_shared(directory + b + 1);
  const u8* const widths = stream.widths + GROUP * b;
  unpack_words(stream.words + (entry.x & ~31u), entry.x & 31, widths, values);
  if (next.y != entry.y || next.z != entry.z) {
    const u32 own = read_shared(widths + lane<GROUP>());
    sync_group<GROUP>();
    patch(stream.narrow, entry.y, next.y, own, values);
    patch(stream.wide, entry.z, next.z, own, values);
  }
  return entry.w;
}

// The lane at or before this one whose bit is set; 0 if there is none.
__device__ __forceinline__ int nearest(u32 bits) {
  const int found = highest_bit(bits & (~0u >> (GROUP - 1 - lane<GROUP>())));
  return found < 0 ? 0 : found;
}

// Sum over the lanes from `from` up to and including this one; additions in an order that `from` fixes.
template <class T> __device__ __forceinline__ T scan_from(T value, int from) {
  const int distance = lane<GROUP>() - from;
#pragma unroll
  for (int step = 1; step < GROUP; step *= 2) {
    const T before = shuffle_up<GROUP>(value, step);
    if (step <= distance) value = before + value;
  }
  return value;
}
