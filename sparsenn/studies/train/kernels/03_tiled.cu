// Idea    : every operand of a product is used once for each row or column of the result. A block brings a tile of both
//           operands into shared memory, where all its threads use it, then the next.
// Layout  : as in train/layer.cuh. Tiles are 16 x 16, a thread an element, padded by a word so that both directions are
//           free of bank conflicts.
// Needs   : blocks of 16 x 16 threads.
// Before  : 02_transposed.cu.
// Changes : all three products go through shared memory, and a transposed operand is turned round on its way there, so
//           that no transpose is written to global memory.
#include "train/layer.cuh"

constexpr int TILE = 16;

typedef float Square[TILE][TILE + 1];

// Sums left[·][k] · right[k][·] over a pair of tiles.
__device__ __forceinline__ float add_tiles(const Square& left, const Square& right, float sum) {
#pragma unroll
    for (int k = 0; k < TILE; ++k) sum = fmaf(left[threadIdx.y][k], right[k][threadIdx.x], sum);
    return sum;
}

// out = act(in · weights)
extern "C" __global__ void forward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    __shared__ Square left, right;
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const int x = threadIdx.x, y = threadIdx.y;
    const BlockPlace block(layer.outputs, TILE);
    const int column = block.x * TILE + x, row = block.y * TILE + y;
    const float* inputs = row < batch.rows ? layer.input(batch.order, row) : nullptr;
    float sum = 0.0f;
    for (int start = 0; start <= layer.inputs; start += TILE) {
        left[y][x] = inputs && start + x <= layer.inputs ? inputs[start + x] : 0.0f;
        const bool there = start + y <= layer.inputs && column < layer.outputs;
        right[y][x] = there ? layer.weights[static_cast<int64>(start + y) * layer.stride() + column] : 0.0f;
        __syncthreads();
        sum = add_tiles(left, right, sum);
        __syncthreads();
    }
    if (row >= batch.rows || column >= layer.outputs) return;
    layer.out[static_cast<int64>(row) * layer.out_stride() + column] = activate(sum, layer.activation, layer.clip);
}

// in_gradient = (gradient · weightsᵀ) ⊙ act'(in)
extern "C" __global__ void backward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    __shared__ Square left, right;
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const int x = threadIdx.x, y = threadIdx.y;
    const BlockPlace block(layer.inputs, TILE);
    const int column = block.x * TILE + x, row = block.y * TILE + y;
    const int source = block.x * TILE + y;  // of the weights, a row of which becomes a column
    float sum = 0.0f;
    for (int start = 0; start < layer.outputs; start += TILE) {
        const bool inside = start + x < layer.outputs;
        const int64 at = static_cast<int64>(start + x);
        left[y][x] = inside && row < batch.rows ? layer.gradient[row * static_cast<int64>(layer.stride()) + at] : 0.0f;
        right[x][y] =
            inside && source < layer.inputs ? layer.weights[source * static_cast<int64>(layer.stride()) + at] : 0.0f;
        __syncthreads();
        sum = add_tiles(left, right, sum);
        __syncthreads();
    }
    if (row >= batch.rows || column >= layer.inputs) return;
    const float value = layer.in[static_cast<int64>(row) * layer.in_stride() + column];
    layer.in_gradient[static_cast<int64>(row) * padded(layer.inputs) + column] =
        sum * slope(value, layer.in_activation, layer.in_clip);
}

// velocity and weights, by inᵀ · gradient
extern "C" __global__ void update(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    __shared__ Square left, right;
    const Layer layer = LAYER_OF(layer);
    const Batch batch = BATCH;
    const int x = threadIdx.x, y = threadIdx.y;
    const BlockPlace block(layer.outputs, TILE);
    const int column = block.x * TILE + x, row = block.y * TILE + y;
    const int source = block.y * TILE + x;  // of the inputs, a column of which becomes a row
    float sum = 0.0f;
    for (int start = 0; start < batch.rows; start += TILE) {
        const bool inside = start + y < batch.rows;
        left[x][y] = inside && source <= layer.inputs ? layer.input(batch.order, start + y)[source] : 0.0f;
        right[y][x] = inside && column < layer.outputs
                          ? layer.gradient[static_cast<int64>(start + y) * layer.stride() + column]
                          : 0.0f;
        __syncthreads();
        sum = add_tiles(left, right, sum);
        __syncthreads();
    }
    if (row > layer.inputs || column >= layer.outputs) return;
    const int64 place = static_cast<int64>(row) * layer.stride() + column;
    descend(&layer.weights[place], &layer.velocity[place], sum, batch);
}
