// The k largest of many numbers and where they are; of equal ones, those that come first.
//
// A number and its place make a key of 96 bits that no other has. The k-th largest key is found digit by digit,
// counting (whole numbers, so in any order) how many keys that begin like it have which next digit. A launch of
// `count_digit` and one of `choose_digit` find a digit; twelve such pairs, the highest digit first.
#include "common.cuh"

constexpr int DIGITS = 256;
constexpr int VALUE_DIGITS = 8;  // and four of the place

// What is known of the k-th largest key, and how many keys that begin like it are among the k.
struct Selection {
  u64 value;
  u32 place;
  u32 left;
};

struct Key {
  u64 value;
  u32 place;

  __device__ __forceinline__ u32 digit(int number) const {
    return number < VALUE_DIGITS ? u32(value >> 8 * (VALUE_DIGITS - 1 - number) & 255) : place >> 8 * (11 - number) & 255;
  }

  // Whether the first `digits` digits are those of the other.
  __device__ __forceinline__ bool begins_like(const Selection& other, int digits) const {
    if (digits == 0) return true;
    if (digits <= VALUE_DIGITS) return (value ^ other.value) >> 8 * (VALUE_DIGITS - digits) == 0;
    return value == other.value && (place ^ other.place) >> 8 * (12 - digits) == 0;
  }
};

// Larger keys for larger numbers, and for smaller places; -0 is 0.
__device__ __forceinline__ Key key_of(double value, u64 place) {
  const u64 bits = u64(__double_as_longlong(value + 0.0));
  return {bits ^ (bits >> 63 ? ~0ull : 1ull << 63), ~u32(place)};
}

extern "C" __global__ void count_digit(const double* values, u64 count, int digit, const u64* selection, u32* counts) {
  __shared__ u32 own[DIGITS];
  for (int k = threadIdx.x; k < DIGITS; k += blockDim.x) own[k] = 0;
  __syncthreads();
  const Selection found = *reinterpret_cast<const Selection*>(selection);
  for (u64 k = thread_number(); k < count; k += thread_count()) {
    const Key key = key_of(read_once(values + k), k);
    if (key.begins_like(found, digit)) atomicAdd(own + key.digit(digit), 1u);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < DIGITS; k += blockDim.x) {
    if (own[k]) atomicAdd(counts + k, own[k]);
  }
}

// One block of DIGITS threads; leaves the counts at zero for the next digit.
extern "C" __global__ void choose_digit(int digit, u64* selection, u32* counts) {
  __shared__ u32 own[DIGITS];
  own[threadIdx.x] = counts[threadIdx.x];
  counts[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Selection& found = *reinterpret_cast<Selection*>(selection);
  u32 left = found.left;
  int chosen = DIGITS - 1;
  while (chosen > 0 && own[chosen] < left) left -= own[chosen--];
  found.left = left;
  if (digit < VALUE_DIGITS) {
    found.value |= u64(chosen) << 8 * (VALUE_DIGITS - 1 - digit);
  } else {
    found.place |= u32(chosen) << 8 * (11 - digit);
  }
}

// Collects the keys that are no smaller than the one found, in any order; `taken` counts them.
extern "C" __global__ void take(const double* values, u64 count, const u64* selection, u32* taken, u32* places,
                                double* largest) {
  const Selection found = *reinterpret_cast<const Selection*>(selection);
  for (u64 k = thread_number(); k < count; k += thread_count()) {
    const double value = read_once(values + k);
    const Key key = key_of(value, k);
    if (key.value > found.value || (key.value == found.value && key.place >= found.place)) {
      const u32 at = atomicAdd(taken, 1u);
      places[at] = u32(k);
      largest[at] = value;
    }
  }
}
