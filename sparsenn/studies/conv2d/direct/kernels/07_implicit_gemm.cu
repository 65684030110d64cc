// implicit_gemm: the convolution as a product of matrices, whose columns are gathered on the way to shared memory.
//
// Idea      A row of the one matrix is a filter, a column of the other the pixels under the window of one output: those
//           need not be written out to be multiplied. A block computes ROWS filters for COLUMNS pixels of any images,
//           in steps of STEP products: it brings STEP weights of each filter and STEP pixels of each window to shared
//           memory, and each thread adds up a rectangle of ROWS_EACH x COLUMNS_EACH sums from there.
// Layout    as unrolled, weights in global memory. In shared memory, weights by step and filter, pixels by step and
//           window; a thread's columns are a COLUMNS_EACH-th of the block's apart, so that neighbouring lanes are
//           neighbours there and in the outputs.
// Needs     blocks of (ROWS / ROWS_EACH) * (COLUMNS / COLUMNS_EACH) threads. One group.
// Before    per_shape.
// Changes   a number from shared memory serves ROWS_EACH or COLUMNS_EACH multiply-adds, whatever the sizes of images
//           and windows; but finding a pixel's place takes more instructions than a few filters have multiply-adds for.
#include "conv2d/sizes.cuh"

constexpr int THREADS_ACROSS = COLUMNS / COLUMNS_EACH, THREADS = ROWS / ROWS_EACH * THREADS_ACROSS;
constexpr int GATHERED = COLUMNS * STEP / THREADS;  // pixels that a thread brings
static_assert(THREADS % COLUMNS == 0 || COLUMNS % THREADS == 0, "a thread brings pixels of the same windows each time");
static_assert(GROUPS == 1, "all filters see all channels");
static_assert(ROWS % ROWS_EACH == 0 && COLUMNS % COLUMNS_EACH == 0 && ROWS_EACH % 4 == 0, "rectangles fill the block");

// An output pixel, numbered through all images.
struct Place {
    int64 image;
    int row, column;

    __device__ __forceinline__ explicit Place(int64 number) : image(number / OUTPUT_AREA) {
        const int rest = static_cast<int>(number - image * OUTPUT_AREA);
        row = rest / OUTPUT_WIDTH;
        column = rest % OUTPUT_WIDTH;
    }
};

// Element `depth` of the column of an output pixel: a channel's pixel under its window, or zero.
__device__ __forceinline__ float gather(const float* __restrict__ image, int row, int column, int depth) {
    const int channel = depth / WINDOW, i = depth % WINDOW / KERNEL_WIDTH, j = depth % KERNEL_WIDTH;
    const int from_row = input_row(row, i), from_column = input_column(column, j);
    const bool inside = (PADDING_DOWN == 0 || static_cast<unsigned>(from_row) < static_cast<unsigned>(HEIGHT)) &&
                        (PADDING_ACROSS == 0 || static_cast<unsigned>(from_column) < static_cast<unsigned>(WIDTH));
    return inside && depth < DEPTH ? __ldg(image + channel * AREA + from_row * WIDTH + from_column) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d(const float* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, float* __restrict__ outputs, int64 pixels) {
    __shared__ alignas(16) float left[STEP][ROWS];
    __shared__ float right[STEP][COLUMNS];
    constexpr int BANDS = parts(FILTERS, ROWS), WINDOWS = COLUMNS > THREADS ? COLUMNS / THREADS : 1;
    const int first_filter = blockIdx.x % BANDS * ROWS;
    const int64 first_pixel = static_cast<int64>(blockIdx.x / BANDS) * COLUMNS;
    const int down = threadIdx.x / THREADS_ACROSS * ROWS_EACH, across = threadIdx.x % THREADS_ACROSS;

    // the windows whose pixels this thread brings, and the first of their steps that are its own
    const float* image[WINDOWS];
    int row[WINDOWS], column[WINDOWS];
    const int own = threadIdx.x / COLUMNS;
#pragma unroll
    for (int i = 0; i < WINDOWS; ++i) {
        const int64 number = first_pixel + threadIdx.x % COLUMNS + i * THREADS;
        const Place place(number < pixels ? number : pixels - 1);
        image[i] = images + place.image * CHANNELS * AREA;
        row[i] = place.row;
        column[i] = place.column;
    }

    float sums[ROWS_EACH][COLUMNS_EACH] = {};
#pragma unroll 1
    for (int begin = 0; begin < DEPTH; begin += STEP) {
        __syncthreads();  // the step before has been read
#pragma unroll
        for (int i = threadIdx.x; i < ROWS * STEP; i += THREADS) {
            const int filter = first_filter + i / STEP, depth = begin + i % STEP;
            const bool there = filter < FILTERS && depth < DEPTH;
            left[i % STEP][i / STEP] = there ? __ldg(weights + static_cast<int64>(filter) * DEPTH + depth) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < GATHERED; ++i) {
            const int window = i % WINDOWS, step = own + i / WINDOWS * (THREADS > COLUMNS ? THREADS / COLUMNS : 1);
            right[step][threadIdx.x % COLUMNS + window * THREADS] =
                gather(image[window], row[window], column[window], begin + step);
        }
        __syncthreads();
#pragma unroll
        for (int step = 0; step < STEP; ++step) {
            float weight[ROWS_EACH];
#pragma unroll
            for (int i = 0; i < ROWS_EACH; i += 4) {
                const float4 four = *reinterpret_cast<const float4*>(&left[step][down + i]);
                weight[i] = four.x;
                weight[i + 1] = four.y;
                weight[i + 2] = four.z;
                weight[i + 3] = four.w;
            }
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; ++j) {
                const float pixel = right[step][across + j * THREADS_ACROSS];
#pragma unroll
                for (int i = 0; i < ROWS_EACH; ++i) sums[i][j] = fmaf(weight[i], pixel, sums[i][j]);
            }
        }
    }

    const Finish finish{bias, clip};
#pragma unroll
    for (int j = 0; j < COLUMNS_EACH; ++j) {
        const int64 number = first_pixel + across + j * THREADS_ACROSS;
        if (number >= pixels) break;
        const int64 of_image = number / OUTPUT_AREA;
        float* to = outputs + of_image * (FILTERS - 1) * OUTPUT_AREA + number;
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const int filter = first_filter + down + i;
            if (filter < FILTERS) to[static_cast<int64>(filter) * OUTPUT_AREA] = finish(sums[i][j], filter);
        }
    }
}
