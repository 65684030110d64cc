// largest: the size of the largest finite number there is, and whether any is infinite or NaN, in one look at all.
//
// Idea      Without its sign, a float32's bits order as its sizes do, with infinity and NaN beyond all finite ones: one
//           comparison of unsigned integers tells them apart, and atomic maxima bring the blocks' finds together in any
//           order. A warp that found nothing larger than what is there already adds nothing.
// Layout    numbers (count,), float32, or float16 where HALF is 1. found: the largest size as the bits of a float32, then
//           1 where a number is not finite; both zero at first.
// Needs     blocks of THREADS threads; the grid covers the numbers in pieces of PIECE.
#include "images/numbers.cuh"

static_assert(PIECE % THREADS == 0, "each thread takes equally many numbers of a piece");

constexpr unsigned WITHOUT_SIGN = 0x7fffffffu, INFINITE = 0x7f800000u;

__device__ __forceinline__ unsigned warp_largest(unsigned value) {
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

__device__ __forceinline__ void raise(unsigned* place, unsigned value) {
    if (value > __ldcg(place)) atomicMax(place, value);  // what is there only grows: an old value asks for too much
}

extern "C" __global__ void __launch_bounds__(THREADS)
    largest_number(int64 count, const Number* __restrict__ numbers, unsigned* __restrict__ found) {
    const int64 first = static_cast<int64>(blockIdx.x) * PIECE + threadIdx.x;
    unsigned largest = 0, spoilt = 0;
#pragma unroll 8
    for (int step = 0; step < PIECE; step += THREADS) {
        const float number = first + step < count ? loaded(__ldg(numbers + first + step)) : 0.0f;
        const unsigned size = __float_as_uint(number) & WITHOUT_SIGN;
        if (size < INFINITE)
            largest = max(largest, size);
        else
            spoilt = 1;
    }
    largest = warp_largest(largest);
    spoilt = warp_largest(spoilt);
    if (threadIdx.x % WARP == 0) {
        raise(&found[0], largest);
        raise(&found[1], spoilt);
    }
}
