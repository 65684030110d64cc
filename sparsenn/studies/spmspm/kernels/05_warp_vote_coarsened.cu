// warp_vote_coarsened: a thread computes many rows of one column, and a warp counts its non-zeros by vote.
//
// Idea      Both at once: weights stay in the cache, and a warp adds to the counter once for each of its rows.
// Layout    as coarsened.
// Needs     blocks one thread high and a multiple of 32 wide; ROWS_PER_THREAD from a sweep.
// Before    privatized; this rung joins warp_vote and coarsened.
// Changes   the atomic additions of coarsened become one for 32 elements.
#include "problem.cuh"

static_assert(ROWS_PER_THREAD >= 1, "a thread computes at least one row");

extern "C" __global__ void spmspm(SPMSPM_PARAMETERS) {
    SPMSPM_UNPACK
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int first = blockIdx.y * ROWS_PER_THREAD, last = min(rows, first + ROWS_PER_THREAD);
    for (int row = first; row < last; ++row) {
        // Lanes beyond the last column stay for the vote.
        const float value = column < columns ? layer.output(row, column) : 0.0f;
        const unsigned slot = warp_reserve(count, value != 0.0f, threadIdx.x % WARP);
        if (value != 0.0f) out.put(slot, row, column, value);
    }
}
