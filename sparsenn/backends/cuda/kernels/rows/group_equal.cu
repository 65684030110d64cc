// group_equal: which rows are equal, bit for bit.
//
// Idea      A hash table of row numbers, filled by all warps at once. A warp hashes its row; at each place on its way
//           through the table it either takes an empty one, or compares its row, whole, with the one that stands there.
//           Equal rows thus meet in one place, whichever comes first, and the smallest of them is kept beside it: the
//           answer does not depend on the order in which warps run. The hash only saves comparisons.
// Layout    features CSR, values compared as bits (not at all where `iso`), or dense by rows. table (size,) int32, -1
//           where empty, size a power of two of at least twice the rows; smallest (size,) int32, rows or more before
//           the launch; place (rows,) int32: where in the table each row has its group.
// Needs     blocks of whole warps.
#include "common.cuh"

__device__ __forceinline__ uint64 stir(uint64 state, uint64 word) {
    state = (state ^ word) * 0x9E3779B97F4A7C15ull;  // 2^64 over the golden ratio
    return state ^ (state >> 29);
}

struct SparseRows {
    const int64* offsets;
    const INDEX* indices;
    const unsigned* values;
    bool iso;

    __device__ __forceinline__ uint64 hash(int row, int lane) const {
        uint64 state = 0;
        for (int64 at = offsets[row] + lane; at < offsets[row + 1]; at += WARP) {
            const uint64 value = iso ? 0 : values[at];
            state += stir(static_cast<uint64>(indices[at]) << 32 | value, at - offsets[row]);
        }
        return state;
    }

    __device__ __forceinline__ bool equal(int left, int right, int lane) const {
        const int64 a = offsets[left], b = offsets[right], length = offsets[left + 1] - a;
        bool same = length == offsets[right + 1] - b;
        for (int64 start = 0; same && start < length; start += WARP) {
            const int64 at = start + lane;
            const bool here =
                at >= length || (indices[a + at] == indices[b + at] && (iso || values[a + at] == values[b + at]));
            same = __all_sync(ALL_LANES, here);
        }
        return same;
    }
};

struct DenseRows {
    const unsigned* matrix;
    int64 width;

    __device__ __forceinline__ uint64 hash(int row, int lane) const {
        uint64 state = 0;
        for (int64 at = lane; at < width; at += WARP) state += stir(matrix[row * width + at], at);
        return state;
    }

    __device__ __forceinline__ bool equal(int left, int right, int lane) const {
        bool same = true;
        for (int64 start = 0; same && start < width; start += WARP) {
            const int64 at = start + lane;
            same = __all_sync(ALL_LANES, at >= width || matrix[left * width + at] == matrix[right * width + at]);
        }
        return same;
    }
};

template <typename Rows>
__device__ __forceinline__ void enter(const Rows& source, int rows, int size, int* table, int* smallest, int* place) {
    const int lane = threadIdx.x % WARP;
    const int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    // Sums of 64-bit numbers do not depend on the order of the lanes.
    const uint64 hash = stir(warp_sum(source.hash(row, lane)), 0);
    int slot = static_cast<int>(hash >> 32) & (size - 1);
    while (true) {
        int standing = -1;
        if (lane == 0) standing = atomicCAS(&table[slot], -1, row);
        standing = __shfl_sync(ALL_LANES, standing, 0);
        if (standing < 0 || source.equal(standing, row, lane)) break;
        slot = (slot + 1) & (size - 1);
    }
    if (lane == 0) {
        atomicMin(&smallest[slot], row);
        place[row] = slot;
    }
}

extern "C" __global__ void group_csr(int rows, const int64* __restrict__ offsets, const INDEX* __restrict__ indices,
                                     const unsigned* __restrict__ values, int iso, int size, int* __restrict__ table,
                                     int* __restrict__ smallest, int* __restrict__ place) {
    enter(SparseRows{offsets, indices, values, iso != 0}, rows, size, table, smallest, place);
}

extern "C" __global__ void group_dense(int rows, int width, const unsigned* __restrict__ matrix, int size,
                                       int* __restrict__ table, int* __restrict__ smallest, int* __restrict__ place) {
    enter(DenseRows{matrix, width}, rows, size, table, smallest, place);
}
