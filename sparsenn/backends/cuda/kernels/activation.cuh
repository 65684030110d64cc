// The activation of a layer where the kernel is compiled for it.
#pragma once
#include "common.cuh"
#include "ptx/numbers.cuh"

// NaN stays NaN.
template <int KIND>
__device__ __forceinline__ float activated(float z, float clip) {
    if constexpr (KIND == RELU || KIND == RELU_CLIPPED) {
        const float positive = larger_or_nan(z, 0.0f);
        return KIND == RELU_CLIPPED ? smaller_or_nan(positive, clip) : positive;
    } else {
        return activate_as<KIND>(z, clip);
    }
}
