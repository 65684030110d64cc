// What the rungs for the network 72 - 64 - 64 - 4 share: its shape, how rows and weights come into shared memory, and
// the dot product. ReLU follows the first two layers, nothing the third.
#pragma once
#include "common.cuh"

constexpr int INPUTS = 72;
constexpr int HIDDEN = 64;
constexpr int OUTPUTS = 4;


// NaN stays NaN.
__device__ __forceinline__ float relu(float z) { return z < 0.0f ? 0.0f : z; }

// Copies by all threads of a block; a barrier must follow before others read.
template <int COUNT>
__device__ __forceinline__ void copy(const float* __restrict__ source, float* target) {
    for (int i = threadIdx.x; i < COUNT; i += THREADS) target[i] = source[i];
}

// Rows `first` to `first + ROWS` of the features; rows past the last are zeros.
template <int ROWS>
__device__ __forceinline__ void load_rows(const float* __restrict__ features, int64 first, int64 rows, float* target) {
    const int64 there = (rows - first) * INPUTS;
    const float* source = features + first * INPUTS;
    for (int i = threadIdx.x; i < ROWS * INPUTS; i += THREADS) target[i] = i < there ? source[i] : 0.0f;
}

// sum + row[0] * column[0] + row[1] * column[STRIDE] + ...: a row of features against a column of weights.
template <int COUNT, int STRIDE>
__device__ __forceinline__ float dot(const float* row, const float* column, float sum) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum = fmaf(row[i], column[i * STRIDE], sum);
    return sum;
}

// The same with weights in registers.
template <int COUNT>
__device__ __forceinline__ float dot(const float* row, const float (&weights)[COUNT], float sum) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum = fmaf(row[i], weights[i], sum);
    return sum;
}

// COUNT weights of one column, from `first` on, into registers.
template <int COUNT>
__device__ __forceinline__ void take_column(const float* first, int stride, float (&weights)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) weights[i] = first[i * stride];
}

// The sum over SIZE neighbouring lanes, by a tree; all lanes of the warp must call.
template <int SIZE>
__device__ __forceinline__ float group_sum(float value) {
#pragma unroll
    for (int distance = SIZE / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}
