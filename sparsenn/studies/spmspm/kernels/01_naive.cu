// naive: a thread for each element of the output.
//
// Idea      Thread (x, y) multiplies row y of the features with column x of the weights by merge-intersection, and
//           appends the result to the output if it is not zero.
// Layout    features CSR, weights CSC, output unsorted COO (problem.cuh); x runs along the columns, so that the
//           threads of a warp read the same row, and 32 different columns.
// Needs     blocks of any two-dimensional shape.
// Before    nothing: this is the first rung.
// Watch     one atomic addition to the same counter for every non-zero, and every thread reads its whole row and
//           column from memory.
#include "problem.cuh"

extern "C" __global__ void spmspm(SPMSPM_PARAMETERS) {
    SPMSPM_UNPACK
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= columns) return;
    const float value = layer.output(row, column);
    if (value != 0.0f) out.put(atomicAdd(count, 1u), row, column, value);
}
