// tile_layers: a tile of rows taken through several layers without leaving shared memory.
//
// Idea      Rows are independent, so a block takes a tile of them through its layers. The rows of a tile lie along the
//           lanes: one edge of the network is read once for all of them, and they are neighbouring words. A tile has 32
//           rows where there are enough to fill the device with such tiles, fewer where there are not.
// Layout    The tile is a (width, rows) matrix in shared memory, element (i, r) at i * stride + r, with an odd stride
//           so that a column is spread over the banks. Layers alternate between two such tiles. Inputs that are all one
//           value come in as bits, bit i * rows + r: `tile_inputs`. Rows that are left go out one by one, each with a
//           hash, wherever an atomic counter says; where a row went depends on timing, what it holds does not.
// Needs     both tiles, or the input bits and one tile, in shared memory. Defines: THREADS (a multiple of 32), INDEX
//           (type of the inputs' indices).
// Then      row_layers takes over when few rows are left.
#include "resident.cuh"

#ifndef THREADS
#define THREADS 256
#define INDEX index16
#endif
#include "input_bits.cuh"
static_assert(THREADS % 32 == 0, "a block is whole warps");

struct Tile {
    int rows, log_rows, stride;
    int base, present;   // first row, and how many of `rows` there are
    int counts[2][32];   // non-zeros of each row after the layers of even and of odd turn
    int slots[32];       // where each row comes from, then where it goes
    int weights[32];
};

// The most rows, up to 1 << `most`, with which there are `enough` tiles, or one for every block where these are fewer.
// Of more and smaller ones each would read all weights, by addresses that differ within a warp.
__device__ __forceinline__ int log_rows_for(int count, int most, int enough) {
    int log_rows = most;
    while (log_rows > 0 && (count >> log_rows) < min(static_cast<int>(gridDim.x), enough)) log_rows--;
    return log_rows;
}

// Prepares a tile; all threads call it, and wait before they use it.
__device__ void open_tile(Tile& tile, const Stage& stage, int number, int log_rows, int count) {
    const int rows = 1 << log_rows, base = number << log_rows, present = min(rows, count - base);
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        int row = -1;
        if (lane < present) row = stage.list_in ? stage.list_in[base + lane] : base + lane;
        tile.slots[lane] = row;
        tile.weights[lane] = row < 0 ? 0 : stage.weights_in ? stage.weights_in[row] : 1;
        tile.counts[0][lane] = tile.counts[1][lane] = 0;
        if (lane == 0) {
            tile.rows = rows, tile.log_rows = log_rows, tile.stride = rows == 1 ? 1 : rows + 1;
            tile.base = base, tile.present = present;
        }
    }
    __syncthreads();
}

// Accounts for one layer, whose counts are in tile.counts[turn]. Returns whether any row is alive.
__device__ bool account(Tile& tile, int turn, int edges, unsigned long long* counters) {
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const int count = tile.counts[turn][lane];
    const bool alive = __any_sync(0xffffffffu, count > 0);
    if (threadIdx.x < 32) {
        const unsigned long long weight = tile.weights[lane];
        const unsigned long long active = warp_sum(count > 0 ? weight : 0ull);
        const unsigned long long nonzeros = warp_sum(weight * (unsigned long long)count);
        if (lane == 0)
            add_to_counters(counters, tile.present, active, nonzeros, static_cast<uint64>(edges) * tile.present);
        tile.counts[1 - turn][lane] = 0;
    }
    __syncthreads();
    return alive;
}

// What a layer reads; each adds two edges' products to a sum.
struct FromTile {
    const float* values;
    int stride, row;
    __device__ float add(float sum, int4 two) const {
        return add_two(sum, two, values[two.x * stride + row], values[two.z * stride + row]);
    }
};

struct FromBits {
    const unsigned* words;
    int log_rows, row;
    float one;
    __device__ float value(int input) const {
        const unsigned place = ((unsigned)input << log_rows) + row;
        return words[place >> 5] >> (place & 31) & 1 ? one : 0.0f;
    }
    __device__ float add(float sum, int4 two) const { return add_two(sum, two, value(two.x), value(two.z)); }
};

