// row_layers: a row a block, or a cluster of blocks, when few rows are left.
//
// Idea      Few rows are not enough tiles to fill the device, and a layer costs what waiting for its weights costs. So
//           a block takes a single row, its threads share the layer's edges, and the next layer's edges are on their
//           way while this one is computed.
// Layout    A row is a vector in shared memory, two of them by turns. GROUP neighbouring threads share an output: each
//           holds the next few of its edges, and they take turns to add them, so that the sum runs over all in order.
//           Where a layer has more edges than one multiprocessor should read, CLUSTER blocks share the row: each holds
//           all of it, computes a part of the outputs and writes them into the shared memory of all.
// Needs     two rows in shared memory; below compute capability 9.0 a row has one block. Defines: THREADS, GROUP (a
//           power of two up to 32), CLUSTER (1 to 8).
// Beside    tile_layers, which has rows along the lanes; here edges are.
#include "ptx/clusters.cuh"
#include "resident.cuh"

#ifndef THREADS
#define THREADS 256
#define GROUP 4
#define CLUSTER 1
#endif
static_assert(THREADS % 32 == 0 && 32 % GROUP == 0, "a group must divide a warp, and that a block");
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
    atomicAdd(local, value);
#endif
}

#define AHEAD 4  // pairs of edges that a thread holds for the next layer: 32 edges an output, as in the challenge

// What a thread knows of a layer before its turn: the record three layers ahead, where its first output's edges lie
// two layers ahead, the edges themselves one layer ahead. So no load waits for another within a layer.
struct Share {
    int edge, last;  // this thread's first edge, and the end of its output's
    float bias;
    int copies;
};

__device__ __forceinline__ Share share_of(const Network& net, const Layer& layer, int output) {
    if (output >= layer.outputs) return {0, 0, 0.0f, 0};
    const int* column = net.columns + layer.column + output;
    return {column[0] + 2 * AHEAD * int(threadIdx.x % GROUP), column[1], net.bias[layer.output + output],
            net.copies[layer.output + output]};
}

__device__ __forceinline__ Share share_of(const Network& net, const Layer& layer) {
    return share_of(net, layer, (rank() * THREADS + threadIdx.x) / GROUP);
}

__device__ __forceinline__ void fetch(const Network& net, const Share& share, int4 (&pairs)[AHEAD]) {
#pragma unroll
    for (int pair = 0; pair < AHEAD; pair++) {
        const int edge = share.edge + 2 * pair;
        pairs[pair] = edge < share.last ? *reinterpret_cast<const int4*>(net.edges + edge) : int4{0, 0, 0, 0};
    }
}

// Edges that a thread holds: what is not there is a weight of 0 and an input of 0.
struct HeldEdges {
    const int4 (&pairs)[AHEAD];
    float first[AHEAD], second[AHEAD];

    __device__ __forceinline__ float add_to(float sum) const {
#pragma unroll
        for (int pair = 0; pair < AHEAD; pair++) sum = add_two(sum, pairs[pair], first[pair], second[pair]);
        return sum;
    }
};

// Sums an output's edges, beginning with those that are held; all threads of a warp call it. The threads of a group take
// turns: each goes on from the sum of the one before it, and the last of them has the sum of all.
__device__ __forceinline__ float sum_edges(const Network& net, Share share, int4 (&pairs)[AHEAD],
                                           const float* source) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x % GROUP;
    for (float before = 0.0f;;) {
        HeldEdges held = {pairs, {}, {}};
#pragma unroll
        for (int pair = 0; pair < AHEAD; pair++)
            if (share.edge + 2 * pair < share.last)
                held.first[pair] = source[pairs[pair].x], held.second[pair] = source[pairs[pair].z];
        float sum = held.add_to(before);
#pragma unroll
        for (int turn = 1; turn < GROUP; turn++) {
            before = __shfl_sync(ALL_LANES, sum, (lane + WARP - 1) % WARP);
            if (own == turn) sum = held.add_to(before);
        }
        share.edge += 2 * AHEAD * GROUP;
        if (!__any_sync(ALL_LANES, share.edge < share.last)) return sum;
        fetch(net, share, pairs);
        before = __shfl_sync(ALL_LANES, sum, lane | (GROUP - 1));
    }
}

