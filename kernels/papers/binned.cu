// The row-binned hybrid of Wu et al. 2010: rows in bins by size, and for each bin as many lanes as pay: tiny rows have
// a thread, small ones 16 lanes, others 32.
//
// Every row has one order of adding, whoever takes it, so the bounds of the bins change no bit. Edge e of a row
// belongs to partial sum e modulo 32. Of these, sums that are 16 apart are joined, then those 8, 4, 2 and 1 apart.
// A partial sum without edges is a zero, which changes nothing: no sum that begins with +0 becomes -0.
//
// Parameters:
//   MOST_THREADS  of a block
#include "gather.cuh"

#ifndef MOST_THREADS
#define MOST_THREADS 256
#endif

namespace {

constexpr int PARTS = 32;

// Sums joined that are half their number apart, then a quarter, and so on.
template <int COUNT> __device__ __forceinline__ Sum joined(Sum (&sum)[COUNT]) {
#pragma unroll
  for (int half = COUNT / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) sum[k].join(sum[k + half]);
  }
  return sum[0];
}

// COUNT partial sums of a row, the first of them `from` and the others `stride` apart, in one thread and joined.
template <int COUNT>
__device__ __forceinline__ Sum sum_parts(const u32* columns, const double* weights, u32 size, u32 from, u32 stride,
                                         const Word* reads, u64 window) {
  Sum part[COUNT];
  for (u64 first = from; first < size; first += PARTS) {
    u32 column[COUNT];
    Word word[COUNT];
    double weight[COUNT];
    // All are on their way before the first is added.
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride < size) column[k] = read_once(columns + first + k * stride);
      if (WEIGHTED && first + k * stride < size) weight[k] = read_once(weights + first + k * stride);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride < size) word[k] = read_struct(reads + column[k]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride >= size) continue;
      if constexpr (WEIGHTED) {
        part[k].add(word[k], column[k], window, weight[k]);
      } else {
        part[k].add(word[k], column[k], window);
      }
    }
  }
  return joined(part);
}

template <int LANES>
__device__ __forceinline__ Sum sum_row(const u32* columns, const double* weights, u32 size, const Word* reads,
                                       u64 window) {
  return sum_parts<PARTS / LANES>(columns, weights, size, lane<LANES>(), LANES, reads, window).template over<LANES>();
}

// A thread has room for eight partial sums; a row of up to eight edges has no more.
template <>
__device__ __forceinline__ Sum sum_row<1>(const u32* columns, const double* weights, u32 size, const Word* reads,
                                          u64 window) {
  constexpr int COUNT = 8, TURNS = PARTS / COUNT;
  if (size <= COUNT) return sum_parts<COUNT>(columns, weights, size, 0, 1, reads, window);
  Sum sum[TURNS];
#pragma unroll
  for (int k = 0; k < TURNS; ++k) sum[k] = sum_parts<COUNT>(columns, weights, size, k, TURNS, reads, window);
  return joined(sum);
}

constexpr u32 BINS = 3;

__device__ __forceinline__ u32 bin_of(u32 size, u32 tiny, u32 small) { return u32(size > tiny) + u32(size > small); }

// Rows of the bins before, as counted.
__device__ __forceinline__ u32 first_of(const u32* counts, u32 bin) {
  return (bin > 0 ? counts[0] : 0) + (bin > 1 ? counts[1] : 0);
}

template <int LANES, u32 BIN>
__device__ __forceinline__ void sum_bin(const u32* offsets, const u32* columns, const double* weights, const u32* order,
                                        const u32* counts, const Stored* reads, u64 window, const Rows& rows) {
  const u64 first = first_of(counts, BIN), last = first + counts[BIN];
  for (u64 k = first + group_number<LANES>(); k < last; k += group_count<LANES>()) {
    const u32 row = order[k], begin = offsets[row], size = offsets[row + 1] - begin;
    const double* const own = WEIGHTED ? weights + begin : nullptr;
    const Sum sum = sum_row<LANES>(columns + begin, own, size, reinterpret_cast<const Word*>(reads), window);
    if (lane<LANES>() == 0) rows.put(row, sum);
  }
}

}  // namespace

// Adds the rows of each bin to `counts`, one thread a row.
extern "C" __global__ void count_rows(const u32* offsets, u32 rows, u32 tiny, u32 small, u32* counts) {
  const u64 row = thread_number();
  const u32 bin = row < rows ? bin_of(offsets[row + 1] - offsets[row], tiny, small) : BINS;
  for (u32 k = 0; k < BINS; ++k) {
    const u32 own = u32(ballot<32>(bin == k));
    if (own && lane<32>() == 0) atomicAdd(counts + k, u32(count_bits(own)));
  }
}

// Brings the rows of each bin together, neighbours side by side. `counts` has BINS counts, and as many zeros before.
extern "C" __global__ void place_rows(const u32* offsets, u32 rows, u32 tiny, u32 small, u32* counts, u32* order) {
  const u64 row = thread_number();
  const u32 bin = row < rows ? bin_of(offsets[row + 1] - offsets[row], tiny, small) : BINS;
  for (u32 k = 0; k < BINS; ++k) {
    const u32 own = u32(ballot<32>(bin == k));
    u32 place = 0;
    if (own && lane<32>() == 0) place = atomicAdd(counts + BINS + k, u32(count_bits(own)));
    place = shuffle<32>(place, 0) + first_of(counts, k);
    if (bin == k) order[place + count_bits(own & u32(lanes_before<32>()))] = u32(row);
  }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    tiny_rows(const u32* offsets, const u32* columns, const double* weights, const u32* order, const u32* counts,
              const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<1, 0>(offsets, columns, weights, order, counts, reads, window, {pushes, proposals});
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    small_rows(const u32* offsets, const u32* columns, const double* weights, const u32* order, const u32* counts,
               const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<16, 1>(offsets, columns, weights, order, counts, reads, window, {pushes, proposals});
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    normal_rows(const u32* offsets, const u32* columns, const double* weights, const u32* order, const u32* counts,
                const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<PARTS, 2>(offsets, columns, weights, order, counts, reads, window, {pushes, proposals});
}
