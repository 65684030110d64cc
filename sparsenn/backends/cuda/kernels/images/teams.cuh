// Teams of TEAM threads, a warp or the whole block, each of which takes a row of numbers.
#pragma once
#include "images/numbers.cuh"

static_assert(TEAM == WARP || TEAM == THREADS, "a team is a warp or a block");
static_assert(THREADS % WARP == 0 && THREADS <= WARP * WARP, "a block is 1 to 32 whole warps");

struct Sum {
    __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
};

// What all threads of a team get of their values; all of them must call.
template <class Value, class Joined>
__device__ __forceinline__ Value over_team(Value value, Joined joined) {
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = joined(value, __shfl_xor_sync(ALL_LANES, value, distance));
#if TEAM > 32
    __shared__ Value parts[THREADS / WARP];
    __syncthreads();  // an earlier call's parts have been read
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < THREADS / WARP; ++warp) value = joined(value, parts[warp]);
#endif
    return value;
}
