// The balanced product with several vectors at once: what a pass delivers to each row of a group, of each of them.
//
// As `product` of spmv.cu, whose sums these are to the last bit. The numbers of a node lie side by side, so that all of
// them come with one load: an edge is decoded, and its node found, once for all.
//
// Parameters:
//   READS           format of the gathered numbers, a struct of narrow.cuh
//   VECTORS         numbers of a node, 16 bytes together or a multiple
//   DECODED, TEAMS  as in balanced.cuh
//   ABREAST         nodes whose numbers are on their way to a lane at a time
//   RESIDENT        blocks of threads that shall share a multiprocessor
#include "balanced.cuh"
#include "gather.cuh"

#ifndef VECTORS
#define VECTORS 16
#endif
#ifndef ABREAST
#define ABREAST 4
#endif
#ifndef RESIDENT
#define RESIDENT 3
#endif

struct __align__(16) Numbers {
  Stored of[VECTORS];
};
static_assert(sizeof(Numbers) % 16 == 0, "few loads bring them");

namespace {

struct __align__(16) Sums {
  double of[VECTORS];
};

// Where sums go.
struct Places {
  double* sums;

  __device__ __forceinline__ void put(u64 place, const double (&own)[VECTORS]) const {
    Sums& there = reinterpret_cast<Sums*>(sums)[place];
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) there.of[k] = own[k];
  }
};

}  // namespace

// Sums what the columns of a group bring, for each segment that is not empty; see `product` of spmv.cu.
//
//   reads          numbers of all nodes, and zeros behind them
//   pushes, heads  as there, those of all vectors side by side
extern "C" __global__ void __launch_bounds__(TEAMS* GROUP, RESIDENT)
    product(const TileEntry* tiles, const BlockEntry* entries, const u8* widths, const u32* begins_of_group,
            const u32* ranks, const u32* starts, u32 blocks, [[maybe_unused]] u32 nodes, const Stored* reads, u32 each,
            double* pushes, double* heads, const u32* faults DECODED_COLUMNS) {
  // Segments that contradict themselves lead anywhere, and so do columns that are no node.
  if (*faults) return;
  DYNAMIC_SHARED(bytes);
  const int me = lane<GROUP>();
  const int team = int(threadIdx.x) / GROUP;
  [[maybe_unused]] u32* const values = reinterpret_cast<u32*>(bytes) + SCRATCH * team;
  const Group group = {tiles, entries, widths, begins_of_group, ranks, starts};
  const Numbers* const all = reinterpret_cast<const Numbers*>(reads);
  const Places rows = {pushes}, rest = {heads};
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
#endif
    const u32 beginning = group_or<GROUP>(begins.own);
    const u32 later = begins.own & (begins.own - 1), first = begins.own ^ later;
    double sum[VECTORS] = {}, head[VECTORS] = {};
    u32 row = begins.before;
#pragma unroll
    for (int part = 0; part < GROUP; part += ABREAST) {
      Numbers numbers[ABREAST];
#pragma unroll
      for (int i = 0; i < ABREAST; ++i) numbers[i] = read_struct(all + column[part + i]);
      // Compilers would let the first be added before the last are asked for.
      sync_group<GROUP>();
#pragma unroll
      for (int i = 0; i < ABREAST; ++i) {
        const u32 bit = 1u << (part + i);
        if (beginning & bit) {
          const bool begin = begins.own & bit;
          if (later & bit) rows.put(row - 1, sum);
#pragma unroll
          for (int k = 0; k < VECTORS; ++k) {
            head[k] = first & bit ? sum[k] : head[k];
            sum[k] = begin ? 0 : sum[k];
          }
          row += begin;
        }
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) sum[k] = add_widened<Reads>(sum[k], numbers[i].of[k]);
      }
    }
    const int from = nearest(begins.lanes);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      sum[k] = scan_from(sum[k], from);
      const double before = shuffle_up<GROUP>(sum[k], 1);
      head[k] = (me ? before : 0) + head[k];
    }
    const bool whole = (begins.lanes & u32(lanes_before<GROUP>())) == 0;
    if (begins.own) (whole ? rest : rows).put(whole ? u32(b) : begins.before - 1, head);
    if (me == GROUP - 1) (begins.lanes ? rows : rest).put(begins.lanes ? row - 1 : u32(b), sum);
    sync_group<GROUP>();
  }
}

// Adds to each segment what lies in blocks after its first; one thread a block of edges.
extern "C" __global__ void join_blocks(const u32* begins, const u32* ranks, u32 blocks, const double* heads,
                                       double* pushes) {
  for (int k = 0; k < VECTORS; ++k) join_block<VECTORS>(begins, ranks, blocks, heads + k, pushes + k);
}
