// Kernels that open a group: what others need of its blocks and segments, and its columns alone.
//
// Launched with a multiple of 32 threads a block, 32 threads for each 1024 values.
#include "group.cuh"

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

// Makes room for a group that has arrived, one thread a width: moves the widths of its streams to where blocks of them
// can be loaded at once, with zeros in the last block of each tile, clears the bits that say where segments begin, and
// writes down where its blocks of edges are.
//
//   blocks, length_blocks, start_blocks  of the group
extern "C" __global__ void open_blocks(const TileEntry* tiles, u32 count, u32 blocks, u32 length_blocks, u32 start_blocks,
                                       BlockEntry* entries, u8* widths, u8* length_widths, u8* start_widths,
                                       u32* begins) {
  const u64 k = thread_number();
  const u32 b = u32(k / GROUP), g = u32(k % GROUP);
  if (b < length_blocks) {
    const TileEntry& tile = tiles[tile_of<&TileEntry::length_block>(tiles, count, b)];
    const u32 at = (b - tile.length_block) * GROUP + g;
    length_widths[k] = at * GROUP < tile.segments ? tile.at<u8>(tile.lengths.widths)[at] : u8(0);
  }
  if (b < start_blocks) {
    const TileEntry& tile = tiles[tile_of<&TileEntry::start_block>(tiles, count, b)];
    const u32 at = (b - tile.start_block) * GROUP + g;
    start_widths[k] = at * GROUP < tile.nonempty ? tile.at<u8>(tile.starts.widths)[at] : u8(0);
  }
  if (b >= blocks) return;
  const u32 number = tile_of<&TileEntry::block>(tiles, count, b);
  const TileEntry& tile = tiles[number];
  const u32 own = b - tile.block, at = own * GROUP + g;
  widths[k] = at * GROUP < tile.edges ? tile.at<u8>(tile.gaps.widths)[at] : u8(0);
  begins[k] = 0;
  if (g != 0) return;
  const u32* const directory = tile.at<u32>(tile.gaps.directory) + 4 * u64(own);
  const u32 left = tile.edges - own * BLOCK, edges = left < BLOCK ? left : BLOCK;
  const u64 words = tile.base + tile.gaps.words + sizeof(u32) * u64(directory[0] & ~31u);
  const u64 narrow = (tile.base + tile.gaps.narrow - words) / sizeof(u16) + directory[1];
  const u32 wide = u32((tile.base + tile.gaps.wide - words) / sizeof(u32)) + directory[2];
  const u32 shape = (directory[0] & 31) | edges << 5 | tile.verbatim << 16 | u32(narrow >> 32) << 17;
  const u32 counts = (directory[5] - directory[1]) | (directory[6] - directory[2]) << 16;
  entries[b] = {{words, shape, directory[3]}, {number, u32(narrow), wide, counts}};
}

// Finds the non-empty segments of a group, from the lengths of its tiles; one team a block of lengths.
//
//   begins         a bit an edge of each block, zeros before; receives where a segment begins
//   ranks          edge blocks + 1: receives how many begin before each block of edges
//   filled         a bit a segment, whole words a tile: receives which are not empty
//   filled_before  receives how many are not empty before each 32 segments
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    expand_lengths(const TileEntry* tiles, u32 tile_count, const u8* widths, u32 blocks, u32* begins, u32* ranks,
                   u32* filled, u32* filled_before, u32* faults) {
  if (group_number<GROUP>() >= blocks) return;
  const TileEntry& tile = tiles[tile_of<&TileEntry::length_block>(tiles, tile_count, u32(group_number<GROUP>()))];
  const u64 b = group_number<GROUP>() - tile.length_block;
  const u32 count = tile.segments, edges = tile.edges, nonempty = tile.nonempty;
  const u32* const ranks_of_blocks = tile.at<u32>(tile.ranks);
  const Stream stream = tile.stream(tile.lengths, widths + u64(GROUP) * tile.length_block);
  begins += u64(GROUP) * tile.block;
  ranks += tile.block;
  filled += tile.word;
  filled_before += tile.word;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  u32 position = unpack(stream, b, values);
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
  const bool last = b + 1 == (u64(count) + (BLOCK - 1)) / BLOCK;
  bool wrong = overflow || end < position || end > edges || rank_end > nonempty || (b == 0 && (position || rank));
  wrong |= read_shared(stream.directory + 4 * b + 7) != end || read_shared(ranks_of_blocks + b + 1) != rank_end;
  wrong |= last && (end != edges || rank_end != nonempty);
  flag(faults, FAULT_SEGMENTS, wrong);
  if (ballot<GROUP>(wrong)) return;
  position += before - sum;
  rank += full_before - count_bits(full);
  if (GROUP * b + me <= (count - 1) / GROUP) {
    filled[GROUP * b + me] = full;
    filled_before[GROUP * b + me] = tile.rank + rank;
  }
  if (b == 0 && me == 0) ranks[0] = tile.rank;
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
      for (u32 k = from + me; k <= to; k += GROUP) ranks[k] = tile.rank + value;
      spans &= spans - 1;
    }
  }
}

// Decodes the first columns of the non-empty segments; one team a block of starts.
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    expand_starts(const TileEntry* tiles, u32 tile_count, const u8* widths, u32 blocks, u32* starts, u32* faults) {
  if (group_number<GROUP>() >= blocks) return;
  const TileEntry& tile = tiles[tile_of<&TileEntry::start_block>(tiles, tile_count, u32(group_number<GROUP>()))];
  const u64 b = group_number<GROUP>() - tile.start_block;
  const u32 nonempty = tile.nonempty;
  const Stream stream = tile.stream(tile.starts, widths + u64(GROUP) * tile.start_block);
  starts += tile.rank;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  const u32 carry = unpack(stream, b, values);
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
       values[PITCH * (last / GROUP) + last % GROUP] != read_shared(stream.directory + 4 * b + 7) ||
           (b == 0 && carry != 0));
  for (u32 i = me; i <= last; i += GROUP) starts[b * BLOCK + i] = values[PITCH * (i / GROUP) + i % GROUP];
}

