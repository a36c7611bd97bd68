// The balanced product: what a pass delivers to each row of a group, in one pass over its columns.
//
// 32 lanes take 1024 edges, wherever rows begin and end: they decode the columns, gather, and add within each
// lane, whose 32 edges are neighbours; one scan over the lanes joins the rows that pass from lane to lane, and
// `join_blocks` those that pass from block to block. Every sum has one order, whatever runs when.
//
// Parameters:
//   READS, PAIRED, STRIPED  as in gather.cuh
//   DECODED, TEAMS          as in balanced.cuh
//   CHECKED     1: columns that are no node are found and not followed
//   EDGE_ORDER  1: at a time lanes gather for neighbouring edges, which costs a detour through shared memory
//   LOCAL       1: only nodes of `window` are gathered, whose numbers `reads` begins with; behind them is a zero.
//               2: only the rows of a tile itself, of which `window` has those of the whole group
//   HUBS        1: numbers of the first `hubs` nodes are kept in shared memory, where most gathers end if nodes are
//               sorted by out-degree
//   PROBE       1: rows are ignored, the gathered numbers only added up: what gathering alone would take
//   WEIGHTED    1: what a link brings is multiplied by its weight
//   RESIDENT    blocks of threads that shall share a multiprocessor
#include "balanced.cuh"
#include "gather.cuh"

#ifndef CHECKED
#define CHECKED 0
#endif
#ifndef EDGE_ORDER
#define EDGE_ORDER 0
#endif
#ifndef LOCAL
#define LOCAL 0
#endif
#ifndef HUBS
#define HUBS 0
#endif
#ifndef PROBE
#define PROBE 0
#endif
#if WEIGHTED
#define WEIGHTS_OF_LINKS , u32 weight_parts, double factor
#else
#define WEIGHTS_OF_LINKS
#endif
#ifndef RESIDENT
#define RESIDENT 5
#endif

namespace {

constexpr u32 FAULT_RANGE = 8;  // a column is no node

// Words on their way to a lane at a time: as many as registers hold.
constexpr int ABREAST = sizeof(Word) <= 4 ? GROUP : sizeof(Word) == 8 ? GROUP / 2 : GROUP / 4;
static_assert(!EDGE_ORDER || sizeof(Word) <= 4, "words take the place of columns in shared memory");
static_assert(!DECODED || !CHECKED, "what is decoded has been checked");
static_assert(!DECODED || !EDGE_ORDER, "lanes read the columns of their own edges");

__device__ __forceinline__ Sum choose(bool so, const Sum& a, const Sum& b) {
  Sum chosen;
  chosen.push = so ? a.push : b.push;
  chosen.proposal = so ? a.proposal : b.proposal;
  return chosen;
}

// Numbers of the first `hubs` nodes, near, in shared memory; and of all nodes, far.
struct Numbers {
  const Word* near;
  const Word* far;
  u32 hubs;

  __device__ __forceinline__ Word at(u32 column) const {
    if (HUBS && column < hubs) return near[column];
    return read_struct(far + column);
  }
};

// Gathers for a lane's own edges, ABREAST of them from `first` on; `values` is used where EDGE_ORDER is set.
__device__ __forceinline__ void gather(const Numbers& numbers, const u32 (&column)[GROUP], int first, u32* values,
                                       Word (&word)[ABREAST]) {
  if constexpr (EDGE_ORDER) {
    const int me = lane<GROUP>();
    give_own(column, values);
    sync_group<GROUP>();
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) word[i] = numbers.at(values[PITCH * i + me]);
    sync_group<GROUP>();
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) {
      u32 bits = 0;
      memcpy(&bits, &word[i], sizeof(Word) <= 4 ? sizeof(Word) : 4);
      values[PITCH * i + me] = bits;
    }
    sync_group<GROUP>();
    u32 own[GROUP];
    take_own(values, own);
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) memcpy(&word[i], &own[i], sizeof(Word) <= 4 ? sizeof(Word) : 4);
  } else {
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) word[i] = numbers.at(column[first + i]);
    // Compilers would let the first words be added before the last are asked for.
    sync_group<GROUP>();
  }
}

// Finds columns that are no node among the first `count`, and lets all others stand at the zero behind the nodes.
__device__ __forceinline__ void check(u32 (&column)[GROUP], int count, u32 nodes, u32* faults) {
  bool wrong = false;
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    wrong |= i < count && column[i] >= nodes;
    column[i] = min(column[i], nodes);
  }
  if (ballot<GROUP>(wrong) && lane<GROUP>() == 0) atomicOr(faults, FAULT_RANGE);
}

}  // namespace

