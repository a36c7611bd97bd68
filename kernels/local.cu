// Tile-local sweeps: between two products with the links that stay inside a tile (product.cu with LOCAL), each row
// becomes what it has from outside and the sum of its segment.
//
// Parameters: WEIGHTED as in links.cuh.
#include "links.cuh"
#include "segments.cuh"

// start, sums, sends as in vectors.cu.
extern "C" __global__ void settle(const float* start, const double* sums, const u32* filled, const u32* filled_before,
                                  u64 owned, u64 offset, const Links* degree, double damping, float* sends) {
  const u64 i = thread_number();
  if (i >= owned) return;
  const u32 rank = Filled{filled, filled_before}.rank(i);
  const float value = start[i] + (rank == NOTHING ? 0 : float(sums[rank]));
  sends[i] = float(damping) / short_divisor_of(degree[offset + i]) * value;
}
