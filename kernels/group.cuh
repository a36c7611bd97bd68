// A group: stored tiles that kernels take at once, their encoded bytes unchanged (docs/reference/format.md), wherever
// each of them lies.
//
// A table has an entry for each tile, made by the host (oocpr/engine/cuda/group.py); a second one has an entry for each
// block of 1024 edges, made by `open_blocks` of decode.cu. Edges are counted twice: blocks are numbered through the
// group, and the last block of a tile may have fewer than 1024 edges; `edge` counts the edges that there are.
#pragma once
#include "decode.cuh"
#include "weights.cuh"

struct TileStream {
  u64 words, directory, wide, narrow, widths;  // offsets of its arrays in the bytes of the tile
};

struct TileEntry {
  u64 base;  // address of the tile's bytes
  TileStream lengths, starts, gaps;
  u64 ranks;                  // offset of the number of non-empty segments before each block of lengths
  u64 weights[WEIGHT_PARTS];  // offsets of the segments of weights; 0 where one is not there
  u32 edges, segments, nonempty;
  u32 weighed;   // weights that there are
  u32 verbatim;  // 1: columns as they are, without starts
  // Of all tiles of the group before:
  u32 block, length_block, start_block;  // blocks of edges, of lengths and of starts
  u32 rank;                              // segments that are not empty
  u32 word;                              // words of a bit a segment
  u32 edge, row;                         // edges, owned rows
  u32 place, diagonal;                   // blocks of rows, and of rows that are swept by themselves

  __device__ __forceinline__ u32 owned() const { return segments - 1; }

  template <class T> __device__ __forceinline__ const T* at(u64 offset) const {
    return reinterpret_cast<const T*>(base + offset);
  }

  // Its weights, of which `count` segments are read.
  __device__ __forceinline__ Weights weights_of(u32 count, double factor) const {
    Weights found = {{}, weighed, factor};
#pragma unroll
    for (int k = 0; k < WEIGHT_PARTS; ++k) {
      found.parts[k] = u32(k) < count && weights[k] ? at<u16>(weights[k]) : nullptr;
    }
    return found;
  }

  // A stream whose widths, whole blocks of them from the group's first on, are at `widths`.
  __device__ __forceinline__ Stream stream(const TileStream& parts, const u8* widths) const {
    return {at<u32>(parts.words), at<u32>(parts.directory), at<u32>(parts.wide), at<u16>(parts.narrow), widths};
  }
};

