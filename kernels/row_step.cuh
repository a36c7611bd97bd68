// What a pass does with a row: it is pushed, and later settled with what it was sent. For one run as for several side by
// side, which so have the same bits.
//
// Parameters:
//   READS, PAIRED, WEIGHTED, DIVIDED  as in rows.cuh
//   PROPOSES       1: rows propose; 0: the residual is the proposal
//   SLOTS          passes that are remembered; a slot is a vector of `rows` numbers of 16 bits
#pragma once
#include "group.cuh"
#include "rows.cuh"

#ifndef PROPOSES
#define PROPOSES PAIRED
#endif
#ifndef SLOTS
#define SLOTS 5
#endif

constexpr int TEAM = 32;     // lanes whose numbers are added first
constexpr int THREADS = 256;
constexpr int ROWS = 4 * THREADS;
constexpr int MOST = SLOTS > 0 ? SLOTS : 1;
constexpr int PRODUCTS = 1 + 2 * MOST;

// How the next push is made; as in oocpr/engine/cuda/vectors.py.
enum Kind { START = 0, RESTART = 1, RESIDUAL = 2, MIXED = 3 };

// How rows push.
struct Push {
  int kind, carry_slot;
  u32 mixed;
  double carry, scale;
  double thetas[MOST];

  __device__ __forceinline__ Push(const PassStep& pass, const double* coefficients)
      : kind(pass.kind), carry_slot(pass.carry_slot), mixed(pass.mixed), carry(pass.carry), scale(pass.scale) {
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) thetas[k] = coefficients[k];
  }

  // Pushes a row, and adds what it pushed to its rank; returns what is stored of it. `sums` are of pushes of dangling
  // rows, of pushes, and of ranks; `begin` is what rows begin from, `uniform` where it is null.
  __device__ __forceinline__ Stored row(u64 row, u64 rows, Links links, const double* begin, double uniform,
                                        double* ranks, double* residual, float* push, Kept* changes, const Kept* steps,
                                        double (&sums)[3]) const {
    if (row == 0 && carry != 0) {
      residual[0] += carry;
      if constexpr (PROPOSES) push[0] += float(carry);
      if (carry_slot >= 0) {
        Kept& change = changes[rows * u64(carry_slot)];
        change = Memory::narrow(Memory::widen(change) + carry, 1);
      }
    }
    // Everything is asked for before anything is used.
    const double rank_before = kind != RESTART ? ranks[row] : 0;
    Kept step[MOST];
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) step[k] = mixed >> k & 1 ? steps[rows * k + row] : Kept(0);
    double wanted;
    if (kind == START) {
      wanted = (begin ? begin[row] : uniform) - rank_before;
    } else if (kind == RESTART) {
      wanted = ranks[row] + residual[row];
      residual[row] = 0;
    } else if (kind == RESIDUAL) {
      wanted = residual[row];
    } else {
      wanted = PROPOSES ? double(push[row]) : residual[row];
#pragma unroll
      for (int k = 0; k < SLOTS; ++k) wanted -= thetas[k] * Memory::widen(step[k]);
    }
    const double divisor = divisor_of(links);
    const Stored number = Reads::narrow(wanted / divisor, scale);
    const double given = pushed_of(number, divisor, scale);
    const double rank = rank_before + given;
    ranks[row] = rank;
    sums[0] += dangles(links) ? given : 0;
    sums[1] += given;
    sums[2] += rank;
    return number;
  }
};

// What a row was before it is settled.
struct RowBefore {
  Links links = 1;
  Stored last = 0;
  double left = 0;
  Kept then[MOST] = {};
};

// How rows are settled.
struct Settlement {
  double damping, base, spread, scale;
  int slot;
  u32 live;

  __device__ __forceinline__ explicit Settlement(const PassStep& pass)
      : damping(pass.damping), base(pass.base), spread(pass.spread), scale(pass.scale), slot(pass.slot),
        live(pass.live) {}