// Stores an output; returns the neurons that are not zero.
__device__ __forceinline__ int store(float z, const Layer& layer, int output, int copies, float* target) {
    const float value = activate(z, layer.activation, layer.clip);
    store_everywhere(target + output, value);
    return value != 0.0f ? copies : 0;
}

__device__ int compute(const Network& net, const Layer& layer, Share share, int4 (&pairs)[AHEAD], const float* source,
                       float* target) {
    constexpr int at_once = CLUSTER * THREADS / GROUP;
    const bool last = threadIdx.x % GROUP == GROUP - 1;
    const int turns = (layer.outputs + at_once - 1) / at_once;
    int output = (rank() * THREADS + threadIdx.x) / GROUP, found = 0;
    for (int turn = 1;; turn++, output += at_once) {  // all threads of a warp take part in the shuffles
        const Share next = turn < turns ? share_of(net, layer, output + at_once) : Share{0, 0, 0.0f, 0};
        const float sum = sum_edges(net, share, pairs, source);
        if (last && output < layer.outputs) found += store(sum + share.bias, layer, output, share.copies, target);
        if (turn >= turns) break;
        share = next;
        fetch(net, share, pairs);
    }
    if (threadIdx.x == 0) target[layer.outputs] = 0.0f;  // what padding edges read
    return found;
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

__device__ __forceinline__ Layer layer_or_last(const Network& net, const Stage& stage, int number) {
    return net.layers[min(number, stage.last - 1)];
}

__device__ void run_row(const Network& net, const Stage& stage, float* source, float* target, int position) {
    __shared__ int counts[3];  // by turns: one is added to, one is read, one is cleared
    const int row = stage.list_in ? stage.list_in[position] : position;
    const int weight = stage.weights_in ? stage.weights_in[row] : 1;
    const int droppable_from = stage.droppable_from;
    int number = stage.first;
    Layer layer = net.layers[number], next = layer_or_last(net, stage, number + 1);
    Layer after = layer_or_last(net, stage, number + 2);
    Share share = share_of(net, layer), next_share = share_of(net, next);
    int4 pairs[AHEAD];
    fetch(net, share, pairs);
    for (int place = threadIdx.x; place <= layer.inputs; place += THREADS)
        source[place] = place < layer.inputs ? stage.rows_in[(size_t)row * layer.inputs + place] : 0.0f;
    if (threadIdx.x < 3) counts[threadIdx.x] = 0;
    wait_for_all();
    bool alive = true;
    int width = layer.inputs;
    for (; number < stage.last && (alive || number - 1 < droppable_from); number++) {
        int4 next_pairs[AHEAD];
        fetch(net, next_share, next_pairs);
        const Share after_share = share_of(net, after);
        const Layer later = layer_or_last(net, stage, number + 3);
        const int found = warp_sum(compute(net, layer, share, pairs, source, target));
        int* count = &counts[number % 3];
        if (threadIdx.x % 32 == 0 && found) add_everywhere(count, found);
        wait_for_all();
        const int nonzeros = *count;
        if (threadIdx.x == 0) {
            counts[(number + 2) % 3] = 0;
            if (rank() == 0)
                add_to_counters(stage.counters + 4 * number, 1, nonzeros ? weight : 0,
                                static_cast<uint64>(weight) * nonzeros, layer.edges);
        }
        alive = nonzeros > 0;
        width = layer.outputs;
        float* swap = source;
        source = target;
        target = swap;
        layer = next, next = after, after = later;
        share = next_share, next_share = after_share;
#pragma unroll
        for (int pair = 0; pair < AHEAD; pair++) pairs[pair] = next_pairs[pair];
    }
    const bool keep = number == stage.last && (alive || number - 1 < droppable_from);
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
        run_row(net, stage, memory, memory + second_row, position);
}
