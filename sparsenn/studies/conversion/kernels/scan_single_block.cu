// scan, single_block: one block adds up all counts.
//
// Idea      The block takes THREADS counts at a time, scans them, and carries the sum on to the next ones.
// Layout    counts (groups,) int64; offsets (groups + 1,) int64, exclusive, the total at the end.
// Needs     one block of THREADS threads.
// Before    nothing: this is the first rung.
// Watch     one multiprocessor works, all others wait.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    scan(int64 groups, const int64* __restrict__ counts, int64* __restrict__ offsets) {
    int64 carried = 0;
    for (int64 first = 0; first < groups; first += THREADS) {
        const int64 at = first + threadIdx.x;
        int64 total;
        const int64 before = block_exclusive_scan<THREADS>(at < groups ? counts[at] : int64(0), &total);
        if (at < groups) offsets[at] = carried + before;
        carried += total;
    }
    if (threadIdx.x == 0) offsets[groups] = carried;
}
