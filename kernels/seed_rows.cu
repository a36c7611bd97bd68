// The rows of several runs side by side, as vectors.cu has those of one, to the last bit; between their products (spmm.cu)
// what they push, and what they are sent, lies side by side.
//
// A block of threads has a team of 32 lanes for each run. A team takes the ROWS rows of the block in the parts in which
// the teams of one run would, and adds in their order.
//
// Parameters:
//   VECTORS  runs side by side
//   SLOTS    as in row_step.cuh
#include "row_step.cuh"

#ifndef VECTORS
#define VECTORS 16
#endif
#ifndef RESIDENT
#define RESIDENT 2
#endif

// What a run has; as SEED_ROWS of oocpr/engine/cuda/seed_block.py.
struct SeedRows {
  const double* teleport;
  double* ranks;
  double* residual;
  Kept* changes;
  Kept* steps;
  const PassStep* pass;
  const double* coefficients;
  double* partials;
  double* carries;
};

constexpr int PARTS = THREADS / TEAM;

namespace {

// Sums of the parts of a team's rows, which are added up in their order.
template <int COUNT> struct Parts {
  double of[PARTS][COUNT];

  __device__ __forceinline__ void put(u32 part, const double (&sums)[COUNT]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      const double sum = group_sum<TEAM>(sums[k]);
      if (lane<TEAM>() == 0) of[part][k] = sum;
    }
  }

  __device__ __forceinline__ void add_up(double* partials, u64 stride, u64 place) const {
    sync_group<TEAM>();
    const int k = lane<TEAM>();
    if (k >= COUNT) return;
    double total = of[0][k];
    for (int part = 1; part < PARTS; ++part) total += of[part][k];
    partials[stride * k + place] = total;
  }
};

__device__ __forceinline__ bool is_set(const u32* bits, u64 row) { return read_shared(bits + row / 32) >> row % 32 & 1; }

}  // namespace

// Makes the next pushes; see `publish` of vectors.cu.
//
//   active   a bit for each run that takes part; the others push nothing
//   reached  a bit for each row that can have a rank; the others are zeros in all runs, and stay so
//   numbers  receive what the runs push; those of rows that are not reached are zeros
extern "C" __global__ void __launch_bounds__(TEAM* VECTORS, RESIDENT)
    publish(u64 rows, const SeedRows* runs, u32 active, const u32* reached, const Links* degree, Stored* numbers,
            u64 stride) {
  static_assert(VECTORS * sizeof(Stored) % sizeof(uint4) == 0, "a piece has numbers of one row");
  __shared__ uint4 staged[ROWS * VECTORS * sizeof(Stored) / sizeof(uint4)];
  __shared__ Parts<3> parts[VECTORS];
  Stored* const pushed = reinterpret_cast<Stored*>(staged);
  const int team = int(threadIdx.x) / TEAM;
  const u64 first = u64(blockIdx.x) * ROWS;
  const u32 count = rows - first < ROWS ? u32(rows - first) : ROWS;
  if (active >> team & 1) {
    const SeedRows own = runs[team];
    const Push how(*own.pass, own.coefficients);
#pragma unroll 1
    for (u32 part = 0; part < PARTS; ++part) {
      double sums[3] = {};
#pragma unroll 1
      for (u32 i = TEAM * part + lane<TEAM>(); i < count; i += THREADS) {
        const u64 row = first + i;
        if (!is_set(reached, row)) continue;
        pushed[VECTORS * i + team] = how.row(row, rows, degree[row], own.teleport, 0, own.ranks, own.residual, nullptr,
                                             own.changes, own.steps, sums);
      }
      parts[team].put(part, sums);
    }
    parts[team].add_up(own.partials, stride, blockIdx.x);
  } else {
    for (u32 i = lane<TEAM>(); i < count; i += TEAM) pushed[VECTORS * i + team] = Stored(0);
  }
  __syncthreads();
  uint4* const there = reinterpret_cast<uint4*>(numbers + VECTORS * first);
  constexpr u32 EACH = VECTORS * sizeof(Stored) / sizeof(uint4);
  for (u32 k = threadIdx.x; k < count * EACH; k += TEAM * VECTORS) {
    if (is_set(reached, first + k / EACH)) there[k] = staged[k];
  }
}

