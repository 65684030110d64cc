// check_rows: sparse rows of any integer types, checked and brought to the types that kernels take, in one look at all.
//
// Idea      Entries are read side by side, whatever their rows, and each is held against the one before it. Those that are
//           not above it are counted; threads with a row each count those among them that begin a row, where that is
//           right. The rows' indices increase if and only if the two counts agree, so that no entry need know its row and
//           rows may be of any lengths. Nothing that was given is used as an address unless it lies within the entries.
// Layout    indptr (rows + 1,) OFFSET, from any first number on; indices (entries,) INDEX; values (entries,) float32, or
//           one for all where `shared_value`. offsets (rows + 1,) int64, from 0 on, and converted (entries,) NARROW are
//           written unless they are null. found, all zero at first: NOT_ABOVE counts faults of order; OFFSETS, OUTSIDE,
//           NOT_FINITE and DIFFER, of values, become 1; BASE becomes the first of indptr.
// Needs     blocks of THREADS threads, any number of them, with 16 bytes of shared memory for each warp.
// Watch     NOT_ABOVE means something only where OFFSETS is 0: else rows may begin anywhere.
#include "common.cuh"

static_assert(PIECE % THREADS == 0, "each thread takes equally many entries of a piece");

enum Found { NOT_ABOVE, OFFSETS, OUTSIDE, NOT_FINITE, DIFFER, BASE };

struct WarpFound {
    int64 not_above;
    unsigned seen;
};

extern __shared__ __align__(16) unsigned char shared[];  // a WarpFound for each warp

constexpr unsigned WITHOUT_SIGN = 0x7fffffffu, INFINITE = 0x7f800000u;

// Read once: what a level 2 cache holds for others, such as weights, is to stay there.
__device__ __forceinline__ unsigned bits_of(const float* value) {
    return __ldcs(reinterpret_cast<const unsigned*>(value));
}

// Without overflow, whatever the offsets are.
__device__ __forceinline__ int64 from_base(OFFSET offset, OFFSET base) {
    return static_cast<int64>(static_cast<uint64>(offset) - static_cast<uint64>(base));
}

__device__ __forceinline__ bool is_above(const INDEX* __restrict__ indices, int64 entry) {
    return __ldcs(indices + entry) > __ldcs(indices + entry - 1);
}

__device__ __forceinline__ unsigned warp_or(unsigned bits) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) bits |= __shfl_xor_sync(ALL_LANES, bits, distance);
    return bits;
}

// What the warps of a block have found, added to the record: one addition a block.
__device__ __forceinline__ void tell(int64 not_above, unsigned seen, uint64* found) {
    WarpFound* of_warps = reinterpret_cast<WarpFound*>(shared);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = {not_above, seen};
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < THREADS / WARP; ++warp) {
        not_above += of_warps[warp].not_above;
        seen |= of_warps[warp].seen;
    }
    if (not_above != 0) atomicAdd(&found[NOT_ABOVE], static_cast<uint64>(not_above));
#pragma unroll
    for (int kind = OFFSETS; kind <= DIFFER; ++kind)
        if ((seen >> kind & 1) != 0 && __ldcg(&found[kind]) == 0) found[kind] = 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    check_rows(int64 rows, int64 width, int64 entries, int shared_value, const OFFSET* __restrict__ indptr,
               const INDEX* __restrict__ indices, const float* __restrict__ values, int64* __restrict__ offsets,
               NARROW* __restrict__ converted, uint64* __restrict__ found) {
    const int64 thread = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    const int64 step = static_cast<int64>(gridDim.x) * THREADS;
    const OFFSET base = __ldg(indptr);
    int64 not_above = 0;  // entries, less those that begin a row
    unsigned seen = 0;     // a bit for each kind of what was found

    for (int64 row = thread; row <= rows; row += step) {
        const int64 start = from_base(__ldg(indptr + row), base);
        const int64 end = row < rows ? from_base(__ldg(indptr + row + 1), base) : entries;
        if (start < 0 || (row < rows ? end < start : end != start)) seen |= 1u << OFFSETS;
        if (offsets != nullptr) offsets[row] = start;
        if (start > 0 && start < entries && start < end) not_above -= !is_above(indices, start);
    }

    const unsigned first_value = entries > 0 ? bits_of(values) : 0;
    const int64 stride = static_cast<int64>(gridDim.x) * PIECE;
    for (int64 first = static_cast<int64>(blockIdx.x) * PIECE + threadIdx.x; first < entries; first += stride) {
#pragma unroll 8
        for (int done = 0; done < PIECE; done += THREADS) {
            const int64 entry = first + done;
            if (entry < entries) {
                const INDEX index = __ldcs(indices + entry);
                const int64 column = static_cast<int64>(index);
                if (column < 0 || column >= width) seen |= 1u << OUTSIDE;
                if (entry > 0) not_above += !is_above(indices, entry);
                if (converted != nullptr) converted[entry] = static_cast<NARROW>(index);
                const unsigned value = shared_value ? first_value : bits_of(values + entry);
                if ((value & WITHOUT_SIGN) >= INFINITE) seen |= 1u << NOT_FINITE;
                if (value != first_value) seen |= 1u << DIFFER;
            }
        }
    }

    tell(warp_sum(not_above), warp_or(seen), found);
    if (thread == 0) found[BASE] = static_cast<uint64>(static_cast<int64>(base));
}
