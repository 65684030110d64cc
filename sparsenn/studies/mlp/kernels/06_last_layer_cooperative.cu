// last_layer_cooperative: all threads work on the output layer.
//
// Idea      A group of ROWS rows has 16 times fewer outputs than hidden values, so 16 neighbouring lanes share one:
//           each adds up 4 of the 64 products, and a tree of __shfl_xor_sync adds the 16 parts.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs).
//           A block takes ROWS rows at a time, a thread for each hidden output; groups are dealt to the blocks in turn.
//           Lane k of 16 has the hidden values k, k + 16, k + 32 and k + 48.
// Needs     blocks of THREADS = 64 * ROWS threads; 22 KiB of shared memory at 4 rows, and 64 registers for weights.
// Before    shared_and_registers.
// Changes   the last layer: 4 multiply-adds and 4 exchanges by all threads, for 64 multiply-adds by one in 16.
#include "mlp.cuh"

constexpr int ROWS = THREADS / HIDDEN;
constexpr int LANES = HIDDEN / OUTPUTS;
static_assert(THREADS == ROWS * HIDDEN, "a block is whole rows");
static_assert(WARP % LANES == 0, "the lanes of an output are in one warp");

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, const float* __restrict__ features, const float* __restrict__ weights1,
        const float* __restrict__ bias1, const float* __restrict__ weights2, const float* __restrict__ bias2,
        const float* __restrict__ weights3, const float* __restrict__ bias3, float* __restrict__ outputs) {
    __shared__ float layer1[INPUTS * HIDDEN], layer3[HIDDEN * OUTPUTS];
    __shared__ float inputs[ROWS * INPUTS], hidden1[ROWS * HIDDEN], hidden2[ROWS * HIDDEN];
    copy<INPUTS * HIDDEN>(weights1, layer1);
    copy<HIDDEN * OUTPUTS>(weights3, layer3);
    const int row = threadIdx.x / HIDDEN, unit = threadIdx.x % HIDDEN;
    const int lane = threadIdx.x % LANES, column = threadIdx.x / LANES % OUTPUTS;  // of the same row
    float layer2[HIDDEN];
    take_column(weights2 + unit, HIDDEN, layer2);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[column];

    // Each array is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_rows<ROWS>(features, first, rows, inputs);
        __syncthreads();
        hidden1[threadIdx.x] = relu(dot<INPUTS, HIDDEN>(inputs + row * INPUTS, layer1 + unit, offset1));
        __syncthreads();
        hidden2[threadIdx.x] = relu(dot(hidden1 + row * HIDDEN, layer2, offset2));
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int i = lane; i < HIDDEN; i += LANES) {
            sum = fmaf(hidden2[row * HIDDEN + i], layer3[i * OUTPUTS + column], sum);
        }
        sum = group_sum<LANES>(sum) + offset3;
        if (lane == 0 && first + row < rows) outputs[(first + row) * OUTPUTS + column] = sum;
    }
}
