// What gathering takes by itself, with columns that are not packed: the limit that products are measured against.
#include "gather.cuh"

constexpr int SIDE = 32;

// Adds up what 1024 neighbouring columns gather, by 32 lanes that ask for 32 numbers each before they use one.
extern "C" __global__ void __launch_bounds__(256)
    gather_columns(const u32* columns, u64 blocks, const Stored* reads, double* sums) {
  const u64 b = group_number<SIDE>();
  if (b >= blocks) return;
  const int me = lane<SIDE>();
  const Word* const words = reinterpret_cast<const Word*>(reads);
  constexpr int ABREAST = sizeof(Word) <= 4 ? SIDE : SIDE / 2;
  float total = 0;
#pragma unroll
  for (int part = 0; part < SIDE; part += ABREAST) {
    u32 column[ABREAST];
    Word word[ABREAST];
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) column[i] = read_once(columns + b * SIDE * SIDE + (part + i) * SIDE + me);
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) word[i] = read_struct(words + column[i]);
    sync_group<SIDE>();
#pragma unroll
    for (int i = 0; i < ABREAST; ++i) total += float(Reads::widen(word[i].push));
  }
  total = group_sum<SIDE>(total);
  if (me == 0) sums[b] = total;
}
