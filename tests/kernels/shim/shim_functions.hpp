// The functions of CUDA that kernels call, in terms of the scheduler of shim.hpp.
#pragma once

#define SHIM_INLINE inline __attribute__((always_inline))

SHIM_INLINE void __syncthreads() { shim::barrier(); }

SHIM_INLINE void __syncwarp(shim::Mask mask = ~shim::Mask(0)) {
  shim::collective(shim::Kind::sync, mask, 0, 0, false);
}

SHIM_INLINE shim::Mask __ballot_sync(shim::Mask mask, int answer) {
  return shim::Mask(shim::collective(shim::Kind::ballot, mask, answer != 0, 0, false));
}
SHIM_INLINE int __any_sync(shim::Mask mask, int answer) { return __ballot_sync(mask, answer) != 0; }
SHIM_INLINE int __all_sync(shim::Mask mask, int answer) { return __ballot_sync(mask, answer) == mask; }

namespace shim {
template <class T> SHIM_INLINE T shuffle_from(Mask mask, T value, int source, bool takes) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles numbers of 4 and of 8 bytes");
  return from_bits<T>(collective(Kind::shuffle, mask, bits_of(value), source, takes));
}
}  // namespace shim

template <class T> SHIM_INLINE T __shfl_sync(shim::Mask mask, T value, int source, int width = WARP_SIZE) {
  return shim::shuffle_from(mask, value, (shim::own_lane() & -width) | (source & (width - 1)), true);
}
template <class T> SHIM_INLINE T __shfl_up_sync(shim::Mask mask, T value, unsigned distance, int width = WARP_SIZE) {
  const int source = shim::own_lane() - int(distance);
  return shim::shuffle_from(mask, value, source, source >= (shim::own_lane() & -width));
}
template <class T> SHIM_INLINE T __shfl_down_sync(shim::Mask mask, T value, unsigned distance, int width = WARP_SIZE) {
  const int source = shim::own_lane() + int(distance);
  return shim::shuffle_from(mask, value, source, source < (shim::own_lane() & -width) + width);
}
template <class T> SHIM_INLINE T __shfl_xor_sync(shim::Mask mask, T value, int bits, int width = WARP_SIZE) {
  const int source = shim::own_lane() ^ bits;
  // Earlier groups may be asked, later ones not.
  return shim::shuffle_from(mask, value, source, source < (shim::own_lane() & -width) + width);
}

inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] __attribute__((noinline)) inline void __trap() {
  shim::fail("thread %u trapped at {+%zx}", shim::current->number, shim::at(__builtin_return_address(0)));
  for (;;) shim::to_scheduler();
}

// One system thread: what other threads can see is a whole number of statements.
template <class T, class U> T atomicExch(T* at, U value) { return std::exchange(*at, T(value)); }
template <class T, class U> T atomicAdd(T* at, U value) { return std::exchange(*at, T(*at + T(value))); }
template <class T, class U> T atomicSub(T* at, U value) { return std::exchange(*at, T(*at - T(value))); }
template <class T, class U> T atomicOr(T* at, U value) { return std::exchange(*at, T(*at | T(value))); }
template <class T, class U> T atomicAnd(T* at, U value) { return std::exchange(*at, T(*at & T(value))); }
template <class T, class U> T atomicMax(T* at, U value) {
  return std::exchange(*at, *at > T(value) ? *at : T(value));
}
template <class T, class U> T atomicMin(T* at, U value) {
  return std::exchange(*at, *at < T(value) ? *at : T(value));
}
template <class T, class U, class V> T atomicCAS(T* at, U expected, V value) {
  return std::exchange(*at, *at == T(expected) ? T(value) : *at);
}

template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> void __stcg(T* to, T value) { *to = value; }

inline float __uint_as_float(unsigned bits) { return shim::from_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return unsigned(shim::bits_of(value)); }
inline double __longlong_as_double(long long bits) { return shim::from_bits<double>(uint64_t(bits)); }
inline long long __double_as_longlong(double value) { return (long long)(shim::bits_of(value)); }

inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
inline int __clzll(long long bits) { return bits ? __builtin_clzll((unsigned long long)(bits)) : 64; }
inline unsigned __brev(unsigned bits) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (bits >> i & 1) << (31 - i);
  return out;
}
// The shift wraps at 32.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32) | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((((uint64_t(high) << 32) | low) << (shift & 31)) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }

using std::fabs, std::fma, std::isnan, std::sqrt;
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

#define SHIM_VECTORS(T, name)                                                 \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };         \
  struct __attribute__((aligned(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)))) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VECTORS(unsigned char, uchar)
SHIM_VECTORS(unsigned short, ushort)
SHIM_VECTORS(unsigned, uint)
SHIM_VECTORS(int, int)
SHIM_VECTORS(float, float)
SHIM_VECTORS(double, double)
SHIM_VECTORS(unsigned long long, ulonglong)
#undef SHIM_VECTORS
