// shared_and_registers: first and last layer in shared memory, the second in registers.
//
// Idea      A thread computes the same hidden output of every row, so its column of the second layer's weights never
//           changes: it keeps these 64 numbers in registers. A multiply-add of that layer reads shared memory once
//           instead of twice, and with less shared memory a block, more blocks run at a time.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs).
//           A block takes ROWS rows at a time, a thread for each hidden output; groups are dealt to the blocks in turn.
//           In the last layer, ROWS * 4 threads have an output.
// Needs     blocks of THREADS = 64 * ROWS threads; 22 KiB of shared memory at 4 rows, and 64 registers for weights.
// Before    whole_net_shared.
// Changes   the second layer's weights, and the biases, move to registers.
#include "mlp.cuh"

constexpr int ROWS = THREADS / HIDDEN;
static_assert(THREADS == ROWS * HIDDEN, "a block is whole rows");

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, const float* __restrict__ features, const float* __restrict__ weights1,
        const float* __restrict__ bias1, const float* __restrict__ weights2, const float* __restrict__ bias2,
        const float* __restrict__ weights3, const float* __restrict__ bias3, float* __restrict__ outputs) {
    __shared__ float layer1[INPUTS * HIDDEN], layer3[HIDDEN * OUTPUTS];
    __shared__ float inputs[ROWS * INPUTS], hidden1[ROWS * HIDDEN], hidden2[ROWS * HIDDEN];
    copy<INPUTS * HIDDEN>(weights1, layer1);
    copy<HIDDEN * OUTPUTS>(weights3, layer3);
    const int row = threadIdx.x / HIDDEN, unit = threadIdx.x % HIDDEN;
    const int out_row = threadIdx.x / OUTPUTS, column = threadIdx.x % OUTPUTS;
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
        if (out_row < ROWS && first + out_row < rows) {
            const float sum = dot<HIDDEN, OUTPUTS>(hidden2 + out_row * HIDDEN, layer3 + column, offset3);
            outputs[(first + out_row) * OUTPUTS + column] = sum;
        }
    }
}
