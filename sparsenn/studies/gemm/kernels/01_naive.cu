// naive: one thread per output.
//
// Idea      A thread computes one element of the product, a sum over a row of a and a column of b, and reads all of
//           both from global memory. Neighbouring threads have neighbouring rows: of each piece of a that the memory
//           hands out, a lane uses one number, and of what a warp writes no two are neighbours.
// Layout    a (rows x depth), b (depth x columns) and c (rows x columns), float32, row-major.
// Needs     blocks of THREADS threads, one thread for each element of c.
// Before    nothing: the first rung.
// Changes   nothing.
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(int rows, int columns, int depth, const float* __restrict__ a, const float* __restrict__ b,
         float* __restrict__ c) {
    one_output_a_thread<true>(Matrices{rows, columns, depth, a, b, c});
}
