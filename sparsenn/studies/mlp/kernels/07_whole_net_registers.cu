// whole_net_registers: the weights of all layers in registers, and nowhere else.
//
// Idea      A whole column of weights of every layer would take a thread 136 registers and more, and few threads could
//           run. So threads pair up: each has one half of a column of the first layer (36 weights) and of the second
//           (32), and one exchange adds the two halves of a sum. In the last layer a warp shares an output: 2 weights a
//           lane, and a tree of __shfl_xor_sync. A multiply-add reads shared memory once, in every layer.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs).
//           A block takes ROWS rows at a time, two threads for each hidden output, the even one with the first half of
//           the inputs; groups are dealt to the blocks in turn. Features and hidden values pass through shared memory.
// Needs     blocks of THREADS = 128 * ROWS threads; 1.6 KiB of shared memory at 2 rows, and 70 registers for weights.
// Before    last_layer_cooperative.
// Changes   no weights in shared memory; half the multiply-adds a thread and row, and half the rows at a time.
#include "mlp.cuh"

constexpr int PAIR = 2;
constexpr int ROWS = THREADS / (PAIR * HIDDEN);
static_assert(THREADS == ROWS * PAIR * HIDDEN, "a block is whole rows");
static_assert(THREADS == ROWS * OUTPUTS * WARP, "in the last layer every warp has one output");

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, const float* __restrict__ features, const float* __restrict__ weights1,
        const float* __restrict__ bias1, const float* __restrict__ weights2, const float* __restrict__ bias2,
        const float* __restrict__ weights3, const float* __restrict__ bias3, float* __restrict__ outputs) {
    __shared__ float inputs[ROWS * INPUTS], hidden1[ROWS * HIDDEN], hidden2[ROWS * HIDDEN];
    const int row = threadIdx.x / (PAIR * HIDDEN), unit = threadIdx.x / PAIR % HIDDEN, half = threadIdx.x % PAIR;
    const int lane = threadIdx.x % WARP, column = threadIdx.x / WARP % OUTPUTS;  // of the same row
    float layer1[INPUTS / PAIR], layer2[HIDDEN / PAIR], layer3[HIDDEN / WARP];
    take_column(weights1 + half * (INPUTS / PAIR) * HIDDEN + unit, HIDDEN, layer1);
    take_column(weights2 + half * (HIDDEN / PAIR) * HIDDEN + unit, HIDDEN, layer2);
    take_column(weights3 + lane * OUTPUTS + column, WARP * OUTPUTS, layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[column];
    const float* given1 = inputs + row * INPUTS + half * (INPUTS / PAIR);
    const float* given2 = hidden1 + row * HIDDEN + half * (HIDDEN / PAIR);

    // Each array is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_rows<ROWS>(features, first, rows, inputs);
        __syncthreads();
        const float sum1 = group_sum<PAIR>(dot(given1, layer1, 0.0f)) + offset1;
        if (half == 0) hidden1[row * HIDDEN + unit] = relu(sum1);
        __syncthreads();
        const float sum2 = group_sum<PAIR>(dot(given2, layer2, 0.0f)) + offset2;
        if (half == 0) hidden2[row * HIDDEN + unit] = relu(sum2);
        __syncthreads();
        float sum3 = 0.0f;
#pragma unroll
        for (int i = 0; i < HIDDEN / WARP; ++i) {
            sum3 = fmaf(hidden2[row * HIDDEN + lane + i * WARP], layer3[i], sum3);
        }
        sum3 = group_sum<WARP>(sum3) + offset3;
        if (lane == 0 && first + row < rows) outputs[(first + row) * OUTPUTS + column] = sum3;
    }
}
