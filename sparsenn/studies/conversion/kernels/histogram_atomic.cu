// histogram, atomic: a thread counts one entry.
//
// Idea      Thread i adds one to the counter of keys[i].
// Layout    keys (entries,) of KEY, in any order and within 0..groups - 1; counts (groups,), zero before the launch.
// Needs     nothing.
// Before    nothing: this is the first rung.
// Watch     entries of one group that are counted at the same time wait for each other.
#include "common.cuh"

extern "C" __global__ void histogram(int64 entries, const KEY* __restrict__ keys, uint64* __restrict__ counts) {
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 at = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; at < entries; at += step)
        atomicAdd(&counts[keys[at]], 1ull);
}
