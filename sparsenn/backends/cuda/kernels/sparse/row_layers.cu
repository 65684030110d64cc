// row_layers: a row a block, or a cluster of blocks, when few rows are left.
//
// Idea      Few rows are not enough tiles to fill the device, and a layer costs what waiting for its weights costs. So
//           a block takes a single row, its threads share the layer's edges, and the next layer's edges are on their
//           way while this one is computed. What threads hold of four layers stays in registers of its own: a copy
//           from one to another would wait for the loads. A warp's instructions follow each other, so each counts.
// Layout    A row is a vector in shared memory, two of them by turns. A warp takes a slice of outputs. Two threads share
//           an output: each holds the next DEPTH pairs of its edges, and the second goes on from the sum of the first,
//           so that the sum runs over all in order. Where a layer has more edges than one multiprocessor should read, CLUSTER blocks share the row: each holds
//           all of it, computes a part of the outputs and writes them into the shared memory of all.
// Needs     two rows in shared memory; below compute capability 9.0 a row has one block. Defines: THREADS, CLUSTER
//           (1 to 8).
// Beside    tile_layers, which has rows along the lanes; here edges are.
#include "ptx/clusters.cuh"
#include "resident.cuh"

#ifndef THREADS
#define THREADS 128
#define CLUSTER 1
#endif
static_assert(THREADS % WARP == 0 && WARP == 2 * SLICE, "a warp takes a slice, and a block is whole warps");
static_assert(THREADS >= 64, "a round has a thread for each layer");
static_assert(CLUSTER >= 1 && CLUSTER <= 8, "more than 8 blocks are no portable cluster");

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no clusters there: each block takes rows of its own
#undef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1
#define BLOCKS_OF_A_ROW __cluster_dims__(CLUSTER, 1, 1)
#else
#define BLOCKS_OF_A_ROW
#endif

// Which of the row's blocks this is.
__device__ __forceinline__ int rank() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : 0; }

__device__ __forceinline__ void wait_for_all() {
#if CLUSTER > 1
    cluster_wait();
#else
    __syncthreads();
#endif
}

// The address that `local`, in this block's shared memory, has in another block's.
__device__ __forceinline__ unsigned address_in(int block, const void* local) {
    const unsigned own = shared_address(local);
#if CLUSTER > 1
    return cluster_address(own, block);
#else
    return own;
#endif
}

// Writes to the same place in the shared memory of all blocks of the row.
__device__ __forceinline__ void store_everywhere(float* local, float value) {
#if CLUSTER > 1
#pragma unroll
    for (int block = 0; block < CLUSTER; block++)
        cluster_store(address_in(block, local), value);
#else
    *local = value;
#endif
}

__device__ __forceinline__ void add_everywhere(int* local, int value) {
#if CLUSTER > 1
#pragma unroll
    for (int block = 0; block < CLUSTER; block++)
        cluster_add(address_in(block, local), value);
#else
    add_to_shared(local, value);
#endif
}

// What a thread knows of a layer before its turn: the record three layers ahead, where the edges of its first output lie
// two layers ahead, the edges themselves one layer ahead. So no load waits for another within a layer; nothing is
// reckoned with what was loaded before it is wanted, since that would wait for it, too.
struct Held {
    Layer layer;
    int2 run;
    float bias;
    int copies;
    int depth;  // pairs of the slice that are not added up yet
    int4 pairs[DEPTH];
};
#define KEPT 4    // layers that something is held of at a time
#define ROUND 64  // layers after which it is told what became of the row: at most a thread each
static_assert(KEPT % 2 == 0 && ROUND % KEPT == 0, "a row is where the turn says");

// Which half of the warp a thread is of, and so which of an output's pairs it takes.
__device__ __forceinline__ int half_of_warp() { return threadIdx.x % WARP / SLICE; }

// Outputs of a layer that a block computes, whole slices: the blocks of a row have one part after the other.
__device__ __forceinline__ int part_of(const Layer& layer) {
    return (layer.outputs + CLUSTER * SLICE - 1) / (CLUSTER * SLICE) * SLICE;
}

// The first output of the warp's slice that begins at `first` of its block's part; a thread has the one at its place.
__device__ __forceinline__ int slice_at(const Layer& layer, int first) { return rank() * part_of(layer) + first; }

// Whether there is such a slice.
__device__ __forceinline__ bool has_slice(const Layer& layer, int first) {
    return first < part_of(layer) && slice_at(layer, first) < layer.outputs;
}

