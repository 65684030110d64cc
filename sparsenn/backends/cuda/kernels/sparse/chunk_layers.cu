// chunk_layers: all layers of a stage with many rows in one launch, each as gather_chunks computes one.
//
// Idea      A tile's next layer needs nothing but the tile's last one, so there is no step that the whole grid takes
//           together: a block that begins on a tile waits until the tile's inputs are there, and they are, because work
//           is taken in order.
// Layout    Features of a stage lie in tiles, (tiles, `tile_bytes`), each a (width, ROWS) matrix, in two buffers by
//           turns. Tiles are taken in *waves*: few enough that their features stay in the L2 cache from layer to layer,
//           enough to occupy every block. For every layer and tile, `done` counts the warps that have finished; for
//           every layer and row, `nonzeros` counts the neurons that are not zero.
// Needs     all blocks resident at a time, or waiting would never end; `done` and `nonzeros` filled with 0. Layers laid
//           out with the same chunk. Defines: VECTOR, OUTPUTS, WARPS, BLOCKS, TEAMS, as for gather_chunks.
// Beside    tile_layers, which keeps whole rows in shared memory, hence few of them when they are wide, and reads every
//           edge from the L2 cache for each 32 rows or fewer. Here edges are in shared memory for up to 256 rows and
//           sums in registers, at the price of features that pass through the L2 cache between layers.
#include "gather_chunks.cuh"
#include "ptx/memory.cuh"
#include "resident.cuh"
#include "rows/turned_piece.cuh"

static_assert(OUTPUTS <= WARP, "a lane has the copies of one output");

// A layer as gather_chunks reads it.
struct ChunkedLayer {
    Chunks laid_out;
    const Slot* slots;
    int groups;  // of SLOTS outputs
    int chunks;  // of a group
};

struct Buffers {
    char *even, *odd;  // what layers read and write by turns; the stage's inputs are in `even`
    int* nonzeros;   // (layers of the stage, capacity)
    int* done;       // (layers of the stage, tiles)
    int64 tile_bytes;
    int capacity;  // rows, a multiple of ROWS
    int wave;      // tiles
    int chunk;     // inputs, at most
    int stages, stage_bytes;

    // What has gone through so many layers of the stage.
    __device__ __forceinline__ char* tile(int number, int layers) const {
        return (layers % 2 ? odd : even) + number * tile_bytes;
    }
};

struct Problem {
    const Layer* layers;          // of the stage
    const ChunkedLayer* chunked;  // likewise
    const float* bias;
    const int* copies;
    int count;  // layers
    int tiles;
};

// One piece of work: a layer's group of outputs for a tile.
struct Item {
    int layer, tile, group;
};

// Goes through a block's items in the order in which all blocks take them: wave by wave, layer by layer.
struct Schedule {
    int wave, layer, number;  // first tile of the wave; item within the wave's layer
    int taken;                // items of earlier layers, modulo the blocks

    __device__ __forceinline__ bool next(const Problem& problem, int tiles_of_wave, Item& item) {
        while (wave < problem.tiles) {
            const int groups = problem.chunked[layer].groups;
            const int items = min(tiles_of_wave, problem.tiles - wave) * groups;
            if (number < items) {
                item = {layer, wave + number / groups, number % groups};
                number += gridDim.x;
                return true;
            }
            taken = (taken + items) % gridDim.x;
            number = (blockIdx.x + gridDim.x - taken) % gridDim.x;
            if (++layer == problem.count) layer = 0, wave += tiles_of_wave;
        }
        return false;
    }
};

// Orders what this thread wrote, or has seen to be written, before what the copy engine reads afterwards.
__device__ __forceinline__ void fence_copies() {
#if __CUDA_ARCH__ >= 900
    show_all_to_engines();
#endif
}

__device__ __forceinline__ void produce(const Problem& problem, const Buffers& buffers, Ring ring, int lane) {
    Schedule schedule = {0, 0, int(blockIdx.x), 0};
    for (Item item; schedule.next(problem, buffers.wave, item);) {
        const ChunkedLayer layer = problem.chunked[item.layer];
        const char* tile = buffers.tile(item.tile, item.layer);
        const int64 first = static_cast<int64>(item.group) * layer.chunks;
        if (item.layer > 0) {
            const int* done = buffers.done + (item.layer - 1) * (buffers.capacity / ROWS) + item.tile;
            const int all = problem.chunked[item.layer - 1].groups * WARPS;
            while (read_acquire(done) < all) __nanosleep(64);
            fence_copies();
        }
        for (int number = 0; number < layer.chunks; number++) {
            const Chunk chunk(layer.laid_out, first + number, lane);
            barrier_wait(ring.empty(), ring.turn.parity);
            fill(ring, tile, chunk, lane);
            ring.next();
        }
    }
}

