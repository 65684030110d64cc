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
};
