// What kernels on images read and write: float32, or float16 as its bits where HALF is 1. They compute in float32, and add
// up in float64: a sum of millions of numbers keeps its digits, and finite numbers have a finite mean.
#pragma once
#include "common.cuh"
#include "ptx/numbers.cuh"

#if HALF
typedef half_bits Number;

__device__ __forceinline__ float loaded(Number bits) { return to_float(bits); }

__device__ __forceinline__ void store(Number* place, float value) { *place = to_half(value); }
#else
typedef float Number;

__device__ __forceinline__ float loaded(Number value) { return value; }

__device__ __forceinline__ void store(Number* place, float value) { *place = value; }
#endif

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
