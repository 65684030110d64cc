// What becomes of the sums that a warpgroup has of 64 filters and COLUMNS outputs of each: bias, activation, and stores of
// several side by side.
//
// RUN: of outputs that are stored at once. INPUT: float or half_bits, of the outputs. ACTIVATION: of `enum Activation`.
#pragma once
#include "common.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"

typedef INPUT Number;

constexpr int WARPGROUP = 4 * WARP, ROWS = 64;
constexpr int SUMS = COLUMNS / 2;  // of a thread

// The activation of a number; what is no number stays none.
__device__ __forceinline__ float finished(float z, float clip) {
    if constexpr (ACTIVATION == RELU)
        return clipped_or_nan(z, clip);
    else
        return activate_as<ACTIVATION>(z, clip);
}

// What a thread needs to finish the sums of a tile: its filters, every eighth, and their bias.
struct Finish {
    static constexpr int FILTERS = 2;
    int filter;
    float bias[FILTERS];

    // Of a warpgroup whose first filter is `first`, of `filters` in all.
    __device__ __forceinline__ Finish(const float* all, int first, int filters) {
        const int warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
        filter = first + warp * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < FILTERS; ++i) bias[i] = __ldg(all + min(filter + 8 * i, filters - 1));
    }
};

// Some outputs side by side, as they are stored.
struct Packed {
    static constexpr int WORDS = (RUN * sizeof(Number) + 3) / 4;
    unsigned words[WORDS];

    Packed() = default;
    __device__ __forceinline__ explicit Packed(const float (&values)[RUN]) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            if constexpr (sizeof(Number) == 4)
                words[i] = __float_as_uint(values[i]);
            else if constexpr (RUN == 1)
                words[i] = to_half(values[i]);
            else
                words[i] = to_halves(values[2 * i], values[2 * i + 1]);
        }
    }
    __device__ __forceinline__ void store_to(Number* to, bool wanted) const {
        if constexpr (RUN * sizeof(Number) == 2)
            store_if(to, static_cast<half_bits>(words[0]), wanted);
        else
            store_if(to, words, wanted);
    }
};

// One of two without a branch.
__device__ __forceinline__ Packed either(bool first, const Packed& one, const Packed& other) {
    Packed found;
#pragma unroll
    for (int i = 0; i < Packed::WORDS; ++i) found.words[i] = first ? one.words[i] : other.words[i];
    return found;
}