// Writes this warp's outputs of a tile and counts those that are not zero, by row.
__device__ __forceinline__ void finish(const Layer& layer, const int* copies, const Slots& slots,
                                       const float (&sums)[OUTPUTS][VECTOR], char* lines, int* nonzeros, int lane) {
    const int own = slots.low.output < 0 ? 0 : copies[slots.low.output];
    int found[VECTOR] = {};
    if (!is_curved(layer.activation)) {
        const float infinity = __int_as_float(0x7f800000);
        const float least = layer.activation == RELU ? 0.0f : -infinity;
        const float most = layer.activation == RELU ? layer.clip : infinity;
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            const float bias = slots.bias(j);
            const int count = __shfl_sync(ALL_LANES, own, j);
            if (output < 0) continue;
            float rows[VECTOR];
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                const float z = sums[j][v] + bias;
                rows[v] = z < least ? least : (z > most ? most : z);  // NaN stays
                found[v] += rows[v] != 0.0f ? count : 0;
            }
            write_line(lines + static_cast<int64>(output) * LINE, rows);
        }
    } else {  // costly activations: sums are written first, so that the code for them is there once
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            if (output >= 0) write_line(lines + static_cast<int64>(output) * LINE, sums[j]);
        }
#pragma unroll 1
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            const float bias = slots.bias(j);
            const int count = __shfl_sync(ALL_LANES, own, j);
            if (output < 0) continue;
            char* line = lines + static_cast<int64>(output) * LINE;
            float rows[VECTOR];
            read_line(rows, line);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                rows[v] = activate(rows[v] + bias, layer.activation, layer.clip);
                found[v] += rows[v] != 0.0f ? count : 0;
            }
            write_line(line, rows);
        }
    }
#pragma unroll
    for (int v = 0; v < VECTOR; v++)
        if (found[v]) atomicAdd(&nonzeros[row_of(lane, v)], found[v]);
}

__device__ __forceinline__ void consume(const Problem& problem, const Buffers& buffers, Ring ring, int warp, int lane) {
    Schedule schedule = {0, 0, int(blockIdx.x), 0};
    for (Item item; schedule.next(problem, buffers.wave, item);) {
        const Layer layer = problem.layers[item.layer];
        const ChunkedLayer& chunked = problem.chunked[item.layer];
        float sums[OUTPUTS][VECTOR] = {};
        for (int chunk = 0; chunk < chunked.chunks; chunk++) {
            add_chunk(ring, warp, lane, sums);
            ring.next();
        }
        const Slots slots(chunked.slots, item.group, warp, lane);
        finish(layer, problem.copies + layer.output, slots, sums,
               buffers.tile(item.tile, item.layer + 1) + lane * PIECE * 4,
               buffers.nonzeros + static_cast<int64>(item.layer) * buffers.capacity + item.tile * ROWS, lane);
        __threadfence();
        fence_copies();
        __syncwarp();
        if (lane == 0) add_to_global(&buffers.done[item.layer * (buffers.capacity / ROWS) + item.tile], 1);
    }
}

// All layers of a stage. Does nothing where `few` rows or fewer are left: another kernel is for them, if they fit into shared
// memory; `few` is 0 where they do not.
extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP, BLOCKS)
    chunk_layers(const Network* network, const Stage* stages, const ChunkedLayer* __restrict__ chunked, int few,
                 const Buffers* where) {
    extern __shared__ __align__(128) char memory[];
    __shared__ uint64 barriers[2 * MOST_STAGES];
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const Problem problem = {network->layers + stage.first, chunked,
                             network->bias,                 network->copies,
                             stage.last - stage.first,      (rows + ROWS - 1) / ROWS};
    const int warp = of_warp(threadIdx.x / WARP), lane = threadIdx.x % WARP;
    make_barriers(barriers, buffers.stages);
    const Ring ring(memory, barriers, buffers.stages, buffers.stage_bytes, buffers.chunk, warp == WARPS);
    if (warp < WARPS) {
        consume(problem, buffers, ring, warp, lane);
    } else {
        produce(problem, buffers, ring, lane);
    }
}

// ---- Into tiles and out of them ---------------------------------------------------------------------------------

static_assert(ROWS % PIECE_ROWS == 0, "rows that are turned are of one tile");

