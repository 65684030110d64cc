// Idea    : few and well-shaped launches, all of an epoch in one graph. Whatever follows a product is done where it
//           ends, and one launch back-propagates through a layer while other blocks of it update the layer behind,
//           whose weights nobody reads any more. A last layer of few outputs needs one launch for its outputs, the loss,
//           both gradients.
// Layout  : as in layer.cuh and fused.cuh.
// Needs   : compute capability 8.0 for copies that run beside the arithmetic; 74 KiB of shared memory a block.
// Before  : persistent, whose epoch is one kernel.
// Changes : the steps and the code of a tile are the same. Each step is a launch again, with tiles that suit it and
//           only as many blocks as it has tiles: the graph starts one sooner than blocks have met at a barrier.
#include "fused.cuh"

static_assert(ROW_TILE >= 16 && WEIGHT_TILE >= 16, "sizes of tiles of rows and of weights");

extern "C" __global__ void __launch_bounds__(THREADS, 2) forward(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    extern __shared__ float4 memory[];
    forward_tile<ROW_TILE>(LAYER_OF(layer), BATCH, blockIdx.x, reinterpret_cast<float*>(memory));
}

// The last layer where it is narrow; a block a row.
extern "C" __global__ void __launch_bounds__(THREADS, 2) head(LAYER_PARAMETERS(layer), BATCH_PARAMETERS, int lanes) {
    extern __shared__ float4 memory[];
    head_row(LAYER_OF(layer), BATCH, blockIdx.x, lanes, reinterpret_cast<float*>(memory));
}

// Loss and gradient of a last layer of many outputs; a block a row.
extern "C" __global__ void __launch_bounds__(THREADS, 2) loss(LAYER_PARAMETERS(layer), BATCH_PARAMETERS) {
    __shared__ float scratch[WARP];
    row_loss(LAYER_OF(layer), BATCH, blockIdx.x, scratch);
}

// The first `backward_blocks` blocks go back through `through`, the next `first_blocks` update `first`, those that are
// left update `second`.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    backward(LAYER_PARAMETERS(through), LAYER_PARAMETERS(first), LAYER_PARAMETERS(second), BATCH_PARAMETERS,
             int backward_blocks, int first_blocks) {
    extern __shared__ float4 memory[];
    float* shared = reinterpret_cast<float*>(memory);
    const Batch batch = BATCH;
    int block = blockIdx.x;
    if (block < backward_blocks) {
        backward_tile<ROW_TILE>(LAYER_OF(through), batch, block, shared);
        return;
    }
    block -= backward_blocks;
    const bool is_first = block < first_blocks;
    Layer layer = LAYER_OF(first);
    if (!is_first) layer = LAYER_OF(second);
    update_tile<WEIGHT_TILE>(layer, batch, is_first ? block : block - first_blocks, shared);
}

extern "C" __global__ void add_losses(const double* losses, int rows, double* total) {
    add_in_order<THREADS>(losses, rows, total);
}
