// add: the sum of two matrices of one shape, and an activation.
//
// Idea      One pass over memory, in place of one for the sum and one for the activation; four neighbours a thread.
// Layout    first, second, outputs (count,), float32, or float16 where HALF is 1, which are added in float32.
// Needs     blocks of THREADS threads that cover the numbers, four a thread; outputs apart from what is read.
#include "common.cuh"
#include "fours.cuh"
#include "images/numbers.cuh"

__device__ __forceinline__ bool at_fours(const Number* numbers) {
    return reinterpret_cast<uint64>(numbers) % (4 * sizeof(Number)) == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add(int64 count, const Number* __restrict__ first, const Number* __restrict__ second, Number* __restrict__ outputs,
        int activation, float parameter) {
    const int64 begin = 4 * (static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x);
    if (begin + 4 <= count && at_fours(first) && at_fours(second) && at_fours(outputs)) {
        const float4 left = four_at(first + begin), right = four_at(second + begin);
        float sums[4] = {left.x + right.x, left.y + right.y, left.z + right.z, left.w + right.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[k] = activate(sums[k], activation, parameter);
        store_four(outputs + begin, sums);
        return;
    }
    for (int64 at = begin; at < count && at < begin + 4; ++at)
        store_one(outputs + at, activate(as_number(first[at]) + as_number(second[at]), activation, parameter));
}