  __device__ __forceinline__ RowBefore read(u64 row, u64 rows, Links links, Stored last, const double* residual,
                                            const Kept* changes) const {
    RowBefore before = {links, last, residual[row]};
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) before.then[k] = k != slot && live >> k & 1 ? changes[rows * k + row] : Kept(0);
    return before;
  }

  // Adds what a row was sent to its residual, takes away what it has `given`, and returns what is left. `share` is its
  // teleport probability; `sums` are the L1 norm of the residual, the products of the change in each slot with that of
  // this pass, and those with the residual.
  __device__ __forceinline__ double settle(u64 row, u64 rows, double delivered, double share, double given,
                                           const RowBefore& before, double* residual, Kept* changes, Kept* steps,
                                           double (&sums)[PRODUCTS]) const {
    const double change = damping * delivered + (base * share + spread) - given;
    const double left = before.left + change;
    residual[row] = left;
    sums[0] += fabs(left);
    if (SLOTS > 0 && slot >= 0) {
      const Kept kept = Memory::narrow(change, 1);
      changes[rows * u64(slot) + row] = kept;
      const double now = Memory::widen(kept);
#pragma unroll
      for (int k = 0; k < SLOTS; ++k) {
        const double other = k == slot ? now : Memory::widen(before.then[k]);
        sums[1 + k] += other * now;
        sums[1 + MOST + k] += other * left;
      }
      if constexpr (!PROPOSES) steps[rows * u64(slot) + row] = Memory::narrow(given + change, 1);
    }
    return left;
  }
};

// The rows of a group that a block of threads takes, all of one tile: of its rows in the group and the one that the next
// tile owns, those from `begin` on, ROWS at most.
struct Piece {
  const TileEntry& tile;
  u32 number;  // of the tile in the group
  u64 begin;

  __device__ __forceinline__ Piece(const TileEntry* tiles, u32 count)
      : tile(tiles[tile_of<&TileEntry::place>(tiles, count, blockIdx.x)]),
        number(u32(&tile - tiles)),
        begin(u64(blockIdx.x - tile.place) * ROWS) {}

  __device__ __forceinline__ bool has(u64 i, u64 rows) const { return i < rows && i < begin + ROWS; }
};

// Where the segments of a tile have their sums.
__device__ __forceinline__ Filled segments_of(const TileEntry& tile, u32 number, const u32* filled,
                                              const u32* filled_before) {
  if (!filled) return {nullptr, nullptr, tile.row + number};
  return {filled + tile.word, filled_before + tile.word, 0};
}

// What a segment of the group was sent.
struct Delivered {
  double push, proposal;

  __device__ __forceinline__ void operator+=(const Delivered& other) {
    push += other.push;
    proposal += other.proposal;
  }
};

// The sums of a group's segments; those of a run are APART places from each other.
template <int APART> struct Deliveries {
  const TileEntry* tiles;
  const double* pushes;
  const float* proposals;
  const u32* filled;
  const u32* filled_before;
  double scale;

  __device__ __forceinline__ Filled in(const TileEntry& tile, u32 number) const {
    return segments_of(tile, number, filled, filled_before);
  }

  __device__ __forceinline__ Delivered of(const Filled& segments, u64 segment) const {
    const u32 rank = segments.rank(segment);
    Delivered sent = {0, 0};
    if (rank != NOTHING) {
      // Runs side by side read the same lines.
      sent.push = APART == 1 ? read_once(pushes + rank) : read_shared(pushes + u64(APART) * rank);
      if constexpr (PAIRED) sent.proposal = double(read_once(proposals + rank));
    }
    if constexpr (Reads::SCALED) {
      sent.push *= scale;
      sent.proposal *= scale;
    }
    return sent;
  }

  // What row `i` of a piece, whose segments are `own`, was sent; `carries` has what the tiles before left to the
  // group's first row.
  __device__ __forceinline__ Delivered to(const Piece& piece, const Filled& own, u64 i, const double* carries) const {
    Delivered sent = of(own, i);
    if (i == 0) {
      sent += carried_into(tiles, piece.number, Delivered{carries[0], carries[1]},
                           [&](u32 k) { return of(in(tiles[k], k), tiles[k].owned()); });
    }
    return sent;
  }
};
