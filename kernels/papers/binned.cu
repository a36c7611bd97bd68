// The row-binned hybrid of Wu et al. 2010: rows sorted by size, and for each size as many lanes as pay.
//
// A row is described by where it begins, its size, and its number. Descriptors first .. last - 1 are of one bin:
// tiny rows have a thread, small ones 16 lanes, others 32.
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
__device__ __forceinline__ Sum sum_parts(const u32* columns, u32 size, u32 from, u32 stride, const Word* reads,
                                         u64 window) {
  Sum part[COUNT];
  for (u64 first = from; first < size; first += PARTS) {
    u32 column[COUNT];
    Word word[COUNT];
    // All are on their way before the first is added.
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride < size) column[k] = read_once(columns + first + k * stride);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride < size) word[k] = read_struct(reads + column[k]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (first + k * stride < size) part[k].add(word[k], column[k], window);
    }
  }
  return joined(part);
}

template <int LANES>
__device__ __forceinline__ Sum sum_row(const u32* columns, u32 size, const Word* reads, u64 window) {
  return sum_parts<PARTS / LANES>(columns, size, lane<LANES>(), LANES, reads, window).template over<LANES>();
}

// A thread has room for eight partial sums; a row of up to eight edges has no more.
template <> __device__ __forceinline__ Sum sum_row<1>(const u32* columns, u32 size, const Word* reads, u64 window) {
  constexpr int COUNT = 8, TURNS = PARTS / COUNT;
  if (size <= COUNT) return sum_parts<COUNT>(columns, size, 0, 1, reads, window);
  Sum sum[TURNS];
#pragma unroll
  for (int k = 0; k < TURNS; ++k) sum[k] = sum_parts<COUNT>(columns, size, k, TURNS, reads, window);
  return joined(sum);
}

template <int LANES>
__device__ __forceinline__ void sum_bin(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last,
                                        const u32* columns, const Stored* reads, u64 window, const Rows& rows) {
  const u64 k = first + group_number<LANES>();
  if (k >= last) return;
  const Sum sum = sum_row<LANES>(columns + begins[k], sizes[k], reinterpret_cast<const Word*>(reads), window);
  if (lane<LANES>() == 0) rows.put(numbers[k], sum);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    tiny_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last, const u32* columns,
              const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<1>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    small_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last, const u32* columns,
               const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<16>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    normal_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last, const u32* columns,
                const Stored* reads, u64 window, double* pushes, float* proposals) {
  sum_bin<PARTS>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}
