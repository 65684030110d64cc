// per_shape: another kernel, and another layout of blocks, for small images with several channels than for larger ones
// with few.
//
// Idea      Both have each thread compute one pixel of EACH filters, so that a pixel is read once for all of them. Few
//           channels, large images: `few_channels` cuts an output into tiles of TILE_WIDTH x TILE_HEIGHT pixels, whose
//           windows overlap in both directions; the loop over channels goes away, or nearly so. More channels, smaller
//           images: tiles would stand over at the edges, more than half of the threads idle at 34 x 34;
//           `many_channels` numbers the pixels of all images and gives each block THREADS of them in a row.
// Layout    as unrolled.
// Needs     blocks of THREADS = TILE_WIDTH * TILE_HEIGHT threads. One group.
// Before    half; arithmetic is float32 again, as in unrolled.
// Changes   several filters a thread, and a kernel for each of two shapes.
#include "filters.cuh"

constexpr int BUNDLES = parts(FILTERS, EACH);  // of filters
// rows of the window that are unrolled: more than these ask for more pixels ahead of time than registers can take
constexpr int ROWS_AT_ONCE = WINDOW <= 32 ? KERNEL_HEIGHT : 1;
static_assert(GROUPS == 1, "all filters see all channels");
static_assert(THREADS == TILE_WIDTH * TILE_HEIGHT, "a thread for each pixel of a tile");

// One pixel of EACH filters from `first` on.
__device__ __forceinline__ void compute(const float* __restrict__ image, const float* __restrict__ weights, int first,
                                        int row, int column, const Finish& finish, float* __restrict__ outputs) {
    Window window(image, row, column);
    Filter weight(weights, first);
    float sums[EACH] = {};
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; ++channel) {
#pragma unroll(ROWS_AT_ONCE)
        for (int i = 0; i < KERNEL_HEIGHT; ++i) {
#pragma unroll(UNROLLED_COLUMNS)
            for (int j = 0; j < KERNEL_WIDTH; ++j) {
                const float pixel = window(i, j);
#pragma unroll
                for (int filter = 0; filter < EACH; ++filter) {
                    if (FILTERS % EACH == 0 || first + filter < FILTERS)
                        sums[filter] = fmaf(pixel, weight(filter * DEPTH + i * KERNEL_WIDTH + j), sums[filter]);
                }
            }
        }
        window.next_channel();
        weight.next_channel();
    }
#pragma unroll
    for (int filter = 0; filter < EACH; ++filter) {
        if (FILTERS % EACH == 0 || first + filter < FILTERS) {
            const int place = ((first + filter) * OUTPUT_HEIGHT + row) * OUTPUT_WIDTH + column;
            outputs[place] = finish(sums[filter], first + filter);
        }
    }
}

// The grid is (images x bundles, tiles).
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    few_channels(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
                 float clip, float* __restrict__ outputs) {
    constexpr int TILES_ACROSS = parts(OUTPUT_WIDTH, TILE_WIDTH);
    constexpr int TILES = TILES_ACROSS * parts(OUTPUT_HEIGHT, TILE_HEIGHT);
    const int64 image = blockIdx.x / BUNDLES;
    const int first = blockIdx.x % BUNDLES * EACH;
    for (int tile = blockIdx.y; tile < TILES; tile += gridDim.y) {
        const int row = tile / TILES_ACROSS * TILE_HEIGHT + static_cast<int>(threadIdx.x) / TILE_WIDTH;
        const int column = tile % TILES_ACROSS * TILE_WIDTH + static_cast<int>(threadIdx.x) % TILE_WIDTH;
        if (row >= OUTPUT_HEIGHT || column >= OUTPUT_WIDTH) continue;
        compute(images + image * CHANNELS * AREA, weights, first, row, column, Finish{bias, clip},
                outputs + image * FILTERS * OUTPUT_AREA);
    }
}

// The grid is (pixels of all images, bundles).
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    many_channels(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
                  float clip, float* __restrict__ outputs, int64 pixels) {
    const int64 pixel = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (pixel >= pixels) return;
    const int64 image = pixel / OUTPUT_AREA;
    const int place = static_cast<int>(pixel - image * OUTPUT_AREA);
    for (int bundle = blockIdx.y; bundle < BUNDLES; bundle += gridDim.y) {
        compute(images + image * CHANNELS * AREA, weights, bundle * EACH, place / OUTPUT_WIDTH, place % OUTPUT_WIDTH,
                Finish{bias, clip}, outputs + image * FILTERS * OUTPUT_AREA);
    }
}
