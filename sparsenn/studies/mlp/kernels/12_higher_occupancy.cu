// higher_occupancy: a quarter of a row of weights a thread, so that more threads run at a time.
//
// Idea      Registers for weights are what limits the threads of a multiprocessor. Four threads share each output of a
//           hidden layer instead of two, and hold half as many weights each: five blocks fit instead of four. The
//           price is two exchanges for a sum instead of one, and half as many rows between barriers.
// Layout    as coalesced_weights, 16 rows a tile; threads of a group of four take turns of one pair. 9, 8 and 8 pairs
//           of weights a thread, a quarter of a column in every layer: packed (9, 256), (8, 256) and (8, 16).
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 6.8 KiB of
//           shared memory; packed weights.
// Before    hidden_loads.
// Changes   25 registers for weights instead of 36, at most 48 in all; rows are loaded by all threads again.
#include "mlp_half.cuh"

constexpr int ROWS = 16;
constexpr int PARTS = 4;
static_assert(THREADS == PARTS * HIDDEN, "four threads a hidden output");

extern "C" __global__ void __launch_bounds__(THREADS, 5) mlp(MLP_PARAMETERS(Half2)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / PARTS;
    Half2 layer1[INPUTS / 8], layer2[HIDDEN / 8], layer3[8];
    take_packed<PARTS * HIDDEN>(weights1, layer1);
    take_packed<PARTS * HIDDEN>(weights2, layer2);
    take_packed<OUTPUTS * LANES<8>>(weights3, layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[output_of_thread<8>()];

    // Each tile is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_tile<ROWS, THREADS>(features, first, rows, inputs, threadIdx.x);
        __syncthreads();
        hidden_layer<PARTS, 1, ROWS, true>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer<PARTS, 1, ROWS, true>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
    }
}
