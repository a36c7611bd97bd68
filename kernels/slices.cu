// What slices of the nodes bring to the segments of a tile, one after the other; see oocpr/plan/partition.py.
#include "common.cuh"

// Which slice has just been gathered; as in oocpr/engine/cuda/partitions.py.
enum Turn { FIRST = 0, NEXT = 1, LAST = 2 };

// Keeps what the first slice has brought to each segment, adds to that what another has, and gives all of it back.
extern "C" __global__ void keep_sums(double* pushes, double* kept, u64 count, int turn) {
  const u64 k = thread_number();
  if (k >= count) return;
  const double own = pushes[k], all = turn == FIRST ? own : kept[k] + own;
  (turn == LAST ? pushes : kept)[k] = all;
}
