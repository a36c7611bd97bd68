// Names that all kernels share: integers, the warp, and sums whose order does not depend on timing.
//
// The warp size stands here and nowhere else. The sources compile as CUDA, as HIP, and on a host through the
// shim of tests/kernels, for warps of 32 and of 64 lanes. All blocks have one dimension.
#pragma once

#if defined(__HIPCC__) && !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif

#ifndef WARP_SIZE
#ifdef __AMDGCN_WAVEFRONT_SIZE
#define WARP_SIZE __AMDGCN_WAVEFRONT_SIZE
#else
#define WARP_SIZE 32
#endif
#endif

// Shared memory whose size the launch gives: DYNAMIC_SHARED(bytes); declares `unsigned char* bytes`.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(name)                                        \
  extern __shared__ __align__(16) unsigned char name##_of_launch[]; \
  unsigned char* const name = name##_of_launch
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr int WARP = WARP_SIZE;
static_assert(WARP == 32 || WARP == 64, "a warp has 32 or 64 lanes");

template <int LANES> struct LaneMaskOf { using Type = u32; };
template <> struct LaneMaskOf<64> { using Type = u64; };
using LaneMask = LaneMaskOf<WARP>::Type;

// Number of this thread in the grid, and of the grid's threads.
__device__ __forceinline__ u64 thread_number() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 thread_count() { return u64(gridDim.x) * blockDim.x; }

// A group is LANES neighbouring lanes, a power of two, that call together; other groups of the warp may be
// elsewhere. lane() is a thread's number in its group, group_number() the group's in the grid.
template <int LANES = WARP> __device__ __forceinline__ int lane() { return int(threadIdx.x) & (LANES - 1); }
template <int LANES = WARP> __device__ __forceinline__ u64 group_number() { return thread_number() / LANES; }
template <int LANES = WARP> __device__ __forceinline__ u64 group_count() { return thread_count() / LANES; }

template <int LANES = WARP> __device__ __forceinline__ LaneMask group_mask() {
  static_assert(LANES <= WARP && (LANES & (LANES - 1)) == 0, "a group is a power of two within a warp");
  if constexpr (LANES == WARP) {
    return ~LaneMask(0);
  } else {
    return ((LaneMask(1) << LANES) - 1) << (lane() & ~(LANES - 1));
  }
}

// Below, HIP's functions without masks stand where CUDA asks for the lanes that take part.
template <int LANES = WARP, class T> __device__ __forceinline__ T shuffle(T value, int source) {
#ifdef __HIPCC__
  return __shfl(value, source, LANES);
#else
  return __shfl_sync(group_mask<LANES>(), value, source, LANES);
#endif
}

// The value of the lane `distance` before; the first lanes keep their own.
template <int LANES = WARP, class T> __device__ __forceinline__ T shuffle_up(T value, int distance) {
#ifdef __HIPCC__
  return __shfl_up(value, distance, LANES);
#else
  return __shfl_up_sync(group_mask<LANES>(), value, distance, LANES);
#endif
}

// The value of the lane `distance` behind; the last lanes keep their own.
template <int LANES = WARP, class T> __device__ __forceinline__ T shuffle_down(T value, int distance) {
#ifdef __HIPCC__
  return __shfl_down(value, distance, LANES);
#else
  return __shfl_down_sync(group_mask<LANES>(), value, distance, LANES);
#endif
}

template <int LANES = WARP, class T> __device__ __forceinline__ T shuffle_xor(T value, int bits) {
#ifdef __HIPCC__
  return __shfl_xor(value, bits, LANES);
#else
  return __shfl_xor_sync(group_mask<LANES>(), value, bits, LANES);
#endif
}

// Bit i is lane i's answer, counted within the group.
template <int LANES = WARP> __device__ __forceinline__ LaneMask ballot(bool answer) {
#ifdef __HIPCC__
  const LaneMask bits = LaneMask(__ballot(answer));
#else
  const LaneMask bits = __ballot_sync(group_mask<LANES>(), answer);
#endif
  if constexpr (LANES == WARP) {
    return bits;
  } else {
    return (bits & group_mask<LANES>()) >> (lane() & ~(LANES - 1));
  }
}

// What a lane wrote to memory before, the group's other lanes read after.
template <int LANES = WARP> __device__ __forceinline__ void sync_group() {
#ifdef __HIPCC__
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp(group_mask<LANES>());
#endif
}

