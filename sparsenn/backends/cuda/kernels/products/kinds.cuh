// The precisions that factors are multiplied in on tensor cores, and how sums are stored as numbers of the outputs' type.
#pragma once
#include "fours.cuh"

enum Kind { TENSOR_FLOAT32, TENSOR_TF32, TENSOR_HALF };  // float32: every number split into two of TF32

constexpr float LARGEST_SUM = 1e38f;

// Whether a sum, or one of four, is no number, infinite, or so large that an instruction may have cut it off at the
// largest number. Where the split has not stood up to what it was given, float32 itself may have.
__device__ __forceinline__ bool strange(float sum) { return !(fabsf(sum) < LARGEST_SUM); }
__device__ __forceinline__ bool strange(const float (&sums)[4]) {
    return !(fabsf(sums[0]) < LARGEST_SUM && fabsf(sums[1]) < LARGEST_SUM && fabsf(sums[2]) < LARGEST_SUM &&
             fabsf(sums[3]) < LARGEST_SUM);
}
