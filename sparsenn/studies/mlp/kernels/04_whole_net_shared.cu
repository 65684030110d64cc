// whole_net_shared: the whole network in shared memory, many rows a thread.
//
// Idea      Weights and biases of all layers are copied to shared memory once a block, and the block then takes one
//           group of rows after the other. Only as many blocks are launched as run at a time, so the network is read
//           from global memory a few hundred times, however many rows there are.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs).
//           A block takes ROWS rows at a time, a thread for each hidden output; groups are dealt to the blocks in turn.
//           In the last layer, ROWS * 4 threads have an output.
// Needs     blocks of THREADS = 64 * ROWS threads; 39 KiB of shared memory at 4 rows, so that few run at a time.
// Before    fused_shared.
// Changes   a loop over groups of rows; all weights stay in shared memory, where one layer's had been copied for each.
#include "mlp.cuh"

constexpr int ROWS = THREADS / HIDDEN;
static_assert(THREADS == ROWS * HIDDEN, "a block is whole rows");

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, const float* __restrict__ features, const float* __restrict__ weights1,
        const float* __restrict__ bias1, const float* __restrict__ weights2, const float* __restrict__ bias2,
        const float* __restrict__ weights3, const float* __restrict__ bias3, float* __restrict__ outputs) {
    __shared__ float layer1[INPUTS * HIDDEN], layer2[HIDDEN * HIDDEN], layer3[HIDDEN * OUTPUTS];
    __shared__ float offset1[HIDDEN], offset2[HIDDEN], offset3[OUTPUTS];
    __shared__ float inputs[ROWS * INPUTS], hidden1[ROWS * HIDDEN], hidden2[ROWS * HIDDEN];
    copy<INPUTS * HIDDEN>(weights1, layer1);
    copy<HIDDEN * HIDDEN>(weights2, layer2);
    copy<HIDDEN * OUTPUTS>(weights3, layer3);
    copy<HIDDEN>(bias1, offset1);
    copy<HIDDEN>(bias2, offset2);
    copy<OUTPUTS>(bias3, offset3);
    const int row = threadIdx.x / HIDDEN, unit = threadIdx.x % HIDDEN;
    const int out_row = threadIdx.x / OUTPUTS, column = threadIdx.x % OUTPUTS;

    // Each array is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_rows<ROWS>(features, first, rows, inputs);
        __syncthreads();
        hidden1[threadIdx.x] = relu(dot<INPUTS, HIDDEN>(inputs + row * INPUTS, layer1 + unit, offset1[unit]));
        __syncthreads();
        hidden2[threadIdx.x] = relu(dot<HIDDEN, HIDDEN>(hidden1 + row * HIDDEN, layer2 + unit, offset2[unit]));
        __syncthreads();
        if (out_row < ROWS && first + out_row < rows) {
            const float sum = dot<HIDDEN, OUTPUTS>(hidden2 + out_row * HIDDEN, layer3 + column, offset3[column]);
            outputs[(first + out_row) * OUTPUTS + column] = sum;
        }
    }
}
