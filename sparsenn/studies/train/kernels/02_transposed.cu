// Idea    : transpose a matrix once, instead of reading it across its rows in every product. A block reads a tile row
//           by row, turns it round in shared memory and writes it row by row; the products then read whole lines.
// Layout  : as in train/layer.cuh. A transpose has a row a column of the matrix, with room for whole quads.
// Needs   : room for the transposes of the widest layer's weights and of the inputs of a batch.
// Before  : 01_naive.cu.
// Changes : backward reads the transposed weights, where neighbouring threads read neighbouring words; update reads the
//           transposed inputs, where one thread's words follow each other.
#include "train/layer.cuh"

constexpr int TILE = 32, TILE_ROWS = 8;

// to[column][row] = from[row][column], where rows are found by `order` unless that is null.
__device__ __forceinline__ void transpose_tile(const float* from, int stride, const int64* order, int rows,
                                               int columns, float* to) {
    __shared__ float tile[TILE][TILE + 1];  // a column falls into 32 different banks
    const BlockPlace block(columns, TILE);
    const int left = block.x * TILE, top = block.y * TILE;
    for (int at = threadIdx.y; at < TILE; at += TILE_ROWS) {
        const int row = top + at, column = left + threadIdx.x;
        if (row < rows && column < columns) {
            const int64 source = order ? order[row] : static_cast<int64>(row);
            tile[at][threadIdx.x] = from[source * stride + column];
        }
    }
    __syncthreads();
    for (int at = threadIdx.y; at < TILE; at += TILE_ROWS) {
        const int row = top + threadIdx.x, column = left + at;
        if (row < rows && column < columns)
            to[static_cast<int64>(column) * padded(rows) + row] = tile[threadIdx.x][at];
    }
}

extern "C" __global__ void transpose_weights(LAYER_PARAMETERS(layer), float* transpose) {
    const Layer layer = LAYER_OF(layer);
    transpose_tile(layer.weights, layer.stride(), nullptr, layer.inputs, layer.outputs, transpose);
}

extern "C" __global__ void transpose_inputs(LAYER_PARAMETERS(layer), BATCH_PARAMETERS, float* transpose) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const int64* rows_of = layer.in_gradient == nullptr ? batch.order : nullptr;
    transpose_tile(layer.in, layer.in_stride(), rows_of, batch.rows, layer.inputs + 1, transpose);
}

// in_gradient = (gradient · transpose) ⊙ act'(in), with the transposed weights
extern "C" __global__ void backward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS, const float* transpose) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const BlockPlace block(layer.inputs, blockDim.x);
    const int column = block.x * blockDim.x + threadIdx.x;
    const int row = block.y * blockDim.y + threadIdx.y;
    if (row >= batch.rows || column >= layer.inputs) return;
    const float* gradient = layer.gradient + static_cast<int64>(row) * layer.stride();
    float sum = 0.0f;
    for (int n = 0; n < layer.outputs; ++n)
        sum = fmaf(gradient[n], transpose[static_cast<int64>(n) * padded(layer.inputs) + column], sum);
    const float value = layer.in[static_cast<int64>(row) * layer.in_stride() + column];
    layer.in_gradient[static_cast<int64>(row) * padded(layer.inputs) + column] =
        sum * slope(value, layer.in_activation, layer.in_clip);
}

// velocity and weights, by transpose · gradient, with the transposed inputs
extern "C" __global__ void update(LAYER_PARAMETERS(layer), BATCH_PARAMETERS, const float* transpose) {
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const BlockPlace block(layer.outputs, blockDim.x);
    const int column = block.x * blockDim.x + threadIdx.x;
    const int row = block.y * blockDim.y + threadIdx.y;
    if (row > layer.inputs || column >= layer.outputs) return;
    const float* inputs = transpose + static_cast<int64>(row) * padded(batch.rows);
    float sum = 0.0f;
    for (int r = 0; r < batch.rows; ++r)
        sum = fmaf(inputs[r], layer.gradient[static_cast<int64>(r) * layer.stride() + column], sum);
    const int64 place = static_cast<int64>(row) * layer.stride() + column;
    descend(&layer.weights[place], &layer.velocity[place], sum, batch);
}
