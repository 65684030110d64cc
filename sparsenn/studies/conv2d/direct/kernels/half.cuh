// Pairs of numbers in half precision, the first of which is the lower half of its word.
#pragma once
#include "ptx/numbers.cuh"

typedef unsigned Half2;

__device__ __forceinline__ Half2 pair_of(half_bits first, half_bits second) {
    return first | static_cast<unsigned>(second) << 16;
}

__device__ __forceinline__ float first_of(Half2 pair) { return to_float(static_cast<half_bits>(pair & 0xffffu)); }

__device__ __forceinline__ float second_of(Half2 pair) { return to_float(static_cast<half_bits>(pair >> 16)); }

// The second number of one pair and the first of the next.
__device__ __forceinline__ Half2 between(Half2 pair, Half2 next) { return __byte_perm(pair, next, 0x5432); }
