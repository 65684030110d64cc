// check_rows: sparse rows of any integer types, checked and brought to the types that kernels take, in one look at all.
//
// Idea      Entries are read side by side, four a thread, whatever their rows, and each is held against the one before.
//           Those that are not above it are counted; threads with a row each count those among them that begin a row,
//           where that is right. The rows' indices increase if and only if the two counts agree, so that no entry need
//           know its row and rows may be of any lengths. Nothing that was given is used as an address unless it lies
//           within the entries.
// Layout    indptr (rows + 1,) OFFSET, from any first number on; indices (entries,) INDEX; values (entries,) float32, or
//           one for all where `shared_value`. offsets (rows + 1,) int64, from 0 on, and converted (entries,) NARROW are
//           written unless they are null, the latter at a multiple of 16 bytes. found, all zero at first: NOT_ABOVE
//           counts faults of order; OFFSETS, OUTSIDE, NOT_FINITE and DIFFER, of values, become 1; BASE becomes the
//           first of indptr.
// Needs     blocks of THREADS threads, any number of them, with 16 bytes of shared memory for each warp.
// Watch     NOT_ABOVE means something only where OFFSETS is 0: else rows may begin anywhere.
#include "common.cuh"

constexpr int FOUR = 4;  // neighbouring entries that a thread reads at once
static_assert(PIECE % (FOUR * THREADS) == 0, "each thread takes equally many fours of a piece");

enum Found { NOT_ABOVE, OFFSETS, OUTSIDE, NOT_FINITE, DIFFER, BASE };

struct WarpFound {
    int64 not_above;
    unsigned seen;
};

extern __shared__ __align__(16) unsigned char shared[];  // a WarpFound for each warp

constexpr unsigned WITHOUT_SIGN = 0x7fffffffu, INFINITE = 0x7f800000u;

// ---- Four neighbours --------------------------------------------------------------------------------------------
// All is read once: what a level 2 cache holds for others, such as weights, is to stay there.

__device__ __forceinline__ void read_four(index16 (&four)[FOUR], const index16* from) {
    const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
    four[0] = words.x & 0xffff, four[1] = words.x >> 16, four[2] = words.y & 0xffff, four[3] = words.y >> 16;
}

__device__ __forceinline__ void read_four(unsigned (&four)[FOUR], const unsigned* from) {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
    four[0] = words.x, four[1] = words.y, four[2] = words.z, four[3] = words.w;
}

__device__ __forceinline__ void read_four(index32 (&four)[FOUR], const index32* from) {
    unsigned words[FOUR];
    read_four(words, reinterpret_cast<const unsigned*>(from));
#pragma unroll
    for (int k = 0; k < FOUR; k++) four[k] = static_cast<index32>(words[k]);
}

__device__ __forceinline__ void read_four(int64 (&four)[FOUR], const int64* from) {
#pragma unroll
    for (int k = 0; k < FOUR; k += 2) {
        const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from + k));
        four[k] = static_cast<int64>(static_cast<uint64>(words.y) << 32 | words.x);
        four[k + 1] = static_cast<int64>(static_cast<uint64>(words.w) << 32 | words.z);
    }
}

__device__ __forceinline__ void write_four(index16* to, const index16 (&four)[FOUR]) {
    *reinterpret_cast<uint2*>(to) = {four[0] | static_cast<unsigned>(four[1]) << 16,
                                     four[2] | static_cast<unsigned>(four[3]) << 16};
}

__device__ __forceinline__ void write_four(index32* to, const index32 (&four)[FOUR]) {
    *reinterpret_cast<uint4*>(to) = {static_cast<unsigned>(four[0]), static_cast<unsigned>(four[1]),
                                     static_cast<unsigned>(four[2]), static_cast<unsigned>(four[3])};
}

template <typename Number>
__device__ __forceinline__ bool by_fours(const Number* numbers) {
    return reinterpret_cast<uint64>(numbers) % (FOUR * sizeof(Number)) == 0;
}

// The first `present` of four; zeros behind them.
template <typename Number>
__device__ __forceinline__ void read_some(Number (&four)[FOUR], const Number* from, bool aligned, int present) {
    if (aligned && present == FOUR) {
        read_four(four, from);
    } else {
#pragma unroll
        for (int k = 0; k < FOUR; k++) four[k] = k < present ? __ldcs(from + k) : Number(0);
    }
}

template <typename Number>
__device__ __forceinline__ Number of_lane_before(Number own) {
    return __shfl_up_sync(ALL_LANES, own, 1);
}
__device__ __forceinline__ index16 of_lane_before(index16 own) {
    return static_cast<index16>(__shfl_up_sync(ALL_LANES, static_cast<int>(own), 1));
}

// ---- The check --------------------------------------------------------------------------------------------------

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

    const unsigned* bits = reinterpret_cast<const unsigned*>(values);
    const unsigned first_value = entries > 0 ? __ldg(bits) : 0;
    const bool aligned = by_fours(indices), values_aligned = by_fours(bits);
    const int lane = threadIdx.x % WARP;
    for (int64 piece = static_cast<int64>(blockIdx.x) * PIECE; piece < entries;
         piece += static_cast<int64>(gridDim.x) * PIECE) {
#pragma unroll 2
        for (int done = 0; done < PIECE; done += FOUR * THREADS) {
            const int64 entry = piece + done + FOUR * threadIdx.x;
            const int present = static_cast<int>(max(int64(0), min(int64(FOUR), entries - entry)));
            INDEX index[FOUR];
            unsigned value[FOUR];
            read_some(index, indices + entry, aligned, present);
            read_some(value, bits + entry, values_aligned, shared_value ? 0 : present);
            INDEX before = of_lane_before(index[FOUR - 1]);
            if (lane == 0 && present > 0 && entry > 0) before = __ldcs(indices + entry - 1);
            NARROW narrow[FOUR];
#pragma unroll
            for (int k = 0; k < FOUR; k++) {
                narrow[k] = static_cast<NARROW>(index[k]);
                if (k >= present) continue;
                const int64 column = static_cast<int64>(index[k]);
                if (column < 0 || column >= width) seen |= 1u << OUTSIDE;
                if (entry + k > 0) not_above += !(index[k] > before);
                before = index[k];
                const unsigned own = shared_value ? first_value : value[k];
                if ((own & WITHOUT_SIGN) >= INFINITE) seen |= 1u << NOT_FINITE;
                if (own != first_value) seen |= 1u << DIFFER;
            }
            if (converted == nullptr) continue;
            if (present == FOUR) {
                write_four(converted + entry, narrow);
            } else {
#pragma unroll
                for (int k = 0; k < FOUR; k++)
                    if (k < present) converted[entry + k] = narrow[k];
            }
        }
    }

    tell(warp_sum(not_above), warp_or(seen), found);
    if (thread == 0) found[BASE] = static_cast<uint64>(static_cast<int64>(base));
}
