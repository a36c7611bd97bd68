// Weights of links, in mantissa segments; see oocpr/store/codec/mantissa_segments.py.
#pragma once
#include "common.cuh"

constexpr int WEIGHT_PARTS = 4;  // of 16 bits each, those with sign and exponent first
constexpr int PIECE = 8;     // weights that are read at a time, in one load a segment

// Weights of a tile's links; `parts` that are null stand for zeros.
struct Weights {
  const u16* parts[WEIGHT_PARTS];
  u32 size;       // the weights of links behind these are zero
  double factor;  // what all are multiplied by, a power of two

  // Bits of the weights of PIECE links from a multiple of PIECE on.
  struct Piece {
    u32 words[WEIGHT_PARTS][PIECE / 2];

    __device__ __forceinline__ u64 at(int k, int i) const { return words[k][i / 2] >> (16 * (i % 2)) & 0xFFFFu; }

    __device__ __forceinline__ double bits(int i) const {
      return __longlong_as_double(i64(at(0, i) << 48 | at(1, i) << 32 | at(2, i) << 16 | at(3, i)));
    }
  };

  __device__ __forceinline__ Piece read(u32 first) const {
    Piece piece;
#pragma unroll
    for (int k = 0; k < WEIGHT_PARTS; ++k) {
#pragma unroll
      for (int w = 0; w < PIECE / 2; ++w) piece.words[k][w] = 0;
      if (!parts[k]) continue;
      if (first + PIECE <= size) {
        const uint4 four = read_shared(reinterpret_cast<const uint4*>(parts[k] + first));
        memcpy(piece.words[k], &four, sizeof four);
      } else {
#pragma unroll
        for (u32 i = 0; i < PIECE; ++i) {
          if (first + i < size) piece.words[k][i / 2] |= u32(parts[k][first + i]) << (16 * (i % 2));
        }
      }
    }
    return piece;
  }
};
