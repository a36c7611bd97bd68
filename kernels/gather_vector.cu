// The vector that rows gather from: pushes on their way there, and what partitions of the nodes bring one after the
// other (see oocpr/plan/partition.py).
//
// Parameters: READS and PAIRED as in gather.cuh.
#include "gather.cuh"

// Puts a stripe's push where rows gather; proposals begin at zero.
extern "C" __global__ void load_pushes(const Stored* stored, u64 count, u64 first, Stored* numbers) {
  const u64 k = thread_number();
  if (k >= count) return;
#if PAIRED
  reinterpret_cast<Word*>(numbers)[first + k] = {stored[k], Stored(0)};
#else
  numbers[first + k] = stored[k];
#endif
}

// Puts what rows propose beside what they push.
extern "C" __global__ void load_proposals(const Stored* stored, u64 count, u64 first, Stored* numbers) {
  const u64 k = thread_number();
  if (k < count) numbers[2 * (first + k) + 1] = stored[k];
}

// Takes what rows propose from where others gather it, and leaves zeros.
extern "C" __global__ void take_proposals(Stored* taken, u64 count, u64 first, Stored* numbers) {
  const u64 k = thread_number();
  if (k >= count) return;
  taken[k] = numbers[2 * (first + k) + 1];
  numbers[2 * (first + k) + 1] = Stored(0);
}

// Which slice has just been gathered; as in oocpr/engine/cuda/vectors.py.
enum Turn { FIRST = 0, NEXT = 1, LAST = 2 };

// Keeps what the first slice has brought to each segment, adds to that what another has, and gives all of it back.
extern "C" __global__ void keep_sums(double* pushes, double* kept, u64 count, int turn) {
  const u64 k = thread_number();
  if (k >= count) return;
  const double own = pushes[k], all = turn == FIRST ? own : kept[k] + own;
  (turn == LAST ? pushes : kept)[k] = all;
}
