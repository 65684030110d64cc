// The idea: while rows are many, a stage's layers are computed as gather_chunks does, and all of them by one launch. A
// tile's next layer needs nothing but the tile's last one, so there is no step that the whole grid takes together: a
// block that begins on a tile waits until the tile's inputs are there, and they are, because work is taken in order.
//
// Data layout: features of a stage lie in tiles, (tiles, `tile_bytes`), each a (width, ROWS) matrix, in two buffers by
// turns. Tiles are taken in *waves*: few enough that their features stay in the L2 cache from layer to layer, enough to
// occupy every block. For every layer and tile, `done` counts the warps that have finished; for every layer and row,
// `nonzeros` counts the neurons that are not zero.
//
// Needs: all blocks resident at a time, or waiting would never end; `done` and `nonzeros` filled with 0. Layers laid
// out with the same chunk. Defines: VECTOR, OUTPUTS, WARPS, BLOCKS, as for gather_chunks.
// Came before: tile_layers, which keeps whole rows in shared memory, hence few of them when they are wide, and reads
// every edge from the L2 cache for each 32 rows or fewer. This one: edges in shared memory for up to 256 rows, sums in
// registers, at the price of features that pass through the L2 cache between layers.
#include "gather_chunks.cuh"
#include "resident.cuh"

// A layer as gather_chunks reads it.
struct ChunkedLayer {
    const char* records;
    const int* starts;  // of each record and of the end, in units of 16 bytes
    const Slot* slots;
    int groups;  // of SLOTS outputs
    int unused;
};

struct Buffers {
    char *even, *odd;  // what layers read and write by turns; the stage's inputs are in `even`
    int* nonzeros;   // (layers of the stage, capacity)
    int* done;       // (layers of the stage, tiles)
    int64 tile_bytes;
    int capacity;  // rows, a multiple of ROWS
    int wave;      // tiles
    int chunk;     // inputs
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
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

__device__ __forceinline__ int read_acquire(const int* place) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
    return value;
}

__device__ __forceinline__ void produce(const Problem& problem, const Buffers& buffers, char* memory, uint64* full,
                                        uint64* empty, int lane) {
    Turn turn = {0, 1};  // the first round waits for nobody
    Schedule schedule = {0, 0, int(blockIdx.x), 0};
    for (Item item; schedule.next(problem, buffers.wave, item);) {
        const ChunkedLayer layer = problem.chunked[item.layer];
        const int width = problem.layers[item.layer].inputs;
        const int chunks = (width + buffers.chunk - 1) / buffers.chunk;
        const char* tile = buffers.tile(item.tile, item.layer);
        const int* starts = layer.starts + static_cast<int64>(item.group) * chunks;
        if (item.layer > 0) {
            const int* done = buffers.done + (item.layer - 1) * (buffers.capacity / ROWS) + item.tile;
            const int all = problem.chunked[item.layer - 1].groups * WARPS;
            while (read_acquire(done) < all) __nanosleep(64);
            fence_copies();
        }
        for (int chunk = 0; chunk < chunks; chunk++) {
            const int start = starts[chunk], stop = starts[chunk + 1];
            const int first = chunk * buffers.chunk, inputs = min(buffers.chunk, width - first);
            char* lines = memory + turn.stage * buffers.stage_bytes;
            barrier_wait(&empty[turn.stage], turn.parity);
            fill(lines, tile + static_cast<int64>(first) * LINE, inputs * LINE, lines + (buffers.chunk + 1) * LINE,
                 layer.records + static_cast<int64>(start) * 16, (stop - start) * 16, &full[turn.stage], lane);
            turn.next(buffers.stages);
        }
    }
}

