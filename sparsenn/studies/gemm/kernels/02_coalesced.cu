// coalesced: neighbouring threads have neighbouring columns.
//
// Idea      As naive, but lanes follow the direction in which b and c lie in memory: a warp reads 32 neighbouring
//           numbers of b and one of a, which serves all lanes, and writes 32 neighbours.
// Layout    as naive.
// Needs     as naive.
// Before    naive.
// Changes   which thread has which element.
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(int rows, int columns, int depth, const float* __restrict__ a, const float* __restrict__ b,
         float* __restrict__ c) {
    one_output_a_thread<false>(Matrices{rows, columns, depth, a, b, c});
}
