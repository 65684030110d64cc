// tuned_large: many rows, so weights stay in registers, and the last layer gets more of them.
//
// Idea      With 4 pairs of weights of the last layer in a thread instead of 1, 8 lanes share an output instead of 32:
//           3 exchanges for a sum instead of 5, and a quarter as many steps. Reads are wide, all lanes with the same
//           part read the same word, and two rows share one exchange in the hidden layers, as in tuned_small.
// Layout    as tuned_small, tiles dealt to the blocks in turn: 18, 16 and 4 pairs of weights a thread, packed
//           (18, 128), (16, 128) and (4, 32).
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 13.5 KiB of
//           shared memory; packed weights.
// Before    coalesced_weights.
// Changes   38 registers for weights instead of 35; every lane reads the same row, 4 words at a time; two rows an
//           exchange; a quarter of the steps in the last layer.
#include "mlp_half.cuh"

constexpr int ROWS = 32;
static_assert(THREADS == 2 * 2 * HIDDEN, "two threads a hidden output, each with half of the rows");

extern "C" __global__ void __launch_bounds__(THREADS, 4) mlp(MLP_PARAMETERS(Half2)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / 2 % HIDDEN;
    Half2 layer1[INPUTS / 4], layer2[HIDDEN / 4], layer3[4];
    take_packed<2 * HIDDEN>(weights1, layer1);
    take_packed<2 * HIDDEN>(weights2, layer2);
    take_packed<OUTPUTS * LANES<4>>(weights3, layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[output_of_thread<4>()];

    // Each tile is written two barriers after it was last read, or more.
    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += stride) {
        load_tile<ROWS, THREADS>(features, first, rows, inputs, threadIdx.x);
        __syncthreads();
        hidden_layer_by_two<4, ROWS / 2>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer_by_two<4, ROWS / 2>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
    }
}
