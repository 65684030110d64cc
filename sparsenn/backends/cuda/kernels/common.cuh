// What all kernels share: types, sparse rows and columns, the activation, and cooperation within a warp or a block.
//
// The loader puts the text of this file in the place of each include.
#pragma once
#include "activations.cuh"

typedef long long int64;
typedef unsigned long long uint64;
typedef unsigned short index16;  // widths up to 65,536
typedef int index32;             // all others

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- Sparse matrices and what is applied to sums ----------------------------------------------------------------

// CSR, where a group is a row, or CSC, where it is a column. Entries of a group are sorted by index.
// stride is 1, or 0 where one stored value serves all entries (iso-valued).
template <typename Index>
struct Sparse {
    const int64* offsets;
    const Index* indices;
    const float* values;
    int64 stride;

    __device__ __forceinline__ float value(int64 entry) const { return values[entry * stride]; }
};

// act(sum + bias): what becomes of a finished sum.
struct Epilogue {
    const float* bias;
    int activation;
    float clip;

    __device__ __forceinline__ float operator()(float sum, int column) const {
        return activate(sum + bias[column], activation, clip);
    }
};

// Row times column by merge-intersection: two sorted lists of indices are walked together, and where they agree the
// values are multiplied. The products are added by increasing index.
template <typename Index>
__device__ __forceinline__ float intersect(const Sparse<Index>& rows, int row, const Sparse<Index>& columns,
                                           int column) {
    int64 left = rows.offsets[row], right = columns.offsets[column];
    const int64 left_end = rows.offsets[row + 1], right_end = columns.offsets[column + 1];
    float sum = 0.0f;
    while (left < left_end && right < right_end) {
        const int left_index = rows.indices[left], right_index = columns.indices[right];
        if (left_index == right_index) sum = fmaf(rows.value(left), columns.value(right), sum);
        left += left_index <= right_index;
        right += right_index <= left_index;
    }
    return sum;
}

// ---- Within a warp ----------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned lanes_below(int lane) { return (1u << lane) - 1u; }

// Each lane that wants one gets a slot of its own behind *cursor; one lane adds for all. All 32 lanes must call;
// `lane` is the caller's. What the others get means nothing.
__device__ __forceinline__ unsigned warp_reserve(unsigned* cursor, bool wanted, int lane) {
    const unsigned votes = __ballot_sync(ALL_LANES, wanted);
    if (votes == 0) return 0;
    const int leader = __ffs(votes) - 1;
    unsigned base = 0;
    if (lane == leader) base = atomicAdd(cursor, static_cast<unsigned>(__popc(votes)));
    base = __shfl_sync(ALL_LANES, base, leader);
    return base + __popc(votes & lanes_below(lane));
}

// The same for a cursor of its own for each key. `active` are the lanes that call.
__device__ __forceinline__ int64 warp_reserve_by_key(uint64* cursors, int key, unsigned active, int lane) {
    const unsigned peers = __match_any_sync(active, key);
    const int leader = __ffs(peers) - 1;
    uint64 base = 0;
    if (lane == leader) base = atomicAdd(&cursors[key], static_cast<uint64>(__popc(peers)));
    base = __shfl_sync(peers, base, leader);
    return static_cast<int64>(base) + __popc(peers & lanes_below(lane));
}

template <typename Number>
__device__ __forceinline__ Number warp_sum(Number value) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}
#if __CUDA_ARCH__ >= 800  // there is an instruction for it
__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(ALL_LANES, value); }
#endif

__device__ __forceinline__ int warp_max(int value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, value);
#else
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const int other = __shfl_xor_sync(ALL_LANES, value, distance);
        value = value > other ? value : other;
    }
    return value;
#endif
}

template <typename Number>
__device__ __forceinline__ Number warp_inclusive_scan(Number value, int lane) {
    for (int distance = 1; distance < WARP; distance *= 2) {
        const Number before = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

// ---- Within a block ---------------------------------------------------------------------------------------------

// What instructions call a place of shared memory: its address there, in bytes.
__device__ __forceinline__ unsigned shared_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Exclusive prefix sum over the SIZE threads of a one-dimensional block, all of which must call; *total gets the sum.
template <int SIZE, typename Number>
__device__ __forceinline__ Number block_exclusive_scan(Number value, Number* total) {
    static_assert(SIZE % WARP == 0 && SIZE <= WARP * WARP, "a block is 1 to 32 whole warps");
    __shared__ Number sums[SIZE / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Number inclusive = warp_inclusive_scan(value, lane);
    __syncthreads();  // an earlier call's sums have been read
    if (lane == WARP - 1) sums[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        const Number scanned = warp_inclusive_scan(lane < SIZE / WARP ? sums[lane] : Number(0), lane);
        if (lane < SIZE / WARP) sums[lane] = scanned;
    }
    __syncthreads();
    *total = sums[SIZE / WARP - 1];
    return inclusive - value + (warp > 0 ? sums[warp - 1] : Number(0));
}
