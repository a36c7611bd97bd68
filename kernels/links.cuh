// What a row's rank is divided by, and whether anything leaves the row.
//
// Parameters:
//   WEIGHTED  0: out-degrees; 1: the weight that leaves each row, -1 where none does
#pragma once
#include "common.cuh"

#ifndef WEIGHTED
#define WEIGHTED 0
#endif

#if WEIGHTED
using Links = double;
__device__ __forceinline__ double divisor_of(Links links) { return fabs(links); }
__device__ __forceinline__ bool dangles(Links links) { return links < 0; }
#else
using Links = u32;
__device__ __forceinline__ double divisor_of(Links links) { return double(links > 0 ? links : 1); }
__device__ __forceinline__ bool dangles(Links links) { return links == 0; }
#endif

// The same in a precision that will do for proposals.
__device__ __forceinline__ float short_divisor_of(Links links) { return float(divisor_of(links)); }
