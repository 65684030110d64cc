// binning, warp_match: lanes with the same key take their places together.
//
// Idea      Each lane learns which others hold its key; one of them moves the cursor by their number, and each one's
//           place follows from the lanes below its own.
// Layout    as atomic.
// Needs     blocks of whole warps.
// Before    atomic.
// Changes   one addition for the entries of a group that meet in a warp, and they are written side by side.
#include "common.cuh"

extern "C" __global__ void binning(int64 entries, const KEY* __restrict__ keys, const INDEX* __restrict__ payload,
                                   const float* __restrict__ values, int iso, const int64* __restrict__ offsets,
                                   uint64* __restrict__ cursors, INDEX* __restrict__ binned,
                                   float* __restrict__ moved) {
    const int lane = threadIdx.x % WARP;
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    // Whole warps go round together: the loop runs on the entry of the warp's first lane.
    int64 first = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x - lane;
    for (; first < entries; first += step) {
        const int64 at = first + lane;
        const unsigned active = __ballot_sync(ALL_LANES, at < entries);
        if (at < entries) {
            const int key = keys[at];
            const int64 slot = offsets[key] + warp_reserve_by_key(cursors, key, active, lane);
            binned[slot] = payload[at];
            if (!iso) moved[slot] = values[at];
        }
        __syncwarp();
    }
}
