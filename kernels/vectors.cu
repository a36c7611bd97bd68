// What a pass does row by row: publish, update, propose, and the sums that decide the next pass.
//
// A block of threads takes ROWS rows. Its sums go to a place of their own in `partials`, one vector of `stride` places
// for each sum; `total_up` adds a vector up. All additions have one order, that of the rows within a block of threads
// and then of the blocks, for warps of 32 and of 64 lanes alike.
//
// Parameters:
//   READS, PAIRED  as in gather.cuh; PAIRED where later tiles read proposals
//   PROPOSES       1: rows propose; 0: the residual is the proposal
//   SLOTS          passes that are remembered; a slot is a vector of `rows` numbers of 16 bits
//   WEIGHTED, DIVIDED  as in rows.cuh, for `degree`
#include "row_step.cuh"

namespace {

struct Add {
  static __device__ __forceinline__ double of(double a, double b) { return a + b; }
  static __device__ __forceinline__ double team(double value) { return group_sum<TEAM>(value); }
};

struct Most {
  static __device__ __forceinline__ double of(double a, double b) { return a < b ? b : a; }
  static __device__ __forceinline__ double team(double value) { return group_max<TEAM>(value); }
};

// Joins the numbers of all threads of the block; the k-th result goes to vector k of the partials.
template <class How, int COUNT>
__device__ __forceinline__ void join(const double (&values)[COUNT], double* partials, u64 stride, u64 place) {
  __shared__ double room[COUNT][THREADS / TEAM];
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const double value = How::team(values[k]);
    if (lane<TEAM>() == 0) room[k][threadIdx.x / TEAM] = value;
  }
  __syncthreads();
  if (threadIdx.x < COUNT) {
    double value = room[threadIdx.x][0];
    for (int team = 1; team < THREADS / TEAM; ++team) value = How::of(value, room[threadIdx.x][team]);
    partials[stride * threadIdx.x + place] = value;
  }
}

// The rank of a row when the run ends; `carry` is what the first row is still owed.
__device__ __forceinline__ double ended(u64 row, const double* ranks, const double* residual, double carry) {
  return ranks[row] + residual[row] + (row == 0 ? carry : 0);
}

// What the rows of a group were sent along links inside their tile or, if tiles are `joined`, inside the group and from
// its neighbours.
struct Inside {
  const TileEntry* tiles;
  int joined;
  const double* sums;
  const u32* filled;
  const u32* filled_before;
  const double* left;  // to the group's first row by the group before; null if that was not swept with it

  __device__ __forceinline__ double of(u32 number, u64 segment) const {
    return at(segments_of(tiles[number], number, filled, filled_before).rank(segment));
  }

  __device__ __forceinline__ double at(u32 rank) const { return rank == NOTHING ? 0.0 : sums[rank]; }

  // What the tiles before leave to the first row of tile `number`.
  __device__ __forceinline__ double into(u32 number) const {
    return carried_into(tiles, number, left ? *left : 0.0, [&](u32 k) { return of(k, tiles[k].owned()); });
  }

  // What row `i` of a piece, whose sum is at `rank`, was sent.
  __device__ __forceinline__ float to(const Piece& piece, u64 i, u32 rank) const {
    double sum = at(rank);
    if (joined && i == 0) sum += into(piece.number);
    return float(sum);
  }

  // Tells what the group leaves to the row behind it, if anybody asks.
  __device__ __forceinline__ void leave(u32 tile_count, double* leaves) const {
    if (leaves && blockIdx.x == 0 && threadIdx.x == 0) *leaves = into(tile_count);
  }
};

}  // namespace

