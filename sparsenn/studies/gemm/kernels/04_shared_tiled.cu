// shared_tiled: the tile's factors in shared memory.
//
// Idea      The threads of a block copy TERMS columns of a's rows and as many rows of b's columns into shared memory,
//           each number once, then all multiply from there. Overlapping reads no longer depend on a cache.
// Layout    as naive. In shared memory both factors lie with a tile's rows, or columns, side by side.
// Needs     as block_tiled; TERMS divides the threads of a block.
// Before    block_tiled.
// Changes   where factors are read.
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(SIDE * SIDE, 4)
    gemm(int rows, int columns, int depth, const float* __restrict__ a, const float* __restrict__ b,
         float* __restrict__ c) {
    tile_in_shared_memory<SIDE, EACH, TERMS>(Matrices{rows, columns, depth, a, b, c});
}
