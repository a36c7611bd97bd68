// How few bits of a number are stored: the formats of oocpr/engine/number_formats.py, and the heads of CPMS.
//
// A format is a struct, named by the parameter READS of a source:
//   Stored          type of the stored number
//   SCALED          whether widen() leaves a factor `scale` to the caller; a power of two, so taking it out of
//                   a sum changes no bit
//   widen(stored)   the number, exactly
//   narrow(x, s)    the stored number nearest to x; s is the scale, read by SCALED formats only
//
// Numbers below 2^-126 are stored as zero by the 16- and 32-bit formats, since CuPy compiles with subnormal
// float32 flushed to zero; elsewhere all bits are those of reads.py.
#pragma once
#include "common.cuh"

constexpr double LEAST_FLOAT = 0x1p-126;

// The upper half of a double: sign, exponent, 20 bits.
__device__ __forceinline__ u32 high_word(double value) { return u32(u64(__double_as_longlong(value)) >> 32); }

struct Float64 {
  using Stored = double;
  static constexpr bool SCALED = false;
  static __device__ __forceinline__ double widen(Stored stored) { return stored; }
  static __device__ __forceinline__ Stored narrow(double value, double) { return value; }
};

struct Float32 {
  using Stored = float;
  static constexpr bool SCALED = false;
  static __device__ __forceinline__ double widen(Stored stored) { return double(stored); }
  static __device__ __forceinline__ Stored narrow(double value, double) {
    if (fabs(value) < LEAST_FLOAT) return __uint_as_float(high_word(value) & 0x80000000u);
    return float(value);
  }
};

// Sign, 8 bits of exponent, 7 of mantissa: the upper half of a float32, rounded to nearest even.
struct Bits16 {
  using Stored = u16;
  static constexpr bool SCALED = false;
  static __device__ __forceinline__ double widen(Stored stored) {
    return double(__uint_as_float(u32(stored) << 16));
  }
  static __device__ __forceinline__ Stored narrow(double value, double) {
    const u32 bits = __float_as_uint(Float32::narrow(value, 1.0));
    return Stored((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
};

// Sign and a logarithm: level k of 1 .. 127 is 2^((k - 127) / 5), its fraction rounded to 20 bits; 0 is zero.
struct Bits8 {
  using Stored = u8;
  static constexpr bool SCALED = true;

  // 2^(step / 5) as the bits of a float32 between 1 and 2.
  static __device__ __forceinline__ u32 fraction(u32 step) {
    const u32 low = step == 0 ? 0x3F800000u : 0x3F930890u;
    const u32 high = step == 2 ? 0x3FA8E5A0u : step == 3 ? 0x3FC20300u : 0x3FDEDC68u;
    return step < 2 ? low : high;
  }

  static __device__ __forceinline__ float magnitude(u32 level) {
    const u32 steps = level + 3;               // 130 steps above 2^-26
    const u32 octave = steps * 205 >> 10;      // steps / 5, for steps <= 1023 / 4
    const u32 bits = fraction(steps - 5 * octave) + (octave << 23) - (26u << 23);
    return level == 0 ? 0.0f : __uint_as_float(bits);
  }

  static __device__ __forceinline__ double widen(Stored stored) {
    const float size = magnitude(stored & 127u);
    return double(__uint_as_float(__float_as_uint(size) | (u32(stored) & 128u) << 24));
  }

  static __device__ __forceinline__ Stored narrow(double value, double scale) {
    const double size = fabs(value) / scale;
    if (!(size >= double(magnitude(1)) / 2)) return 0;
    const u64 bits = u64(__double_as_longlong(size));
    const int octave = int(bits >> 52) - 1023;
    const double mantissa = __longlong_as_double(i64((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull));
    int step = 0;
#pragma unroll
    for (u32 k = 0; k < 5; ++k) {
      const double low = double(__uint_as_float(fraction(k)));
      const double high = k == 4 ? 2.0 : double(__uint_as_float(fraction(k + 1)));
      step += mantissa >= (low + high) / 2;
    }
    int level = 127 + 5 * octave + step;
    level = level < 1 ? 1 : level > 127 ? 127 : level;
    return Stored(level + (value < 0 ? 128 : 0));
  }
};

// The first BITS bits of a float64, the others cut off: one or more segments of CPMS (Gruetzmacher et al. 2018).
template <class T> struct Head {
  using Stored = T;
  static constexpr bool SCALED = false;
  static constexpr int CUT = 64 - 8 * int(sizeof(T));
  static __device__ __forceinline__ double widen(Stored stored) {
    return __longlong_as_double(i64(u64(stored) << CUT));
  }
  static __device__ __forceinline__ Stored narrow(double value, double) {
    return Stored(u64(__double_as_longlong(value)) >> CUT);
  }
};
using Head16 = Head<u16>;
using Head32 = Head<u32>;

// A sum and one number more.
template <class Reads> __device__ __forceinline__ double add_widened(double sum, typename Reads::Stored stored) {
  return sum + Reads::widen(stored);
}

// The bits of a float32, three places lower, are those of a float64 smaller by 2^896, subnormal ones included:
// one fused step widens and adds, without rounding in between.
template <> __device__ __forceinline__ double add_widened<Bits16>(double sum, u16 stored) {
  const u32 high = u32(i32(u32(stored) << 16) >> 3) & 0x8FFFFFFFu;
  return fma(__longlong_as_double(i64(u64(high) << 32)), 0x1p896, sum);
}
