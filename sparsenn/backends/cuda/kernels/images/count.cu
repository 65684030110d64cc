// count: how many numbers of each row are not zero; for few and long rows.
//
// Idea      A block takes a piece of a row, so that all multiprocessors have work even where there is but one row; the
//           pieces' counts meet by atomic addition: integers, so that the order does not matter.
// Layout    matrix (rows, width) by rows; float32, or float16 where HALF is 1. counts (rows,) int64, zero at first.
// Needs     blocks of THREADS threads; the grid's first dimension covers a row in pieces of PIECE numbers, its second any
//           rows.
#include "images/numbers.cuh"

static_assert(PIECE % THREADS == 0, "each thread takes equally many numbers of a piece");

extern "C" __global__ void __launch_bounds__(THREADS)
    count_not_zero(int64 rows, int64 width, const Number* __restrict__ matrix, uint64* __restrict__ counts) {
    const int64 first = static_cast<int64>(blockIdx.x) * PIECE + threadIdx.x;
    for (int64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const Number* numbers = matrix + row * width;
        int found = 0;
#pragma unroll 8
        for (int step = 0; step < PIECE; step += THREADS)
            found += first + step < width && loaded(numbers[first + step]) != 0.0f;
        found = warp_sum(found);
        if (threadIdx.x % WARP == 0 && found > 0) atomicAdd(&counts[row], static_cast<uint64>(found));
    }
}