// Writes this warp's outputs of a tile and counts those that are not zero, by row.
__device__ __forceinline__ void finish(const Layer& layer, const int* copies, const Slot& slot,
                                       const float (&sums)[OUTPUTS][VECTOR], char* lines, int* nonzeros, int lane) {
    const int own = slot.output < 0 ? 0 : copies[slot.output];
    int found[VECTOR] = {};
    if (layer.activation == RELU || layer.activation == IDENTITY) {
        const float infinity = __int_as_float(0x7f800000);
        const float least = layer.activation == RELU ? 0.0f : -infinity;
        const float most = layer.activation == RELU ? layer.clip : infinity;
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = __shfl_sync(ALL_LANES, slot.output, j);
            const float bias = __shfl_sync(ALL_LANES, slot.bias, j);
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
            const int output = __shfl_sync(ALL_LANES, slot.output, j);
            if (output >= 0) write_line(lines + static_cast<int64>(output) * LINE, sums[j]);
        }
#pragma unroll 1
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = __shfl_sync(ALL_LANES, slot.output, j);
            const float bias = __shfl_sync(ALL_LANES, slot.bias, j);
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

__device__ __forceinline__ void consume(const Problem& problem, const Buffers& buffers, const char* memory,
                                        uint64* full, uint64* empty, int warp, int lane) {
    Turn turn = {0, 0};
    Schedule schedule = {0, 0, int(blockIdx.x), 0};
    for (Item item; schedule.next(problem, buffers.wave, item);) {
        const Layer layer = problem.layers[item.layer];
        const int chunks = (layer.inputs + buffers.chunk - 1) / buffers.chunk;
        Slot slot = {-1, 0.0f};
        if (lane < OUTPUTS) slot = problem.chunked[item.layer].slots[item.group * SLOTS + warp * OUTPUTS + lane];
        float sums[OUTPUTS][VECTOR] = {};
        for (int chunk = 0; chunk < chunks; chunk++) {
            const char* lines = memory + turn.stage * buffers.stage_bytes;
            barrier_wait(&full[turn.stage], turn.parity);
            add_chunk(lines + lane * PIECE * 4, lines + (buffers.chunk + 1) * LINE, warp, sums);
            barrier_arrive(&empty[turn.stage]);
            turn.next(buffers.stages);
        }
        finish(layer, problem.copies + layer.output, slot, sums,
               buffers.tile(item.tile, item.layer + 1) + lane * PIECE * 4,
               buffers.nonzeros + static_cast<int64>(item.layer) * buffers.capacity + item.tile * ROWS, lane);
        __threadfence();
        fence_copies();
        __syncwarp();
        if (lane == 0) atomicAdd(&buffers.done[item.layer * (buffers.capacity / ROWS) + item.tile], 1);
    }
}

// All layers of a stage. Does nothing where `few` rows or fewer are left: another kernel is for them.
extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP, BLOCKS)
    chunk_layers(const Network* network, const Stage* stages, const ChunkedLayer* __restrict__ chunked, int few,
                 const Buffers* where) {
    extern __shared__ __align__(128) char memory[];
    __shared__ uint64 full[MOST_STAGES], empty[MOST_STAGES];
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const Problem problem = {network->layers + stage.first, chunked,
                             network->bias,                 network->copies,
                             stage.last - stage.first,      (rows + ROWS - 1) / ROWS};
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int at = threadIdx.x; at < buffers.stages * ROWS; at += (WARPS + 1) * WARP)
        reinterpret_cast<float*>(memory + at / ROWS * buffers.stage_bytes + buffers.chunk * LINE)[at % ROWS] = 0.0f;
    if (threadIdx.x < buffers.stages) {
        barrier_init(&full[threadIdx.x], FULL_ARRIVALS);
        barrier_init(&empty[threadIdx.x], WARPS * WARP);
    }
    barriers_ready();
    __syncthreads();
    if (warp < WARPS) {
        consume(problem, buffers, memory, full, empty, warp, lane);
    } else if (lane < PRODUCERS) {
        produce(problem, buffers, memory, full, empty, lane);
    }
}

// ---- Into tiles and out of them ---------------------------------------------------------------------------------

constexpr int SIDE = 32;      // columns that a block takes at a time
constexpr int THREADS = 512;  // of the two kernels below
static_assert(THREADS % ROWS == 0, "a thread keeps to one row");

// The stage's input rows, by its list, to tiles; what fills the last tile up is zeros.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    stage_to_tiles(const Network* network, const Stage* stages, int few, const Buffers* where) {
    __shared__ float block[SIDE][ROWS + 1];
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const int width = network->layers[stage.first].inputs, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int strips = (width + SIDE - 1) / SIDE, tiles = (rows + ROWS - 1) / ROWS;
    for (int number = blockIdx.x; number < tiles * strips; number += gridDim.x) {
        const int tile = number / strips, first = number % strips * SIDE, column = first + lane;
        for (int row = warp; row < ROWS; row += THREADS / WARP) {
            const int position = tile * ROWS + row;
            float value = 0.0f;
            if (position < rows && column < width) {
                const int from = stage.list_in ? stage.list_in[position] : position;
                value = stage.rows_in[static_cast<int64>(from) * width + column];
            }
            block[lane][row] = value;
        }
        __syncthreads();
        float* target = reinterpret_cast<float*>(buffers.tile(tile, 0));
        for (int line = threadIdx.x / ROWS; line < SIDE && first + line < width; line += THREADS / ROWS)
            target[static_cast<int64>(first + line) * ROWS + threadIdx.x % ROWS] = block[line][threadIdx.x % ROWS];
        __syncthreads();
    }
}

