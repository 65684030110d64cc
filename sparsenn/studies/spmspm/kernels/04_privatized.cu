// privatized: a block collects its results in shared memory and commits them at once.
//
// Idea      A block has at most as many results as threads. They are counted and gathered in shared memory, where an
//           atomic addition is cheap; then one thread reserves room for all of them, and the block writes them out.
// Layout    as naive; BLOCK x BLOCK elements of the output for a block, and as many places in shared memory.
// Needs     blocks of BLOCK x BLOCK threads.
// Before    coarsened; this rung, too, starts again from naive.
// Changes   one global atomic addition for a block, and writes of neighbouring threads that lie side by side.
#include "problem.cuh"

static_assert(BLOCK * BLOCK <= 1024, "a block has at most 1024 threads");

extern "C" __global__ void __launch_bounds__(BLOCK * BLOCK) spmspm(SPMSPM_PARAMETERS) {
    SPMSPM_UNPACK
    __shared__ int private_rows[BLOCK * BLOCK];
    __shared__ int private_columns[BLOCK * BLOCK];
    __shared__ float private_values[BLOCK * BLOCK];
    __shared__ unsigned used, base;
    const int column = blockIdx.x * BLOCK + threadIdx.x;
    const int row = blockIdx.y * BLOCK + threadIdx.y;
    const unsigned thread = threadIdx.y * BLOCK + threadIdx.x;
    if (thread == 0) used = 0;
    __syncthreads();
    const float value = row < rows && column < columns ? layer.output(row, column) : 0.0f;
    if (value != 0.0f) {
        const unsigned place = atomicAdd(&used, 1u);
        private_rows[place] = row;
        private_columns[place] = column;
        private_values[place] = value;
    }
    __syncthreads();
    if (thread == 0 && used > 0) base = atomicAdd(count, used);
    __syncthreads();
    if (thread < used) out.put(base + thread, private_rows[thread], private_columns[thread], private_values[thread]);
}