// Makes the next push of a stripe's rows, stores it, and adds what was stored to the ranks.
//
//   uniform, begin    what the run begins from; `uniform` where `begin` is null
//   pass              kind, scale, carry, and the steps that are subtracted from proposals, `coefficients` times
//   partials          receive the sums of pushes of dangling rows, of pushes, and of the ranks
extern "C" __global__ void __launch_bounds__(THREADS)
    publish(u64 rows, double uniform, const double* begin, const Links* degree, double* ranks, double* residual,
            float* push, Kept* changes, const Kept* steps, const PassStep* pass, const double* coefficients,
            Stored* stored, double* partials, u64 stride) {
  const Push how(*pass, coefficients);
  double sums[3] = {0, 0, 0};
#pragma unroll 1
  for (u64 row = u64(blockIdx.x) * ROWS + threadIdx.x; row < rows && row < (u64(blockIdx.x) + 1) * ROWS;
       row += THREADS) {
    stored[row] = how.row(row, rows, degree[row], begin, uniform, ranks, residual, push, changes, steps, sums);
  }
  join<Add>(sums, partials, stride, blockIdx.x);
}

// Adds what the rows of a group were sent to their residual, takes away what they pushed, and begins their proposal.
//
//   tiles, tile_count    the group
//   pushes, proposals    sums of segments, see rows.cuh
//   offset, rows         where in the stripe the rows of the group begin, and rows of the stripe
//   carries              push and proposal that the tiles before left to the group's first row; receives, as many places
//                        behind as there are tiles, what the group leaves to the row behind it
//   pass                 damping, base, spread, scale and slots
//   start, sends         where `start` is null, the proposal is done; else it receives what rows have from outside the
//                        tile, and `sends`, if not null, what they send along each link, and a zero behind the last row
//   numbers, first       what rows gather, and the group's first row in the graph
//   place                blocks of rows of the stripe before
//   partials             receive the L1 norm of the residual, the products of the change in each slot with that of
//                        this pass, and those with the residual
extern "C" __global__ void __launch_bounds__(THREADS)
    update(const TileEntry* tiles, u32 tile_count, const double* pushes, const float* proposals, const u32* filled,
           const u32* filled_before, u64 offset, u64 rows, double* carries, const Stored* stored, const Links* degree,
           double uniform, const double* teleport, const PassStep* pass, double* residual, Kept* changes, Kept* steps,
           float* push, float* start, Kept* sends, Stored* numbers, u64 first, double* partials, u64 stride, u64 place) {
  const Piece piece(tiles, tile_count);
  const u64 owned = piece.tile.owned();
  const Settlement how(*pass);
  const Deliveries<1> deliveries = {tiles, pushes, proposals, filled, filled_before, how.scale};
  const Filled segments = deliveries.in(piece.tile, piece.number);
  double sums[PRODUCTS] = {};
#pragma unroll 1
  for (u64 i = piece.begin + threadIdx.x; piece.has(i, owned + 1); i += THREADS) {
    const u64 own = piece.tile.row + i, row = offset + own;
    const bool there = i < owned;
    // Everything is asked for before anything is used.
    const RowBefore before = there ? how.read(row, rows, degree[row], stored[row], residual, changes) : RowBefore();
    const Delivered sent = deliveries.to(piece, segments, i, carries);
    if (!there) {
      // The row that the next tile owns; nobody reads what a row that is not there sends.
      if (piece.number + 1 == tile_count) {
        carries[2 * u64(tile_count)] = sent.push;
        carries[2 * u64(tile_count) + 1] = sent.proposal;
        if constexpr (PROPOSES) {
          if (sends) sends[own] = Kept(0);
        }
      }
      break;
    }
    const double given = pushed_of(before.last, divisor_of(before.links), how.scale);
    const double left = how.settle(row, rows, sent.push, teleport ? teleport[row] : uniform, given, before, residual,
                                   changes, steps, sums);
    if constexpr (PROPOSES) {
      const float proposal = float(left + how.damping * sent.proposal);
      const Links links = before.links;
      if (start) {
        start[own] = proposal;
        if (sends) sends[own] = Memory::narrow(float(how.damping) / short_divisor_of(links) * proposal, 1);
      } else {
        keep(proposal, given, links, how.scale, push[row], how.slot >= 0 ? steps + rows * u64(how.slot) + row : nullptr,
             numbers + 2 * (first + own));
      }
    }
  }
  join<Add>(sums, partials, stride, place + blockIdx.x);
}

