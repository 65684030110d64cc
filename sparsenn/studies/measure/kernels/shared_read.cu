// shared_read: how many bytes a second all multiprocessors together read from their shared memory.
//
// Idea      Every thread reads 16 bytes at a time without a conflict, and adds up what it read. Reads are volatile:
//           ptxas would otherwise take what lies at an address from the read before.
// Layout    in shared memory ROWS rows of 16 bytes a thread, so that the 8 threads whose reads go together cover all
//           banks once; filled with `value`. total, one number: the sum of all integers read is added to it.
// Needs     blocks of THREADS threads, a multiple of 32.
#include "common.cuh"
#include "ptx/memory.cuh"

constexpr int ROWS = 2;
constexpr int READS = 8;  // in flight at a time

static_assert(THREADS % WARP == 0, "blocks are whole warps");

extern "C" __global__ void __launch_bounds__(THREADS) shared_read(unsigned value, int rounds, uint64* total) {
    __shared__ uint4 rows[ROWS][THREADS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) rows[row][threadIdx.x] = make_uint4(value, value, value, value);
    __syncthreads();
    const unsigned place = shared_address(&rows[0][threadIdx.x]);
    unsigned sum = 0;
    for (int round = 0; round < rounds; ++round) {
        uint4 found[READS];
#pragma unroll
        for (int i = 0; i < READS; ++i) found[i] = read_four_again(place + i % ROWS * 16 * THREADS);
#pragma unroll
        for (int i = 0; i < READS; ++i) sum += (found[i].x + found[i].y) + (found[i].z + found[i].w);
    }
    const uint64 all = warp_sum(static_cast<uint64>(sum));
    if (threadIdx.x % WARP == 0) atomicAdd(total, all);
}
