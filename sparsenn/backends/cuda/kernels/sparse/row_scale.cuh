// How a row's numbers are scaled to be halves: a row of exponent e has numbers of at most 2^e, which become at most 2^15.
#pragma once

constexpr int LOWEST_EXPONENT = -96;  // rows of smaller numbers are scaled as if theirs were so large
constexpr int SCALED_EXPONENT = 15, WEIGHT_EXPONENT = 14;

// An exponent e with number < 2^e; of what is infinite or no number, one more than any other.
__device__ __forceinline__ int exponent_above(float number) {
    const int exponent = static_cast<int>(__float_as_uint(number) >> 23 & 0xffu) - 126;
    return exponent > LOWEST_EXPONENT ? exponent : LOWEST_EXPONENT;
}

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

// What numbers of a row become halves by, and what sums of their products with scaled weights are multiplied by.
__device__ __forceinline__ float scale_to(int exponent) { return power_of_two(SCALED_EXPONENT - exponent); }
__device__ __forceinline__ float back_from(int exponent) {
    return power_of_two(exponent - SCALED_EXPONENT - WEIGHT_EXPONENT);
}