// The tile to which number k belongs, which FIRST counts.
template <u32 TileEntry::*FIRST> __device__ __forceinline__ u32 tile_of(const TileEntry* tiles, u32 count, u32 k) {
  u32 low = 0;
  for (u32 high = count; high - low > 1;) {
    const u32 middle = low + (high - low) / 2;
    if (tiles[middle].*FIRST <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What the tiles before leave to the first row of tile `number`: the sum of the last segment of the one before; if that
// one owns no row, what was left to it as well; and if no tile of the group before owns one, what the group before left.
template <class T, class Last>
__device__ __forceinline__ T carried_into(const TileEntry* tiles, u32 number, T left, Last last_of) {
  u32 k = number;
  while (k > 0 && tiles[k - 1].owned() == 0) --k;
  for (k = k > 0 ? k - 1 : k; k < number; ++k) {
    T own = last_of(k);
    if (tiles[k].owned() == 0) own += left;
    left = own;
  }
  return left;
}

// What is to be known of a block of edges to unpack its gaps.
struct __align__(16) BlockStart {
  u64 words;  // address of the row of words in which it begins
  u32 shape;  // bit of that row at which it begins, number of edges << 5, and 1 << 16 if columns are verbatim
  u32 carry;  // column before its first

  __device__ __forceinline__ u32 position() const { return shape & 31; }
  __device__ __forceinline__ u32 count() const { return shape >> 5 & 2047; }
  __device__ __forceinline__ bool verbatim() const { return shape >> 16 & 1; }
};

// The rest, which is asked for once the words are unpacked: a lane has no registers to spare before.
struct __align__(16) BlockRest {
  u32 tile;          // number of its tile in the group
  u32 narrow, wide;  // first exceptions of both kinds, so many of them behind the words
  u32 counts;        // number of narrow ones, of wide ones << 16
};

struct BlockEntry {
  BlockStart start;
  BlockRest rest;
};

// The segments of a group that are not empty, and the widths of its gaps, as decode.cu expands them.
struct Group {
  const TileEntry* tiles;
  const BlockEntry* blocks;
  const u8* widths;   // 32 of each block of edges
  const u32* begins;  // a bit an edge of each block, set where a segment begins
  const u32* ranks;   // segments that begin before each block; blocks + 1
  const u32* starts;  // first column of each; nothing where columns are verbatim
};

constexpr int AHEAD = 4;  // first columns of segments that a lane asks for early

// Where the segments of a block begin, as a lane sees its own 32 edges.
struct Begins {
  u32 own;     // bit i: a segment begins at edge i
  u32 lanes;   // bit l: one begins at an edge of lane l
  u32 before;  // segments of the group that begin before the lane's edges
};

// Ones below the lowest bit that is set; all ones if none is.
__device__ __forceinline__ u32 bits_before_first(u32 bits) { return (bits & (0u - bits)) - 1; }

__device__ __forceinline__ Begins find_begins(const Group& group, u64 b) {
  Begins begins;
  begins.own = read_once(group.begins + GROUP * b + lane<GROUP>());
  begins.lanes = u32(ballot<GROUP>(begins.own != 0));
  const u32 count = count_bits(begins.own);
  begins.before = read_shared(group.ranks + b) + group_scan<GROUP>(count) - count;
  return begins;
}

// Decodes the columns of block b: column[i] is that of the lane's edge i, which is edge i of group `lane`. Behind the
// last edge stands `behind`. `values` is free again once all lanes are through.
__device__ __forceinline__ void decode(const Group& group, const BlockStart& block, const Begins& begins, u64 b,
                                       u32 behind, u32* values, u32 (&column)[GROUP]) {
  const int me = lane<GROUP>();
  const u32 count = block.count();
  const bool verbatim = block.verbatim();
  u32* const own = values + PITCH * me;
  u32 breaks = begins.own, lanes = begins.lanes;
  // Most lanes have few segments; what they need is under way while the block is unpacked.
  u32 ahead[AHEAD] = {};
  u32 rank = begins.before;
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    if (i < count_bits(breaks)) ahead[i] = read_shared(group.starts + rank + i);
  }
  const u8* const widths = group.widths + GROUP * b;
  unpack_words(reinterpret_cast<const u32*>(block.words), block.position(), widths, values);
  const BlockRest rest = read_struct(&group.blocks[b].rest);
  if (rest.counts) {
    const u32 own = read_shared(widths + me);
    // More than 2^32 narrow ones may be as far behind the words.
    const u64 narrow = u64(block.shape >> 17) << 32 | rest.narrow;
    sync_group<GROUP>();
    patch(reinterpret_cast<const u16*>(block.words) + narrow, 0, rest.counts & 0xFFFF, own, values);
    patch(reinterpret_cast<const u32*>(block.words) + rest.wide, 0, rest.counts >> 16, own, values);
  }
  u32 carry = block.carry;
  sync_group<GROUP>();
  // Where a segment begins, its first column takes the place of the gap.
  if (!verbatim) {
    u32 rest = breaks;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (rest) own[lowest_bit(rest)] = ahead[i];
      rest &= rest - 1;
    }
    for (rank += AHEAD; rest; rest &= rest - 1) own[lowest_bit(rest)] = read_shared(group.starts + rank++);
  }
  if (count < BLOCK) {
    // One more segment, which never leaves its first column.
    const u32 end = count / GROUP;
    for (int i = u32(me) < end ? GROUP : u32(me) == end ? int(count % GROUP) : 0; i < GROUP; ++i) {
      own[i] = verbatim ? behind : ~0u;
    }
    if (u32(me) == end) {
      own[count % GROUP] = behind;
      breaks |= 1u << count % GROUP;
    }
    lanes |= 1u << end;
  }
  take_own(values, column);
  if (verbatim) return;
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    const u32 gap = column[i];
    sum = breaks >> i & 1 ? gap : sum + gap + 1;
    column[i] = sum;
  }
  // What is before the lane's first break goes on from the lanes before, and they from the block before.
  const int from = nearest(lanes);
  sum = scan_from(sum, from);
  const u32 before = shuffle_up<GROUP>(sum, 1);
  const bool whole = (lanes & u32(lanes_before<GROUP>())) == 0;
  carry = (me ? before : 0) + (whole ? carry : 0);
  const u32 head = bits_before_first(breaks);
#pragma unroll
  for (int i = 0; i < GROUP; ++i) column[i] += head >> i & 1 ? carry : 0;
}
