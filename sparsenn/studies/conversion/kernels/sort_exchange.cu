// sort, exchange: a thread sorts one group by exchanging neighbours.
//
// Idea      Neighbours out of order change places, in pass after pass, until a pass exchanges nothing.
// Layout    offsets (groups + 1,) int64; indices of INDEX and values float32 (not touched where `iso`), sorted in
//           place within each group.
// Needs     nothing; indices may repeat within a group.
// Before    nothing: this is the first rung.
// Watch     the time grows with the square of a group's length, neighbouring threads touch far-apart memory, and one
//           long group keeps its whole warp waiting.
#include "common.cuh"

extern "C" __global__ void sort(int groups, const int64* __restrict__ offsets, INDEX* __restrict__ indices,
                                float* __restrict__ values, int iso) {
    const int group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    const int64 first = offsets[group];
    int64 last = offsets[group + 1] - 1;
    while (first < last) {
        int64 exchanged = first;  // whatever lies behind the last exchange is in its place
        for (int64 at = first; at < last; ++at) {
            const INDEX left = indices[at], right = indices[at + 1];
            if (left <= right) continue;
            indices[at] = right;
            indices[at + 1] = left;
            if (!iso) {
                const float value = values[at];
                values[at] = values[at + 1];
                values[at + 1] = value;
            }
            exchanged = at;
        }
        last = exchanged;
    }
}
