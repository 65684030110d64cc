// Idea    : one launch an epoch, of fewer and better-shaped steps. A block on each multiprocessor; all go through the
//           batches together, and between two steps they wait for each other, where other rungs end one kernel and
//           start the next. What a step is made of, train/fused.cuh says.
// Layout  : as in train/layer.cuh and train/fused.cuh; the layers come as an array of records, which each block copies
//           into shared memory behind the stages.
// Needs   : compute capability 8.0; a cooperative launch, which promises that all blocks run at the same time.
// Before  : 03_tiled.cu.
// Changes : 4 x 4 results a thread instead of one, sums split over the threads of a block, copies in flight, what
//           follows a product done where it ends; barriers on a counter in memory take the place of launches.
#include "train/fused.cuh"

// All blocks arrive before one leaves, and what they wrote is seen by all. *arrived only grows; `goal` says how far.
__device__ __forceinline__ void grid_barrier(unsigned* arrived, unsigned& goal) {
    goal += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while (static_cast<int>(*static_cast<volatile unsigned*>(arrived) - goal) < 0) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

// All batches of an epoch of `total` rows. `lanes` is as in `head_row`, or 0 where the last layer is wide. *arrived is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    epoch(const Layer* records, int count, BATCH_PARAMETERS, int total, int lanes, unsigned* arrived) {
    extern __shared__ float4 memory[];
    float* shared = reinterpret_cast<float*>(memory);
    Layer* layers = reinterpret_cast<Layer*>(shared + SHARED_FLOATS);
    for (int number = threadIdx.x; number < count; number += THREADS) layers[number] = records[number];
    __syncthreads();
    const int block = blockIdx.x, blocks = gridDim.x;
    const bool narrow = lanes > 0;
    unsigned goal = 0;
    for (int start = 0; start < total; start += rows) {
        Batch batch = BATCH;
        batch.order = order + start;
        batch.losses = losses + start;
        batch.rows = min(rows, total - start);
#pragma unroll 1
        for (int number = 0; number < count - narrow; ++number) {
            const int tiles = forward_tiles<ROW_TILE>(layers[number], batch.rows);
#pragma unroll 1
            for (int tile = block; tile < tiles; tile += blocks)
                forward_tile<ROW_TILE>(layers[number], batch, tile, shared);
            grid_barrier(arrived, goal);
        }
        const Layer& last = layers[count - 1];
#pragma unroll 1
        for (int row = block; row < batch.rows; row += blocks) {
            if (narrow) head_row(last, batch, row, lanes, shared);
            else row_loss(last, batch, row, shared);
            __syncthreads();  // the next row may overwrite what is shared
        }
        grid_barrier(arrived, goal);
        // Back through layer `number`, while the one behind it is updated; the first two are updated at the end.
#pragma unroll 1
        for (int number = max(0, count - 1 - narrow); number >= 0; --number) {
            const int through = number > 0 ? backward_tiles<ROW_TILE>(layers[number], batch.rows) : 0;
            const int behind = number + 1 < count ? update_tiles<WEIGHT_TILE>(layers[number + 1]) : 0;
            const int own = number == 0 ? update_tiles<WEIGHT_TILE>(layers[0]) : 0;
#pragma unroll 1
            for (int tile = block; tile < through + behind + own; tile += blocks) {
                if (tile < through) {
                    backward_tile<ROW_TILE>(layers[number], batch, tile, shared);
                } else {
                    const bool is_behind = tile < through + behind;
                    const Layer& updated = layers[is_behind ? number + 1 : 0];
                    update_tile<WEIGHT_TILE>(updated, batch, tile - through - (is_behind ? 0 : behind), shared);
                }
            }
            grid_barrier(arrived, goal);
        }
    }
}

extern "C" __global__ void add_losses(const double* losses, int rows, double* total) {
    add_in_order<THREADS>(losses, rows, total);
}
