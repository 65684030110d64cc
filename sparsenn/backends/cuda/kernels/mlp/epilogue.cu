// epilogue: bias and activation after a matrix product of a library.
//
// Idea      Each sum of the product becomes act(sum + bias) in place, a thread an element.
// Layout    sums dense, float32, row-major, of (rows, outputs); bias a vector.
// Needs     blocks of THREADS threads.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    add_bias_and_activate(int64 count, int outputs, float* __restrict__ sums, const float* __restrict__ bias,
                          int activation, float clip) {
    const int64 element = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (element >= count) return;
    const Epilogue epilogue{bias, activation, clip};
    sums[element] = epilogue(sums[element], static_cast<int>(element % outputs));
}