// Settles the rows of a group; see `update` of vectors.cu.
//
//   pushes   sums of segments, those of the runs side by side
//   before   tiles of the stripe before
//   named    a bit for each row that a run teleports to
//   reached  as for `publish`
extern "C" __global__ void __launch_bounds__(TEAM* VECTORS, RESIDENT)
    update(const TileEntry* tiles, u32 tile_count, const double* pushes, const u32* filled, const u32* filled_before,
           u64 offset, u64 rows, const SeedRows* runs, u32 active, const u32* named, const u32* reached, u64 before,
           const Stored* numbers, const Links* degree, u64 stride, u64 place) {
  __shared__ Parts<PRODUCTS> parts[VECTORS];
  const int team = int(threadIdx.x) / TEAM;
  if (!(active >> team & 1)) return;
  const Piece piece(tiles, tile_count);
  const u64 owned = piece.tile.owned();
  const SeedRows own = runs[team];
  const Settlement how(*own.pass);
  const Deliveries<VECTORS> deliveries = {tiles, pushes + team, nullptr, filled, filled_before, how.scale};
  const Filled segments = deliveries.in(piece.tile, piece.number);
  double* const carries = own.carries + 2 * before;
#pragma unroll 1
  for (u32 part = 0; part < PARTS; ++part) {
    double sums[PRODUCTS] = {};
#pragma unroll 1
    for (u64 i = piece.begin + TEAM * part + lane<TEAM>(); piece.has(i, owned + 1); i += THREADS) {
      const u64 row = offset + piece.tile.row + i;
      if (i == owned) {
        // The row that the next tile owns.
        const Delivered sent = deliveries.to(piece, segments, i, carries);
        if (piece.number + 1 == tile_count) {
          carries[2 * u64(tile_count)] = sent.push;
          carries[2 * u64(tile_count) + 1] = sent.proposal;
        }
        break;
      }
      if (!is_set(reached, row)) continue;
      const Stored last = read_shared(numbers + VECTORS * row + team);
      const RowBefore was = how.read(row, rows, degree[row], last, own.residual, own.changes);
      const Delivered sent = deliveries.to(piece, segments, i, carries);
      const double given = pushed_of(last, divisor_of(was.links), how.scale);
      const double share = is_set(named, row) ? own.teleport[row] : 0;
      how.settle(row, rows, sent.push, share, given, was, own.residual, own.changes, own.steps, sums);
    }
    parts[team].put(part, sums);
  }
  parts[team].add_up(own.partials, stride, place + blockIdx.x);
}

// Sets the bits of some rows; one thread a row.
extern "C" __global__ void name_rows(u64 count, const u32* rows, u32* named, u32* reached) {
  const u64 k = thread_number();
  if (k >= count) return;
  const u32 bit = 1u << rows[k] % 32;
  atomicOr(named + rows[k] / 32, bit);
  atomicOr(reached + rows[k] / 32, bit);
}

// Sets the bits of the rows of a group that edges reach, and of the first of each tile, which the tile before may send to.
extern "C" __global__ void __launch_bounds__(THREADS)
    mark_rows(const TileEntry* tiles, u32 tile_count, const u32* filled, const u32* filled_before, u64 offset,
              u32* reached) {
  const Piece piece(tiles, tile_count);
  const u64 owned = piece.tile.owned();
  const Filled segments = segments_of(piece.tile, piece.number, filled, filled_before);
  for (u64 i = piece.begin + threadIdx.x; piece.has(i, owned); i += THREADS) {
    const u64 row = offset + piece.tile.row + i;
    if (i == 0 || segments.rank(i) != NOTHING) atomicOr(reached + row / 32, 1u << row % 32);
  }
}
