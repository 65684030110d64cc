// What the kernels of `resident` share: how a merged network lies in device memory, and small device functions.
//
// Layers are packed end to end. Edges lie in pairs, each a 16-byte load, and pairs in slices of SLICE outputs: the first
// pairs of all of them, then the second ones, and so on, so that threads that take neighbouring outputs read
// neighbouring pairs. All outputs of a slice have as many, a multiple of DEPTH, by pairs of padding: a padding edge has
// weight 0 and points at the input after the last one, which every kernel keeps at zero. A layer whose last slice is not
// full has outputs of padding there, which are not stored.
#pragma once

#include "common.cuh"
#include "ptx/memory.cuh"

#define SLICE 16
#define DEPTH 8

struct __align__(16) Layer {
    int inputs;
    int outputs;
    int output;      // where this layer's outputs begin in `runs`, `bias` and `copies`
    int activation;  // of `enum Activation`
    float clip;      // its parameter, infinity where there is none
    int edges;       // of all outputs, an even number each
};

struct Network {
    const Layer* layers;
    const int2* runs;   // of each output, x: its first pair, the others follow SLICE apart; y: how many, but for padding
    const int4* pairs;  // x, z: inputs, y, w: weights as bits
    const float* bias;
    const int* copies;  // neurons that an output stands for
};

// What a run is given: `begin_run` sets it from its own arguments, so that the launches that read it can be a graph.
struct Call {
    int rows;
    const int64* indptr;  // of CSR inputs that all have one value, and what follows
    const void* indices;
    const float* one;     // that value; null where there is no entry

    __device__ __forceinline__ float value() const { return one ? *one : 0.0f; }
};

// A stage: some layers, what they read and what they leave. A row is known by its position in the stage's input; `next`
// says where in `rows_out` it went, -1 if it died. Where equal rows are looked for, `kept` names for each row left the
// one that stands for it, and `list` holds those that do: the next stage's input.
struct Stage {
    const float* rows_in;            // (rows, inputs); null for a first stage that reads CSR inputs
    const int* list_in;              // which of rows_in are meant, null for all
    const int* count_in;             // how many
    const int* weights_in;           // inputs that each row of rows_in stands for, null for 1 each
    float* rows_out;                 // (rows left, outputs)
    unsigned long long* hashes_out;  // of each row left
    int* weights_out;
    int* next;
    int* count_out;
    int* kept;                       // null where equal rows are not looked for
    int* index;                      // position in `list` of each row that is kept
    int* list;
    int* list_count;
    int* table;                      // `mask` + 1 places for row numbers, -1 where free
    unsigned long long* counters;    // four a layer of the network: rows, active inputs, non-zeros, multiply-adds
    unsigned mask;
    int first, last;                 // the layers, `last` excluded
    int droppable_from;              // rows of zeros may be dropped after this layer
};

// Adds what became of some rows to a layer's counters; called by one thread.
__device__ __forceinline__ void add_to_counters(uint64* counters, uint64 rows, uint64 active, uint64 nonzeros,
                                                uint64 edges) {
    add_to_global(&counters[0], rows);
    if (active) add_to_global(&counters[1], active);
    if (nonzeros) add_to_global(&counters[2], nonzeros);
    add_to_global(&counters[3], edges);
}

// Sums begin at 0 and take an output's edges one after the other, by increasing input; then comes the bias. All kernels
// of sparse layers keep to that order, so that none of them changes a bit.
__device__ __forceinline__ float add_two(float sum, int4 two, float first, float second) {
    sum = fmaf(__int_as_float(two.y), first, sum);
    return fmaf(__int_as_float(two.w), second, sum);
}

// splitmix64's finaliser: a bijection whose every output bit depends on every input bit.
__device__ __forceinline__ unsigned long long mix(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A row's hash is the sum of this over its elements: any thread may hash any element, in any order.
__device__ __forceinline__ unsigned long long hash_element(float value, int place) {
    return mix(((unsigned long long)(place + 1) << 32) | __float_as_uint(value));
}