// Asks for what is known of an output.
__device__ __forceinline__ void ask(const Network& net, Held& held, int first) {
    held.run = {0, 0};
    if (!has_slice(held.layer, first)) return;
    const int at = held.layer.output + slice_at(held.layer, first) + threadIdx.x % SLICE;
    held.run = __ldg(net.runs + at), held.bias = __ldg(net.bias + at), held.copies = __ldg(net.copies + at);
}

// Asks for the thread's next edges of an output, if there are any.
__device__ __forceinline__ void fetch_pairs(const Network& net, Held& held) {
    if (held.depth <= DEPTH * half_of_warp()) return;
    const int4* pairs = net.pairs + held.run.x + half_of_warp() * (DEPTH * SLICE);
#pragma unroll
    for (int pair = 0; pair < DEPTH; pair++) held.pairs[pair] = __ldg(pairs + SLICE * pair);
}

__device__ __forceinline__ void fetch(const Network& net, Held& held) {
    held.depth = warp_max(held.run.y);
    fetch_pairs(net, held);
}

// The inputs of the edges that a thread holds.
struct Operands {
    float first[DEPTH], second[DEPTH];

    __device__ __forceinline__ void read(const Held& held, const float* source) {
        if (held.depth <= DEPTH * half_of_warp()) return;
#pragma unroll
        for (int pair = 0; pair < DEPTH; pair++)
            first[pair] = source[held.pairs[pair].x], second[pair] = source[held.pairs[pair].z];
    }
};

// Adds the edges that a thread holds.
__device__ __forceinline__ float add_held(float sum, const Held& held, const Operands& operands) {
#pragma unroll
    for (int pair = 0; pair < DEPTH; pair++)
        sum = add_two(sum, held.pairs[pair], operands.first[pair], operands.second[pair]);
    return sum;
}

// Sums an output's edges, beginning with those that are held, whose inputs are given; all threads of a warp call it, and the
// last sum is where `held.depth`, what is left of the slice, says: in the second half of the warp if it is more than DEPTH.
__device__ __forceinline__ float sum_edges(const Network& net, Held& held, Operands& operands, const float* source) {
    const int lane = threadIdx.x % WARP;
    for (float before = 0.0f;; before = __shfl_sync(ALL_LANES, before, lane | SLICE)) {
        float sum = before;
        if (held.depth > DEPTH * half_of_warp()) sum = add_held(sum, held, operands);
        if (held.depth > DEPTH) {
            before = __shfl_sync(ALL_LANES, sum, lane % SLICE);
            if (lane >= SLICE) sum = add_held(before, held, operands);
        }
        if (held.depth <= 2 * DEPTH) return sum;
        before = sum;
        held.depth -= 2 * DEPTH;
        held.run.x += 2 * DEPTH * SLICE;
        fetch_pairs(net, held);
        operands.read(held, source);
    }
}

// Stores an output; returns the neurons that are not zero.
__device__ __forceinline__ int store(float z, const Layer& layer, int output, int copies, float* target) {
    const float value = activate(z, layer.activation, layer.clip);
    store_everywhere(target + output, value);
    return value != 0.0f ? copies : 0;
}

// Computes a layer of whose first slices the edges are held, and their inputs given; returns the neurons of the thread's
// outputs that are not zero. Warps that have no slice do nothing.
__device__ __forceinline__ int compute(const Network& net, Held& held, Operands& operands, const float* source,
                                       float* target) {
    constexpr int AT_ONCE = THREADS / WARP * SLICE;
    int found = 0;
    for (int first = threadIdx.x / WARP * SLICE; has_slice(held.layer, first); first += AT_ONCE) {
        const float sum = sum_edges(net, held, operands, source);
        const int output = slice_at(held.layer, first) + threadIdx.x % SLICE;
        if (half_of_warp() == (held.depth > DEPTH) && output < held.layer.outputs)
            found += store(sum + held.bias, held.layer, output, held.copies, target);
        if (!has_slice(held.layer, first + AT_ONCE)) break;
        ask(net, held, first + AT_ONCE);
        fetch(net, held);
        operands.read(held, source);
    }
    if (threadIdx.x == 0) target[held.layer.outputs] = 0.0f;  // what padding edges read
    return found;
}

// Waits until all have computed a layer; returns whether any neuron is not zero, and has those that are not counted.
__device__ __forceinline__ bool end_layer(int found, int* count) {
#if CLUSTER > 1
    const int all = warp_sum(found);
    if (threadIdx.x % WARP == 0 && all) add_everywhere(count, all);
    wait_for_all();
    return *count > 0;
#else
    const bool any = __syncthreads_or(found);
    const int all = warp_sum(found);  // only now: nobody waits for it
    if (threadIdx.x % WARP == 0 && all) add_everywhere(count, all);
    return any;
#endif
}

