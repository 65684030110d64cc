// pool_last: each window of pixels becomes one, where the channels of a pixel are neighbours.
//
// Idea      A thread takes EACH neighbouring channels of an output pixel, and walks over the pixels of its window that lie
//           within the image.
// Layout    images (images, height, width, lanes), outputs (images, output height, output width, lanes); float32, or float16
//           where HALF is 1; up to 2^31 - 1 numbers of each; lanes in whole EACH.
//           rows, columns: of a window; down, across: from one window to the next; above, beside: padding before the image.
// Needs     blocks of THREADS threads that cover the outputs, EACH a thread. MEAN and COUNTS_PADDING as in images/pool.cu.
#include "common.cuh"
#include "fours.cuh"
#include "images/pooled.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    pool_last(unsigned count, int lanes, int height, int width, int output_height, int output_width, int rows,
              int columns, int down, int across, int above, int beside, const Number* __restrict__ images,
              Number* __restrict__ outputs) {
    const unsigned place = (blockIdx.x * THREADS + threadIdx.x) * EACH;
    if (place >= count) return;
    const unsigned pixel = place / lanes, line = pixel / output_width, image = line / output_height;
    const int top = static_cast<int>(line % output_height) * down - above;
    const int left = static_cast<int>(pixel % output_width) * across - beside;
    const int first_row = max(top, 0), last_row = min(top + rows, height);
    const int first_column = max(left, 0), last_column = min(left + columns, width);
#if COUNTS_PADDING
    const double size = static_cast<double>(rows) * static_cast<double>(columns);
#else
    const double size = static_cast<double>(last_row - first_row) * static_cast<double>(last_column - first_column);
#endif
    const Number* from = images + image * height * width * lanes + place % lanes;
    Pooled found[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) found[k] = nothing();
    for (int row = first_row; row < last_row; ++row) {
        for (int column = first_column; column < last_column; ++column) {
#pragma unroll
            for (int k = 0; k < EACH; k += 4) {
                const float4 four = four_at(from + (row * width + column) * lanes + k);
                found[k] = with_float(found[k], four.x);
                found[k + 1] = with_float(found[k + 1], four.y);
                found[k + 2] = with_float(found[k + 2], four.z);
                found[k + 3] = with_float(found[k + 3], four.w);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < EACH; k += 4) {
        const float four[4] = {of_window(found[k], size), of_window(found[k + 1], size), of_window(found[k + 2], size),
                               of_window(found[k + 3], size)};
        store_four(outputs + place + k, four);
    }
}