// Calls turn(tile, first row in it, first column, columns) for all pieces, which blocks take by turns.
template <class Turn>
__device__ __forceinline__ void each_piece(int rows, int width, Turn turn) {
    const int across = (width + PIECE_COLUMNS - 1) / PIECE_COLUMNS, down = ROWS / PIECE_ROWS;
    const int64 pieces = static_cast<int64>((rows + ROWS - 1) / ROWS) * down * across;
    for (int64 number = blockIdx.x; number < pieces; number += gridDim.x) {
        const int first = number % across * PIECE_COLUMNS, part = number / across;
        turn(part / down, part % down * PIECE_ROWS, first, min(PIECE_COLUMNS, width - first));
        __syncthreads();
    }
}

// The stage's input rows, by its list, to tiles; what fills the last tile up is zeros.
extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    stage_to_tiles(const Network* network, const Stage* stages, int few, const Buffers* where) {
    __shared__ __align__(16) TurnedPiece piece;
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const int width = network->layers[stage.first].inputs;
    each_piece(rows, width, [&](int tile, int first_row, int first, int columns) {
        const auto at = [&](int row) -> const float* {
            const int position = tile * ROWS + first_row + row;
            if (position >= rows) return nullptr;
            const int64 from = stage.list_in ? stage.list_in[position] : position;
            return stage.rows_in + from * width + first;
        };
        piece.rows_in(at, columns, by_fours(stage.rows_in, width));
        __syncthreads();
        float* lines = reinterpret_cast<float*>(buffers.tile(tile, 0)) + first_row;
        piece.lines_out(lines + static_cast<int64>(first) * ROWS, ROWS, columns);
    });
}

// Gives the rows that are left a place in the output, and accounts for all layers of the stage. A warp takes 32 rows.
extern "C" __global__ void __launch_bounds__(256)
    leave_tiles(const Network* network, const Stage* stages, int few, const Buffers* where) {
    const Stage& stage = *stages;
    const int rows = *stage.count_in, lane = threadIdx.x % WARP;
    if (rows <= few) return;
    const Buffers buffers = *where;
    for (int base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < rows; base += gridDim.x * blockDim.x) {
        const int position = base + lane;
        const bool present = position < rows;
        const int from = !present ? -1 : stage.list_in ? stage.list_in[position] : position;
        const int weight = !present ? 0 : stage.weights_in ? stage.weights_in[from] : 1;
        int nonzeros = 0;
        for (int number = stage.first; number < stage.last; number++) {
            const int64 layer = number - stage.first;
            nonzeros = present ? buffers.nonzeros[layer * buffers.capacity + position] : 0;
            const uint64 active = warp_sum(nonzeros ? static_cast<uint64>(weight) : 0ull);
            const uint64 sum = warp_sum(static_cast<uint64>(weight) * nonzeros);
            const uint64 here = min(WARP, rows - base);
            if (lane == 0)
                add_to_counters(stage.counters + 4 * number, here, active, sum, here * network->layers[number].edges);
        }
        const bool keep = present && (nonzeros || stage.last - 1 < stage.droppable_from);
        const unsigned kept = __ballot_sync(ALL_LANES, keep);
        int start = 0;
        if (lane == 0 && kept) start = atomicAdd(stage.count_out, __popc(kept));
        start = __shfl_sync(ALL_LANES, start, 0);
        const int slot = keep ? start + __popc(kept & lanes_below(lane)) : -1;
        if (present) stage.next[position] = slot;
        if (keep) {
            stage.weights_out[slot] = weight;
            stage.hashes_out[slot] = 0;
        }
    }
}

// The stage's outputs back to rows, where `leave_tiles` has put them, each with its hash.
extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    tiles_to_stage(const Network* network, const Stage* stages, int few, const Buffers* where) {
    __shared__ __align__(16) TurnedPiece piece;
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const int width = network->layers[stage.last - 1].outputs, lane = threadIdx.x % WARP;
    each_piece(rows, width, [&](int tile, int first_row, int first, int columns) {
        const auto slot_of = [&](int row) {
            const int position = tile * ROWS + first_row + row;
            return position < rows ? stage.next[position] : -1;
        };
        if (!__syncthreads_or(slot_of(lane) >= 0)) return;
        const auto at = [&](int row) -> float* {
            const int64 slot = slot_of(row);
            return slot < 0 ? nullptr : stage.rows_out + slot * width + first;
        };
        const auto seen = [&](int row, int column, const float (&four)[FOUR]) {
            uint64 hash = 0;
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                if (column + i < columns) hash += hash_element(four[i], first + column + i);
            hash = warp_sum(hash);
            if (lane == 0) atomicAdd(&stage.hashes_out[slot_of(row)], hash);
        };
        const float* lines = reinterpret_cast<const float*>(buffers.tile(tile, stage.last - stage.first)) + first_row;
        piece.lines_in(lines + static_cast<int64>(first) * ROWS, ROWS, columns);
        __syncthreads();
        piece.rows_out(at, columns, by_fours(stage.rows_out, width), seen);
    });
}
