// The activation of a layer where the kernel is compiled for it.
#pragma once
#include "common.cuh"

constexpr int RELU_CLIPPED = 4;  // after those of `enum Activation`, where RELU has no clip

// NaN stays NaN.
template <int KIND>
__device__ __forceinline__ float activated(float z, float clip) {
    if constexpr (KIND == RELU || KIND == RELU_CLIPPED) {
        float positive;
        asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(positive) : "f"(z));
        if constexpr (KIND == RELU_CLIPPED)
            asm("min.NaN.f32 %0, %1, %2;" : "=f"(positive) : "f"(positive), "f"(clip));
        return positive;
    } else {
        return activate(z, KIND, clip);
    }
}
