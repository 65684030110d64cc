// What the plainest rungs share: any convolution, sizes given when it is launched, a thread an output.
//
// A block computes a tile of 2^log_width x 2^log_height pixels, and where that is less than a block has threads, the
// same tile of several neighbouring planes. A plane is a filter's output for an image.
#pragma once
#include "common.cuh"

// Neighbouring sizes down and across.
struct Pair {
    int down, across;
};

struct Problem {
    int64 planes;
    int channels, height, width, filters, groups;
    Pair kernel, stride, padding, dilation, output;
};

#define DIRECT_PARAMETERS                                                                                              \
    const float *__restrict__ images, const float *__restrict__ bias, int activation, float clip,                      \
        float *__restrict__ outputs, int64 planes, int channels, int height, int width, int filters, int groups,       \
        int kernel_height, int kernel_width, int stride_down, int stride_across, int padding_down, int padding_across, \
        int dilation_down, int dilation_across, int output_height, int output_width, int log_width, int log_height

#define DIRECT_PROBLEM                                                                     \
    {planes,                                                                               \
     channels,                                                                             \
     height,                                                                               \
     width,                                                                                \
     filters,                                                                              \
     groups,                                                                               \
     {kernel_height, kernel_width},                                                        \
     {stride_down, stride_across},                                                         \
     {padding_down, padding_across},                                                       \
     {dilation_down, dilation_across},                                                     \
     {output_height, output_width}}

// The window's elements from the first to before the last that meet an image, whose first one meets pixel `start`.
struct Span {
    int first, last;

    __device__ __forceinline__ Span(int start, int apart, int size, int pixels)
        : first(start < 0 ? (-start + apart - 1) / apart : 0), last(size) {
        const int meet = pixels > start ? (pixels - start + apart - 1) / apart : 0;
        if (meet < last) last = meet;
    }
};

// `filter(i)` is the i-th weight. The grid is (planes, tiles), each side of it shortened to what a grid may have.
template <typename Filter>
__device__ __forceinline__ void direct(const Problem& problem, const Filter& filter, const float* __restrict__ images,
                                       const Epilogue& epilogue, float* __restrict__ outputs, int log_width,
                                       int log_height) {
    const int x = threadIdx.x & ((1 << log_width) - 1), y = threadIdx.x >> log_width & ((1 << log_height) - 1);
    const int tiles_across = ((problem.output.across - 1) >> log_width) + 1;
    const int tiles = (((problem.output.down - 1) >> log_height) + 1) * tiles_across;
    const int planes = THREADS >> (log_width + log_height), own = threadIdx.x >> (log_width + log_height);
    const int64 plane = static_cast<int64>(blockIdx.x) * planes + own;
    if (plane >= problem.planes) return;
    const int64 image = plane / problem.filters;
    const int number = static_cast<int>(plane - image * problem.filters);
    const int channels = problem.channels / problem.groups;
    const int group = number / (problem.filters / problem.groups), area = problem.height * problem.width;
    const int window = problem.kernel.down * problem.kernel.across;
    const float* pixels = images + (image * problem.channels + group * channels) * area;
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const int row = (tile / tiles_across << log_height) + y, column = (tile % tiles_across << log_width) + x;
        if (row >= problem.output.down || column >= problem.output.across) continue;
        const int top = row * problem.stride.down - problem.padding.down;
        const int left = column * problem.stride.across - problem.padding.across;
        const Span down(top, problem.dilation.down, problem.kernel.down, problem.height);
        const Span across(left, problem.dilation.across, problem.kernel.across, problem.width);
        float sum = 0.0f;
        for (int channel = 0; channel < channels; ++channel) {
            const float* plane_of_pixels = pixels + static_cast<int64>(channel) * area;
            const int weights = (number * channels + channel) * window;
            for (int i = down.first; i < down.last; ++i) {
                const float* line = plane_of_pixels + (top + i * problem.dilation.down) * problem.width + left;
                for (int j = across.first; j < across.last; ++j) {
                    const float weight = filter(weights + i * problem.kernel.across + j);
                    sum = fmaf(line[j * problem.dilation.across], weight, sum);
                }
            }
        }
        outputs[(plane * problem.output.down + row) * problem.output.across + column] = epilogue(sum, number);
    }
}
