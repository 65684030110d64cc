// baseline: a thread computes one output, and reads each pixel and each weight from global memory when it needs it.
//
// Idea      A block takes a tile of pixels of an output; where images are small, the same tile of several outputs. A
//           thread walks through the window around its pixel, channel by channel.
// Layout    images (count, channels, height, width), weights (filters, channels / groups, kernel height, kernel width)
//           and outputs (count, filters, output height, output width), all float32 and row-major; bias a vector.
// Needs     blocks of THREADS threads. Any stride, padding, dilation and number of groups.
// Before    nothing: the first rung.
// Changes   nothing: the others are measured against it, and what no other takes is left to it.
#include "direct.cuh"

struct Weights {
    const float* weights;

    __device__ __forceinline__ float operator()(int i) const { return weights[i]; }
};

extern "C" __global__ void __launch_bounds__(THREADS, 4) conv2d(const float* weights, DIRECT_PARAMETERS) {
    direct(Problem DIRECT_PROBLEM, Weights{weights}, images, Epilogue{bias, activation, clip}, outputs, log_width,
           log_height);
}
