// tiled_shared: the pixels that a tile of outputs needs lie in shared memory.
//
// Idea      The windows of neighbouring outputs overlap: with 7 x 7 weights a pixel is read 49 times for each output
//           channel. A block brings the pixels that its tile needs to shared memory, channel by channel, each once.
// Layout    as unrolled; in shared memory (TILE_HEIGHT + KERNEL_HEIGHT - 1) x (TILE_WIDTH + KERNEL_WIDTH - 1) pixels,
//           zeros where the image ends.
// Needs     blocks of TILE_WIDTH * TILE_HEIGHT threads, one for each pixel of a tile of one output. Stride and dilation
//           1, one group; windows whose tile fits into 48 KiB.
// Before    unrolled.
// Changes   pixels come from shared memory. Every output channel brings its own tile there, and two barriers a channel
//           keep the threads of a block together: the caches did as well.
#include "filters.cuh"

constexpr int TILE_ROWS = TILE_HEIGHT + KERNEL_HEIGHT - 1, TILE_COLUMNS = TILE_WIDTH + KERNEL_WIDTH - 1;
constexpr int TILES_ACROSS = parts(OUTPUT_WIDTH, TILE_WIDTH), TILES = TILES_ACROSS * parts(OUTPUT_HEIGHT, TILE_HEIGHT);
static_assert(STRIDE_DOWN == 1 && STRIDE_ACROSS == 1 && DILATION_DOWN == 1 && DILATION_ACROSS == 1 && GROUPS == 1,
              "neighbouring windows overlap in neighbouring pixels");

// The pixels under the windows of a tile; zeros outside the image.
__device__ __forceinline__ void load_tile(const float* __restrict__ channel, int top, int left, float* pixels) {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_ROWS * TILE_COLUMNS; i += TILE_WIDTH * TILE_HEIGHT) {
        const int row = top + i / TILE_COLUMNS, column = left + i % TILE_COLUMNS;
        const bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
        pixels[i] = inside ? __ldg(channel + row * WIDTH + column) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(TILE_WIDTH * TILE_HEIGHT)
    conv2d(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, float* __restrict__ outputs) {
    __shared__ float pixels[TILE_ROWS * TILE_COLUMNS];
    const int x = threadIdx.x % TILE_WIDTH, y = threadIdx.x / TILE_WIDTH;
    const int64 plane = blockIdx.x, image = plane / FILTERS;
    const int filter = static_cast<int>(plane - image * FILTERS);
    for (int tile = blockIdx.y; tile < TILES; tile += gridDim.y) {
        const int first_row = tile / TILES_ACROSS * TILE_HEIGHT, first_column = tile % TILES_ACROSS * TILE_WIDTH;
        const float* channel = images + image * CHANNELS * AREA;
        Filter weight(weights, filter);
        float sum = 0.0f;
#pragma unroll 1
        for (int number = 0; number < CHANNELS; ++number) {
            __syncthreads();  // the channel before has been read
            load_tile(channel, first_row - PADDING_DOWN, first_column - PADDING_ACROSS, pixels);
            __syncthreads();
            const float* window = pixels + y * TILE_COLUMNS + x;
#pragma unroll(UNROLLED_ROWS)
            for (int i = 0; i < KERNEL_HEIGHT; ++i) {
#pragma unroll(UNROLLED_COLUMNS)
                for (int j = 0; j < KERNEL_WIDTH; ++j) {
                    sum = fmaf(window[i * TILE_COLUMNS + j], weight(i * KERNEL_WIDTH + j), sum);
                }
            }
            channel += AREA;
            weight.next_channel();
        }
        const int row = first_row + y, column = first_column + x;
        if (row < OUTPUT_HEIGHT && column < OUTPUT_WIDTH) {
            const Finish finish{bias, clip};
            outputs[(plane * OUTPUT_HEIGHT + row) * OUTPUT_WIDTH + column] = finish(sum, filter);
        }
    }
}
