// histogram: lanes with the same key count together.
//
// Idea      Each lane learns which others hold its key; one of them adds their number: one addition for the entries of
//           a group that meet in a warp. Kernels that write COO append neighbours of one row together, so that is most
//           of a warp.
// Layout    keys (entries,) of KEY, in any order and within 0..groups - 1; counts (groups,), zero before the launch.
// Needs     blocks of whole warps.
#include "common.cuh"

extern "C" __global__ void histogram(int64 entries, const KEY* __restrict__ keys, uint64* __restrict__ counts) {
    const int lane = threadIdx.x % WARP;
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    // Whole warps go round together: the loop runs on the entry of the warp's first lane.
    int64 first = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x - lane;
    for (; first < entries; first += step) {
        const bool inside = first + lane < entries;
        const unsigned active = __ballot_sync(ALL_LANES, inside);
        if (inside) warp_reserve_by_key(counts, static_cast<int>(keys[first + lane]), active, lane);
        __syncwarp();
    }
}
