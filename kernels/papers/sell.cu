// One thread a row over columns that lie side by side: ELL in slices of SLICE rows (SELL-C-sigma, Kreutzer et
// al. 2014), the rows of a window sorted by size so that neighbours are about equally long.
//
// Entry j of slot s is entries[begins[s / SLICE] + SLICE * j + s % SLICE]: the lanes read neighbouring words. Rows of
// more than LONGEST edges, whose slices would be padded most, have 32 lanes each, as in ELL + COO (Bell 2009).
//
// Parameters:
//   WINDOW   rows that are sorted together, a multiple of SLICE
//   LONGEST  most edges of a row in a slice
#include "gather.cuh"

#ifndef WINDOW
#define WINDOW 16384
#endif
#ifndef LONGEST
#define LONGEST 256
#endif

constexpr u32 SLICE = 32;

// Sorts the rows of each window by falling size, those of no edge in a slice last, and finds room for their slices.
// One block of threads a window.
//
//   sizes, numbers  receive the edges in a slice and the number of the row in each slot
//   begins          receives the first entry of each slice
//   long_rows       receives the rows that are too long for slices
//   counts          entries and long rows so far, zeros before
extern "C" __global__ void __launch_bounds__(1024)
    sort_rows(const u32* offsets, u32 rows, u32* sizes, u32* numbers, u32* begins, u32* long_rows, u32* counts) {
  __shared__ u32 places[LONGEST + 1];
  const u64 first = u64(blockIdx.x) * WINDOW;
  const u32 count = rows - first < WINDOW ? u32(rows - first) : WINDOW;
  for (u32 k = threadIdx.x; k <= LONGEST; k += blockDim.x) places[k] = 0;
  __syncthreads();
  for (u32 k = threadIdx.x; k < count; k += blockDim.x) {
    const u32 size = offsets[first + k + 1] - offsets[first + k];
    atomicAdd(places + (size <= LONGEST ? LONGEST - size : LONGEST), 1u);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    u32 before = 0;
    for (u32 from = 0; from <= LONGEST; from += 32) {
      const u32 k = from + lane<32>(), own = k <= LONGEST ? places[k] : 0;
      const u32 sum = group_scan<32>(own);
      if (k <= LONGEST) places[k] = before + sum - own;
      before += shuffle<32>(sum, 31);
    }
  }
  __syncthreads();
  for (u32 k = threadIdx.x; k < count; k += blockDim.x) {
    const u32 row = u32(first) + k, size = offsets[row + 1] - offsets[row];
    const u32 key = size <= LONGEST ? LONGEST - size : LONGEST;
    const u64 slot = first + atomicAdd(places + key, 1u);
    numbers[slot] = row;
    sizes[slot] = LONGEST - key;
    if (size > LONGEST) long_rows[atomicAdd(counts + 1, 1u)] = row;
  }
  __syncthreads();
  for (u32 k = threadIdx.x * SLICE; k < count; k += blockDim.x * SLICE) {
    begins[(first + k) / SLICE] = atomicAdd(counts, SLICE * sizes[first + k]);
  }
}

// Copies the columns of each row to its slot.
extern "C" __global__ void fill_slices(const u32* offsets, const u32* columns, const u32* begins, const u32* sizes,
                                       const u32* numbers, u32 rows, u32* entries) {
  const u64 slot = thread_number();
  if (slot >= rows) return;
  const u32* const own = columns + offsets[numbers[slot]];
  u32* const to = entries + begins[slot / SLICE] + slot % SLICE;
  for (u32 j = 0; j < sizes[slot]; ++j) to[SLICE * j] = own[j];
}

// What fills up a slice is never read.
extern "C" __global__ void sell(const u32* begins, const u32* sizes, const u32* numbers, const u32* entries,
                                const Stored* reads, u64 window, u32 rows, double* pushes, float* proposals) {
  const u64 slot = thread_number();
  if (slot >= rows) return;
  const u32* column_of = entries + begins[slot / SLICE] + slot % SLICE;
  const u32 size = sizes[slot];
  const Word* const words = reinterpret_cast<const Word*>(reads);
  Sum sum;
  for (u32 j = 0; j < size; ++j, column_of += SLICE) {
    const u32 column = read_once(column_of);
    sum.add(read_struct(words + column), column, window);
  }
  Rows{pushes, proposals}.put(numbers[slot], sum);
}

// The long rows, whose sums are zero so far.
extern "C" __global__ void sum_long_rows(const u32* offsets, const u32* columns, const u32* long_rows,
                                         const u32* counts, const Stored* reads, u64 window, double* pushes,
                                         float* proposals) {
  for (u64 k = group_number<32>(); k < counts[1]; k += group_count<32>()) {
    const u32 row = long_rows[k];
    const Word* const words = reinterpret_cast<const Word*>(reads);
    const Sum sum = sum_edges<32>(columns, nullptr, offsets[row], offsets[row + 1], words, window);
    if (lane<32>() == 0) Rows{pushes, proposals}.put(row, sum);
  }
}
