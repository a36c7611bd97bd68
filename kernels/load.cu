// Pushes on their way to where rows gather.
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
