// One thread an edge, adding atomically to the row that the edge ends at (Jiang 2014, kernels A and B).
//
// Here alone the order of additions depends on timing. The sums are zero before.
#include "gather.cuh"

// Lists the row of each edge.
extern "C" __global__ void number_edges(const u32* offsets, u32 rows, u32* numbers) {
  const u32 row = row_of_edge(offsets, rows);
  if (row < rows) numbers[thread_number()] = row;
}

// Kernel A: each edge divides what its node pushes by the node's out-degree.
extern "C" __global__ void divide_and_add(const u32* offsets, u32 rows, const u32* numbers, const u32* columns,
                                          const double* pushed, const u32* degrees, double* pushes) {
  const u64 e = thread_number();
  if (e >= offsets[rows]) return;
  const u32 column = read_once(columns + e);
  atomicAdd(pushes + read_once(numbers + e), read_shared(pushed + column) / read_shared(degrees + column));
}

// Kernel B: what a node gives to each of its links was divided once, before ("exchange").
extern "C" __global__ void exchange(const double* pushed, const u32* degrees, u32 nodes, double scale, Stored* reads) {
  const u64 node = thread_number();
  if (node >= nodes) return;
  const u32 degree = degrees[node];
  reads[node] = Reads::narrow(degree ? pushed[node] / degree : 0.0, scale);
}

extern "C" __global__ void add_edges(const u32* offsets, u32 rows, const u32* numbers, const u32* columns,
                                     const Stored* reads, u64 window, double* pushes, float* proposals) {
  const u64 e = thread_number();
  if (e >= offsets[rows]) return;
  const u32 column = read_once(columns + e);
  Sum sum;
  sum.add(read_struct(reinterpret_cast<const Word*>(reads) + column), column, window);
  Rows{pushes, proposals}.add_atomically(read_once(numbers + e), sum);
}