// Sums what the columns of a group bring, for each segment that is not empty.
//
//   tiles ... starts       of the group, which has so many `blocks`; as decode.cu opens it
//   reads                  numbers of all nodes, and zeros behind them
//   each                   blocks of edges that a block of threads takes, one behind the other: their rows are
//                          neighbours, and so are many columns of graphs whose order means something
//   hubs                   see HUBS; `reads` is aligned to 16 bytes, and hubs fill whole pieces of 16
//   pushes, proposals      receive the sums of the segments, each without what lies in blocks after its first
//   weight_parts, factor   how many segments of the weights count, and what they are multiplied by
//   heads, head_proposals  receive, of each block, the sum of the edges before its first segment begins
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP, RESIDENT)
    product(const TileEntry* tiles, const BlockEntry* entries, const u8* widths, const u32* begins_of_group,
            const u32* ranks, const u32* starts, u32 blocks, [[maybe_unused]] u32 nodes, const Stored* reads, u64 window,
            u32 each, u32 hubs, double* pushes, float* proposals, double* heads, float* head_proposals,
            u32* faults DECODED_COLUMNS WEIGHTS_OF_LINKS) {
  // Segments that contradict themselves lead anywhere, and so do columns that nobody looks at here.
  if (*faults & (CHECKED ? ~FAULT_RANGE : ~0u)) return;
  DYNAMIC_SHARED(bytes);
  u32* const scratch = reinterpret_cast<u32*>(bytes);
  Word* const near = reinterpret_cast<Word*>(scratch + (DECODED ? 0 : TEAMS * SCRATCH));
  if constexpr (HUBS) {
    const uint4* const from = reinterpret_cast<const uint4*>(reads);
    uint4* const to = reinterpret_cast<uint4*>(near);
    for (u32 k = threadIdx.x; k < hubs * sizeof(Word) / sizeof(uint4); k += blockDim.x) to[k] = read_shared(from + k);
    __syncthreads();
  }
  const Numbers numbers = {near, reinterpret_cast<const Word*>(reads), hubs};
  const int me = lane<GROUP>();
  const int team = int(threadIdx.x) / GROUP;
  u32* const values = scratch + SCRATCH * team;
  const Group group = {tiles, entries, widths, begins_of_group, ranks, starts};
  const Rows rows = {pushes, proposals}, rest = {heads, head_proposals};
#pragma unroll 1
  for (Turns<TEAMS> turns(team, each); turns.block < blocks; turns.go_on()) {
    const u64 b = turns.block;
    u32 column[GROUP];
#if DECODED
    read_own(fours, b, column);
    const Begins begins = find_begins(group, b);
#else
    const BlockStart block = read_struct(&entries[b].start);
    const Begins begins = find_begins(group, b);
    decode(group, block, begins, b, nodes, values, column);
    if (CHECKED) check(column, int(block.count()) - GROUP * me, nodes, faults);
#endif
    if constexpr (LOCAL == 1) {
      // Unsigned: columns before the window wrap to behind it.
#pragma unroll
      for (int i = 0; i < GROUP; ++i) column[i] = min(column[i] - u32(window), u32(window >> 32));
    } else if constexpr (LOCAL == 2) {
      const TileEntry& tile = tiles[entries[b].rest.tile];
      const u32 row = tile.row, owned = tile.owned();
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        const u32 own = column[i] - u32(window) - row;
        column[i] = own < owned ? row + own : u32(window >> 32);
      }
    }
#if WEIGHTED
    const TileEntry& weighted = tiles[entries[b].rest.tile];
    const Weights weights = weighted.weights_of(weight_parts, factor);
    const u32 first_edge = (u32(b) - weighted.block) * BLOCK + GROUP * me;
    Weights::Piece piece;
#endif
    // Edges at which some lane begins a segment; in long rows there are none.
    const u32 beginning = group_or<GROUP>(begins.own);
    // What is before the lane's first begin may have come from other lanes.
    const u32 later = begins.own & (begins.own - 1), first = begins.own ^ later;
    Sum sum, head;
    u32 row = begins.before;
    float total = 0;
#pragma unroll
    for (int part = 0; part < GROUP; part += ABREAST) {
      Word word[ABREAST];
      gather(numbers, column, part, values, word);
#pragma unroll
      for (int i = 0; i < ABREAST; ++i) {
        const u32 bit = 1u << (part + i);
        if constexpr (PROBE) {
          total += float(Reads::widen(word[i].push));
          continue;
        }
        if (beginning & bit) {
          // Choices instead of branches: each lane has its own.
          const bool begin = begins.own & bit;
          if (later & bit) rows.put(row - 1, sum);
          head = choose(first & bit, sum, head);
          sum = choose(begin, Sum(), sum);
          row += begin;
        }
#if WEIGHTED
        if (i % PIECE == 0) piece = weights.read(first_edge + part + i);
        sum.add(word[i], column[part + i], window, piece.bits(i % PIECE) * weights.factor);
#else
        sum.add(word[i], column[part + i], window);
#endif
      }
    }
    if constexpr (PROBE) {
      total = group_sum<GROUP>(total);
      if (me == 0) heads[b] = total;
      continue;
    }
    const int from = nearest(begins.lanes);
    sum.push = scan_from(sum.push, from);
    const double before = shuffle_up<GROUP>(sum.push, 1);
    head.push = (me ? before : 0) + head.push;
    if constexpr (PAIRED) {
      sum.proposal = scan_from(sum.proposal, from);
      const float proposed = shuffle_up<GROUP>(sum.proposal, 1);
      head.proposal = (me ? proposed : 0) + head.proposal;
    }
    const bool whole = (begins.lanes & u32(lanes_before<GROUP>())) == 0;
    if (begins.own) (whole ? rest : rows).put(whole ? u32(b) : begins.before - 1, head);
    if (me == GROUP - 1) (begins.lanes ? rows : rest).put(begins.lanes ? row - 1 : u32(b), sum);
    sync_group<GROUP>();
  }
}

// Adds to each segment what lies in blocks after its first; one thread a block of edges.
extern "C" __global__ void join_blocks(const u32* begins, const u32* ranks, u32 blocks, const double* heads,
                                       const float* head_proposals, double* pushes, float* proposals) {
  join_block(begins, ranks, blocks, heads, pushes);
  if constexpr (PAIRED) join_block(begins, ranks, blocks, head_proposals, proposals);
}
