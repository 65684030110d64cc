// A convolution as a product of matrices, for studies/gemm/kernels/product.cuh. Rows are filters. A column is a pixel of
// the outputs, image by image: its numbers are the inputs under the filter there, channel by channel, row by row. That
// matrix is never made; its elements are looked up in the images, zero where they fall upon padding.
//
// Sizes and ACTIVATION are those of conv2d/sizes.cuh, with one group.
#pragma once
#include "studies/gemm/kernels/product.cuh"
#include "conv2d/sizes.cuh"

static_assert(GROUPS == 1, "all filters are rows of one matrix");

// A pixel of the outputs, counted through all images: where it is, and which of the inputs its window begins with.
struct Pixel {
    int64 image;
    int within, top, left;

    __device__ __forceinline__ explicit Pixel(int64 number)
        : image(number / OUTPUT_AREA),
          within(static_cast<int>(number - image * OUTPUT_AREA)),
          top(input_row(within / OUTPUT_WIDTH, 0)),
          left(input_column(within % OUTPUT_WIDTH, 0)) {}
};

__device__ __forceinline__ bool inside(int y, int x) {
    return static_cast<unsigned>(y) < HEIGHT && static_cast<unsigned>(x) < WIDTH;
}

struct Patches {
    typedef const float* Row;

    struct Column {
        const float* image;
        int top, left;
    };

    struct Term {
        int number, channel, down, across;
    };

    int64 images;
    const float* __restrict__ inputs;
    const float* __restrict__ weights;
    Finish finish;
    float* __restrict__ outputs;

    __device__ __forceinline__ int64 rows() const { return FILTERS; }
    __device__ __forceinline__ int64 columns() const { return images * OUTPUT_AREA; }
    __device__ __forceinline__ int depth() const { return DEPTH; }
    __device__ __forceinline__ Row row(int number) const { return weights + number * DEPTH; }

    __device__ __forceinline__ Column column(int64 number) const {
        const Pixel pixel(number);
        return {inputs + pixel.image * (CHANNELS * AREA), pixel.top, pixel.left};
    }

    __device__ __forceinline__ Term term(int number) const {
        const int tap = number % WINDOW;
        return {number, number / WINDOW, tap / KERNEL_WIDTH * DILATION_DOWN, tap % KERNEL_WIDTH * DILATION_ACROSS};
    }

    template <typename Body>
    __device__ __forceinline__ void each_term(const Body& body) const {
        constexpr int UNROLLED = KERNEL_WIDTH <= 7 ? KERNEL_WIDTH : 1;
        int number = 0;
        for (int channel = 0; channel < CHANNELS; ++channel)
            for (int down = 0; down < KERNEL_HEIGHT; ++down)
#pragma unroll UNROLLED
                for (int across = 0; across < KERNEL_WIDTH; ++across)
                    body(Term{number++, channel, down * DILATION_DOWN, across * DILATION_ACROSS});
    }

    __device__ __forceinline__ float left(Row at, const Term& term) const { return at[term.number]; }

    __device__ __forceinline__ float right(const Column& at, const Term& term) const {
        const int y = at.top + term.down, x = at.left + term.across;
        return inside(y, x) ? at.image[term.channel * AREA + y * WIDTH + x] : 0.0f;
    }

    __device__ __forceinline__ void store(int row, int64 column, float sum) const {
        const int64 image = column / OUTPUT_AREA;
        outputs[(image * FILTERS + row) * OUTPUT_AREA + (column - image * OUTPUT_AREA)] = finish(sum, row);
    }
};
