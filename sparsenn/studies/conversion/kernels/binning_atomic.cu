// binning, atomic: a thread moves one entry into the range of its group.
//
// Idea      Thread i takes the next free place behind the offset of keys[i], by an atomic addition to that group's
//           cursor, and writes its entry there.
// Layout    keys (entries,) of KEY, payload (entries,) of INDEX, values (entries,) float32, or not read where `iso`;
//           offsets (groups + 1,) int64 of a scan; cursors (groups,), zero before the launch.
// Needs     nothing.
// Before    nothing: this is the first rung.
// Watch     the order within a group is that of arrival, and differs from run to run: a sort must follow.
#include "common.cuh"

extern "C" __global__ void binning(int64 entries, const KEY* __restrict__ keys, const INDEX* __restrict__ payload,
                                   const float* __restrict__ values, int iso, const int64* __restrict__ offsets,
                                   uint64* __restrict__ cursors, INDEX* __restrict__ binned,
                                   float* __restrict__ moved) {
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 at = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; at < entries; at += step) {
        const int64 slot = offsets[keys[at]] + static_cast<int64>(atomicAdd(&cursors[keys[at]], 1ull));
        binned[slot] = payload[at];
        if (!iso) moved[slot] = values[at];
    }
}