// The bits of a tile of 32 rows: a word an input. An input that is not there adds nothing.
struct FromWords {
    const unsigned* words;
    unsigned mask;
    float one;
    __device__ float add(float sum, int4 two) const {
        const unsigned first = words[two.x], second = words[two.z];
        if (first & mask) sum = fmaf(__int_as_float(two.y), one, sum);
        if (second & mask) sum = fmaf(__int_as_float(two.w), one, sum);
        return sum;
    }
};

template <class Source>
__device__ void gather_layer(const Network& net, const Layer& layer, const Source& source, float* target, Tile& tile,
                             int turn) {
    const int stride = tile.stride, log_rows = tile.log_rows, row = threadIdx.x & (tile.rows - 1);
    int found = 0;
    for (int output = threadIdx.x >> log_rows; output < layer.outputs; output += THREADS >> log_rows) {
        const int2 run = __ldg(net.runs + layer.output + output);
        const int4* pairs = net.pairs + run.x;
        float sum = 0.0f;
#pragma unroll 4
        for (int pair = 0; pair < run.y; pair++) sum = source.add(sum, __ldg(pairs + pair * SLICE));
        const float value = activate(sum + __ldg(net.bias + layer.output + output), layer.activation, layer.clip);
        target[output * stride + row] = value;
        found += value != 0.0f ? __ldg(net.copies + layer.output + output) : 0;
    }
    if (found && row < tile.present) atomicAdd(&tile.counts[turn][row], found);
    if (threadIdx.x < stride) target[layer.outputs * stride + threadIdx.x] = 0.0f;  // what padding edges read
}

// Gives each row that is left a place in the output.
__device__ void place_rows(const Stage& stage, Tile& tile, int turn, bool finished) {
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        const bool drop = stage.last - 1 >= stage.droppable_from;
        const bool keep = lane < tile.present && finished && (!drop || tile.counts[turn][lane] > 0);
        const unsigned kept = __ballot_sync(0xffffffffu, keep);
        int start = 0;
        if (lane == 0 && kept) start = atomicAdd(stage.count_out, __popc(kept));
        start = __shfl_sync(0xffffffffu, start, 0);
        const int slot = keep ? start + __popc(kept & ((1u << lane) - 1)) : -1;
        if (lane < tile.present) {
            tile.slots[lane] = slot;
            stage.next[tile.base + lane] = slot;
            if (keep) stage.weights_out[slot] = tile.weights[lane];
        }
    }
    __syncthreads();
}

// Runs layers `number` to the stage's last on the tile in `source`, then hands over the rows that are left.
__device__ void run_layers(const Network& net, const Stage& stage, Tile& tile, float* source, float* target,
                           int number, int turn, bool alive) {
    const int row = threadIdx.x & (tile.rows - 1);
    for (; number < stage.last && (alive || number - 1 < stage.droppable_from); number++) {
        const Layer layer = net.layers[number];
        gather_layer(net, layer, FromTile{source, tile.stride, row}, target, tile, turn);
        alive = account(tile, turn, layer.edges, stage.counters + 4 * number);
        float* swap = source;
        source = target;
        target = swap;
        turn = 1 - turn;
    }
    place_rows(stage, tile, 1 - turn, number == stage.last);
    const int width = net.layers[stage.last - 1].outputs;
    for (int kept = threadIdx.x / 32; kept < tile.present; kept += THREADS / 32) {
        const int slot = tile.slots[kept];
        if (slot < 0) continue;
        unsigned long long hash = 0;
        for (int place = threadIdx.x % 32; place < width; place += 32) {
            const float value = source[place * tile.stride + kept];
            stage.rows_out[(size_t)slot * width + place] = value;
            hash += hash_element(value, place);
        }
        hash = warp_sum(hash);
        if (threadIdx.x % 32 == 0) stage.hashes_out[slot] = hash;
    }
    __syncthreads();
}

