// pool: each window of a plane of pixels becomes one number.
//
// Idea      A thread an output pixel; it walks over the part of its window that lies within the image. Threads beside
//           each other take neighbouring outputs of a row, then of the next row, then of the next plane.
// Layout    images (planes, height, width), a plane a channel of an image; outputs (planes, output height, output
//           width); float32, or float16 where HALF is 1.
//           rows, columns: of a window; down, across: from one window to the next; above, beside: padding before the
//           image; after it, as much as the outputs need.
// Needs     MEAN is 1 for the mean, where padding counts as zeros, or not at all where COUNTS_PADDING is 0, and 0 for the
//           largest number, where it does not count.
//           A block is (pixels, planes) threads; the grid's first dimension covers a plane, its second any planes.
#include "images/pooled.cuh"

extern "C" __global__ void pool(int64 planes, int height, int width, int output_height, int output_width, int rows,
                                int columns, int down, int across, int above, int beside,
                                const Number* __restrict__ images, Number* __restrict__ outputs) {
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    const int pixels = output_height * output_width;
    if (pixel >= pixels) return;
    const int top = pixel / output_width * down - above;
    const int left = pixel % output_width * across - beside;
    const int first_row = max(top, 0), last_row = min(top + rows, height);
    const int first_column = max(left, 0), last_column = min(left + columns, width);
#if COUNTS_PADDING
    const double size = static_cast<double>(rows) * static_cast<double>(columns);
#else
    const double size = static_cast<double>(last_row - first_row) * static_cast<double>(last_column - first_column);
#endif
    const int64 step = static_cast<int64>(gridDim.y) * blockDim.y;
    for (int64 plane = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; plane < planes; plane += step) {
        const Number* image = images + plane * height * width;
        Pooled found = nothing();
        for (int row = first_row; row < last_row; ++row) {
            for (int column = first_column; column < last_column; ++column)
                found = with(found, image[static_cast<int64>(row) * width + column]);
        }
        store(&outputs[plane * pixels + pixel], of_window(found, size));
    }
}
