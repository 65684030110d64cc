// pool_pairs: windows of two by two that touch and cover the image, each of which becomes one number.
//
// Idea      Where height and width are even, all planes together are one matrix, and so are the outputs: which plane a pixel
//           is of need not be known. A thread reads a window as two pairs of neighbours, so that a warp reads all of what
//           it asks memory for, and has the windows of EACH outputs on their way at a time.
// Layout    images (planes, 2 * output height, 2 * width), outputs (planes, output height, width), of `count` numbers in
//           all; float32, or float16 where HALF is 1.
// Needs     MEAN is 1 for the mean and 0 for the largest number; blocks of THREADS threads, of which each takes
//           THREADS * EACH outputs; images that begin at a multiple of a pair's size; width * 2 + THREADS * EACH < 2^31.
// Watch     numbers are taken in the order in which pool.cu takes them, so that the outputs are the same bit for bit.
#include "images/pooled.cuh"

struct __align__(2 * sizeof(Number)) Pair {
    Number left, right;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    pool_pairs(int64 count, int width, const Pair* __restrict__ images, Number* __restrict__ outputs) {
    const int64 first = static_cast<int64>(blockIdx.x) * (THREADS * EACH);
    const int64 first_row = first / width;
    const unsigned before = static_cast<unsigned>(first - first_row * width) + threadIdx.x;
    Pair upper[EACH], lower[EACH];
#pragma unroll
    for (int each = 0; each < EACH; ++each) {
        const unsigned beyond = before + each * THREADS;  // the start of the first row
        const int64 output = first + threadIdx.x + each * THREADS;
        if (output < count) {
            const int64 row = first_row + beyond / static_cast<unsigned>(width);
            upper[each] = images[output + row * width];  // 2 * row * width pairs are above it, and the column beside
            lower[each] = images[output + row * width + width];
        }
    }
#pragma unroll
    for (int each = 0; each < EACH; ++each) {
        const int64 output = first + threadIdx.x + each * THREADS;
        const Pooled above = with(with(nothing(), upper[each].left), upper[each].right);
        const Pooled found = with(with(above, lower[each].left), lower[each].right);
        if (output < count) store(&outputs[output], of_window(found, 4.0));
    }
}