// Decodes all columns, checks them, and adds to `hub_edges`, if it is not null, how many are among the first `hubs` nodes.
// If `columns` is not null, they are written there, one behind the other, counted from the first node of `window`; those
// outside it, which may be no nodes, become the number of its nodes, behind which zeros are gathered. If `fours` is not
// null, the columns of each block are written there, as `read_own` reads them; behind the last stands `nodes`.
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    decode_columns(const TileEntry* tiles, const BlockEntry* entries, const u8* widths, const u32* begins,
                   const u32* ranks, const u32* starts, u32 blocks, u32 nodes, u32 hubs, u64 window, u32* columns,
                   u32* fours, u64* hub_edges, u32* faults) {
  const u64 b = group_number<GROUP>();
  // Segments that contradict themselves lead anywhere.
  if (b >= blocks || *faults & (FAULT_SEGMENTS | FAULT_STARTS)) return;
  const int me = lane<GROUP>();
  u32* const values = scratch();
  const Group group = {tiles, entries, widths, begins, ranks, starts};
  const BlockStart block = read_struct(&entries[b].start);
  const TileEntry& tile = tiles[entries[b].rest.tile];
  const u32 last = block.count() - 1;
  const u64 own = b - tile.block;
  u32 column[GROUP];
  decode(group, block, find_begins(group, b), b, nodes, values, column);
  sync_group<GROUP>();
#pragma unroll
  for (int i = 0; i < GROUP; ++i) values[PITCH * me + i] = column[i];
  sync_group<GROUP>();
  flag(faults, FAULT_COLUMNS,
       values[PITCH * (last / GROUP) + last % GROUP] != tile.at<u32>(tile.gaps.directory)[4 * own + 7]);
  if (fours) write_own(column, fours, b);
  if (columns) columns += tile.edge + own * BLOCK;
  u32 most = 0, among = 0;
#pragma unroll
  for (u32 g = 0; g < GROUP; ++g) {
    const u32 i = GROUP * g + me;
    const u32 value = values[PITCH * g + me];
    if (i <= last) {
      most = max(most, value);
      among += value < hubs;
      // Unsigned: columns before the window wrap to behind it.
      if (columns) columns[i] = min(value - u32(window), u32(window >> 32));
    }
  }
  flag(faults, FAULT_RANGE, most >= nodes);
  among = group_sum<GROUP>(among);
  if (hub_edges && me == 0 && among) atomicAdd(hub_edges, u64(among));
}

// Decodes all weights, those of a tile behind those of another; one thread PIECE edges of a block.
extern "C" __global__ void decode_weights(const TileEntry* tiles, const BlockEntry* entries, u32 blocks, double factor,
                                          double* weights) {
  constexpr u32 PIECES = BLOCK / PIECE;
  const u64 b = thread_number() / PIECES;
  if (b >= blocks) return;
  const TileEntry& tile = tiles[entries[b].rest.tile];
  const u32 first = (u32(b) - tile.block) * BLOCK + u32(thread_number() % PIECES) * PIECE;
  if (first >= tile.edges) return;
  const Weights::Piece piece = tile.weights_of(WEIGHT_PARTS, factor).read(first);
#pragma unroll
  for (u32 i = 0; i < PIECE; ++i) {
    if (first + i < tile.edges) weights[tile.edge + first + i] = piece.bits(int(i)) * factor;
  }
}

// Lists the first edge of each segment that is not empty; 32 lanes a block of edges. Of what has faults there is none.
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP)
    list_begins(const TileEntry* tiles, const BlockEntry* entries, const u32* begins, const u32* ranks, u32 blocks,
                const u32* faults, u32* edges_of) {
  const u64 b = group_number<GROUP>();
  if (b >= blocks || *faults) return;
  const Begins found = find_begins({tiles, entries, nullptr, begins, ranks, nullptr}, b);
  const TileEntry& tile = tiles[entries[b].rest.tile];
  const u32 first = tile.edge + (u32(b) - tile.block) * BLOCK + GROUP * lane<GROUP>();
  u32 rank = found.before;
  for (u32 rest = found.own; rest; rest &= rest - 1) edges_of[rank++] = first + lowest_bit(rest);
}

// Lists the first edge of each segment, of the empty ones too, one thread a segment; behind them stands `edges`. Of what
// has faults, no segment has edges.
//
//   segments  of the group, those of one tile behind those of another
extern "C" __global__ void list_offsets(const TileEntry* tiles, u32 tile_count, const u32* filled,
                                        const u32* filled_before, const u32* edges_of, u32 nonempty, u32 edges,
                                        u32 segments, const u32* faults, u32* offsets) {
  const u64 k = thread_number();
  if (k > segments) return;
  if (*faults) {
    offsets[k] = 0;
    return;
  }
  u32 rank = nonempty;
  if (k < segments) {
    // Before a tile there are its rows, and one segment more for each tile.
    u32 number = tile_of<&TileEntry::row>(tiles, tile_count, u32(k));
    while (tiles[number].row + number > k) --number;
    const TileEntry& tile = tiles[number];
    const u32 own = u32(k) - tile.row - number, word = tile.word + own / 32;
    rank = filled_before[word] + u32(count_bits(filled[word] & ((1u << own % 32) - 1)));
  }
  offsets[k] = rank < nonempty ? edges_of[rank] : edges;
}
