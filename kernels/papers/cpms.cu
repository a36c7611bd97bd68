// Float64 in segments that can be read apart (CPMS, Gruetzmacher et al. 2018), and what a sweep does to them.
//
// A number is cut into SEGMENTS equal parts, the first with sign and exponent. Blocks of 128 bytes hold one segment
// of neighbouring numbers each: first segments of 32 or 64 numbers, then their second ones, and so on. Reading
// fewer takes the missing bits as zero, writing fewer leaves what was there. One segment is plain float64.
//
// `kept` says how many segments are read. As the paper has it, a thread takes a row, and sums are joined in two
// steps: by blocks of threads here, and of all blocks by whoever launches. A row whose edges lie in several tiles has
// a sum in each of them.
#include "group.cuh"

#ifndef SEGMENTS
#define SEGMENTS 2
#endif

template <int PARTS> struct SegmentOf;
template <> struct SegmentOf<1> { using Type = u64; };
template <> struct SegmentOf<2> { using Type = u32; };
template <> struct SegmentOf<4> { using Type = u16; };
using Segment = SegmentOf<SEGMENTS>::Type;

constexpr int BITS = 64 / SEGMENTS;
constexpr u64 NUMBERS = 128 / sizeof(Segment);  // numbers that share blocks
constexpr u32 SLICE = 32;  // rows whose edges stand side by side, in ELL
constexpr u32 NOTHING = ~0u;
constexpr int TEAM = 32;
constexpr int THREADS = 256;

__device__ __forceinline__ u64 place(u64 number, int segment) {
  return (number / NUMBERS * SEGMENTS + segment) * NUMBERS + number % NUMBERS;
}

template <int KEPT> __device__ __forceinline__ double read_segments(const Segment* segments, u64 number) {
  u64 bits = 0;
#pragma unroll
  for (int s = 0; s < KEPT; ++s) bits |= u64(read_shared(segments + place(number, s))) << (64 - BITS * (s + 1));
  return __longlong_as_double(i64(bits));
}

__device__ __forceinline__ void write_segments(double value, u64 number, int kept, Segment* segments) {
  const u64 bits = u64(__double_as_longlong(value));
#pragma unroll
  for (int s = 0; s < SEGMENTS; ++s) {
    if (s < kept) segments[place(number, s)] = Segment(bits >> (64 - BITS * (s + 1)));
  }
}

// One kernel for each number of segments, as the paper has it: the choice is made once a thread.
template <class F> __device__ __forceinline__ void choose(int kept, F&& body) {
  if (kept == 1) body.template run<1>();
  if constexpr (SEGMENTS > 1) {
    if (kept == 2) body.template run<2>();
  }
  if constexpr (SEGMENTS == 4) {
    if (kept == 3) body.template run<3>();
    if (kept == 4) body.template run<4>();
  }
}

namespace {

struct Read {
  const Segment* segments;
  u64 number;
  double value;
  template <int KEPT> __device__ __forceinline__ void run() { value = read_segments<KEPT>(segments, number); }
};

struct SumRow {
  const u32* columns;
  const Segment *weights, *given;
  u64 begin, end;
  double sum;
  template <int KEPT> __device__ __forceinline__ void run() {
    for (u64 e = begin; e < end; ++e) sum += read_segments<KEPT>(weights, e) * read_segments<KEPT>(given, columns[e]);
  }
};

// The edges of a row in ELL: one in each SLICE places, until there is none.
struct SumSlice {
  const u32* columns;
  const Segment *weights, *given;
  u64 begin, end;
  double sum;
  template <int KEPT> __device__ __forceinline__ void run() {
    for (u64 e = begin; e < end; e += SLICE) {
      const u32 column = columns[e];
      if (column == NOTHING) break;
      sum += read_segments<KEPT>(weights, e) * read_segments<KEPT>(given, column);
    }
  }
};

__device__ __forceinline__ double read_number(const Segment* segments, u64 number, int kept) {
  Read read = {segments, number, 0.0};
  choose<Read&>(kept, read);
  return read.value;
}

// The same where the kernel writes numbers of these blocks, too.
__device__ __forceinline__ double load_number(const Segment* segments, u64 number, int kept) {
  u64 bits = 0;
#pragma unroll
  for (int s = 0; s < SEGMENTS; ++s) {
    if (s < kept) bits |= u64(segments[place(number, s)]) << (64 - BITS * (s + 1));
  }
  return __longlong_as_double(i64(bits));
}

// Joins the numbers of a block of threads, in one order for warps of 32 and of 64 lanes.
__device__ __forceinline__ void join(double value, double* partials) {
  __shared__ double room[THREADS / TEAM];
  value = group_sum<TEAM>(value);
  if (lane<TEAM>() == 0) room[threadIdx.x / TEAM] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int team = 1; team < THREADS / TEAM; ++team) value += room[team];
    partials[blockIdx.x] = value;
  }
}

}  // namespace