struct Departure {
    int slots[ROWS];     // where each row of the tile goes, -1 if it is dropped
    uint64 hashes[ROWS];
    int left;            // rows that are not dropped
};

// Gives the tile's rows that are left a place in the output, and accounts for all layers of the stage.
__device__ __forceinline__ void depart(const Problem& problem, const Stage& stage, const Buffers& buffers, int tile, int rows,
                       Departure& departure) {
    const int row = threadIdx.x, position = tile * ROWS + row, lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) departure.left = 0;
    __syncthreads();
    if (row < ROWS) {
        const bool present = position < rows;
        const int from = !present ? -1 : stage.list_in ? stage.list_in[position] : position;
        const int weight = !present ? 0 : stage.weights_in ? stage.weights_in[from] : 1;
        int nonzeros = 0;
        for (int layer = 0; layer < problem.count; layer++) {
            nonzeros = present ? buffers.nonzeros[static_cast<int64>(layer) * buffers.capacity + position] : 0;
            const uint64 active = warp_sum(nonzeros ? static_cast<uint64>(weight) : 0ull);
            const uint64 sum = warp_sum(static_cast<uint64>(weight) * nonzeros);
            uint64* counters = stage.counters + 4 * (stage.first + layer);
            if (lane == 0 && sum) {
                atomicAdd(&counters[1], active);
                atomicAdd(&counters[2], sum);
            }
            if (row == 0) {
                const uint64 here = min(ROWS, rows - tile * ROWS);
                atomicAdd(&counters[0], here);
                atomicAdd(&counters[3], here * problem.layers[layer].edges);
            }
        }
        const bool keep = present && (nonzeros || stage.last - 1 < stage.droppable_from);
        const unsigned kept = __ballot_sync(ALL_LANES, keep);
        int start = 0;
        if (lane == 0 && kept) {
            start = atomicAdd(stage.count_out, __popc(kept));
            atomicAdd(&departure.left, __popc(kept));
        }
        start = __shfl_sync(ALL_LANES, start, 0);
        const int slot = keep ? start + __popc(kept & lanes_below(lane)) : -1;
        departure.slots[row] = slot;
        departure.hashes[row] = 0;
        if (present) stage.next[position] = slot;
        if (keep) stage.weights_out[slot] = weight;
    }
    __syncthreads();
}

// The stage's outputs back to rows, without those that died, each with its hash.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    tiles_to_stage(const Network* network, const Stage* stages, int few, const Buffers* where) {
    __shared__ float block[SIDE][ROWS + 1];
    __shared__ Departure departure;
    const Stage& stage = *stages;
    const int rows = *stage.count_in;
    if (rows <= few) return;
    const Buffers buffers = *where;
    const Problem problem = {network->layers + stage.first, nullptr, nullptr, nullptr, stage.last - stage.first, 0};
    const int width = network->layers[stage.last - 1].outputs, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int own = threadIdx.x % ROWS;
    for (int tile = blockIdx.x; tile * ROWS < rows; tile += gridDim.x) {
        depart(problem, stage, buffers, tile, rows, departure);
        if (departure.left > 0) {
            const float* source = reinterpret_cast<const float*>(buffers.tile(tile, problem.count));
            uint64 hash = 0;
            for (int first = 0; first < width; first += SIDE) {
                for (int line = threadIdx.x / ROWS; line < SIDE && first + line < width; line += THREADS / ROWS) {
                    const float value = source[static_cast<int64>(first + line) * ROWS + own];
                    block[line][own] = value;
                    hash += hash_element(value, first + line);
                }
                __syncthreads();
                for (int row = warp; row < ROWS; row += THREADS / WARP) {
                    const int slot = departure.slots[row];
                    if (slot >= 0 && first + lane < width)
                        stage.rows_out[static_cast<int64>(slot) * width + first + lane] = block[lane][row];
                }
                __syncthreads();
            }
            atomicAdd(&departure.hashes[own], hash);
            __syncthreads();
            if (threadIdx.x < ROWS && departure.slots[own] >= 0)
                stage.hashes_out[departure.slots[own]] = departure.hashes[own];
        }
        __syncthreads();
    }
}
