// Column chunks in shared memory: step 2 of the contest report on personalized PageRank.
//
// Edges are grouped by chunks of `size` columns, and in a chunk by row. One launch takes one chunk: each block of
// threads copies the chunk's numbers to shared memory and gathers from there. Launches follow one another, so a
// row's parts are added in the order of the chunks. ROW_LANES lanes take one part.
#include "gather.cuh"

#ifndef ROW_LANES
#define ROW_LANES 4
#endif

// A part: what a row has in a chunk. Columns of a row ascend, so a part's edges follow each other.
struct Part {
  u32 row, begin, end;
  u32 chunk;
};

// The part that begins at this thread's edge, one thread an edge; empty if none does. Columns from `nodes` on are in no
// part. All threads of a block call it.
__device__ __forceinline__ Part find_part(const u32* offsets, u32 rows, const u32* columns, u32 nodes, u32 size) {
  const u32 row = row_of_edge(offsets, rows), e = u32(thread_number());
  if (row >= rows || columns[e] >= nodes) return {};
  const u32 chunk = columns[e] / size, past = nodes - chunk * size > size ? (chunk + 1) * size : nodes;
  if (e > offsets[row] && columns[e - 1] < nodes && columns[e - 1] / size == chunk) return {};
  u32 low = e, high = offsets[row + 1];
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (columns[middle] < past) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {row, e, high, chunk};
}

// Adds to each of `ends` the parts of its chunk, in the upper half, and their edges in the lower.
extern "C" __global__ void count_parts(const u32* offsets, u32 rows, const u32* columns, u32 nodes, u32 size,
                                       u64* ends) {
  const Part part = find_part(offsets, rows, columns, nodes, size);
  if (part.begin < part.end) atomicAdd(ends + part.chunk, u64(1) << 32 | (part.end - part.begin));
}

// Adds up the parts and edges before each chunk; one group of 32 lanes. Behind the last part stand all edges.
extern "C" __global__ void add_up_chunks(u64* ends, u32 chunks, u32* part_offsets) {
  u64 before = 0;
  for (u32 from = 0; from < chunks; from += 32) {
    const u32 k = from + lane<32>();
    const u64 own = k < chunks ? ends[k] : 0, sum = group_scan<32>(own);
    if (k < chunks) ends[k] = before + sum - own;
    before += shuffle<32>(sum, 31);
  }
  if (lane<32>() == 0) part_offsets[before >> 32] = u32(before);
}

// Brings the parts of each chunk together, in any order: a row has one of each. `ends` are then those of the chunks.
extern "C" __global__ void place_parts(const u32* offsets, u32 rows, const u32* columns, u32 nodes, u32 size, u64* ends,
                                       u32* part_offsets, u32* part_rows, u16* near) {
  const Part part = find_part(offsets, rows, columns, nodes, size);
  const u32 count = part.end - part.begin;
  u32 to = 0;
  if (count) {
    const u64 place = atomicAdd(ends + part.chunk, u64(1) << 32 | count);
    to = u32(place);
    part_offsets[place >> 32] = to;
    part_rows[place >> 32] = part.row;
  }
  // All lanes copy each part that begins among their edges.
  for (u32 left = u32(ballot<32>(count > 0)); left; left &= left - 1) {
    const int source = lowest_bit(left);
    const u32 own = shuffle<32>(count, source), from = shuffle<32>(part.begin, source);
    const u32 at = shuffle<32>(to, source), first = shuffle<32>(part.chunk, source) * size;
    for (u32 k = lane<32>(); k < own; k += 32) near[at + k] = u16(columns[from + k] - first);
  }
}

// Part k has edges part_offsets[k] .. part_offsets[k + 1] - 1 of row part_rows[k]; `near` are their columns, counted
// from the chunk's first, `begin`.
extern "C" __global__ void add_chunk(const u32* part_offsets, const u32* part_rows, const u64* ends, u32 number,
                                     const u16* near, const Stored* reads, u32 begin, u32 size, u64 window,
                                     double* pushes, float* proposals) {
  DYNAMIC_SHARED(bytes);
  const u64 first = number ? ends[number - 1] >> 32 : 0, last = ends[number] >> 32;
  if (first == last) return;
  Word* const chunk = reinterpret_cast<Word*>(bytes);
  const Word* const words = reinterpret_cast<const Word*>(reads) + begin;
  for (u32 k = threadIdx.x; k < size; k += blockDim.x) chunk[k] = read_struct(words + k);
  __syncthreads();
  const Rows rows = {pushes, proposals};
  for (u64 k = first + group_number<ROW_LANES>(); k < last; k += group_count<ROW_LANES>()) {
    Sum sum;
    const u64 end = part_offsets[k + 1];
    for (u64 e = part_offsets[k] + lane<ROW_LANES>(); e < end; e += ROW_LANES) {
      const u32 column = read_once(near + e);
      sum.add(chunk[column], begin + column, window);
    }
    sum = sum.over<ROW_LANES>();
    if (lane<ROW_LANES>() == 0) rows.add(part_rows[k], sum);
  }
}
