// conflict_free: 32 rows at a time, and every lane of a warp reads another bank.
//
// Idea      With 32 rows in shared memory, the 16 pairs of threads of a warp need not read the same row at a time: each
//           pair begins at the row after its neighbour's, and they go round. Rows begin 4 banks apart and a thread
//           reads 2 words at once, so that the 16 lanes that are served together cover the 32 banks once.
// Layout    as registers_half, 32 rows a tile: one half of the block has the first 16 rows of the hidden layers, the
//           other the rest. 18, 16 and 1 pairs of weights a thread, which computes 16 rows of one output in each layer.
// Needs     blocks of THREADS = 256; numbers within half precision's range; features 16-byte aligned; 13.5 KiB of
//           shared memory.
// Before    registers_half.
// Changes   32 rows between barriers instead of 2, read in a circular order.
#include "mlp_half.cuh"

constexpr int ROWS = 32;
static_assert(THREADS == 2 * 2 * HIDDEN, "two threads a hidden output, each with half of the rows");

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
        hidden_layer<2, 2, ROWS / 2, true>(inputs, layer1, offset1, hidden1);
        __syncthreads();
        hidden_layer<2, 2, ROWS / 2, true>(hidden1, layer2, offset2, hidden2);
        __syncthreads();
        output_layer<ROWS, THREADS>(hidden2, layer3, offset3, first, rows, outputs);
    }
}
