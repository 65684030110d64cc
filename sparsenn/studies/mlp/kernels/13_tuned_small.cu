// tuned_small: few rows, so a block takes one tile and holds one layer's weights at a time.
//
// Idea      With a tile a block there is no second tile for which the weights would have to stay. The registers of the
//           first layer's weights serve the second and the last layer too, and more threads run at a time. Reads are
//           wide, and all lanes with the same part read the same word, which is one access for all of them;
//           two rows at a time share one exchange, after which each thread of a pair finishes one of them.
// Layout    as coalesced_weights, but a pair of threads takes turns of 8 inputs (the last 8 of 72 are halved). A thread
//           holds 18, then 16, then 4 pairs of weights: 8 lanes share an output of the last layer. Packed (18, 128),
//           (16, 128) and (4, 32).
// Needs     blocks of THREADS = 256, one for each tile of 32 rows; numbers within half precision's range; features
//           16-byte aligned; 13.5 KiB of shared memory; packed weights.
// Before    coalesced_weights.
// Changes   no loop over tiles; 18 registers for weights instead of 35; every lane reads the same row, 4 words at a
//           time; two rows an exchange.
#include "mlp_half.cuh"

constexpr int ROWS = 32;
static_assert(THREADS == 2 * 2 * HIDDEN, "two threads a hidden output, each with half of the rows");

extern "C" __global__ void __launch_bounds__(THREADS, 5) mlp(MLP_PARAMETERS(Half2)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / 2 % HIDDEN;
    const int64 first = static_cast<int64>(blockIdx.x) * ROWS;
    load_tile<ROWS, THREADS, 3>(features, first, rows, inputs, threadIdx.x);
    {
        Half2 layer1[INPUTS / 4];
        take_packed<2 * HIDDEN>(weights1, layer1);
        const float offset1 = bias1[unit];
        __syncthreads();
        hidden_layer_by_two<4, ROWS / 2>(inputs, layer1, offset1, hidden1);
    }
    {
        Half2 layer2[HIDDEN / 4];
        take_packed<2 * HIDDEN>(weights2, layer2);
        const float offset2 = bias2[unit];
        __syncthreads();
        hidden_layer_by_two<4, ROWS / 2>(hidden1, layer2, offset2, hidden2);
    }
    Half2 layer3[4];
    take_packed<OUTPUTS * LANES<4>>(weights3, layer3);
    const float offset3 = bias3[output_of_thread<4>()];
    __syncthreads();
    output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
}
