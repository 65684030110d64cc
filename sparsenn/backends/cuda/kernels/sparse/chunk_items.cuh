// How blocks go through a layer that gather_chunks or gather_chunks_half computes: an item is a tile's group of outputs.
#pragma once

#include "gather_chunks.cuh"

struct Layer {
    Chunks laid_out;
    const Slot* slots;
    int room;    // of a tile of the inputs, for lines
    int groups;  // of SLOTS outputs
    int chunks;  // of a group
};

// All items of a launch, and its last round. They are read anew from shared memory where they are needed: the loop over a
// chunk's edges takes every register.
struct Items {
    int count, last;
};

// The item that a block takes in a round, -1 for none: to and fro, as groups have less to do the higher their number is. In
// the last round, which may have too few for all, it is the first blocks that take one: where another launch is waiting,
// these have begun earliest; before compute capability 9.0, no register is left to know the last round by.
__device__ __forceinline__ int item_of(int round, const volatile Items& items) {
    const int own = block_number(), blocks = gridDim.x;
#if __CUDA_ARCH__ >= 900
    const bool back = (items.last - round) % 2;
#else
    const bool back = round % 2;
#endif
    const int item = round * blocks + (back ? blocks - 1 - own : own);
    return item < items.count ? item : -1;
}

// Keeps the stages filled: chunk after chunk of one item after the other.
__device__ __forceinline__ void produce(const Layer& layer, const char* features, const volatile Items& items, Ring ring,
                                        int lane) {
    for (int round = 0, item; (item = item_of(round, items)) >= 0; round++) {
        const char* tile = features + static_cast<int64>(item / layer.groups) * layer.room * LINE;
        const int64 first = static_cast<int64>(item % layer.groups) * layer.chunks;
        for (int number = 0; number < layer.chunks; number++) {
            const Chunk chunk(layer.laid_out, first + number, lane);
            barrier_wait(ring.empty(), ring.turn.parity);
            fill(ring, tile, chunk, lane);
            ring.next();
        }
    }
}

// Computes one item after the other. finish(sums, tile, group) takes this warp's sums.
template <class Finish>
__device__ __forceinline__ void consume(const Layer& layer, const volatile Items& items, Ring ring, int warp, int lane,
                                        Finish finish) {
    for (int round = 0; item_of(round, items) >= 0; round++) {
        float sums[OUTPUTS][VECTOR] = {};
        for (int chunk = 0; chunk < layer.chunks; chunk++) {
            add_chunk(ring, warp, lane, sums);
            ring.next();
        }
        const int item = item_of(round, items);
        finish(sums, item / layer.groups, item % layer.groups);
    }
}

// Computes a layer of which blocks produce and consume, for some tiles.
template <class Finish>
__device__ __forceinline__ void compute(const Layer& layer, const char* features, int tiles, int chunk,
                                        int stages, int stage_bytes, Finish finish) {
    extern __shared__ __align__(128) char memory[];
    __shared__ uint64 barriers[2 * MOST_STAGES];
    __shared__ Items items;
    const int warp = of_warp(threadIdx.x / WARP), lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) {
        items.count = tiles * layer.groups;
        items.last = (items.count - 1) / static_cast<int>(gridDim.x);
    }
    make_barriers(barriers, stages);
    const Ring ring(memory, barriers, stages, stage_bytes, chunk, warp == WARPS);
    if (warp < WARPS) {
        consume(layer, items, ring, warp, lane, [&](const float (&sums)[OUTPUTS][VECTOR], int tile, int group) {
            finish(sums, Slots(layer.slots, group, warp, lane), tile, group == 0 && warp == 0, lane);
        });
    } else {
        produce(layer, features, items, ring, lane);
    }
}
