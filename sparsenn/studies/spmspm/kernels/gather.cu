// gather: pieces of a list of entries, each copied to its place in another.
//
// Idea      A warp copies one piece, its lanes neighbouring entries.
// Layout    piece p is entries starts[p] and following of the source, and offsets[p] to offsets[p + 1] of the target;
//           indices of INDEX, values float32 (not touched where `iso`).
// Needs     blocks of whole warps.
// Used for  taking rows out of a CSR matrix, and bringing pieces into order that were written in any.
#include "common.cuh"

extern "C" __global__ void gather(int64 pieces, const int64* __restrict__ starts, const int64* __restrict__ offsets,
                                  const INDEX* __restrict__ indices, const float* __restrict__ values, int iso,
                                  INDEX* __restrict__ out_indices, float* __restrict__ out_values) {
    const int lane = threadIdx.x % WARP;
    const int64 step = static_cast<int64>(gridDim.x) * (blockDim.x / WARP);
    for (int64 piece = static_cast<int64>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP; piece < pieces;
         piece += step) {
        const int64 start = starts[piece], target = offsets[piece], length = offsets[piece + 1] - target;
        for (int64 at = lane; at < length; at += WARP) {
            out_indices[target + at] = indices[start + at];
            if (!iso) out_values[target + at] = values[start + at];
        }
    }
}
