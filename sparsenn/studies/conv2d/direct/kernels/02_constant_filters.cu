// constant_filters: the weights lie in constant memory.
//
// Idea      All threads of a warp ask for the same weight at the same time. Constant memory has a small cache of its
//           own that hands one word to a whole warp, and leaves the path to global memory to the pixels.
// Layout    as baseline; the weights are copied to constant memory before the launch.
// Needs     at most 16,384 weights: there are 64 KiB of constant memory. Blocks of THREADS threads.
// Before    baseline.
// Changes   where a weight is read from.
#include "direct.cuh"

extern "C" {
__constant__ float constant_filters[16384];
}

struct Weights {
    __device__ __forceinline__ float operator()(int i) const { return constant_filters[i]; }
};

extern "C" __global__ void __launch_bounds__(THREADS, 4) conv2d(DIRECT_PARAMETERS) {
    direct(Problem DIRECT_PROBLEM, Weights{}, images, Epilogue{bias, activation, clip}, outputs, log_width, log_height);
}
