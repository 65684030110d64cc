// spread: each input's outputs, from the rows that are left of all inputs.
//
// Idea      Writing is what it costs: a thread writes four neighbours of the matrix at once, whatever rows they are of,
//           and gathers what belongs there; inputs share rows, and columns share features, so most of it is in caches.
// Layout    features (rows left, width) by rows; owner (rows,) int32, the row left that an input has, -1 for a row of
//           zeros, or null where row k is that of input k; expansion (outputs,) int32, the feature of each output, or
//           null where they are the same; target (rows, outputs) by rows, at a multiple of 16 bytes.
// Needs     blocks of whole warps.
#include "common.cuh"

// Index is unsigned where that counts all of `target`.
template <typename Index>
__device__ __forceinline__ void spread_rows(const float* __restrict__ features, int width,
                                            const int* __restrict__ owner, const int* __restrict__ expansion,
                                            Index total, Index outputs, float* __restrict__ target) {
    const Index step = static_cast<Index>(gridDim.x) * blockDim.x * 4;
    for (int64 at = (static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) * 4; at < total; at += step) {
        const Index place = static_cast<Index>(at);
        Index row = place / outputs;
        int column = static_cast<int>(place - row * outputs), from = owner ? owner[row] : static_cast<int>(row);
        const int present = static_cast<int>(min(static_cast<Index>(4), total - place));
        float found[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k >= present) break;
            if (from >= 0) found[k] = features[static_cast<int64>(from) * width + (expansion ? expansion[column] : column)];
            if (++column == static_cast<int>(outputs)) {
                column = 0, ++row;
                if (k + 1 < present) from = owner ? owner[row] : static_cast<int>(row);
            }
        }
        if (present == 4) {
            *reinterpret_cast<float4*>(target + place) = make_float4(found[0], found[1], found[2], found[3]);
        } else {
            for (int k = 0; k < present; k++) target[place + k] = found[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    spread(const float* __restrict__ features, int width, const int* __restrict__ owner,
           const int* __restrict__ expansion, int64 rows, int64 outputs, float* __restrict__ target) {
    const int64 total = rows * outputs;
    if (total <= 0xffffffffll)
        spread_rows<unsigned>(features, width, owner, expansion, total, outputs, target);
    else
        spread_rows<uint64>(features, width, owner, expansion, total, outputs, target);
}

// Which inputs have a row: bit r % 32 of found[1 + r / 32] for input r. found[0], at first 0, becomes the number of rows
// up to the last that an input has.
extern "C" __global__ void __launch_bounds__(256)
    owned_rows(const int* __restrict__ owner, int rows, unsigned* __restrict__ found) {
    const int lane = threadIdx.x % WARP, step = gridDim.x * blockDim.x;
    unsigned used = 0;
    for (int first = blockIdx.x * blockDim.x + threadIdx.x - lane; first < rows; first += step) {
        const int from = first + lane < rows ? owner[first + lane] : -1;
        const unsigned owned = __ballot_sync(ALL_LANES, from >= 0);
        if (lane == 0) found[1 + first / WARP] = owned;
        used = max(used, static_cast<unsigned>(from + 1));
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        used = max(used, __shfl_xor_sync(ALL_LANES, used, distance));
    if (lane == 0 && used > 0) atomicMax(found, used);
}

// Whether each input's row has a number that is not zero; a warp looks at one.
extern "C" __global__ void __launch_bounds__(256)
    active_rows(const float* __restrict__ features, int width, const int* __restrict__ owner, int rows,
                bool* __restrict__ active) {
    constexpr int AT_ONCE = 4;
    const int lane = threadIdx.x % WARP, warps = gridDim.x * (blockDim.x / WARP);
    for (int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < rows; row += warps) {
        const int from = owner ? owner[row] : row;
        bool found = false;
        for (int first = 0; from >= 0 && first < width && !found; first += AT_ONCE * WARP) {
            bool here = false;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int column = first + k * WARP + lane;
                if (column < width) here |= features[static_cast<int64>(from) * width + column] != 0.0f;
            }
            found = __any_sync(ALL_LANES, here);
        }
        if (lane == 0) active[row] = found;
    }
}
