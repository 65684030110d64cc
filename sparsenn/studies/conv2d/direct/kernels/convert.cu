// convert: numbers from float32 to float16.
//
// Idea      A thread takes 8 numbers at a time, 32 bytes on one side and 16 on the other, and the last few one by one:
//           the memory's rate bounds it.
// Layout    two arrays of `size` numbers, both beginning at a multiple of 16 bytes.
// Needs     blocks of THREADS threads; they loop, so that any number of blocks will do.
//
// Each is rounded to the nearest number, ties to the even one. Numbers of 65,520 and above become infinite, those
// below 2^-25 zero; NaN stays NaN.
#include "common.cuh"
#include "half.cuh"

// A thread's numbers: from the first of its eights to the last, then one of the remaining.
template <typename Eight, typename One>
__device__ __forceinline__ void for_all(int64 size, const Eight& eight, const One& one) {
    const int64 thread = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    const int64 threads = static_cast<int64>(gridDim.x) * THREADS, eights = size / 8;
    for (int64 i = thread; i < eights; i += threads) eight(i);
    for (int64 i = 8 * eights + thread; i < size; i += threads) one(i);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    to_float16(int64 size, const float* __restrict__ from, half_bits* __restrict__ to) {
    const float4* given = reinterpret_cast<const float4*>(from);
    uint4* made = reinterpret_cast<uint4*>(to);
    for_all(
        size,
        [=](int64 i) {
            const float4 low = given[2 * i], high = given[2 * i + 1];
            made[i] = make_uint4(to_halves(low.x, low.y), to_halves(low.z, low.w), to_halves(high.x, high.y),
                                 to_halves(high.z, high.w));
        },
        [=](int64 i) { to[i] = to_half(from[i]); });
}
