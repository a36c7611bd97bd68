// Sweeps inside diagonal blocks: up to 255 neighbouring rows whose links to each other one block of threads goes over
// again and again, what they send being in shared memory. Nothing is gathered from elsewhere, so a sweep costs next to
// nothing.
//
// Rows of a diagonal block stand in the order of their links inside it, the most first, 32 in a slice; `order` has their
// numbers. A slice has rows of 32 words, one a lane, of four links each: the numbers of the rows that are linked to.
// A link of a row to itself is not among them: it is solved for.
//
// Parameters: READS, PAIRED as in gather.cuh.
#include "group.cuh"
#include "rows.cuh"

namespace {

constexpr u32 THREADS = 256;
constexpr u32 MOST_ROWS = THREADS - 1;  // the number behind them is that of a row that sends nothing
constexpr u32 SLICE = 32;
constexpr u32 SLICES = THREADS / SLICE;
constexpr u32 LINKS = 4;  // of a word

// First place in columns[from .. to - 1], which ascend, whose column is not below `least`.
__device__ __forceinline__ u32 find(const u32* columns, u32 from, u32 to, u32 least) {
  while (from < to) {
    const u32 middle = from + (to - from) / 2;
    if (columns[middle] < least) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

// The diagonal block of a block of threads: neighbouring rows of a tile.
struct DiagonalBlock {
  const TileEntry& tile;
  u32 first, rows;  // first row in the tile, and how many there are
  u32 row;          // first row in the group

  __device__ __forceinline__ DiagonalBlock(const TileEntry* tiles, u32 count)
      : tile(tiles[tile_of<&TileEntry::diagonal>(tiles, count, blockIdx.x)]),
        first((blockIdx.x - tile.diagonal) * MOST_ROWS),
        rows(min(MOST_ROWS, tile.owned() - first)),
        row(tile.row + first) {}
};

// What a row links to inside its diagonal block.
struct Inside {
  u32 from, to;  // places in the columns
  u32 own;       // place of its link to itself; `to` if there is none
  u32 count;     // of others

  __device__ __forceinline__ Inside(const DiagonalBlock& diagonal, const u32* filled, const u32* filled_before,
                                    const u32* edges_of, u32 nonempty, u32 edges, const u32* columns, u32 node) {
    from = to = own = count = 0;
    const Filled segments = {filled + diagonal.tile.word, filled_before + diagonal.tile.word, 0};
    const u32 rank = segments.rank(diagonal.first + threadIdx.x);
    if (rank == NOTHING) return;
    const u32 begin = edges_of[rank], end = rank + 1 < nonempty ? edges_of[rank + 1] : edges;
    const u32 least = node + diagonal.row, row = least + threadIdx.x;
    from = find(columns, begin, end, least);
    to = find(columns, from, end, least + diagonal.rows);
    own = find(columns, from, to, row);
    if (own < to && columns[own] != row) own = to;
    count = to - from - (own < to);
  }
};

// The place of each row of the block when those with the most links come first.
__device__ __forceinline__ u32 place_of(u32 count, u32* counts) {
  counts[threadIdx.x] = count;
  __syncthreads();
  u32 place = 0;
  for (u32 t = 0; t < THREADS; ++t) place += counts[t] > count || (counts[t] == count && t < threadIdx.x);
  __syncthreads();
  return place;
}

__device__ __forceinline__ u32 words_of(u32 count) { return (count + (LINKS - 1)) / LINKS; }

}  // namespace

// Finds how many rows of words each slice takes; one block of threads a diagonal block.
//
//   edges_of, columns  as list_begins and decode_columns leave them; `edges` and `nonempty` are how many there are
//   node               first row of the group in the graph
extern "C" __global__ void __launch_bounds__(THREADS)
    measure_diagonal_blocks(const TileEntry* tiles, u32 tile_count, const u32* filled, const u32* filled_before,
                    const u32* edges_of, u32 nonempty, u32 edges, const u32* columns, u32 node, u32* words) {
  __shared__ u32 counts[THREADS];
  const DiagonalBlock diagonal(tiles, tile_count);
  u32 count = 0;
  if (threadIdx.x < diagonal.rows) {
    count = Inside(diagonal, filled, filled_before, edges_of, nonempty, edges, columns, node).count;
  }
  const u32 place = place_of(count, counts);
  if (place % SLICE == 0) words[SLICES * blockIdx.x + place / SLICE] = words_of(count);
}

// Writes the diagonal blocks down; `before` has the rows of words before each slice, and those of all.
extern "C" __global__ void __launch_bounds__(THREADS)
    fill_diagonal_blocks(const TileEntry* tiles, u32 tile_count, const u32* filled, const u32* filled_before,
                 const u32* edges_of, u32 nonempty, u32 edges, const u32* columns, u32 node, const u32* before,
                 u8* order, u32* selves, u32* links) {
  __shared__ u32 counts[THREADS], bits[SLICES];
  const DiagonalBlock diagonal(tiles, tile_count);
  const u32 me = threadIdx.x;
  if (me < SLICES) bits[me] = 0;
  u32 from = 0, own = 0, count = 0;
  bool linked = false;
  if (me < diagonal.rows) {
    const Inside inside(diagonal, filled, filled_before, edges_of, nonempty, edges, columns, node);
    from = inside.from, own = inside.own, count = inside.count;
    linked = inside.own < inside.to;
  }
  const u32 place = place_of(count, counts);
  const u32 slice = SLICES * blockIdx.x + place / SLICE;
  order[THREADS * blockIdx.x + place] = u8(me);
  if (linked) atomicOr(bits + place / SLICE, 1u << place % SLICE);
  for (u32 k = before[slice], next = 0; k < before[slice + 1]; ++k) {
    u32 four = 0;
    for (u32 i = 0; i < LINKS; ++i, ++next) {
      u32 number = MOST_ROWS;
      if (next < count) {
        const u32 at = from + next;
        number = columns[at + (linked && at >= own)] - node - diagonal.row;
      }
      four |= number << 8 * i;
    }
    links[SLICE * k + place % SLICE] = four;
  }
  __syncthreads();
  if (me < SLICES) selves[SLICES * blockIdx.x + me] = bits[me];
}

// Sweeps inside the diagonal blocks of a group `turns` times and keeps the proposals; one block of threads each.
//
//   start                        what rows of the group have from outside
//   before, order, selves, links the diagonal blocks: rows of words before each slice, numbers of rows, links
//   offset, rows                 where in the stripe the rows of the group begin, and rows of the stripe
//   others                       as in vectors.cu
extern "C" __global__ void __launch_bounds__(THREADS)
    sweep_diagonal_blocks(const TileEntry* tiles, u32 tile_count, const float* start, const u32* before,
                          const u8* order, const u32* selves, const u32* links, u32 turns, u64 offset, u64 rows,
                          const Stored* stored, const Links* degree, const PassStep* pass, Kept* steps, float* push,
                          Stored* numbers, u64 node) {
  __shared__ float sends[2][THREADS];
  const double scale = pass->scale;
  const int slot = pass->slot;
  const DiagonalBlock diagonal(tiles, tile_count);
  const u32 number = order[THREADS * blockIdx.x + threadIdx.x];
  const u64 i = diagonal.row + number;
  const bool there = number < diagonal.rows;
  const u32 slice = SLICES * blockIdx.x + threadIdx.x / SLICE;
  const u32 from = before[slice], to = before[slice + 1];
  const Links out = there ? degree[offset + i] : Links(1);
  const float base = there ? start[i] : 0, factor = float(pass->damping) / short_divisor_of(out);
  const float gain = selves[slice] >> threadIdx.x % SLICE & 1 ? 1 / (1 - factor) : 1;
  float value = gain * base;
  for (u32 turn = 0; turn < turns; ++turn) {
    // The other half is read until all are here.
    float* const sent = sends[turn & 1];
    sent[number] = factor * value;
    __syncthreads();
    float sum = 0;
    for (u32 k = from; k < to; ++k) {
      const u32 four = read_shared(links + SLICE * k + threadIdx.x % SLICE);
#pragma unroll
      for (u32 j = 0; j < LINKS; ++j) sum += sent[four >> 8 * j & 255];
    }
    value = gain * (base + sum);
  }
  if (there) {
    const u64 row = offset + i;
    const double given = slot >= 0 ? pushed_of(stored[row], divisor_of(out), scale) : 0;
    keep(value, given, out, scale, push[row], slot >= 0 ? steps + rows * u64(slot) + row : nullptr,
         numbers + 2 * (node + i));
  }
}