// Ends the tile-local sweeps: a row's proposal is what it has from outside, and the sum of its segment.
// sends as in update, null if no group is swept with this one any more; left, leaves as in resend.
extern "C" __global__ void __launch_bounds__(ROWS)
    propose(const TileEntry* tiles, u32 tile_count, const float* start, const double* sums, const u32* filled,
            const u32* filled_before, int joined, u64 offset, u64 rows, const Stored* stored, const Links* degree,
            const PassStep* pass, Kept* steps, float* push, Stored* numbers, u64 first, Kept* sends,
            const double* left, double* leaves) {
  const Piece piece(tiles, tile_count);
  const Inside inside = {tiles, joined, sums, filled, filled_before, left};
  inside.leave(tile_count, leaves);
  const double scale = pass->scale;
  const float damping = float(pass->damping);
  const Filled segments = segments_of(piece.tile, piece.number, filled, filled_before);
  const int slot = pass->slot;
#pragma unroll 1
  for (u64 i = piece.begin + threadIdx.x; piece.has(i, piece.tile.owned()); i += blockDim.x) {
    const u64 own = piece.tile.row + i, row = offset + own;
    const float proposal = start[own] + inside.to(piece, i, segments.rank(i));
    const Links links = degree[row];
    const double given = slot >= 0 ? pushed_of(stored[row], divisor_of(links), scale) : 0;
    keep(proposal, given, links, scale, push[row], slot >= 0 ? steps + rows * u64(slot) + row : nullptr,
         numbers + 2 * (first + own));
    if (sends) sends[own] = Memory::narrow(damping / short_divisor_of(links) * proposal, 1);
  }
}

// Largest magnitude per out-link of the vector that comes next, then of each live slot's step.
extern "C" __global__ void __launch_bounds__(THREADS)
    find_peaks(u64 rows, const Links* degree, const double* residual, const float* push, const Kept* steps,
               const PassStep* pass, double* partials, u64 stride) {
  const u32 live = pass->live;
  double peaks[1 + MOST] = {};
#pragma unroll 1
  for (u64 row = u64(blockIdx.x) * ROWS + threadIdx.x; row < rows && row < (u64(blockIdx.x) + 1) * ROWS;
       row += THREADS) {
    const double divisor = divisor_of(degree[row]);
    peaks[0] = Most::of(peaks[0], fabs(PROPOSES ? double(push[row]) : residual[row]) / divisor);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) {
      if (live >> k & 1) peaks[1 + k] = Most::of(peaks[1 + k], fabs(Memory::widen(steps[rows * k + row])) / divisor);
    }
  }
  join<Most>(peaks, partials, stride, blockIdx.x);
}

// Adds up the residual.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_residual(u64 rows, const double* residual, double* partials, u64 stride) {
  double sum[1] = {0};
#pragma unroll 1
  for (u64 row = u64(blockIdx.x) * ROWS + threadIdx.x; row < rows && row < (u64(blockIdx.x) + 1) * ROWS;
       row += THREADS) {
    sum[0] += residual[row];
  }
  join<Add>(sum, partials, stride, blockIdx.x);
}

// Joins each vector of partials, one block of threads a vector: the first `added` ones are added up, of the others the
// largest is found. The block behind the last vector reports a few numbers as they are: the carry at `number`, the
// faults, the residual of the first row, and its change in each slot.
extern "C" __global__ void __launch_bounds__(THREADS)
    total_up(const double* partials, u64 stride, u64 count, u32 vectors, u32 added, const double* carries,
             u32 number, const u32* faults, u64 rows, const double* residual, const Kept* changes, double* totals) {
  if (blockIdx.x == vectors) {
    double* const report = totals + vectors;
    if (threadIdx.x == 0) {
      report[0] = carries[2 * u64(number)];
      report[1] = carries[2 * u64(number) + 1];
      report[2] = faults ? double(*faults) : 0;
      report[3] = rows ? residual[0] : 0;
    }
    if (int(threadIdx.x) < SLOTS) report[4 + threadIdx.x] = rows ? Memory::widen(changes[rows * threadIdx.x]) : 0;
    return;
  }
  const bool adds = blockIdx.x < added;
  double value[1] = {0};
  for (u64 k = threadIdx.x; k < count; k += THREADS) {
    const double part = partials[stride * blockIdx.x + k];
    value[0] = adds ? value[0] + part : Most::of(value[0], part);
  }
  if (adds) {
    join<Add>(value, totals, 1, blockIdx.x);
  } else {
    join<Most>(value, totals, 1, blockIdx.x);
  }
}

