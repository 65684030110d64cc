// What a library's product of matrices needs around it to be a convolution.
//
// Idea      gather writes the matrix that a convolution multiplies its filters with: for each pixel of the outputs a
//           column with the inputs under the filter there. finish adds the bias and applies the activation afterwards.
//           The matrix is as many times larger than the images as a filter has elements, so callers take some images at
//           a time.
// Layout    inputs (images, channels, height, width); columns (images, channels * kernel height * kernel width, output
//           height * output width); outputs (images, filters, output height, output width); float32.
// Needs     blocks of THREADS threads, one thread for each element of the columns, or of the outputs.
#include "patches.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(int64 count, const float* __restrict__ inputs, float* __restrict__ columns) {
    const int64 element = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (element >= count) return;
    const int64 row = element / OUTPUT_AREA, image = row / DEPTH;
    const int pixel = static_cast<int>(element - row * OUTPUT_AREA), term = static_cast<int>(row - image * DEPTH);
    const Patches patches{0, inputs, nullptr, {nullptr, 0.0f}, nullptr};
    columns[element] = patches.right(patches.column(image * OUTPUT_AREA + pixel), patches.term(term));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    finish(int64 count, float* __restrict__ outputs, const float* __restrict__ bias, float clip) {
    const int64 output = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (output >= count) return;
    outputs[output] = Finish{bias, clip}(outputs[output], static_cast<int>(output / OUTPUT_AREA % FILTERS));
}
