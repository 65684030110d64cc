// block_tiled: a tile of filters and pixels a block, several outputs a thread.
//
// Idea      A block computes SIDE * EACH filters at as many pixels, a thread EACH x EACH of these outputs, whose sums
//           stay in registers. A weight that a thread has read serves EACH pixels and an input EACH filters; what the
//           threads of a block read overlaps, which the first-level cache finds out.
// Layout    as naive.
// Needs     blocks of SIDE * SIDE threads, one for each tile; sizes as naive.
// Before    coalesced.
// Changes   outputs a thread: EACH x EACH in place of one.
#include "patches.cuh"

extern "C" __global__ void __launch_bounds__(SIDE * SIDE, 2)
    conv2d(int64 images, const float* __restrict__ inputs, const float* __restrict__ weights,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    tile_in_registers<SIDE, EACH>(Patches{images, inputs, weights, {bias, clip}, outputs});
}