__device__ void hand_over(const Stage& stage, const float* source, int width, int position, int weight, bool keep) {
    __shared__ int slot;
    __shared__ unsigned long long hash;
    if (threadIdx.x == 0) {
        slot = keep ? atomicAdd(stage.count_out, 1) : -1;
        hash = 0;
        stage.next[position] = slot;
        if (keep) stage.weights_out[slot] = weight;
    }
    __syncthreads();
    if (!keep) return;
    unsigned long long part = 0;
    for (int place = threadIdx.x; place < width; place += THREADS) {
        stage.rows_out[(size_t)slot * width + place] = source[place];
        part += hash_element(source[place], place);
    }
    part = warp_sum(part);
    if (threadIdx.x % 32 == 0) atomicAdd(&hash, part);
    __syncthreads();
    if (threadIdx.x == 0) stage.hashes_out[slot] = hash;
}

__device__ __forceinline__ Layer layer_or_last(const Network& net, int number, int last) {
    return net.layers[min(number, last - 1)];
}

// Tells what became of a row in the layers of a round.
__device__ __forceinline__ void tell(const Network& net, uint64* counters, int first, int layers, const int* counts,
                                     int weight) {
    for (int done = threadIdx.x; done < layers && rank() == 0; done += THREADS)
        add_to_counters(counters + 4 * (first + done), 1, counts[done] ? weight : 0,
                        static_cast<uint64>(weight) * counts[done], net.layers[first + done].edges);
}

__device__ void run_row(const Network& net, const Stage& stage, float* memory, int second_row, int position) {
    __shared__ int counts[ROUND];  // non-zeros of each layer of a round
    const int row = stage.list_in ? stage.list_in[position] : position;
    const int weight = stage.weights_in ? stage.weights_in[row] : 1;
    const int droppable_from = stage.droppable_from, last = stage.last, own = threadIdx.x / WARP * SLICE;
    int number = stage.first;
    Held held[KEPT];
#pragma unroll
    for (int ahead = 0; ahead < KEPT - 1; ahead++) held[ahead].layer = layer_or_last(net, number + ahead, last);
#pragma unroll
    for (int ahead = 0; ahead < KEPT - 2; ahead++) ask(net, held[ahead], own);
    fetch(net, held[0]);
    int width = held[0].layer.inputs;
    for (int place = threadIdx.x; place <= width; place += THREADS)
        memory[place] = place < width ? stage.rows_in[(size_t)row * width + place] : 0.0f;
    bool alive = true, going = number < last;
    while (going) {
        const int first = number;
        if (threadIdx.x < ROUND) counts[threadIdx.x] = 0;
        wait_for_all();
        while (going && number < first + ROUND) {
#pragma unroll
            for (int turn = 0; turn < KEPT; turn++) {
                if (!going) break;
                Held& now = held[turn];
                const float* source = turn % 2 ? memory + second_row : memory;
                Operands operands;
                operands.read(now, source);
                fetch(net, held[(turn + 1) % KEPT]);
                ask(net, held[(turn + 2) % KEPT], own);
                held[(turn + 3) % KEPT].layer = layer_or_last(net, number + 3, last);
                const int found = compute(net, now, operands, source, turn % 2 ? memory : memory + second_row);
                alive = end_layer(found, &counts[number - first]);
                width = now.layer.outputs;
                number++;
                going = number < last && (alive || number - 1 < droppable_from);
            }
        }
        __syncthreads();  // the last layer's neurons are counted
        tell(net, stage.counters, first, number - first, counts, weight);
        wait_for_all();
    }
    const bool keep = number == last && (alive || number - 1 < droppable_from);
    const float* source = (number - stage.first) % 2 ? memory + second_row : memory;
    if (rank() == 0) hand_over(stage, source, width, position, weight, keep);
    wait_for_all();
}

// Rows that an earlier launch left, if they are `few` or fewer.
extern "C" __global__ void BLOCKS_OF_A_ROW __launch_bounds__(THREADS)
    few_rows(const Network* network, const Stage* stages, int few, int second_row) {
    extern __shared__ float memory[];
    const Network net = *network;
    const Stage& stage = *stages;
    const int count = *stage.count_in;
    if (count > few) return;
    for (int position = blockIdx.x / CLUSTER; position < count; position += gridDim.x / CLUSTER)
        run_row(net, stage, memory, second_row, position);
}
