// warp_vote_privatized: a block collects its results in shared memory, where its warps count by vote.
//
// Idea      Both at once: one addition to the block's counter for a warp, one to the global counter for a block.
// Layout    as privatized.
// Needs     blocks of BLOCK x BLOCK threads with BLOCK = 32, so that a row of the block is a warp.
// Before    warp_vote_coarsened; this rung joins warp_vote and privatized.
// Changes   the additions to shared memory become one for 32 elements.
#include "problem.cuh"

static_assert(BLOCK == WARP, "a row of the block is a warp");

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
    const unsigned place = warp_reserve(&used, value != 0.0f, threadIdx.x);
    if (value != 0.0f) {
        private_rows[place] = row;
        private_columns[place] = column;
        private_values[place] = value;
    }
    __syncthreads();
    if (thread == 0 && used > 0) base = atomicAdd(count, used);
    __syncthreads();
    if (thread < used) out.put(base + thread, private_rows[thread], private_columns[thread], private_values[thread]);
}
