// not_finite: whether any number is infinite or NaN, reported in pinned host memory, without a copy to wait for.
//
// Idea      Such a number has all bits of its exponent set, so that its bits without the sign are larger than all others'.
//           Threads that find one store a 1 in pinned memory of the host, which nobody else writes to; where all numbers
//           are finite, nothing goes there. A thread has 16 bytes a load on their way, LOADS at a time. Blocks that start
//           first take the end: a kernel that has just read the numbers read that last, and the cache still has it.
// Layout    numbers (count,), the bits of floating-point numbers of BITS bits. found: one word, 0 at first.
// Needs     blocks of THREADS threads; the grid covers the numbers in pieces of PIECE bytes.
#include "common.cuh"

constexpr int WHOLE = sizeof(uint4), LOADS = PIECE / (THREADS * WHOLE);
static_assert(LOADS * THREADS * WHOLE == PIECE, "each thread takes equally many bytes of a piece");

#if BITS == 16
typedef unsigned short Number;
constexpr Number SIZE = 0x7fffu, LEAST = 0x7c00u;  // the bits without the sign, and the least of those that are not finite
#elif BITS == 32
typedef unsigned Number;
constexpr Number SIZE = 0x7fffffffu, LEAST = 0x7f800000u;
#else
typedef unsigned long long Number;
constexpr Number SIZE = 0x7fffffffffffffffull, LEAST = 0x7ff0000000000000ull;
#endif

constexpr int NUMBERS = WHOLE / sizeof(Number);

extern "C" __global__ void __launch_bounds__(THREADS)
    not_finite(int64 count, const Number* __restrict__ numbers, unsigned* __restrict__ found) {
    const int64 piece = gridDim.x - 1 - blockIdx.x, first = piece * (PIECE / static_cast<int>(sizeof(Number)));
    const int64 last = min(count, first + PIECE / static_cast<int>(sizeof(Number)));
    const bool by_wholes = reinterpret_cast<uint64>(numbers) % WHOLE == 0;
    const int64 wholes = by_wholes ? (last - first) / NUMBERS : 0;
    union {
        uint4 whole;
        Number numbers[NUMBERS];
    } read[LOADS];
#pragma unroll
    for (int load = 0; load < LOADS; ++load) {
        const int64 at = threadIdx.x + load * THREADS;
        const auto* own = reinterpret_cast<const uint4*>(numbers + first) + at;
        read[load].whole = at < wholes ? __ldg(own) : make_uint4(0, 0, 0, 0);
    }
    Number most = 0;
#pragma unroll
    for (int load = 0; load < LOADS; ++load)
#pragma unroll
        for (int k = 0; k < NUMBERS; ++k) most = max(most, static_cast<Number>(read[load].numbers[k] & SIZE));
#pragma unroll 8
    for (int64 at = first + wholes * NUMBERS + threadIdx.x; at < last; at += THREADS)
        most = max(most, static_cast<Number>(numbers[at] & SIZE));
    if (most >= LEAST) *found = 1;
}
