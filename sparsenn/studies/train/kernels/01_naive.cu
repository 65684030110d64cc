// Idea    : the products of training as they are written down. A thread computes one element of a result and reads what
//           it needs from global memory; a transposed matrix is read by exchanging its indices.
// Layout  : as in train/layer.cuh.
// Needs   : nothing; any widths. One thread an element, in blocks of 32 x 8.
// Before  : first rung. A batch runs forward through all layers, then back through all, then all are updated. Reading
//           the weights by exchanged indices, neighbouring threads read from different rows of them.
// Changes : nothing. The second rung, `pipelined`, launches the same kernels, but on two streams: a layer is updated
//           while the one before it is back-propagated.
#include "train/layer.cuh"

// out = act(in · weights)
extern "C" __global__ void forward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const BlockPlace block(layer.outputs, blockDim.x);
    const int column = block.x * blockDim.x + threadIdx.x;
    const int row = block.y * blockDim.y + threadIdx.y;
    if (row >= batch.rows || column >= layer.outputs) return;
    const float* inputs = layer.input(batch.order, row);
    float sum = 0.0f;
    for (int k = 0; k <= layer.inputs; ++k)
        sum = fmaf(inputs[k], layer.weights[static_cast<int64>(k) * layer.stride() + column], sum);
    layer.out[static_cast<int64>(row) * layer.out_stride() + column] = activate(sum, layer.activation, layer.clip);
}

// The loss of each row and the gradient of the last layer; a block a row.
extern "C" __global__ void loss(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    __shared__ float scratch[WARP];
    row_loss(LAYER_OF(layer), BATCH, blockIdx.x, scratch);
}

// in_gradient = (gradient · weightsᵀ) ⊙ act'(in)
extern "C" __global__ void backward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const BlockPlace block(layer.inputs, blockDim.x);
    const int column = block.x * blockDim.x + threadIdx.x;
    const int row = block.y * blockDim.y + threadIdx.y;
    if (row >= batch.rows || column >= layer.inputs) return;
    const float* gradient = layer.gradient + static_cast<int64>(row) * layer.stride();
    const float* weights = layer.weights + static_cast<int64>(column) * layer.stride();
    float sum = 0.0f;
    for (int n = 0; n < layer.outputs; ++n) sum = fmaf(gradient[n], weights[n], sum);
    const float value = layer.in[static_cast<int64>(row) * layer.in_stride() + column];
    layer.in_gradient[static_cast<int64>(row) * padded(layer.inputs) + column] =
        sum * slope(value, layer.in_activation, layer.in_clip);
}

// velocity and weights, by inᵀ · gradient
extern "C" __global__ void update(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const BlockPlace block(layer.outputs, blockDim.x);
    const int column = block.x * blockDim.x + threadIdx.x;
    const int row = block.y * blockDim.y + threadIdx.y;
    if (row > layer.inputs || column >= layer.outputs) return;
    float sum = 0.0f;
    for (int r = 0; r < batch.rows; ++r)
        sum = fmaf(layer.input(batch.order, r)[row], layer.gradient[static_cast<int64>(r) * layer.stride() + column],
                   sum);
    const int64 place = static_cast<int64>(row) * layer.stride() + column;
    descend(&layer.weights[place], &layer.velocity[place], sum, batch);
}

extern "C" __global__ void add_losses(const double* losses, int rows, double* total) {
    add_in_order<256>(losses, rows, total);
}
