// multiply_add: how many float32 multiply-adds a second all multiprocessors together do.
//
// Idea      Every thread goes on with SUMS independent sums in registers, sum = sum * factor + added, so that neither
//           memory nor one sum's wait for itself holds anything up. Factor and added are not known to the compiler;
//           with 1/2 and 1/2 a sum that begins at 1 stays 1, and one that was left out would not be there to be added.
// Layout    sums (threads,) float32: each thread's sums added up, SUMS where all is well.
// Needs     a grid and blocks of one dimension.
#include "common.cuh"

constexpr int SUMS = 8;
constexpr int STEPS = 16;  // of each sum, in a round

extern "C" __global__ void multiply_add(float first, float factor, float added, int rounds, float* sums) {
    float sum[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = first;
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(sum[i], factor, added);
        }
    }
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) all += sum[i];
    sums[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
