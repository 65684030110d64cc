// finish: bias, another value and activation after a library's convolution, in place.
//
// Idea      Each sum becomes act(sum + bias of its filter + number of the other value), four neighbours a thread. The library
//           could do so itself, but its ReLU may make zero of NaN.
// Layout    numbers, others (images, filters, pixels), or (images, pixels, filters) where LAST is 1; up to 2^31 - 1 numbers of
//           NUMBER, float or half_bits; others are read where ADDS is 1.
// Needs     blocks of THREADS threads; numbers and others at multiples of four numbers. Where LAST is 1, filters are whole
//           fours.
#include "common.cuh"
#include "fours.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    finish(NUMBER* numbers, const NUMBER* __restrict__ others, const float* __restrict__ bias, unsigned count,
           unsigned pixels, unsigned filters, int activation, float clip) {
    const unsigned step = gridDim.x * THREADS * 4;
    for (unsigned place = (blockIdx.x * THREADS + threadIdx.x) * 4; place < count; place += step) {
        if ((LAST || pixels % 4 == 0) && place + 4 <= count) {
            const float4 sums = written_four(numbers + place);
            float results[4] = {sums.x, sums.y, sums.z, sums.w};
            if constexpr (LAST) {
                const float4 four = four_at(bias + place % filters);
                results[0] += four.x, results[1] += four.y, results[2] += four.z, results[3] += four.w;
            } else {
                const float one = __ldg(bias + place / pixels % filters);
#pragma unroll
                for (int k = 0; k < 4; ++k) results[k] += one;
            }
            if constexpr (ADDS) {
                const float4 four = four_at(others + place);
                results[0] += four.x, results[1] += four.y, results[2] += four.z, results[3] += four.w;
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) results[k] = activate(results[k], activation, clip);
            store_four(numbers + place, results);
            continue;
        }
        for (unsigned at = place; at < count && at < place + 4; ++at) {
            float result = as_number(numbers[at]) + __ldg(bias + (LAST ? at : at / pixels) % filters);
            if constexpr (ADDS) result += number_at(others + at);
            store_one(numbers + at, activate(result, activation, clip));
        }
    }
}
