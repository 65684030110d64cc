// What becomes of a finished sum of a filter's products.
//
// ACTIVATION: a code of `enum Activation`, RELU where there is no clip, or RELU_CLIPPED.
#pragma once
#include "activation.cuh"

struct Finish {
    const float* bias;
    float clip;

    __device__ __forceinline__ float operator()(float sum, int filter) const {
        return activated<ACTIVATION>(sum + __ldg(bias + filter), clip);
    }

    // The same of a sum of the result before its activation and another value.
    __device__ __forceinline__ float operator()(float sum, int filter, float other) const {
        return activated<ACTIVATION>(sum + __ldg(bias + filter) + other, clip);
    }
};
