// Add, L1 norm and L1 distance of vectors in kernels of their own, as Wu et al. 2010 has them.
//
// Launched with any number of blocks. Sums have one order for a number of blocks; `add_partials` adds up what the
// blocks leave, and is launched with one.
//
// Parameters:
//   NUMBER  float or double
#include "common.cuh"

#ifndef NUMBER
#define NUMBER float
#endif

namespace {

// Adds up what `of` gives for each number of the block's threads, for thread 0 to store.
template <class Of> __device__ __forceinline__ void add_up(u64 count, NUMBER* sums, Of of) {
  __shared__ NUMBER scratch[WARP];
  NUMBER sum = 0;
  for (u64 k = thread_number(); k < count; k += thread_count()) sum += of(k);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__device__ __forceinline__ NUMBER magnitude(NUMBER value) { return value < 0 ? -value : value; }

}  // namespace

extern "C" __global__ void add_vectors(const NUMBER* a, const NUMBER* b, u64 count, NUMBER* out) {
  for (u64 k = thread_number(); k < count; k += thread_count()) out[k] = read_once(a + k) + read_once(b + k);
}

extern "C" __global__ void norm_partials(const NUMBER* a, u64 count, NUMBER* partials) {
  add_up(count, partials, [=](u64 k) { return magnitude(read_once(a + k)); });
}

extern "C" __global__ void distance_partials(const NUMBER* a, const NUMBER* b, u64 count, NUMBER* partials) {
  add_up(count, partials, [=](u64 k) { return magnitude(read_once(a + k) - read_once(b + k)); });
}

extern "C" __global__ void add_partials(const NUMBER* partials, u64 count, NUMBER* sum) {
  add_up(count, sum, [=](u64 k) { return partials[k]; });
}
