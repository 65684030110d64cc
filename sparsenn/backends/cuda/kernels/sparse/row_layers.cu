// row_layers: a row a block, or a cluster of blocks, when few rows are left.
//
// Idea      Few rows are not enough tiles to fill the device, and a layer costs what waiting for its weights costs. So
//           a block takes a single row, its threads share the layer's edges, and the next layer's edges are on their
//           way while this one is computed. What threads hold of four layers stays in registers of its own: a copy
//           from one to another would wait for the loads.
// Layout    A row is a vector in shared memory, two of them by turns. A warp takes a slice of outputs. GROUP threads of
//           it share an output: each holds the next few of its edges, and they take turns to add them, so that the sum
//           runs over all in order.
//           Where a layer has more edges than one multiprocessor should read, CLUSTER blocks share the row: each holds
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
#define GROUP (WARP / SLICE)
static_assert(THREADS % WARP == 0 && WARP % SLICE == 0, "a warp takes a slice, and a block is whole warps");
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
    atomicAdd(local, value);
#endif
}

#define AHEAD (16 / GROUP)  // pairs of edges that a thread holds: 32 edges an output, as in the challenge

// An output of a layer as a thread knows it: where the pairs of its slice are, and the rest.
struct Share {
    int first, last;
    float bias;
    int copies;
};

// What a thread knows of a layer before its turn: the record three layers ahead, where its first output's edges lie
// two layers ahead, the edges themselves one layer ahead. So no load waits for another within a layer; nothing is
// reckoned with what was loaded before it is wanted, since that would wait for it, too.
struct Held {
    Layer layer;
    Share share;
    int4 pairs[AHEAD];
};
#define KEPT 4  // layers that something is held of at a time
#define ROUND 64  // layers after which it is told what became of the row: at most a thread each

// Outputs of a layer that a block computes, whole slices: the blocks of a row have one part after the other.
__device__ __forceinline__ int part_of(const Layer& layer) {
    return (layer.outputs + CLUSTER * SLICE - 1) / (CLUSTER * SLICE) * SLICE;
}

// The thread's output in the slice that begins at output `first` of its block's part.
__device__ __forceinline__ int output_of(const Layer& layer, int first) {
    return rank() * part_of(layer) + first + static_cast<int>(threadIdx.x % SLICE);
}

// The same; the warp's first one unless told.
__device__ __forceinline__ Share share_of(const Network& net, const Layer& layer,
                                          int first = threadIdx.x / WARP * SLICE) {
    const int output = output_of(layer, first), at = layer.output + output;
    if (first >= part_of(layer) || output >= layer.outputs) return {0, 0, 0.0f, 0};
    const int* start = net.starts + layer.slice + output / SLICE;
    return {start[0], start[1], net.bias[at], net.copies[at]};
}

// Loads the thread's next edges of an output. What is not there is a weight of 0 at the input after the last one.
__device__ __forceinline__ void fetch(const Network& net, const Share& share, int inputs, int4 (&pairs)[AHEAD]) {
    const int lane = threadIdx.x % WARP, first = share.first + lane / SLICE * (AHEAD * SLICE) + lane % SLICE;
#pragma unroll
    for (int pair = 0; pair < AHEAD; pair++) {
        pairs[pair] = {inputs, 0, inputs, 0};
        if (first + SLICE * pair < share.last) pairs[pair] = net.pairs[first + SLICE * pair];
    }
}

// A thread's edges, and the inputs that they read.
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
__device__ __forceinline__ float sum_edges(const Network& net, Share share, int inputs, int4 (&pairs)[AHEAD],
                                           const float* source) {
    const int lane = threadIdx.x % WARP;
    for (float before = 0.0f;;) {
        HeldEdges held = {pairs, {}, {}};
#pragma unroll
        for (int pair = 0; pair < AHEAD; pair++)
            held.first[pair] = source[pairs[pair].x], held.second[pair] = source[pairs[pair].z];
        float sum = held.add_to(before);
#pragma unroll
        for (int turn = 1; turn < GROUP; turn++) {
            before = __shfl_sync(ALL_LANES, sum, (lane + WARP - SLICE) % WARP);
            if (lane / SLICE == turn) sum = held.add_to(before);
        }
        share.first += AHEAD * WARP;
        if (!__any_sync(ALL_LANES, share.first < share.last)) return sum;
        fetch(net, share, inputs, pairs);
        before = __shfl_sync(ALL_LANES, sum, lane | (WARP - SLICE));
    }
}

