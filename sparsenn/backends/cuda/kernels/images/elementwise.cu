// elementwise: the sum or the product of two matrices, and an activation.
//
// Idea      One pass over memory, in place of one for the sum and one for the activation; four neighbours a thread.
// Layout    first, second, outputs (count,), float32, or float16 where HALF is 1, which are combined in float32. Where
//           FACTORS is 1, second (count / pixels,) holds one number for each `pixels` neighbours of first.
// Needs     PRODUCT of 1 to multiply, else 0, with FACTORS of 0; blocks of THREADS threads that cover the numbers, four a
//           thread; outputs apart from what is read.
#include "common.cuh"
#include "fours.cuh"
#include "images/numbers.cuh"

__device__ __forceinline__ bool at_fours(const Number* numbers) {
    return reinterpret_cast<uint64>(numbers) % (4 * sizeof(Number)) == 0;
}

// A product is rounded before the activation: it becomes no part of a fused multiply-add there.
__device__ __forceinline__ float combined(float left, float right) {
#if PRODUCT
    return __fmul_rn(left, right);
#else
    return left + right;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise(int64 count, int64 pixels, const Number* __restrict__ first, const Number* __restrict__ second,
                Number* __restrict__ outputs, int activation, float parameter) {
    const int64 begin = 4 * (static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x);
#if FACTORS
    int64 channel = begin / pixels, pixel = begin - channel * pixels;
#endif
    if (begin + 4 <= count && at_fours(first) && at_fours(outputs) && (FACTORS || at_fours(second))) {
        const float4 left = four_at(first + begin);
#if FACTORS
        float right[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            right[k] = number_at(second + channel);
            if (++pixel == pixels) pixel = 0, ++channel;
        }
#else
        const float4 four = four_at(second + begin);
        const float right[4] = {four.x, four.y, four.z, four.w};
#endif
        float results[4] = {combined(left.x, right[0]), combined(left.y, right[1]), combined(left.z, right[2]),
                            combined(left.w, right[3])};
#pragma unroll
        for (int k = 0; k < 4; ++k) results[k] = activate(results[k], activation, parameter);
        store_four(outputs + begin, results);
        return;
    }
    for (int64 at = begin; at < count && at < begin + 4; ++at) {
#if FACTORS
        const Number right = second[channel];
        if (++pixel == pixels) pixel = 0, ++channel;
#else
        const Number right = second[at];
#endif
        store_one(outputs + at, activate(combined(as_number(first[at]), as_number(right)), activation, parameter));
    }
}
