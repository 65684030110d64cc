// finish: bias and activation after a library's convolution, in place.
//
// Idea      Each sum becomes act(sum + bias of its filter). The library could do so itself, but its ReLU may make zero of NaN.
// Layout    (images, filters, pixels) float32, up to 2^31 - 1 numbers, in place.
// Needs     blocks of THREADS threads.
#include "common.cuh"
#include "ptx/opaque.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    finish(float* numbers, const float* __restrict__ bias, unsigned count, unsigned pixels, unsigned filters, int activation,
           float clip) {
    const unsigned step = gridDim.x * THREADS;
    for (unsigned place = block_number() * THREADS + threadIdx.x; place < count; place += step)
        numbers[place] = activate(numbers[place] + __ldg(bias + place / pixels % filters), activation, clip);
}