// Stores an output; returns the neurons that are not zero.
__device__ __forceinline__ int store(float z, const Layer& layer, int output, int copies, float* target) {
    const float value = activate(z, layer.activation, layer.clip);
    store_everywhere(target + output, value);
    return value != 0.0f ? copies : 0;
}

// Computes a layer of whose first slices the edges are held; returns the neurons of the thread's outputs that are not
// zero. Warps that have no slice do nothing.
__device__ __forceinline__ int compute(const Network& net, Held& held, const float* source, float* target) {
    constexpr int AT_ONCE = THREADS / WARP * SLICE;
    const Layer& layer = held.layer;
    const bool last = threadIdx.x % WARP >= WARP - SLICE;
    const int part = part_of(layer);
    int found = 0;
    for (int first = threadIdx.x / WARP * SLICE; first < part; first += AT_ONCE) {
        const Share next = share_of(net, layer, first + AT_ONCE);
        const float sum = sum_edges(net, held.share, layer.inputs, held.pairs, source);
        const int output = output_of(layer, first);
        if (last && output < layer.outputs)
            found += store(sum + held.share.bias, layer, output, held.share.copies, target);
        held.share = next;
        if (first + AT_ONCE < part) fetch(net, next, layer.inputs, held.pairs);
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

__device__ void run_row(const Network& net, const Stage& stage, float* source, float* target, int position) {
    __shared__ int counts[ROUND];  // non-zeros of each layer of a round
    const int row = stage.list_in ? stage.list_in[position] : position;
    const int weight = stage.weights_in ? stage.weights_in[row] : 1;
    const int droppable_from = stage.droppable_from, last = stage.last;
    int number = stage.first;
    Held held[KEPT];
#pragma unroll
    for (int ahead = 0; ahead < KEPT - 1; ahead++) held[ahead].layer = layer_or_last(net, number + ahead, last);
#pragma unroll
    for (int ahead = 0; ahead < KEPT - 2; ahead++) held[ahead].share = share_of(net, held[ahead].layer);
    int width = held[0].layer.inputs;
    fetch(net, held[0].share, width, held[0].pairs);
    for (int place = threadIdx.x; place <= width; place += THREADS)
        source[place] = place < width ? stage.rows_in[(size_t)row * width + place] : 0.0f;
    bool alive = true, going = number < last;
    while (going) {
        const int first = number;
        if (threadIdx.x < ROUND) counts[threadIdx.x] = 0;
        wait_for_all();
        while (going && number < first + ROUND) {
#pragma unroll
            for (int turn = 0; turn < KEPT; turn++) {
                if (!going) break;
                Held &now = held[turn], &next = held[(turn + 1) % KEPT], &after = held[(turn + 2) % KEPT];
                fetch(net, next.share, now.layer.outputs, next.pairs);
                after.share = share_of(net, after.layer);
                held[(turn + 3) % KEPT].layer = layer_or_last(net, number + 3, last);
                const int found = warp_sum(compute(net, now, source, target));
                if (threadIdx.x % WARP == 0 && found) add_everywhere(&counts[number - first], found);
                wait_for_all();
                alive = counts[number - first] > 0;
                width = now.layer.outputs;
                float* swap = source;
                source = target;
                target = swap;
                number++;
                going = number < last && (alive || number - 1 < droppable_from);
            }
        }
        tell(net, stage.counters, first, number - first, counts, weight);
        wait_for_all();
    }
    const bool keep = number == last && (alive || number - 1 < droppable_from);
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
