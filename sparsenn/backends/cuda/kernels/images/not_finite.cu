// not_finite: whether any number is infinite or NaN, reported in pinned host memory, without a copy to wait for.
//
// Idea      Such a number has all bits of its exponent set. Threads that find one store a 1 in pinned memory of the host,
//           which nobody else writes to; where all numbers are finite, nothing goes there.
// Layout    numbers (count,), the bits of floating-point numbers of BITS bits. found: one word, 0 at first.
// Needs     blocks of THREADS threads; the grid covers the numbers in pieces of PIECE.
#include "common.cuh"

static_assert(PIECE % THREADS == 0, "each thread takes equally many numbers of a piece");

#if BITS == 16
typedef unsigned short Number;
constexpr Number EXPONENT = 0x7c00u;
#elif BITS == 32
typedef unsigned Number;
constexpr Number EXPONENT = 0x7f800000u;
#else
typedef unsigned long long Number;
constexpr Number EXPONENT = 0x7ff0000000000000ull;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    not_finite(int64 count, const Number* __restrict__ numbers, unsigned* __restrict__ found) {
    const int64 first = static_cast<int64>(blockIdx.x) * PIECE + threadIdx.x;
    bool spoilt = false;
#pragma unroll 8
    for (int step = 0; step < PIECE; step += THREADS)
        if (first + step < count) spoilt |= (numbers[first + step] & EXPONENT) == EXPONENT;
    if (spoilt) *found = 1;
}
