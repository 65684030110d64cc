// scan: every block sums its tile, one block scans the sums, every block scans its tile.
//
// Idea      A tile's offsets need only the sum of all tiles before it. Three launches: sum_tiles, scan_sums, apply. All
//           multiprocessors work; the counts are read twice.
// Layout    counts (groups,) int64, cut into tiles of THREADS * ITEMS; sums (tiles,) int64; offsets (groups + 1,)
//           int64, exclusive, the total at the end.
// Needs     blocks of THREADS threads: a block a tile, and one block for scan_sums.
#include "common.cuh"

constexpr int64 TILE = THREADS * ITEMS;

__device__ __forceinline__ int64 thread_sum(int64 groups, const int64* counts, int64 first) {
    int64 sum = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
        if (first + item < groups) sum += counts[first + item];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_tiles(int64 groups, const int64* __restrict__ counts, int64* __restrict__ sums) {
    const int64 first = blockIdx.x * TILE + threadIdx.x * ITEMS;
    int64 total;
    block_exclusive_scan<THREADS>(thread_sum(groups, counts, first), &total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_sums(int64 tiles, int64* __restrict__ sums) {
    int64 carried = 0;
    for (int64 first = 0; first < tiles; first += THREADS) {
        const int64 at = first + threadIdx.x;
        int64 total;
        const int64 before = block_exclusive_scan<THREADS>(at < tiles ? sums[at] : int64(0), &total);
        if (at < tiles) sums[at] = carried + before;
        carried += total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    apply(int64 groups, const int64* __restrict__ counts, const int64* __restrict__ sums, int64* __restrict__ offsets) {
    const int64 first = blockIdx.x * TILE + threadIdx.x * ITEMS;
    int64 total;
    int64 offset = sums[blockIdx.x] + block_exclusive_scan<THREADS>(thread_sum(groups, counts, first), &total);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        if (first + item >= groups) break;
        offsets[first + item] = offset;
        offset += counts[first + item];
        if (first + item + 1 == groups) offsets[groups] = offset;
    }
}
