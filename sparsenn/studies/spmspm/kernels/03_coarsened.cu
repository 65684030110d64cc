// coarsened: a thread computes ROWS_PER_THREAD rows of one column.
//
// Idea      One column of weights meets many rows in turn, so that it is read from memory once and from the cache
//           thereafter, and all threads of a block walk the same row at the same time.
// Layout    as naive; block (x, y) has blockDim.x neighbouring columns and the rows y * ROWS_PER_THREAD and following.
// Needs     blocks one thread high; ROWS_PER_THREAD from a sweep.
// Before    warp_vote; this rung goes back to naive's atomics, to show one idea at a time.
// Changes   fewer, longer-lived threads, and weights that stay in the cache. With few rows there are too few threads
//           to fill the device.
#include "problem.cuh"

static_assert(ROWS_PER_THREAD >= 1, "a thread computes at least one row");

extern "C" __global__ void spmspm(SPMSPM_PARAMETERS) {
    SPMSPM_UNPACK
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const int first = blockIdx.y * ROWS_PER_THREAD, last = min(rows, first + ROWS_PER_THREAD);
    for (int row = first; row < last; ++row) {
        const float value = layer.output(row, column);
        if (value != 0.0f) out.put(atomicAdd(count, 1u), row, column, value);
    }
}
