// Float64 in segments that can be read apart (CPMS, Gruetzmacher et al. 2018), and the sweep that reads them.
//
// A number is cut into SEGMENTS equal parts, the first with sign and exponent. Blocks of 128 bytes hold one segment
// of neighbouring numbers each: first segments of 32 or 64 numbers, then their second ones, and so on. Reading
// fewer takes the missing bits as zero, writing fewer leaves what was there.
#include "common.cuh"

#ifndef SEGMENTS
#define SEGMENTS 2
#endif

template <int PARTS> struct SegmentOf;
template <> struct SegmentOf<2> { using Type = u32; };
template <> struct SegmentOf<4> { using Type = u16; };
using Segment = SegmentOf<SEGMENTS>::Type;

constexpr int BITS = 64 / SEGMENTS;
constexpr u64 NUMBERS = 128 / sizeof(Segment);  // numbers that share blocks

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
  if (kept == 2) body.template run<2>();
  if constexpr (SEGMENTS == 4) {
    if (kept == 3) body.template run<3>();
    if (kept == 4) body.template run<4>();
  }
}

namespace {

struct Read {
  const Segment* segments;
  double* values;
  u64 number;
  template <int KEPT> __device__ __forceinline__ void run() { values[number] = read_segments<KEPT>(segments, number); }
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

}  // namespace

extern "C" __global__ void write_numbers(const double* values, u64 count, int kept, Segment* segments) {
  const u64 k = thread_number();
  if (k < count) write_segments(values[k], k, kept, segments);
}

extern "C" __global__ void read_numbers(const Segment* segments, u64 count, int kept, double* values) {
  const u64 k = thread_number();
  if (k < count) choose(kept, Read{segments, values, k});
}

// Plain float64 to segments and back, where they are; `count` is a multiple of NUMBERS, and so are the blocks.
extern "C" __global__ void to_segments(double* numbers, u64 count) {
  const u64 k = thread_number();
  const double value = k < count ? numbers[k] : 0;
  __syncthreads();
  if (k < count) write_segments(value, k, SEGMENTS, reinterpret_cast<Segment*>(numbers));
}

extern "C" __global__ void to_numbers(double* numbers, u64 count) {
  const u64 k = thread_number();
  u64 bits = 0;
  const Segment* const segments = reinterpret_cast<const Segment*>(numbers);
  if (k < count) {
    for (int s = 0; s < SEGMENTS; ++s) bits |= u64(segments[place(k, s)]) << (64 - BITS * (s + 1));
  }
  __syncthreads();
  if (k < count) numbers[k] = __longlong_as_double(i64(bits));
}

// One sweep of power iteration, one thread a row: sum * damping + constant. Weights and vector are read with
// `kept` segments, the new vector is written with `written`.
extern "C" __global__ void sweep_segments(const u32* offsets, const u32* columns, const Segment* weights,
                                          const Segment* given, u32 rows, int kept, double damping, double constant,
                                          int written, Segment* out) {
  const u64 row = thread_number();
  if (row >= rows) return;
  SumRow sum = {columns, weights, given, offsets[row], offsets[row + 1], 0.0};
  choose<SumRow&>(kept, sum);
  write_segments(damping * sum.sum + constant, row, written, out);
}

// The same in plain float64, for what follows once all segments are needed.
extern "C" __global__ void sweep_numbers(const u32* offsets, const u32* columns, const double* weights,
                                         const double* given, u32 rows, double damping, double constant, double* out) {
  const u64 row = thread_number();
  if (row >= rows) return;
  double sum = 0;
  const u32 end = offsets[row + 1];
  for (u32 e = offsets[row]; e < end; ++e) sum += weights[e] * read_shared(given + columns[e]);
  out[row] = damping * sum + constant;
}
