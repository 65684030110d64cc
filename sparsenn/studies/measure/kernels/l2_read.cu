// l2_read: how many bytes a second all multiprocessors together read from the L2 cache.
//
// Idea      Every thread reads 16 bytes at a time, past its multiprocessor's own cache, from a buffer that stays in L2,
//           and adds up what it read, so that no load can be left out.
// Layout    buffer of `words` groups of 4 integers, a power of two; in each step neighbouring threads read neighbouring
//           groups, all threads together a stretch of the buffer, the next step the next stretch, and so round and
//           round. total, one number: the sum of all integers read is added to it.
// Needs     a grid of one dimension; blocks of whole warps.
#include "common.cuh"
#include "ptx/memory.cuh"

constexpr int READS = 8;  // in flight at a time

extern "C" __global__ void l2_read(const uint4* buffer, int words, int rounds, uint64* total) {
    const unsigned threads = gridDim.x * blockDim.x, mask = words - 1;
    unsigned place = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int round = 0; round < rounds; ++round) {
        uint4 found[READS];
#pragma unroll
        for (int i = 0; i < READS; ++i) found[i] = read_past_l1(buffer + ((place + i * threads) & mask));
#pragma unroll
        for (int i = 0; i < READS; ++i) sum += (found[i].x + found[i].y) + (found[i].z + found[i].w);
        place += READS * threads;
    }
    const uint64 all = warp_sum(static_cast<uint64>(sum));
    if (threadIdx.x % WARP == 0) atomicAdd(total, all);
}
