// binning: each entry moved into the range of its group; lanes with the same key take their places together.
//
// Idea      Each lane learns which others hold its key; one of them moves the cursor by their number, and each one's
//           place follows from the lanes below its own. Entries of a group that meet in a warp cost one addition, and
//           are written side by side.
// Layout    keys (entries,) of KEY, payload (entries,) of INDEX, values (entries,) float32, or not read where `iso`;
//           offsets (groups + 1,) int64 of a scan; cursors (groups,), zero before the launch.
// Needs     blocks of whole warps.
// Watch     the order within a group is that of arrival, and differs from run to run: a sort must follow.
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
