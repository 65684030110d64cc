// coalesced_weights: weights reordered once, so that a warp takes 128 bytes in a row from them.
//
// Idea      Before, a warp took the weights of 16 outputs for two inputs each: 64 bytes here and 64 there, twice for a
//           pair, in float32. Now they are converted and reordered once for a network: the first pair of every thread,
//           then the second of every thread, and so on. A warp's load is one line, half
//           as many loads are issued, and nothing is converted.
// Layout    as conflict_free, but the weights packed: for a hidden layer (pairs of a thread, 128 threads), for the last
//           (1, 128), two numbers in half precision each. The second half of a block takes the same as the first.
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 13.5 KiB of
//           shared memory; packed weights.
// Before    conflict_free.
// Changes   how weights come into registers; nothing after that.
#include "mlp_half.cuh"

constexpr int ROWS = 32;
static_assert(THREADS == 2 * 2 * HIDDEN, "two threads a hidden output, each with half of the rows");

extern "C" __global__ void __launch_bounds__(THREADS, 4) mlp(MLP_PARAMETERS(Half2)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / 2 % HIDDEN;
    Half2 layer1[INPUTS / 4], layer2[HIDDEN / 4], layer3[1];
    take_packed<2 * HIDDEN>(weights1, layer1);
    take_packed<2 * HIDDEN>(weights2, layer2);
    take_packed<OUTPUTS * LANES<1>>(weights3, layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[output_of_thread<1>()];

    // Each tile is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_tile<ROWS, THREADS>(features, first, rows, inputs, threadIdx.x);
        __syncthreads();
        hidden_layer<2, 2, ROWS / 2, true>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer<2, 2, ROWS / 2, true>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
    }
}
