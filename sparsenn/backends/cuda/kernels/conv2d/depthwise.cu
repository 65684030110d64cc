// depthwise: a filter for each channel, or several, in planes of pixels.
//
// Idea      A thread takes STRIP outputs of a column, one below the other: it reads a row of a window once for all outputs that the
//           row is part of, and neighbours read neighbouring pixels. A sum starts at zero, and its products are added by row and
//           column of the window, by fused multiply-adds, as in unrolled: outputs have the same bits.
// Layout    images (count, channels, height, width), weights (filters, 1, kernel height, kernel width) and outputs (count,
//           filters, output height, output width), all float32 and row-major; bias a vector.
// Needs     one channel in a group; blocks of THREADS threads that cover strips: the strips of `planes` outputs, each of
//           OUTPUT_WIDTH for every STRIP rows, up to 2^32 - 1.
// Before    unrolled, whose threads have one output each.
// Changes   about half as many reads.
#include "conv2d/sizes.cuh"

constexpr int STRIPS = parts(OUTPUT_HEIGHT, STRIP);
constexpr int ROWS = (STRIP - 1) * STRIDE_DOWN + REACH_DOWN;  // of pixels that a strip sees
static_assert(GROUP_CHANNELS == 1, "a filter reads one channel");

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, float* __restrict__ outputs, unsigned planes) {
    const unsigned thread = blockIdx.x * THREADS + threadIdx.x, rest = thread / OUTPUT_WIDTH;
    const int column = static_cast<int>(thread % OUTPUT_WIDTH), top = static_cast<int>(rest % STRIPS) * STRIP;
    const unsigned plane = rest / STRIPS, image = plane / FILTERS;
    if (plane >= planes) return;
    const int filter = static_cast<int>(plane - image * FILTERS);
    const int left = input_column(column, 0), above = input_row(top, 0);
    const float* from = images + (static_cast<int64>(image) * CHANNELS + filter / GROUP_FILTERS) * AREA;
    float factors[WINDOW], sums[STRIP];
#pragma unroll
    for (int i = 0; i < WINDOW; ++i) factors[i] = __ldg(weights + filter * WINDOW + i);
#pragma unroll
    for (int i = 0; i < STRIP; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int y = 0; y < ROWS; ++y) {
        const bool is_row = static_cast<unsigned>(above + y) < static_cast<unsigned>(HEIGHT);
        float pixels[KERNEL_WIDTH];
#pragma unroll
        for (int j = 0; j < KERNEL_WIDTH; ++j) {
            const int x = left + j * DILATION_ACROSS;
            const bool there = is_row && static_cast<unsigned>(x) < static_cast<unsigned>(WIDTH);
            pixels[j] = there ? __ldg(from + (above + y) * WIDTH + x) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < KERNEL_HEIGHT; ++i) {
#pragma unroll
            for (int output = 0; output < STRIP; ++output) {
                if (output * STRIDE_DOWN + i * DILATION_DOWN != y) continue;
#pragma unroll
                for (int j = 0; j < KERNEL_WIDTH; ++j)
                    sums[output] = fmaf(pixels[j], factors[i * KERNEL_WIDTH + j], sums[output]);
            }
        }
    }
    const Finish finish{bias, clip};
    float* to = outputs + (static_cast<int64>(plane) * OUTPUT_HEIGHT + top) * OUTPUT_WIDTH + column;
#pragma unroll
    for (int output = 0; output < STRIP; ++output)
        if (top + output < OUTPUT_HEIGHT) to[output * OUTPUT_WIDTH] = finish(sums[output], filter);
}
