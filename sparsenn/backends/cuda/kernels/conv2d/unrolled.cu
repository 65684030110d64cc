// unrolled: pointers that do not overlap, and loops over windows of a known size, unrolled.
//
// Idea      __restrict__ tells the compiler that no output is an input, so that it may read pixels through the
//           read-only cache and ahead of time. All sizes are compiled in: the loops over a window become one line of
//           loads and multiply-adds, with the places of pixels and weights in the instructions themselves.
// Layout    images (count, channels, height, width), weights (filters, channels / groups, kernel height, kernel width)
//           and outputs (count, filters, output height, output width), all float32 and row-major; bias a vector.
// Needs     blocks of TILE_WIDTH * TILE_HEIGHT * PLANES threads: neighbouring pixels of an output, and neighbouring
//           outputs. Any stride, padding, dilation and number of groups.
// Before    constant_filters, of studies/conv2d/direct/kernels.
// Changes   sizes are known to the compiler.
#include "conv2d/sizes.cuh"

extern "C" __global__ void __launch_bounds__(TILE_WIDTH * TILE_HEIGHT * PLANES)
    conv2d(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, float* __restrict__ outputs, int64 planes) {
    constexpr int TILES_ACROSS = parts(OUTPUT_WIDTH, TILE_WIDTH);
    const int x = threadIdx.x % TILE_WIDTH, y = threadIdx.x / TILE_WIDTH % TILE_HEIGHT;
    const int64 plane = static_cast<int64>(blockIdx.x) * PLANES + threadIdx.x / (TILE_WIDTH * TILE_HEIGHT);
    if (plane >= planes) return;
    const int64 image = plane / FILTERS;
    const int filter = static_cast<int>(plane - image * FILTERS), group = filter / GROUP_FILTERS;
    for (int tile = blockIdx.y; tile < TILES_ACROSS * parts(OUTPUT_HEIGHT, TILE_HEIGHT); tile += gridDim.y) {
        const int row = tile / TILES_ACROSS * TILE_HEIGHT + y, column = tile % TILES_ACROSS * TILE_WIDTH + x;
        if (row >= OUTPUT_HEIGHT || column >= OUTPUT_WIDTH) continue;
        Window window(images + (image * CHANNELS + group * GROUP_CHANNELS) * AREA, row, column);
        const float* weight = weights + static_cast<int64>(filter) * DEPTH;
        float sum = 0.0f;
#pragma unroll 1
        for (int number = 0; number < GROUP_CHANNELS; ++number) {
#pragma unroll(UNROLLED_ROWS)
            for (int i = 0; i < KERNEL_HEIGHT; ++i) {
#pragma unroll(UNROLLED_COLUMNS)
                for (int j = 0; j < KERNEL_WIDTH; ++j) {
                    sum = fmaf(window(i, j), __ldg(weight + i * KERNEL_WIDTH + j), sum);
                }
            }
            window.next_channel();
            weight += WINDOW;
        }
        const Finish finish{bias, clip};
        outputs[(plane * OUTPUT_HEIGHT + row) * OUTPUT_WIDTH + column] = finish(sum, filter);
    }
}
