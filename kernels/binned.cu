// The row-binned hybrid of Wu et al. 2010: rows sorted by size, and for each size as many lanes as pay.
//
// A row is described by where it begins, its size, and its number. Descriptors first .. last - 1 are of one bin:
// tiny rows have a thread, small ones 16 lanes, others a warp.
#include "gather.cuh"

namespace {

template <int LANES>
__device__ __forceinline__ void sum_bin(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last,
                                        const u32* columns, const Stored* reads, u64 window, const Rows& rows) {
  const u64 k = first + group_number<LANES>();
  if (k >= last) return;
  const Word* const words = reinterpret_cast<const Word*>(reads);
  const u64 begin = begins[k];
  const Sum sum = sum_edges<LANES>(columns, begin, begin + sizes[k], words, window);
  if (lane<LANES>() == 0) rows.put(numbers[k], sum);
}

}  // namespace

extern "C" __global__ void tiny_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last,
                                     const u32* columns, const Stored* reads, u64 window, double* pushes,
                                     float* proposals) {
  sum_bin<1>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}

extern "C" __global__ void small_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last,
                                      const u32* columns, const Stored* reads, u64 window, double* pushes,
                                      float* proposals) {
  sum_bin<16>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}

extern "C" __global__ void normal_rows(const Index* begins, const u32* sizes, const u32* numbers, u32 first, u32 last,
                                       const u32* columns, const Stored* reads, u64 window, double* pushes,
                                       float* proposals) {
  sum_bin<WARP>(begins, sizes, numbers, first, last, columns, reads, window, {pushes, proposals});
}
