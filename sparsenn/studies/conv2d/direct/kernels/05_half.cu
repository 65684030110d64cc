// half: arithmetic in half precision, two multiply-adds an instruction.
//
// Idea      A thread computes two neighbouring pixels of an output. Pixels are float16, two to a word, and one
//           instruction multiplies both of a pair by the same weight and adds. Half the bytes are read, half the
//           multiply-adds issued. A sum of up to CHAIN products is kept in half precision, sums of those in float32.
// Layout    images float16, made from float32 by `convert` beforehand where that is what there is; outputs of the type
//           OUTPUT. doubled: each weight twice in a word. Weights lie in constant memory where its cache keeps them.
// Needs     blocks of TILE_PAIRS * TILE_HEIGHT * PLANES threads; stride and dilation 1, one group. If PAIRED, WIDTH and
//           PADDING_ACROSS are even and the images begin at a multiple of 4 bytes: pairs are read as such.
// Before    tiled_shared; pixels are read from global memory, as in unrolled.
// Changes   the arithmetic. Each product and each step of a chain is off by up to 2^-11 of its size. Pixels above
//           65,504 become infinite, steps below 6e-8 are lost.
#include "half.cuh"
#include "conv2d/sizes.cuh"

constexpr int PAIRS_ACROSS = parts(OUTPUT_WIDTH, 2), TILES_ACROSS = parts(PAIRS_ACROSS, TILE_PAIRS);
constexpr int WORDS = parts(KERNEL_WIDTH + 1, 2);  // of a row of pixels, for two windows
constexpr bool ONE_LEFT = OUTPUT_WIDTH % 2 == 1;   // the last pair of a row is half a pair
static_assert(STRIDE_DOWN == 1 && STRIDE_ACROSS == 1 && DILATION_DOWN == 1 && DILATION_ACROSS == 1 && GROUPS == 1,
              "neighbouring windows begin at neighbouring pixels");
static_assert(!PAIRED || (WIDTH % 2 == 0 && PADDING_ACROSS % 2 == 0), "pairs lie at whole words");

#if FILTERS_CONSTANT
static_assert(FILTERS * DEPTH <= 16384, "constant memory has room for 16,384 pairs");

extern "C" {
__constant__ Half2 constant_filters[FILTERS * DEPTH];
}
#endif

__device__ __forceinline__ Half2 weight_at(const Half2* __restrict__ doubled, int i) {
#if FILTERS_CONSTANT
    return constant_filters[i];
#else
    return __ldg(doubled + i);
#endif
}

// WORDS pairs of a row of pixels from a column on; zeros outside the image. `first` is the pixel in that column.
__device__ __forceinline__ void read_row(const half_bits* __restrict__ first, int column, Half2 (&words)[WORDS]) {
    // whether a word can lie outside, on the left and on the right
    constexpr bool LEFT = PADDING_ACROSS > 0, RIGHT = LEFT || ONE_LEFT || KERNEL_WIDTH % 2 == 0;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        const int at = column + 2 * i;
        if constexpr (PAIRED) {
            const bool inside = (!LEFT || at >= 0) && (!RIGHT || at < WIDTH);
            words[i] = inside ? __ldg(reinterpret_cast<const Half2*>(first) + i) : 0u;
        } else {
            const bool low = (!LEFT || at >= 0) && (!RIGHT || at < WIDTH);
            const bool high = (!LEFT || at >= -1) && (!RIGHT || at + 1 < WIDTH);
            words[i] = pair_of(low ? __ldg(first + 2 * i) : 0, high ? __ldg(first + 2 * i + 1) : 0);
        }
    }
}

__device__ __forceinline__ void put(float* to, float value) { *to = value; }
__device__ __forceinline__ void put(half_bits* to, float value) { *to = to_half(value); }

extern "C" __global__ void __launch_bounds__(TILE_PAIRS * TILE_HEIGHT * PLANES)
    conv2d(const half_bits* __restrict__ images, const Half2* __restrict__ doubled, const float* __restrict__ bias,
           float clip, OUTPUT* __restrict__ outputs, int64 planes) {
    const int x = threadIdx.x % TILE_PAIRS, y = threadIdx.x / TILE_PAIRS % TILE_HEIGHT;
    const int64 plane = static_cast<int64>(blockIdx.x) * PLANES + threadIdx.x / (TILE_PAIRS * TILE_HEIGHT);
    if (plane >= planes) return;
    const int64 image = plane / FILTERS;
    const int filter = static_cast<int>(plane - image * FILTERS);
    for (int tile = blockIdx.y; tile < TILES_ACROSS * parts(OUTPUT_HEIGHT, TILE_HEIGHT); tile += gridDim.y) {
        const int row = tile / TILES_ACROSS * TILE_HEIGHT + y, column = 2 * (tile % TILES_ACROSS * TILE_PAIRS + x);
        if (row >= OUTPUT_HEIGHT || column >= OUTPUT_WIDTH) continue;
        const half_bits* window =
            images + image * CHANNELS * AREA + input_row(row, 0) * WIDTH + input_column(column, 0);  // its first pixel
        int weight = filter * DEPTH;
        float first = 0.0f, second = 0.0f;
#pragma unroll 1
        for (int number = 0; number < CHANNELS; ++number) {
            Half2 chain = 0;
#pragma unroll(UNROLLED_ROWS)
            for (int i = 0; i < KERNEL_HEIGHT; ++i) {
                const int from = input_row(row, i);
                Half2 words[WORDS] = {};
                if (PADDING_DOWN == 0 || static_cast<unsigned>(from) < static_cast<unsigned>(HEIGHT))
                    read_row(window + i * WIDTH, input_column(column, 0), words);
#pragma unroll
                for (int j = 0; j < KERNEL_WIDTH; ++j) {
                    const Half2 pixels = j % 2 ? between(words[j / 2], words[j / 2 + 1]) : words[j / 2];
                    chain = multiply_add_halves(pixels, weight_at(doubled, weight + i * KERNEL_WIDTH + j), chain);
                    if ((i * KERNEL_WIDTH + j) % CHAIN == CHAIN - 1 || i * KERNEL_WIDTH + j == WINDOW - 1) {
                        first += first_of(chain);
                        second += second_of(chain);
                        chain = 0;
                    }
                }
            }
            window += AREA;
            weight += WINDOW;
        }
        const Finish finish{bias, clip};
        OUTPUT* to = outputs + (plane * OUTPUT_HEIGHT + row) * OUTPUT_WIDTH + column;
        put(to, finish(first, filter));
        if (!ONE_LEFT || column + 1 < OUTPUT_WIDTH) put(to + 1, finish(second, filter));
    }
}