// Finds what the push of all rows, whose sums are in `totals`, has each row sent; one thread. Rounded after each
// operation, as on a host.
extern "C" __global__ void share_out(const double* totals, double nodes, PassStep* pass) {
  const double spread = __dmul_rn(pass->damping, totals[0]);
  pass->base = __dadd_rn(__dmul_rn(1 - pass->damping, totals[1]), pass->strongly ? spread : 0.0);
  pass->spread = pass->strongly ? 0.0 : spread / nodes;
}

// Adds the residual to the ranks; ends a run.
extern "C" __global__ void finish(u64 rows, double* ranks, const double* residual, double carry) {
  const u64 row = thread_number();
  if (row < rows) ranks[row] = ended(row, ranks, residual, carry);
}

// Tells of each block of rows what its ranks with the residual sum to above and below zero, the largest of them, and
// the largest below zero, as a positive number.
extern "C" __global__ void __launch_bounds__(THREADS)
    describe(u64 rows, const double* ranks, const double* residual, double carry, double* described, u64 stride) {
  double sums[2] = {0, 0}, most[2] = {0, 0};
#pragma unroll 1
  for (u64 row = u64(blockIdx.x) * ROWS + threadIdx.x; row < rows && row < (u64(blockIdx.x) + 1) * ROWS;
       row += THREADS) {
    const double rank = ended(row, ranks, residual, carry);
    sums[0] += rank > 0 ? rank : 0;
    sums[1] += rank < 0 ? rank : 0;
    most[0] = Most::of(most[0], rank);
    most[1] = Most::of(most[1], -rank);
  }
  join<Add>(sums, described, stride, blockIdx.x);
  join<Most>(most, described + 2 * stride, stride, blockIdx.x);
}

// Lists rows whose rank with the residual, `sign` times, is no less than `least`, in any order; `found` counts all of
// them.
extern "C" __global__ void list_largest(u64 rows, const double* ranks, const double* residual, double carry,
                                        double sign, double least, u32 room, u32* found, u32* listed, double* values) {
  const u64 row = thread_number();
  const double rank = row < rows ? sign * ended(row, ranks, residual, carry) : 0;
  if (row >= rows || !(rank >= least)) return;
  const u32 place = atomicAdd(found, 1u);
  if (place >= room) return;
  listed[place] = u32(row);
  values[place] = rank;
}

// Puts a few numbers where they belong.
extern "C" __global__ void scatter(u64 count, const u32* places, const double* values, double* numbers) {
  const u64 k = thread_number();
  if (k < count) numbers[places[k]] = values[k];
}

// Tile-local sweeps: between two products with the edges that stay inside a tile (spmv.cu with LOCAL), each row becomes
// what it has from outside and the sum of its segment.
// start, sums, sends as in update.
//
//   left      what the group before leaves to the first row, whose links are in tiles of both; null if nothing
//   leaves    receives the same of this group for the row behind it; null if nobody asks
extern "C" __global__ void __launch_bounds__(ROWS)
    resend(const TileEntry* tiles, u32 tile_count, const float* start, const double* sums, const u32* filled,
           const u32* filled_before, int joined, u64 offset, const Links* degree, const PassStep* pass, Kept* sends,
           const double* left, double* leaves) {
  const Piece piece(tiles, tile_count);
  const Inside inside = {tiles, joined, sums, filled, filled_before, left};
  inside.leave(tile_count, leaves);
  const float damping = float(pass->damping);
  const Filled segments = segments_of(piece.tile, piece.number, filled, filled_before);
#pragma unroll 1
  for (u64 i = piece.begin + threadIdx.x; piece.has(i, piece.tile.owned()); i += blockDim.x) {
    const u64 own = piece.tile.row + i;
    const float value = start[own] + inside.to(piece, i, segments.rank(i));
    sends[own] = Memory::narrow(damping / short_divisor_of(degree[offset + own]) * value, 1);
  }
}
