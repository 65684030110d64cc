// What kernels on images read and write: float32, or float16 as its bits where HALF is 1. They compute in float32.
#pragma once
#include "common.cuh"

#if HALF
typedef unsigned short Number;

__device__ __forceinline__ float loaded(Number bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ void store(Number* place, float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*place) : "f"(value));
}
#else
typedef float Number;

__device__ __forceinline__ float loaded(Number value) { return value; }

__device__ __forceinline__ void store(Number* place, float value) { *place = value; }
#endif

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// The larger one; NaN if either is.
__device__ __forceinline__ float larger(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}
