// Weights where a kernel reads them one at a time, the same for a whole warp: in constant memory, or in global memory
// where they are too many for its cache.
//
// FILTERS_CONSTANT: the host has copied the weights to constant memory.
#pragma once
#include "conv2d/sizes.cuh"

#if FILTERS_CONSTANT
static_assert(FILTERS * DEPTH <= 16384, "constant memory has room for 16,384 weights");

extern "C" {
__constant__ float constant_filters[FILTERS * DEPTH];
}
#endif

// The weights from a filter's first one on; `weights` is where all are in global memory.
struct Filter {
#if FILTERS_CONSTANT
    int first;

    __device__ __forceinline__ Filter(const float*, int filter) : first(filter * DEPTH) {}

    __device__ __forceinline__ float operator()(int i) const { return constant_filters[first + i]; }
#else
    const float* first;

    __device__ __forceinline__ Filter(const float* weights, int filter)
        : first(weights + static_cast<int64>(filter) * DEPTH) {}

    __device__ __forceinline__ float operator()(int i) const { return __ldg(first + i); }
#endif

    __device__ __forceinline__ void next_channel() { first += WINDOW; }
};
