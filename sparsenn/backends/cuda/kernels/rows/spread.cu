// spread: each input's outputs, from the rows that are left of all inputs.
//
// Idea      Writing is what it costs: a thread writes four neighbours of the matrix at once, whatever rows they are of,
//           and gathers what belongs there; inputs share rows, and columns share features, so most of it is in caches.
// Layout    features (rows left, width) by rows, of the type NUMBER, float or half_bits; owner (rows,) int32, the row left
//           that an input has, -1 for a row of zeros, or null where row k is that of input k; expansion (outputs,) int32,
//           the feature of each output, or null where they are the same; target (rows, outputs) by rows, of the same type,
//           at a multiple of 16 bytes.
// Needs     blocks of whole warps.
#include "common.cuh"
#include "ptx/numbers.cuh"

#ifndef NUMBER
#define NUMBER float
#endif

__device__ __forceinline__ bool is_zero(float number) { return number == 0.0f; }
__device__ __forceinline__ bool is_zero(half_bits number) { return (number & 0x7fff) == 0; }

__device__ __forceinline__ void store_four(float* to, const float (&numbers)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
}
__device__ __forceinline__ void store_four(half_bits* to, const half_bits (&numbers)[4]) {
    *reinterpret_cast<uint2*>(to) = make_uint2(numbers[0] | numbers[1] << 16, numbers[2] | numbers[3] << 16);
}

// Index is unsigned where that counts all of `target`.
template <typename Index>
__device__ __forceinline__ void spread_rows(const NUMBER* __restrict__ features, int width,
                                            const int* __restrict__ owner, const int* __restrict__ expansion,
                                            Index total, Index outputs, NUMBER* __restrict__ target) {
    const Index step = static_cast<Index>(gridDim.x) * blockDim.x * 4;
    for (int64 at = (static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) * 4; at < total; at += step) {
        const Index place = static_cast<Index>(at);
        Index row = place / outputs;
        int column = static_cast<int>(place - row * outputs), from = owner ? owner[row] : static_cast<int>(row);
        const int present = static_cast<int>(min(static_cast<Index>(4), total - place));
        NUMBER found[4] = {};
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
            store_four(target + place, found);
        } else {
            for (int k = 0; k < present; k++) target[place + k] = found[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    spread(const NUMBER* __restrict__ features, int width, const int* __restrict__ owner,
           const int* __restrict__ expansion, int64 rows, int64 outputs, NUMBER* __restrict__ target) {
    const int64 total = rows * outputs;
    if (total <= 0xffffffffll)
        spread_rows<unsigned>(features, width, owner, expansion, total, outputs, target);
    else
        spread_rows<uint64>(features, width, owner, expansion, total, outputs, target);
}

// Which inputs have a row: bit r % 32 of found[r / 32] for input r. Behind the bits, each block tells of the number of rows
// up to the last that one of its inputs has. `copy` becomes what `owner` is.
extern "C" __global__ void __launch_bounds__(256)
    owned_rows(const int* __restrict__ owner, int rows, int* __restrict__ copy, unsigned* __restrict__ found) {
    __shared__ unsigned used_by_warp[256 / WARP];
    const int lane = threadIdx.x % WARP, step = gridDim.x * blockDim.x;
    unsigned used = 0;
    for (int first = blockIdx.x * blockDim.x + threadIdx.x - lane; first < rows; first += step) {
        const int from = first + lane < rows ? owner[first + lane] : -1;
        if (first + lane < rows) copy[first + lane] = from;
        const unsigned owned = __ballot_sync(ALL_LANES, from >= 0);
        if (lane == 0) found[first / WARP] = owned;
        used = max(used, static_cast<unsigned>(from + 1));
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        used = max(used, __shfl_xor_sync(ALL_LANES, used, distance));
    if (lane == 0) used_by_warp[threadIdx.x / WARP] = used;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < blockDim.x / WARP; ++warp) used = max(used, used_by_warp[warp]);
    found[(rows + WARP - 1) / WARP + blockIdx.x] = used;
}

// What `owned_rows` found, so many words of bits and then what each block told, as a list: how many inputs have a row, the
// number of rows up to the last of these, and the inputs, increasing. One block, of at most 32 warps.
extern "C" __global__ void __launch_bounds__(1024)
    list_owned(const unsigned* __restrict__ found, int words, int told, int* __restrict__ listed) {
    __shared__ int of_warps[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    int count = 0, used = 0;
    for (int first = 0; first < words; first += blockDim.x) {
        const int at = first + threadIdx.x;
        unsigned bits = at < words ? found[at] : 0;
        int before = __popc(bits);
        for (int distance = 1; distance < WARP; distance *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, before, distance);
            if (lane >= distance) before += other;
        }
        if (lane == WARP - 1) of_warps[warp] = before;
        before -= __popc(bits);
        __syncthreads();
        int all = 0;
        for (int other = 0; other < warps; ++other) {
            if (other < warp) before += of_warps[other];
            all += of_warps[other];
        }
        for (; bits; bits &= bits - 1) listed[2 + count + before++] = at * WARP + __ffs(bits) - 1;
        count += all;
        __syncthreads();
    }
    for (int block = threadIdx.x; block < told; block += blockDim.x)
        used = max(used, static_cast<int>(found[words + block]));
    used = warp_max(used);
    if (lane == 0) of_warps[warp] = used;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int other = 1; other < warps; ++other) used = max(used, of_warps[other]);
    listed[0] = count;
    listed[1] = used;
}

// Whether each input's row has a number that is not zero; a warp looks at one.
extern "C" __global__ void __launch_bounds__(256)
    active_rows(const NUMBER* __restrict__ features, int width, const int* __restrict__ owner, int rows,
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
                if (column < width) here |= !is_zero(features[static_cast<int64>(from) * width + column]);
            }
            found = __any_sync(ALL_LANES, here);
        }
        if (lane == 0) active[row] = found;
    }
}