__device__ __forceinline__ int count_bits(u32 bits) { return __popc(bits); }
__device__ __forceinline__ int count_bits(u64 bits) { return __popcll(bits); }

// Number of the lowest and of the highest bit that is set; -1 for none.
__device__ __forceinline__ int lowest_bit(u32 bits) { return __ffs(int(bits)) - 1; }
__device__ __forceinline__ int lowest_bit(u64 bits) { return __ffsll(i64(bits)) - 1; }
__device__ __forceinline__ int highest_bit(u32 bits) { return 31 - __clz(int(bits)); }
__device__ __forceinline__ int highest_bit(u64 bits) { return 63 - __clzll(i64(bits)); }

// Bits of the lanes before this one.
template <int LANES = WARP> __device__ __forceinline__ LaneMask lanes_before() {
  return (LaneMask(1) << lane<LANES>()) - 1;
}

// Sum over a group, the same bits in every lane: partners add the same two numbers.
template <int LANES = WARP, class T> __device__ __forceinline__ T group_sum(T value) {
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) value += shuffle_xor<LANES>(value, bits);
  return value;
}

template <int LANES = WARP, class T> __device__ __forceinline__ T group_max(T value) {
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
    const T other = shuffle_xor<LANES>(value, bits);
    value = other > value ? other : value;
  }
  return value;
}

// Sum over the lanes up to and including this one.
template <int LANES = WARP, class T> __device__ __forceinline__ T group_scan(T value) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    const T before = shuffle_up<LANES>(value, distance);
    if (lane<LANES>() >= distance) value += before;
  }
  return value;
}

// Sum over a block of at most WARP * WARP threads, the same bits in every thread; `scratch` is shared memory
// for one number a warp. All threads of the block call it, and may use `scratch` again afterwards.
template <class T> __device__ __forceinline__ T block_sum(T value, T* scratch) {
  const int warps = int(blockDim.x + WARP - 1) / WARP;
  value = group_sum(value);
  if (lane() == 0) scratch[threadIdx.x / WARP] = value;
  __syncthreads();
  value = group_sum(lane() < warps ? scratch[lane()] : T(0));
  __syncthreads();
  return value;
}

// A number read once: it need not stay in the cache. `from` must not be written by the same kernel.
template <class T> __device__ __forceinline__ T read_once(const T* from) {
#ifdef __HIPCC__
  if constexpr (__is_class(T)) {
    // The builtin takes the compiler's own vectors; HIP's uint2 and uint4 are structures.
    using Raw = u32 __attribute__((ext_vector_type(sizeof(T) / sizeof(u32))));
    const Raw raw = __builtin_nontemporal_load(reinterpret_cast<const Raw*>(from));
    T value;
    memcpy(&value, &raw, sizeof value);
    return value;
  } else {
    return __builtin_nontemporal_load(from);
  }
#else
  return __ldcs(from);
#endif
}

// Bits set in any lane of a group. Where the device joins them itself, it also knows that all lanes have the same.
template <int LANES = WARP> __device__ __forceinline__ u32 group_or(u32 bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_or_sync(group_mask<LANES>(), bits);
#else
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) bits |= shuffle_xor<LANES>(bits, distance);
  return bits;
#endif
}

// A number that others read too, through the read-only cache. `from` must not be written by the same kernel.
template <class T> __device__ __forceinline__ T read_shared(const T* from) { return __ldg(from); }

template <int BYTES> struct RawOf { using Type = uint4; };
template <> struct RawOf<1> { using Type = u8; };
template <> struct RawOf<2> { using Type = u16; };
template <> struct RawOf<4> { using Type = u32; };
template <> struct RawOf<8> { using Type = uint2; };

// A structure through the read-only cache, in as few loads as there can be; it is aligned to its size or to 16.
template <class T> __device__ __forceinline__ T read_struct(const T* from) {
  using Raw = typename RawOf<sizeof(T)>::Type;
  constexpr int PIECES = int(sizeof(T) / sizeof(Raw));
  Raw raw[PIECES];
#pragma unroll
  for (int k = 0; k < PIECES; ++k) raw[k] = read_shared(reinterpret_cast<const Raw*>(from) + k);
  T value;
  memcpy(&value, raw, sizeof value);
  return value;
}
