// warp_vote: a warp counts its non-zeros by vote, and one lane reserves room for all.
//
// Idea      A ballot tells every lane which of the 32 found a non-zero: the first of them adds their number to the
//           counter, and each one's place follows from the votes below its own.
// Layout    as naive; the 32 lanes of a warp hold neighbouring columns of one row.
// Needs     blocks 32 threads wide.
// Before    naive.
// Changes   one atomic addition for a warp instead of one for a non-zero, and entries of a warp stand side by side.
#include "problem.cuh"

extern "C" __global__ void spmspm(SPMSPM_PARAMETERS) {
    SPMSPM_UNPACK
    const int column = blockIdx.x * WARP + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    // No thread leaves before the vote: all 32 lanes take part in it.
    const float value = row < rows && column < columns ? layer.output(row, column) : 0.0f;
    const unsigned slot = warp_reserve(count, value != 0.0f, threadIdx.x);
    if (value != 0.0f) out.put(slot, row, column, value);
}
