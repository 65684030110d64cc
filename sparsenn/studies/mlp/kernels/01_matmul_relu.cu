// matmul_relu: a matrix product and an activation, each a kernel of its own.
//
// Idea      The textbook way: a layer is a product, then an element-wise function. A thread computes one output of one
//           row, a dot product over the layer's inputs; a second kernel puts each sum through the activation. Two
//           launches a layer, one where there is no activation: five for 72 - 64 - 64 - 4.
// Layout    features, weights and outputs dense, float32, row-major; bias a vector. Blocks are squares of SIDE x SIDE
//           outputs, columns along the lanes: a warp reads SIDE neighbouring weights, and elements of two rows.
// Needs     blocks of SIDE x SIDE threads for matmul, and of THREADS for activate_all. Any widths.
// Before    nothing: the first rung.
// Changes   nothing.
#include "common.cuh"

// The grid is one line of blocks, `column_blocks` of them for each SIDE rows. The sum begins with the bias.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
    matmul(int64 rows, int inputs, int outputs, int column_blocks, const float* __restrict__ features,
           const float* __restrict__ weights, const float* __restrict__ bias, float* __restrict__ sums) {
    const int64 row = static_cast<int64>(blockIdx.x / column_blocks) * SIDE + threadIdx.y;
    const int column = blockIdx.x % column_blocks * SIDE + threadIdx.x;
    if (row >= rows || column >= outputs) return;
    const float* given = features + row * inputs;
    const float* weight = weights + column;
    float sum = bias[column];
    for (int i = 0; i < inputs; ++i) sum = fmaf(given[i], weight[static_cast<int64>(i) * outputs], sum);
    sums[row * outputs + column] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    activate_all(int64 count, float* __restrict__ values, int activation, float clip) {
    const int64 element = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (element < count) values[element] = activate(values[element], activation, clip);
}
