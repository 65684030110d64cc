// naive: one thread per output, as of a product of matrices.
//
// Idea      A thread computes one output, a sum over the inputs under its filter, and reads those and the filter's
//           weights from global memory. Neighbouring threads have neighbouring filters: what a warp writes lies an
//           image's pixels apart, and so do the weights that it reads a filter's.
// Layout    inputs (images, channels, height, width), weights (filters, channels, kernel height, kernel width), outputs
//           (images, filters, output height, output width); float32.
// Needs     blocks of THREADS threads, one thread for each output. Any sizes, strides, padding and dilation; one group.
// Before    nothing: the first rung of the second story.
// Changes   nothing.
#include "patches.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    conv2d(int64 images, const float* __restrict__ inputs, const float* __restrict__ weights,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    one_output_a_thread<true>(Patches{images, inputs, weights, {bias, clip}, outputs});
}
