// What the training kernels share: a layer's arrays, the slope of an activation, the loss of a row.
//
// Layout of every array: row-major float32, rows padded to whole quads (`padded`). A bias is the last row of its
// weights, (inputs + 1) x outputs, and goes with a column of ones behind the inputs of a layer, which stands for it in
// all three products. Whatever pads a row is zero and stays so. The inputs of the first layer are those of all rows,
// and a batch takes its own by `order`; all other arrays hold one batch.
#pragma once
#include "common.cuh"

constexpr int QUAD = 4;

__host__ __device__ __forceinline__ constexpr int padded(int width) { return (width + QUAD - 1) / QUAD * QUAD; }

struct Layer {
    const float* in;     // rows x padded(inputs + 1), a one behind the inputs
    float* in_gradient;  // rows x padded(inputs): the loss by the sums of the layer before; null for the first layer
    float* weights;      // (inputs + 1) x padded(outputs)
    float* velocity;     // likewise
    float* out;          // rows x padded(outputs + 1), a one behind the outputs
    float* gradient;     // rows x padded(outputs): the loss by the sums of this layer
    int inputs, outputs;
    int in_activation;  // of the layer before
    float in_clip;
    int activation;
    float clip;

    __device__ __forceinline__ int in_stride() const { return padded(inputs + 1); }
    __device__ __forceinline__ int stride() const { return padded(outputs); }
    __device__ __forceinline__ int out_stride() const { return padded(outputs + 1); }

    // Where a row of the batch has its inputs.
    __device__ __forceinline__ const float* input(const int64* order, int row) const {
        const int64 from = in_gradient == nullptr ? order[row] : static_cast<int64>(row);
        return in + from * in_stride();
    }
};

// CuPy passes numbers and pointers, so kernels take a layer apart and put it together again.
#define LAYER_PARAMETERS(layer)                                                                                      \
    const float *layer##_in, float *layer##_in_gradient, float *layer##_weights, float *layer##_velocity,            \
        float *layer##_out, float *layer##_gradient, int layer##_inputs, int layer##_outputs,                        \
        int layer##_in_activation, float layer##_in_clip, int layer##_activation, float layer##_clip
#define LAYER_OF(layer)                                                                                              \
    Layer {                                                                                                          \
        layer##_in, layer##_in_gradient, layer##_weights, layer##_velocity, layer##_out, layer##_gradient,           \
            layer##_inputs, layer##_outputs, layer##_in_activation, layer##_in_clip, layer##_activation,             \
            layer##_clip                                                                                             \
    }

// One mini-batch.
struct Batch {
    const int64* order;    // its rows
    const float* targets;  // of all rows, outputs of the last layer wide
    double* losses;        // one a row of the batch
    int rows;
    int cross_entropy;  // or else the mean squared error
    float rate, momentum;
};

#define BATCH_PARAMETERS                                                                                             \
    const int64 *order, const float *targets, double *losses, int rows, int cross_entropy, float rate, float momentum
#define BATCH \
    Batch { order, targets, losses, rows, cross_entropy, rate, momentum }

// Where a block stands if blocks of `width` columns lie row by row; grids have one dimension, which is the longest.
struct BlockPlace {
    int x, y;

    __device__ __forceinline__ BlockPlace(int columns, int width) {
        const int across = (columns + width - 1) / width;
        x = blockIdx.x % across;
        y = blockIdx.x / across;
    }
};

// One step of gradient descent; the gradient is that of the mean over the batch.
__device__ __forceinline__ void descend(float* weight, float* velocity, float gradient, const Batch& batch) {
    const float moved = fmaf(batch.momentum, *velocity, -batch.rate * gradient);
    *velocity = moved;
    *weight += moved;
}

// Adds the losses of some rows to *total, always in the same order. One block of SIZE threads.
template <int SIZE>
__device__ __forceinline__ void add_in_order(const double* losses, int rows, double* total) {
    __shared__ double sums[SIZE];
    double sum = 0.0;
    for (int row = threadIdx.x; row < rows; row += SIZE) sum += losses[row];
    sums[threadIdx.x] = sum;
    for (int half = SIZE / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *total += sums[0];
}

// The sum of `value` over the threads of a block, or its maximum, for all of them; `scratch` holds a float a warp.
template <bool MAXIMUM>
__device__ __forceinline__ float block_reduce(float value, float* scratch) {
    const int warps = (blockDim.x + WARP - 1) / WARP;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, value, distance);
        value = MAXIMUM ? fmaxf(value, other) : value + other;
    }
    __syncthreads();  // what was there has been read
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
    for (int warp = 1; warp < warps; ++warp) value = MAXIMUM ? fmaxf(value, scratch[warp]) : value + scratch[warp];
    return value;
}

// A row's loss, and the loss of the batch by the row's sums. All threads of a block (whole warps) call; `scratch`
// holds a float a warp. Losses are those of the row alone, gradients those of the mean over the batch.
__device__ __forceinline__ void row_loss(const Layer& last, const Batch& batch, int row, float* scratch) {
    const float* outputs = last.out + static_cast<int64>(row) * last.out_stride();
    const float* targets = batch.targets + batch.order[row] * last.outputs;
    float* gradient = last.gradient + static_cast<int64>(row) * last.stride();
    const float share = 1.0f / static_cast<float>(batch.rows);
    float loss = 0.0f;
    if (batch.cross_entropy) {
        float largest = -__int_as_float(0x7f800000), sum = 0.0f;
        for (int i = threadIdx.x; i < last.outputs; i += blockDim.x) largest = fmaxf(largest, __ldcg(&outputs[i]));
        largest = block_reduce<true>(largest, scratch);
        for (int i = threadIdx.x; i < last.outputs; i += blockDim.x) sum += expf(__ldcg(&outputs[i]) - largest);
        sum = block_reduce<false>(sum, scratch);
        const float logarithm = logf(sum);
        for (int i = threadIdx.x; i < last.outputs; i += blockDim.x) {
            const float shifted = __ldcg(&outputs[i]) - largest, target = targets[i];
            loss += target * (logarithm - shifted);
            gradient[i] = (expf(shifted) / sum - target) * share;
        }
    } else {
        const float each = 1.0f / static_cast<float>(last.outputs);
        for (int i = threadIdx.x; i < last.outputs; i += blockDim.x) {
            const float y = __ldcg(&outputs[i]), difference = y - targets[i];
            loss += difference * difference * each;
            gradient[i] = 2.0f * difference * each * share * slope(y, last.activation, last.clip);
        }
    }
    loss = block_reduce<false>(loss, scratch);
    if (threadIdx.x == 0) batch.losses[row] = static_cast<double>(loss);
}
