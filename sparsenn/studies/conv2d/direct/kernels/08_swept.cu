// swept: a thread computes several pixels of several filters; how many, and the shape of a block, can be varied.
//
// Idea      A thread has PIXELS pixels, one below the other, of EACH filters: for a column of the window it reads
//           PIXELS + KERNEL_HEIGHT - 1 pixels once, and uses each up to KERNEL_HEIGHT * EACH times. More of both means
//           fewer reads and more registers, so fewer threads at a time; which is best differs from shape to shape and
//           from device to device. TILE, PIXELS and EACH are chosen by an estimate; `tune` finds them by measurement.
// Layout    as unrolled. A block has TILE threads side by side and THREADS / TILE one below the other.
// Needs     blocks of THREADS threads. Stride and dilation 1, one group.
// Before    implicit_gemm; pixels are read from global memory again, as in per_shape.
// Changes   several pixels a thread; sizes are chosen for each shape.
#include "filters.cuh"

constexpr int BUNDLES = parts(FILTERS, EACH), ROW_TILES = parts(OUTPUT_HEIGHT, PIXELS), DOWN = THREADS / TILE;
constexpr int TILES_ACROSS = parts(OUTPUT_WIDTH, TILE), TILES = TILES_ACROSS * parts(ROW_TILES, DOWN);
constexpr int REACH = PIXELS + KERNEL_HEIGHT - 1;  // pixels that a column of windows spans
constexpr bool ALL_FILTERS = FILTERS % EACH == 0, ALL_ROWS = OUTPUT_HEIGHT % PIXELS == 0;
// columns of the window that are unrolled
constexpr int COLUMNS_AT_ONCE = WINDOW * PIXELS * EACH <= 2048 ? KERNEL_WIDTH : 1;
static_assert(STRIDE_DOWN == 1 && STRIDE_ACROSS == 1 && DILATION_DOWN == 1 && DILATION_ACROSS == 1 && GROUPS == 1,
              "windows one below the other overlap");
static_assert(THREADS % TILE == 0, "a block is whole lines of threads");

// The grid is (images x bundles, tiles).
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, float* __restrict__ outputs) {
    const int64 image = blockIdx.x / BUNDLES;
    const int first = blockIdx.x % BUNDLES * EACH;
    for (int tile = blockIdx.y; tile < TILES; tile += gridDim.y) {
        const int row = (tile / TILES_ACROSS * DOWN + static_cast<int>(threadIdx.x) / TILE) * PIXELS;
        const int column = tile % TILES_ACROSS * TILE + static_cast<int>(threadIdx.x) % TILE;
        if (row >= OUTPUT_HEIGHT || column >= OUTPUT_WIDTH) continue;
        const float* from = images + image * CHANNELS * AREA + (row - PADDING_DOWN) * WIDTH + column - PADDING_ACROSS;
        Filter weight(weights, first);
        float sums[EACH][PIXELS] = {};
#pragma unroll 1
        for (int channel = 0; channel < CHANNELS; ++channel) {
#pragma unroll(COLUMNS_AT_ONCE)
            for (int j = 0; j < KERNEL_WIDTH; ++j) {
                const bool beside = PADDING_ACROSS > 0 && static_cast<unsigned>(column - PADDING_ACROSS + j) >= WIDTH;
                float pixel[REACH];
#pragma unroll
                for (int i = 0; i < REACH; ++i) {
                    const int from_row = row - PADDING_DOWN + i;
                    const bool outside = beside || (PADDING_DOWN > 0 && from_row < 0) ||
                                         ((PADDING_DOWN > 0 || !ALL_ROWS) && from_row >= HEIGHT);
                    pixel[i] = outside ? 0.0f : __ldg(from + i * WIDTH + j);
                }
#pragma unroll
                for (int i = 0; i < KERNEL_HEIGHT; ++i) {
#pragma unroll
                    for (int filter = 0; filter < EACH; ++filter) {
                        if (!ALL_FILTERS && first + filter >= FILTERS) break;
                        const float factor = weight(filter * DEPTH + i * KERNEL_WIDTH + j);
#pragma unroll
                        for (int p = 0; p < PIXELS; ++p)
                            sums[filter][p] = fmaf(pixel[p + i], factor, sums[filter][p]);
                    }
                }
            }
            from += AREA;
            weight.next_channel();
        }
        const Finish finish{bias, clip};
        float* to = outputs + (image * FILTERS + first) * OUTPUT_AREA + row * OUTPUT_WIDTH + column;
#pragma unroll
        for (int filter = 0; filter < EACH; ++filter) {
            if (!ALL_FILTERS && first + filter >= FILTERS) break;
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) {
                if (ALL_ROWS || row + p < OUTPUT_HEIGHT)
                    to[filter * OUTPUT_AREA + p * OUTPUT_WIDTH] = finish(sums[filter][p], first + filter);
            }
        }
    }
}
