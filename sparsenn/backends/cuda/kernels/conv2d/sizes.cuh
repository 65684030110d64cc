// The sizes of a convolution that a kernel is compiled for: a thread knows where its window lies, and where an output
// goes, with few instructions.
//
// CHANNELS, HEIGHT, WIDTH: of an image. FILTERS, KERNEL_HEIGHT, KERNEL_WIDTH, GROUPS. STRIDE_DOWN, STRIDE_ACROSS,
// PADDING_DOWN, PADDING_ACROSS, DILATION_DOWN, DILATION_ACROSS. ACTIVATION: as in activated.cuh.
#pragma once
#include "conv2d/activated.cuh"

constexpr int parts(int total, int size) { return (total + size - 1) / size; }

constexpr int REACH_DOWN = DILATION_DOWN * (KERNEL_HEIGHT - 1) + 1;  // rows that a window spans
constexpr int OUTPUT_HEIGHT = (HEIGHT + 2 * PADDING_DOWN - REACH_DOWN) / STRIDE_DOWN + 1;
constexpr int REACH_ACROSS = DILATION_ACROSS * (KERNEL_WIDTH - 1) + 1;
constexpr int OUTPUT_WIDTH = (WIDTH + 2 * PADDING_ACROSS - REACH_ACROSS) / STRIDE_ACROSS + 1;
constexpr int AREA = HEIGHT * WIDTH, OUTPUT_AREA = OUTPUT_HEIGHT * OUTPUT_WIDTH;
constexpr int WINDOW = KERNEL_HEIGHT * KERNEL_WIDTH;
constexpr int GROUP_CHANNELS = CHANNELS / GROUPS, GROUP_FILTERS = FILTERS / GROUPS;
constexpr int DEPTH = GROUP_CHANNELS * WINDOW;  // weights of a filter
static_assert(OUTPUT_HEIGHT > 0 && OUTPUT_WIDTH > 0, "a filter fits on a padded image");

// Rows and columns of the window that loops are unrolled by: small windows as a whole, of larger ones a row at a time.
constexpr int UNROLLED_ROWS = WINDOW <= 128 ? KERNEL_HEIGHT : 1;
constexpr int UNROLLED_COLUMNS = KERNEL_WIDTH <= 128 ? KERNEL_WIDTH : 8;

// The input that element i of the window of output pixel `at` falls upon; it may lie outside the image.
__device__ __forceinline__ constexpr int input_row(int at, int i) {
    return at * STRIDE_DOWN - PADDING_DOWN + i * DILATION_DOWN;
}

__device__ __forceinline__ constexpr int input_column(int at, int i) {
    return at * STRIDE_ACROSS - PADDING_ACROSS + i * DILATION_ACROSS;
}

// The window of an output pixel on one channel after the other: elements are a known distance from the first.
struct Window {
    const float* first;
    int row, column;

    __device__ __forceinline__ Window(const float* channel, int output_row, int output_column)
        : first(channel + input_row(output_row, 0) * WIDTH + input_column(output_column, 0)),
          row(output_row),
          column(output_column) {}

    // Zero outside the image.
    __device__ __forceinline__ float operator()(int i, int j) const {
        if (PADDING_DOWN > 0 && static_cast<unsigned>(input_row(row, i)) >= static_cast<unsigned>(HEIGHT)) return 0.0f;
        if (PADDING_ACROSS > 0 && static_cast<unsigned>(input_column(column, j)) >= static_cast<unsigned>(WIDTH))
            return 0.0f;
        return __ldg(first + i * (DILATION_DOWN * WIDTH) + j * DILATION_ACROSS);
    }

    __device__ __forceinline__ void next_channel() { first += AREA; }
};
