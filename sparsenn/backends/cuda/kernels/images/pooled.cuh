// What a window becomes: where MEAN is 1 the mean of its numbers, whose sum is of float64, and where it is 0 the largest.
#pragma once
#include "images/numbers.cuh"

#if MEAN
typedef double Pooled;

__device__ __forceinline__ Pooled nothing() { return 0.0; }

__device__ __forceinline__ Pooled with_float(Pooled found, float number) { return found + number; }

// `size`: pixels of the window, padding included.
__device__ __forceinline__ float of_window(Pooled found, double size) { return static_cast<float>(found / size); }
#else
typedef float Pooled;

__device__ __forceinline__ Pooled nothing() { return -infinity(); }

__device__ __forceinline__ Pooled with_float(Pooled found, float number) { return larger_or_nan(found, number); }

__device__ __forceinline__ float of_window(Pooled found, double size) { return found; }
#endif

__device__ __forceinline__ Pooled with(Pooled found, Number number) { return with_float(found, loaded(number)); }
