// block_tiled: a square of the product a block, several elements a thread.
//
// Idea      A block computes a tile of SIDE * EACH rows and columns, a thread EACH x EACH of it, whose sums stay in
//           registers. A number that a thread has read serves EACH multiply-adds, and what the threads of a block read
//           overlaps, which the first-level cache finds out.
// Layout    as naive.
// Needs     blocks of SIDE * SIDE threads, one for each tile.
// Before    coalesced.
// Changes   elements of c a thread: EACH x EACH in place of one.
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(SIDE * SIDE, 2)
    gemm(int rows, int columns, int depth, const float* __restrict__ a, const float* __restrict__ b,
         float* __restrict__ c) {
    tile_in_registers<SIDE, EACH>(Matrices{rows, columns, depth, a, b, c});
}
