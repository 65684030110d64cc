// hidden_loads: one half of a block computes the last layer while the other brings in the next rows.
//
// Idea      Nobody reads the tile of inputs after the first layer. So while four warps compute the last layer, which
//           is little work, the other four fill it with the next rows, whose way from global memory is hidden.
// Layout    as coalesced_weights, but 2 pairs of weights of the last layer instead of 1 in each of the threads that
//           compute it: 16 lanes share an output, and a warp computes two. Packed (2, 64) for that layer.
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 13.5 KiB of
//           shared memory; packed weights. It can hide loads only where a block takes more than one tile.
// Before    coalesced_weights.
// Changes   loads of rows run beside the last layer; that has half the threads, and one exchange less in each sum.
#include "mlp_half.cuh"

constexpr int ROWS = 32;
constexpr int COMPUTING = THREADS / 2;
static_assert(THREADS == 2 * 2 * HIDDEN, "two threads a hidden output, each with half of the rows");

extern "C" __global__ void __launch_bounds__(THREADS, 4) mlp(MLP_PARAMETERS(Half2)) {
    __shared__ alignas(16) Half2 inputs[ROWS * PITCH], hidden1[ROWS * PITCH], hidden2[ROWS * PITCH];
    const int unit = threadIdx.x / 2 % HIDDEN;
    Half2 layer1[INPUTS / 4], layer2[HIDDEN / 4], layer3[2];
    take_packed<2 * HIDDEN>(weights1, layer1);
    take_packed<2 * HIDDEN>(weights2, layer2);
    take_packed<OUTPUTS * LANES<2>>(weights3, layer3);
    const float offset1 = bias1[unit], offset2 = bias2[unit], offset3 = bias3[output_of_thread<2>()];

    const int64 stride = static_cast<int64>(gridDim.x) * ROWS;
    int64 first = static_cast<int64>(blockIdx.x) * ROWS;
    load_tile<ROWS, THREADS>(features, first, rows, inputs, threadIdx.x);
    for (; first < rows; first += stride) {
        __syncthreads();
        hidden_layer<2, 2, ROWS / 2, true>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer<2, 2, ROWS / 2, true>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        if (threadIdx.x < COMPUTING) {
            output_layer<ROWS, COMPUTING>(hidden2, layer3, offset3, first, rows, outputs);
        } else {
            load_tile<ROWS, THREADS - COMPUTING>(features, first + stride, rows, inputs, threadIdx.x - COMPUTING);
        }
    }
}
