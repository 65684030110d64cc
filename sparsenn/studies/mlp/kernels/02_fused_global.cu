// fused_global: all layers in one kernel, with what lies between them in global memory.
//
// Idea      A block takes a few rows through the whole network, so one launch suffices: between layers a barrier of the
//           block stands where the end of a kernel stood, and the activation is applied to the sum at hand. Each thread
//           computes the outputs of its row and column, layer after layer; where a layer is narrower than the widest,
//           part of the threads rest (at 72 - 64 - 64 - 4, 15 of 16 in the last layer).
// Layout    features, weights and outputs dense, float32, row-major; layers described by a table in global memory. What
//           a layer leaves goes to one of two scratch buffers in turn, each of (rows, width of the widest layer).
//           A block has rows_per_block rows of its own, in the scratch buffers, too.
// Needs     blocks of THREADS threads. Any widths.
// Before    matmul_relu.
// Changes   one launch instead of five, and no pass over memory for the activation. Lanes now run along the outputs of
//           one row, so a warp reads 32 columns of weights for one row, where a square block shared 16 among two.
#include "common.cuh"

struct Layer {
    const float* weights;  // (inputs, outputs)
    const float* bias;     // (outputs,)
    int inputs, outputs, activation;
    float clip;
};
static_assert(sizeof(Layer) == 32, "the host writes the table in lines of 32 bytes");

// `given` and `left` are the block's rows; neighbouring threads have neighbouring outputs.
__device__ __forceinline__ void apply(const Layer& layer, int rows, const float* given, float* left) {
    for (int64 element = threadIdx.x; element < static_cast<int64>(rows) * layer.outputs; element += THREADS) {
        const int row = static_cast<int>(element / layer.outputs), column = static_cast<int>(element % layer.outputs);
        const float* features = given + static_cast<int64>(row) * layer.inputs;
        const float* weight = layer.weights + column;
        float sum = layer.bias[column];
        for (int i = 0; i < layer.inputs; ++i) {
            sum = fmaf(features[i], weight[static_cast<int64>(i) * layer.outputs], sum);
        }
        left[element] = activate(sum, layer.activation, layer.clip);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, int rows_per_block, int layers, int scratch_width, const Layer* __restrict__ table,
        const float* features, float* scratch_even, float* scratch_odd, float* outputs) {
    const int64 first = static_cast<int64>(blockIdx.x) * rows_per_block;
    const int count = static_cast<int>(min(static_cast<int64>(rows_per_block), rows - first));
    const float* given = features + first * table[0].inputs;
    for (int number = 0; number < layers; ++number) {
        const Layer layer = table[number];
        float* scratch = (number % 2 == 0 ? scratch_even : scratch_odd) + first * scratch_width;
        float* left = number + 1 == layers ? outputs + first * layer.outputs : scratch;
        apply(layer, count, given, left);
        __syncthreads();  // the block reads what its other threads wrote, and none of it is another block's
        given = left;
    }
}
