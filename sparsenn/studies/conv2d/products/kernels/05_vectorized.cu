// vectorized: four numbers at a time, and the next tiles of weights and inputs under way.
//
// Idea      A thread computes 8 filters at 8 pixels, so that 16 numbers read serve 64 multiply-adds; it reads them from
//           shared memory four at a time, and all its loops are unrolled. Weights and inputs are copied to shared
//           memory by the hardware, past the registers, three tiles ahead of the multiplication; padding is what the
//           hardware fills in where there is nothing to copy. Where there are too few tiles for the device, sums are
//           cut into parts that blocks of their own compute, and add_parts adds those up, always in the same order.
// Layout    inputs and outputs as naive; parts are like outputs, one after the other. Weights as a matrix: a row for
//           each term, with a number for each filter, and zeros up to whole tiles. Where there are 8, 16, ... channels
//           the terms go through 8 channels, then through a filter's elements, then to the next 8 channels: a tile of
//           terms is one element of the filters, and a thread looks up one pixel's place for all its copies. Else the
//           terms are in the order of the filters.
// Needs     blocks of WARPS_DOWN * WARPS_ACROSS warps, one for each tile and, along y, part of the sums; sizes as
//           naive. add_parts: blocks of 256 threads.
// Before    shared_tiled.
// Changes   the size of the tiles, the width of reads, the order of the terms, and when factors are copied.
#include "studies/gemm/kernels/tiles_ahead.cuh"
#include "patches.cuh"

constexpr bool EIGHT_CHANNELS = CHANNELS % TERMS == 0;
constexpr int TILES = (DEPTH + TERMS - 1) / TERMS;
constexpr int PADDED_FILTERS = (FILTERS + ROWS - 1) / ROWS * ROWS;
constexpr int SHARE = TERMS * COLUMNS / THREADS;  // terms of a tile that a thread copies, of one pixel

// The weights of a tile of terms, in quads.
struct Weights {
    static constexpr int QUADS = TERMS * ROWS / QUAD, AT_ONCE = THREADS / (ROWS / QUAD);  // terms
    const float* from;
    unsigned to;

    __device__ __forceinline__ Weights(unsigned stages, const float* weights, int filter, int tile) {
        const int term = threadIdx.x / (ROWS / QUAD), own = threadIdx.x % (ROWS / QUAD) * QUAD;
        from = weights + static_cast<int64>(tile) * (TERMS * PADDED_FILTERS) + term * PADDED_FILTERS + filter + own;
        to = stages + (term * (ROWS + QUAD) + own) * sizeof(float);
    }

    __device__ __forceinline__ void copy(unsigned stage) {
#pragma unroll
        for (int term = 0; term < TERMS; term += AT_ONCE)
            if (QUADS >= THREADS || static_cast<int>(threadIdx.x) < QUADS)
                copy_later<4 * QUAD>(to + stage + term * ((ROWS + QUAD) * sizeof(float)), from + term * PADDED_FILTERS);
        from += TERMS * PADDED_FILTERS;
    }
};

// The inputs of a tile of terms. A thread has one pixel, and SHARE terms that follow each other.
struct Inputs {
    static constexpr int NOWHERE = -KERNEL_HEIGHT * DILATION_DOWN;  // no element of such a window is in an image

    const float* image;
    unsigned to;
    int top, left;           // of the pixel's window; NOWHERE if there is no such pixel
    int tile, down, across;  // of the terms; the element of the filters, where a tile has only one

    __device__ __forceinline__ Inputs(unsigned stages, const float* inputs, int64 pixel, int64 pixels, int first)
        : tile(first), down(first % WINDOW / KERNEL_WIDTH), across(first % KERNEL_WIDTH) {
        const Pixel own(pixel < pixels ? pixel : 0);
        image = inputs + own.image * (CHANNELS * AREA);
        top = pixel < pixels ? own.top : NOWHERE;
        left = own.left;
        if constexpr (EIGHT_CHANNELS) image += (first / WINDOW * TERMS + own_term()) * AREA;
        to = stages + RIGHT_BYTES + (own_term() * COLUMNS + threadIdx.x % COLUMNS) * sizeof(float);
    }

    __device__ __forceinline__ static int own_term() { return threadIdx.x / COLUMNS * SHARE; }

    __device__ __forceinline__ void copy(unsigned stage) {
        if constexpr (EIGHT_CHANNELS)
            copy_element(to + stage);
        else
            copy_terms(to + stage);
    }

