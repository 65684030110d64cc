// registers_half: whole_net_registers in half precision, two multiply-adds an instruction.
//
// Idea      Two weights lie in one register and two inputs in one word, and one instruction multiplies and adds both.
//           The network then takes a thread 35 registers instead of 70, and shared memory is read half as much.
//           Sums leave half precision after at most 9 steps and go on in float32.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs)
//           float32. All are converted on the way in. A block takes 2 rows at a time, two threads for each hidden
//           output, which take turns of 4 inputs: 18, 16 and 1 pairs of weights a thread. In the last layer a warp
//           shares an output. Groups of rows are dealt to the blocks in turn.
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 0.9 KiB of
//           shared memory.
// Before    whole_net_registers.
// Changes   inputs, weights and hidden values in half precision, in pairs.
#include "mlp_half.cuh"

constexpr int ROWS = 2;
static_assert(THREADS == ROWS * 2 * HIDDEN, "two threads a hidden output, each with one row at a time");

extern "C" __global__ void __launch_bounds__(THREADS, 4) mlp(MLP_PARAMETERS(float)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / 2 % HIDDEN, part = threadIdx.x % 2;
    Half2 layer1[INPUTS / 4], layer2[HIDDEN / 4], layer3[1];
    take_weights<2, 2>(weights1, HIDDEN, unit, part, layer1);
    take_weights<2, 2>(weights2, HIDDEN, unit, part, layer2);
    take_weights<WARP, 1>(weights3, OUTPUTS, output_of_thread<1>(), part_of_thread<1>(), layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[output_of_thread<1>()];

    // Each tile is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_tile<ROWS, THREADS>(features, first, rows, inputs, threadIdx.x);
        __syncthreads();
        hidden_layer<2, 2, 1, false>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer<2, 2, 1, false>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
    }
}
