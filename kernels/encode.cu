// Kernels that pack a tile (oocpr/store/format.py), the inverse of those in decode.cu: to the bit what
// oocpr/store/codec/tile_encoder.py makes of it on the host.
//
// Streams lie one after the other, zeros behind each up to a whole block of 1024 values.
#include "decode.cuh"

constexpr u32 MOST_BEYOND = 22;     // bits that an exception may have beyond its group's width
constexpr u32 NARROW_BITS = 6;      // bits of a narrow one
constexpr u32 EXCEPTION_BITS = 16;  // what an exception costs, and a wide one once more

// Takes the values at some places, a thread each.
extern "C" __global__ void pick(const u32* values, const u32* places, u32 count, u32* picked) {
  const u64 i = thread_number();
  if (i < count) picked[i] = values[places[i]];
}

// Takes the gap before each column, a thread each; adds to `wrong` how many do not ascend.
extern "C" __global__ void find_gaps(const u32* columns, u32 count, u32* gaps, u32* wrong) {
  const u64 i = thread_number();
  const bool descends = i > 0 && i < count && columns[i] <= columns[i - 1];
  if (i < count) gaps[i] = i ? columns[i] - columns[i - 1] - 1 : 0;
  const u32 found = group_sum(u32(descends));
  if (found && lane() == 0) atomicAdd(wrong, found);
}

// Takes the step from each segment's first column to the next one's, a thread each; there is no gap there, and none
// is wrong.
extern "C" __global__ void find_steps(const u32* columns, const u32* firsts, u32 count, u32* gaps, u32* steps,
                                      u32* wrong) {
  const u64 k = thread_number();
  const u32 first = k < count ? firsts[k] : 0;
  if (k < count) {
    const u32 step = columns[first] - (k ? columns[firsts[k - 1]] : 0);
    steps[k] = step << 1 ^ (0u - (step >> 31));
    gaps[first] = 0;
  }
  const u32 found = group_sum(u32(first > 0 && columns[first] <= columns[first - 1]));
  if (found && lane() == 0) atomicAdd(wrong, 0u - found);
}

// Chooses the width of least bits for each group of 32 values, the largest of those that are equally good; 32 threads
// for each block of values.
//
//   widths  one a group
//   sizes   4 a block: bits of a lane, narrow exceptions, wide ones, nothing
extern "C" __global__ void choose_widths(const u32* values, u32 blocks, u8* widths, u32* sizes) {
  const u64 b = group_number<GROUP>();
  if (b >= blocks) return;
  const u32 me = u32(lane<GROUP>());
  u32 bits = 0, narrow = 0, wide = 0;
  for (u32 g = 0; g < GROUP; ++g) {
    const u32 value = values[BLOCK * b + GROUP * g + me];
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
  if (me < 4) sizes[4 * b + me] = me == 0 ? bits : me == 1 ? narrow : me == 2 ? wide : 0;
}

// Adds up the sizes of blocks, a stream a block of threads, of which the first 32 work.
//
//   firsts     first block of each stream, then the number of blocks
//   directory  receives what is before each block of a stream, then all of it: stream k begins at 4 (firsts[k] + k)
//   totals     4 a stream: receives all of it
extern "C" __global__ void add_up(const u32* sizes, const u32* firsts, u32* directory, u32* totals) {
  if (threadIdx.x >= GROUP) return;
  const u32 k = blockIdx.x, me = u32(lane<GROUP>());
  const u32 first = firsts[k], end = firsts[k + 1];
  u32* const out = directory + 4 * u64(first + k);
  for (u32 part = 0; part < 4; ++part) {
    u32 before = 0;
    for (u32 b = first; b < end; b += GROUP) {
      const u32 size = b + me < end ? sizes[4 * u64(b + me) + part] : 0;
      const u32 sum = group_scan<GROUP>(size);
      if (b + me < end) out[4 * u64(b + me - first) + part] = before + sum - size;
      before += shuffle<GROUP>(sum, GROUP - 1);
    }
    if (me == 0) out[4 * u64(end - first) + part] = totals[4 * k + part] = before;
  }
}

// Writes the bits of each block of a stream, and its exceptions; 32 threads for each.
//
//   directory  4 a block: first bit of a lane, first narrow and first wide exception, nothing
//   words      zeros before
extern "C" __global__ void pack_values(const u32* values, u32 blocks, const u8* widths, const u32* directory,
                                       u32* words, u32* wide, u16* narrow) {
  const u64 b = group_number<GROUP>();
  if (b >= blocks) return;
  const u32 me = u32(lane<GROUP>());
  u32 position = directory[4 * b], first_narrow = directory[4 * b + 1], first_wide = directory[4 * b + 2];
  u32 word = 0;
  for (u32 g = 0; g < GROUP; ++g) {
    const u32 value = values[BLOCK * b + GROUP * g + me];
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