    __device__ __forceinline__ void copy_element(unsigned to) {
        const int y = top + down * DILATION_DOWN, x = left + across * DILATION_ACROSS;
        const bool within = inside(y, x);
        const float* from = image + (y * WIDTH + x);
#pragma unroll
        for (int term = 0; term < SHARE; ++term)
            copy_later<4>(to + term * (COLUMNS * sizeof(float)), from + term * AREA, within ? 4 : 0);
        if (++across < KERNEL_WIDTH) return;
        across = 0;
        if (++down < KERNEL_HEIGHT) return;
        down = 0;
        image += TERMS * AREA;
    }

    __device__ __forceinline__ void copy_terms(unsigned to) {
        const int first = tile++ * TERMS + own_term();
#pragma unroll
        for (int term = 0; term < SHARE; ++term) {
            const int number = first + term, tap = number % WINDOW;
            const int y = top + tap / KERNEL_WIDTH * DILATION_DOWN, x = left + tap % KERNEL_WIDTH * DILATION_ACROSS;
            const float* from = image + (number / WINDOW * AREA + y * WIDTH + x);
            copy_later<4>(to + term * (COLUMNS * sizeof(float)), from, number < DEPTH && inside(y, x) ? 4 : 0);
        }
    }
};

struct Feed {
    Weights weights;
    Inputs inputs;

    __device__ __forceinline__ Feed(unsigned stages, const float* weights, const float* inputs, int filter, int64 pixel,
                                    int64 pixels, int tile)
        : weights(stages, weights, filter, tile),
          inputs(stages, inputs, pixel + threadIdx.x % COLUMNS, pixels, tile) {}

    __device__ __forceinline__ void copy(unsigned stage) {
        weights.copy(stage);
        inputs.copy(stage);
    }
};

// outputs: the outputs, or the parts' sums where there are several. tiles: of terms, that a part consists of at most.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(int64 images, int tiles, const float* __restrict__ inputs, const float* __restrict__ weights,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    constexpr unsigned TILES_DOWN = PADDED_FILTERS / ROWS;
    const int filter = static_cast<int>(blockIdx.x % TILES_DOWN) * ROWS;
    const int64 pixel = static_cast<int64>(blockIdx.x / TILES_DOWN) * COLUMNS, pixels = images * OUTPUT_AREA;
    const int first = static_cast<int>(blockIdx.y) * tiles;
    const Place place;
    float sums[EACH][EACH] = {};
    const int count = TILES - first < tiles ? TILES - first : tiles;
    add_tiles<Feed>(sums, place, count, weights, inputs, filter, pixel, pixels, first);
    const bool whole = gridDim.y == 1;
    float* part = outputs + static_cast<int64>(blockIdx.y) * (images * FILTERS * OUTPUT_AREA);
    const int to_filter = filter + place.row;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (to_filter + Place::row_of(i) >= FILTERS) continue;
        const float shift = whole ? bias[to_filter + Place::row_of(i)] : 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; ++j)
            sums[i][j] = whole ? activated<ACTIVATION>(sums[i][j] + shift, clip) : sums[i][j];
    }
    constexpr bool WHOLE_QUADS = OUTPUT_AREA % QUAD == 0;
#pragma unroll
    for (int j = 0; j < EACH; j += WHOLE_QUADS ? QUAD : 1) {
        const int64 to_pixel = pixel + place.column + Place::column_of(j);
        if (to_pixel >= pixels) continue;
        const int64 image = to_pixel / OUTPUT_AREA;
        float* to = part + (image * FILTERS + to_filter) * OUTPUT_AREA + (to_pixel - image * OUTPUT_AREA);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (to_filter + Place::row_of(i) >= FILTERS) continue;
            if constexpr (WHOLE_QUADS)
                *reinterpret_cast<float4*>(to + Place::row_of(i) * OUTPUT_AREA) =
                    make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            else
                to[Place::row_of(i) * OUTPUT_AREA] = sums[i][j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    add_parts(int64 count, int parts, const float* __restrict__ sums, const float* __restrict__ bias, float clip,
              float* __restrict__ outputs) {
    const int64 output = static_cast<int64>(blockIdx.x) * 256 + threadIdx.x;
    if (output >= count) return;
    float sum = sums[output];
    for (int part = 1; part < parts; ++part) sum += sums[part * count + output];
    outputs[output] = Finish{bias, clip}(sum, static_cast<int>(output / OUTPUT_AREA % FILTERS));
}
