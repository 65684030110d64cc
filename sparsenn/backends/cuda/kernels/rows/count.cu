// count: what each row's non-zeros weigh, for statistics.
//
// Idea      A warp adds up the weights of its row's non-zeros: integers, so that the order does not matter.
// Layout    features CSR (stored entries count) or dense by rows (non-zeros count); weights (width,) int64: how many
//           neurons a column stands for, or how many multiply-adds an input causes. sums and nonzeros (rows,) int64.
// Needs     blocks of whole warps.
#include "common.cuh"

extern "C" __global__ void count_csr(int rows, const int64* __restrict__ offsets, const INDEX* __restrict__ indices,
                                     const int64* __restrict__ weights, int64* __restrict__ sums,
                                     int64* __restrict__ nonzeros) {
    const int lane = threadIdx.x % WARP;
    for (int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < rows;
         row += gridDim.x * (blockDim.x / WARP)) {
        int64 sum = 0;
        for (int64 at = offsets[row] + lane; at < offsets[row + 1]; at += WARP) sum += weights[indices[at]];
        sum = warp_sum(sum);
        if (lane == 0) {
            sums[row] = sum;
            nonzeros[row] = offsets[row + 1] - offsets[row];
        }
    }
}

extern "C" __global__ void count_dense(int rows, int width, const float* __restrict__ matrix,
                                       const int64* __restrict__ weights, int64* __restrict__ sums,
                                       int64* __restrict__ nonzeros) {
    const int lane = threadIdx.x % WARP;
    for (int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < rows;
         row += gridDim.x * (blockDim.x / WARP)) {
        int64 sum = 0, found = 0;
        for (int column = lane; column < width; column += WARP) {
            const bool there = matrix[static_cast<int64>(row) * width + column] != 0.0f;
            sum += there ? weights[column] : 0;
            found += there;
        }
        sum = warp_sum(sum);
        found = warp_sum(found);
        if (lane == 0) {
            sums[row] = sum;
            nonzeros[row] = found;
        }
    }
}