extern "C" __global__ void write_numbers(const double* values, u64 count, int kept, Segment* segments) {
  const u64 k = thread_number();
  if (k < count) write_segments(values[k], k, kept, segments);
}

extern "C" __global__ void read_numbers(const Segment* segments, u64 count, int kept, double* values) {
  const u64 k = thread_number();
  if (k < count) values[k] = read_number(segments, k, kept);
}

// Segments to plain float64, where they are; `count` is a multiple of NUMBERS, and so is a block of threads.
extern "C" __global__ void to_numbers(double* numbers, u64 count) {
  const u64 k = thread_number();
  const double value = k < count ? load_number(reinterpret_cast<const Segment*>(numbers), k, SEGMENTS) : 0.0;
  __syncthreads();
  if (k < count) numbers[k] = value;
}

// Segments of numbers that are chosen, `kept` of each, to neighbouring ones: the matrix value of each edge.
extern "C" __global__ void copy_numbers(const Segment* segments, const u32* chosen, u64 count, int kept, Segment* out) {
  const u64 k = thread_number();
  if (k >= count || chosen[k] == NOTHING) return;
#pragma unroll
  for (int s = 0; s < SEGMENTS; ++s) {
    if (s < kept) out[place(k, s)] = read_shared(segments + place(chosen[k], s));
  }
}

// Columns of rows to ELL: those of SLICE rows side by side, from the first of a slice on. The rest is NOTHING before.
extern "C" __global__ void lay_out_slices(const u32* offsets, const u32* columns, u32 rows, const u64* slices,
                                          u32* out) {
  const u64 row = thread_number();
  if (row >= rows) return;
  u64 at = slices[row / SLICE] + row % SLICE;
  for (u32 e = offsets[row]; e < offsets[row + 1]; ++e, at += SLICE) out[at] = columns[e];
}

// Sums of rows, of which a thread takes one: of matrix values times what is given, both read with `kept` segments.
extern "C" __global__ void sum_rows(const u32* offsets, const u32* columns, const Segment* weights,
                                    const Segment* given, u32 rows, int kept, double* sums) {
  const u64 row = thread_number();
  if (row >= rows) return;
  SumRow sum = {columns, weights, given, offsets[row], offsets[row + 1], 0.0};
  choose<SumRow&>(kept, sum);
  sums[row] = sum.sum;
}

// The same in ELL.
extern "C" __global__ void sum_slices(const u64* slices, const u32* columns, const Segment* weights,
                                      const Segment* given, u32 rows, int kept, double* sums) {
  const u64 row = thread_number();
  if (row >= rows) return;
  SumSlice sum = {columns, weights, given, slices[row / SLICE] + row % SLICE, slices[row / SLICE + 1], 0.0};
  choose<SumSlice&>(kept, sum);
  sums[row] = sum.sum;
}

// The new numbers of a group's rows, from `first` on: damping times their sums and a constant, of which `written`
// segments are written. `carries` has what the group before leaves to the first row; receives, one place behind, what
// this one leaves to the row behind it.
extern "C" __global__ void write_rows(const TileEntry* tiles, u32 count, const double* sums, u64 first, u32 rows,
                                      double damping, double constant, int written, Segment* out, double* carries) {
  const u64 k = thread_number();
  const auto last_of = [&](u32 number) { return sums[tiles[number].row + number + tiles[number].owned()]; };
  if (k == 0) carries[1] = carried_into(tiles, count, carries[0], last_of);
  if (k >= rows) return;
  const u32 number = tile_of<&TileEntry::row>(tiles, count, u32(k));
  double sum = sums[k + number];
  if (k == tiles[number].row) sum = carried_into(tiles, number, carries[0], last_of) + sum;
  write_segments(damping * sum + constant, first + k, written, out);
}

// Sums of absolute values: of numbers that are chosen, of all, and of differences.
extern "C" __global__ void sum_chosen(const Segment* segments, const u32* chosen, u64 count, int kept,
                                      double* partials) {
  const u64 k = thread_number();
  join(k < count ? fabs(read_number(segments, chosen[k], kept)) : 0.0, partials);
}

extern "C" __global__ void sum_all(const Segment* segments, u64 count, int kept, double* partials) {
  const u64 k = thread_number();
  join(k < count ? fabs(read_number(segments, k, kept)) : 0.0, partials);
}

extern "C" __global__ void sum_differences(const Segment* one, const Segment* other, u64 count, int kept,
                                           double* partials) {
  const u64 k = thread_number();
  join(k < count ? fabs(read_number(one, k, kept) - read_number(other, k, kept)) : 0.0, partials);
}

extern "C" __global__ void divide(Segment* segments, u64 count, int kept, double divisor) {
  const u64 k = thread_number();
  if (k < count) write_segments(load_number(segments, k, kept) / divisor, k, kept, segments);
}
