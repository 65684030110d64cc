// shared_tiled: a tile's weights and inputs in shared memory.
//
// Idea      The threads of a block copy TERMS terms of the tile's filters and windows into shared memory, each number
//           once, then all multiply from there. A window's inputs are picked from the image on the way, so that in
//           shared memory the convolution is a product of matrices.
// Layout    as naive. In shared memory both factors lie with a tile's filters, or pixels, side by side.
// Needs     as block_tiled; TERMS divides the threads of a block.
// Before    block_tiled.
// Changes   where factors are read.
#include "patches.cuh"

extern "C" __global__ void __launch_bounds__(SIDE * SIDE, 4)
    conv2d(int64 images, const float* __restrict__ inputs, const float* __restrict__ weights,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    tile_in_shared_memory<SIDE, EACH, TERMS>(Patches{images, inputs, weights, {bias, clip}, outputs});
}