// A warp brings row `from` of a matrix to a column of a tile, zeros where there is none; loads wait together.
__device__ __forceinline__ void bring_row(float* column, int stride, const float* __restrict__ rows, int from,
                                          int width) {
    constexpr int AT_ONCE = 8;
    const int lane = threadIdx.x % 32;
    const float* row = rows + (size_t)max(from, 0) * width;
    for (int first = lane; first < width; first += 32 * AT_ONCE) {
        float values[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            values[k] = from >= 0 && first + 32 * k < width ? row[first + 32 * k] : 0.0f;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + 32 * k < width) column[(first + 32 * k) * stride] = values[k];
    }
}

// Rows that an earlier launch left. Does nothing where `few` rows or fewer are left: the next kernel is for them.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    tile_rows(const Network* network, const Stage* stages, int few, int most_log_rows, int second_tile) {
    extern __shared__ float memory[];
    __shared__ Tile tile;
    const Network net = *network;
    const Stage& stage = *stages;
    const int count = *stage.count_in;
    if (count <= few) return;
    const int log_rows = log_rows_for(count, most_log_rows, few);
    const int width = net.layers[stage.first].inputs;
    for (int number = blockIdx.x; number << log_rows < count; number += gridDim.x) {
        open_tile(tile, stage, number, log_rows, count);
        if (threadIdx.x < tile.stride) memory[width * tile.stride + threadIdx.x] = 0.0f;
        for (int row = threadIdx.x / 32; row < tile.rows; row += THREADS / 32)
            bring_row(memory + row, tile.stride, stage.rows_in, tile.slots[row], width);
        __syncthreads();
        run_layers(net, stage, tile, memory, memory + second_tile, stage.first, 0, true);
    }
}

// The network's inputs, CSR rows whose entries all have one value: the first layer tests bits, the rest follows.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    tile_inputs(const Network* network, const Stage* stages, int few, int most_log_rows, int second_tile,
                const Call* call) {
    extern __shared__ float memory[];
    __shared__ Tile tile;
    const Network net = *network;
    const Stage& stage = *stages;
    const int count = *stage.count_in;
    const int log_rows = log_rows_for(count, most_log_rows, few);
    const Layer layer = net.layers[0];
    const int64* indptr = call->indptr;
    const INDEX* indices = static_cast<const INDEX*>(call->indices);
    const float one = call->value();
    unsigned* bits = reinterpret_cast<unsigned*>(memory + second_tile);
    constexpr int WARPS = THREADS / WARP;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, parts = max(1, WARPS >> log_rows);  // of a row
    for (int number = blockIdx.x; number << log_rows < count; number += gridDim.x) {
        const int base = number << log_rows, present = min(1 << log_rows, count - base);
        const int64 begin = indptr[base + min(lane, present)], end = indptr[base + min(lane + 1, present)];
        open_tile(tile, stage, number, log_rows, count);
        for (int word = threadIdx.x; word <= layer.inputs << log_rows >> 5; word += THREADS) bits[word] = 0;
        __syncthreads();
        for (int unit = warp; unit < present * parts; unit += WARPS) {
            const int row = unit / parts;
            const int64 first = __shfl_sync(ALL_LANES, begin, row), last = __shfl_sync(ALL_LANES, end, row);
            set_bits(bits, indices, first, last, row, log_rows, unit % parts, parts);
        }
        __syncthreads();
        const int row = threadIdx.x & (tile.rows - 1);
        if (log_rows == 5)
            gather_layer(net, layer, FromWords{bits, 1u << row, one}, memory, tile, 0);
        else
            gather_layer(net, layer, FromBits{bits, log_rows, row, one}, memory, tile, 0);
        const bool alive = account(tile, 0, layer.edges, stage.counters);
        run_layers(net, stage, tile, memory, memory + second_tile, 1, 1, alive);
    }
}
