// Kernels that pack a stream of values (oocpr/store/format.py), the inverse of unpack in decode.cuh: to the bit
// what oocpr/store/streams.py makes of it on the host.
//
// Launched with a multiple of 32 threads a block, 32 threads for each 1024 values.
#include "decode.cuh"

constexpr u32 MOST_BEYOND = 22;     // bits that an exception may have beyond its group's width
constexpr u32 NARROW_BITS = 6;      // bits of a narrow one
constexpr u32 EXCEPTION_BITS = 16;  // what an exception costs, and a wide one once more

namespace {

__device__ __forceinline__ u32 value_at(const u32* values, u64 i, u32 count) { return i < count ? values[i] : 0; }

}  // namespace

// Chooses the width of least bits for each group of 32 values, the largest of those that are equally good.
//
//   widths  one a group
//   sizes   3 a block: bits of a lane, narrow exceptions, wide ones
extern "C" __global__ void choose_widths(const u32* values, u32 count, u8* widths, u32* sizes) {
  const u64 b = group_number<GROUP>();
  if (b >= (u64(count) + (BLOCK - 1)) / BLOCK) return;
  const u32 me = u32(lane<GROUP>());
  u32 bits = 0, narrow = 0, wide = 0;
  for (u32 g = 0; g < GROUP && BLOCK * b + GROUP * g < count; ++g) {
    const u32 value = value_at(values, BLOCK * b + GROUP * g + me, count);
    const u32 length = u32(highest_bit(value) + 1);
    const u32 full = group_max<GROUP>(length);
    // Lane w tries width w: `longer` values have more bits than it.
    u32 longer = 0;
    for (u32 w = 0; w < full; ++w) {
      const u32 votes = u32(count_bits(ballot<GROUP>(length > w)));
      longer = me == w ? votes : longer;
    }
    u32 longest = shuffle_down<GROUP>(longer, int(NARROW_BITS));
    longest = me + NARROW_BITS < GROUP ? longest : 0;
    // The least cost wins, then the largest width: both in one number.
    const u32 whole = (GROUP * full << 6) | (GROUP - full);
    const u32 mine = ((GROUP * me + EXCEPTION_BITS * (longer + longest)) << 6) | (GROUP - me);
    const bool allowed = me < full && full - me <= MOST_BEYOND;
    const u32 best = ~group_max<GROUP>(~(allowed && mine < whole ? mine : whole));
    const u32 width = GROUP - (best & 63);
    if (width < full) {
      const u32 cut_wide = shuffle<GROUP>(longest, int(width));
      narrow += shuffle<GROUP>(longer, int(width)) - cut_wide;
      wide += cut_wide;
    }
    bits += width;
    if (me == 0) widths[GROUP * b + g] = u8(width);
  }
  if (me < 3) sizes[3 * b + me] = me == 0 ? bits : me == 1 ? narrow : wide;
}

// Writes the bits of each block, and its exceptions.
//
//   directory  4 a block: first bit of a lane, first narrow and first wide exception; the fourth is not looked at
//   words      zeros before
extern "C" __global__ void pack_values(const u32* values, u32 count, const u8* widths, const u32* directory,
                                       u32* words, u32* wide, u16* narrow) {
  const u64 b = group_number<GROUP>();
  if (b >= (u64(count) + (BLOCK - 1)) / BLOCK) return;
  const u32 me = u32(lane<GROUP>());
  u32 position = directory[4 * b], first_narrow = directory[4 * b + 1], first_wide = directory[4 * b + 2];
  u32 word = 0;
  for (u32 g = 0; g < GROUP && BLOCK * b + GROUP * g < count; ++g) {
    const u32 value = value_at(values, BLOCK * b + GROUP * g + me, count);
    const u32 width = widths[GROUP * b + g];
    const u32 low = low_bits(value, width), shift = position & 31;
    word |= low << shift;
    if (shift + width >= 32) {
      // Neighbouring blocks may share a row of words.
      atomicOr(words + GROUP * u64(position / 32) + me, word);
      word = low >> 1 >> (31 - shift);
    }
    position += width;
    const u32 high = u32(u64(value) >> width);
    const u32 entry = (GROUP * g + me) | high << 10;
    const bool small = high < 1u << NARROW_BITS;
    const u32 smalls = u32(ballot<GROUP>(high && small)), larges = u32(ballot<GROUP>(!small));
    const u32 before = u32(lanes_before<GROUP>());
    if (high && small) narrow[first_narrow + count_bits(smalls & before)] = u16(entry);
    if (!small) wide[first_wide + count_bits(larges & before)] = entry;
    first_narrow += count_bits(smalls);
    first_wide += count_bits(larges);
  }
  if (word) atomicOr(words + GROUP * u64(position / 32) + me, word);
}
