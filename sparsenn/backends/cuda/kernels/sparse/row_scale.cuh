// How a row's numbers are scaled to be halves: a row of exponent e has numbers of at most 2^e, which become at most 2^15.
// Rows that are given in halves stay as they are, which is exponent 15.
#pragma once

constexpr int LOWEST_EXPONENT = -96;  // rows of smaller numbers are scaled as if theirs were so large
constexpr int SCALED_EXPONENT = 15, WEIGHT_EXPONENT = 14;

// The bits of a number's absolute value, which are larger where that is; and those of the largest of four.
__device__ __forceinline__ int bits_of_size(float number) { return __float_as_int(number) & 0x7fffffff; }
__device__ __forceinline__ int largest_bits(float4 four) {
    return max(max(bits_of_size(four.x), bits_of_size(four.y)), max(bits_of_size(four.z), bits_of_size(four.w)));
}

constexpr int NO_NUMBER = 0x7fffffff;  // bits of NaN

// Of bits of a size.
__device__ __forceinline__ bool is_finite(int size) { return size < 0x7f800000; }

// An exponent e with number < 2^e; of what is infinite or no number, one more than any other.
__device__ __forceinline__ int exponent_above(float number) {
    const int exponent = static_cast<int>(__float_as_uint(number) >> 23 & 0xffu) - 126;
    return exponent > LOWEST_EXPONENT ? exponent : LOWEST_EXPONENT;
}

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

// What numbers of a row become halves by; and what sums of products with scaled weights are multiplied by.
__device__ __forceinline__ float scale_to(int exponent) { return power_of_two(SCALED_EXPONENT - exponent); }
__device__ __forceinline__ float back_from(int exponent) {
    return power_of_two(exponent - SCALED_EXPONENT - WEIGHT_EXPONENT);
}

// A number that is scaled; zero instead of one that is not finite, where a row's number may be multiplied with a zero of
// another row's: what a row has is told by its largest number.
__device__ __forceinline__ float scaled(float number, float scale) {
    return is_finite(bits_of_size(number)) ? number * scale : 0.0f;
}

// What comes of a layer, besides numbers: a bound of outputs is `reach` times the row's largest number, plus `offset`.
struct Bound {
    float reach, offset, most;

    __device__ __forceinline__ int exponent(int largest) const {
        return exponent_above(fminf(fmaf(__int_as_float(largest), reach, offset), most));
    }
};

// Where a row's numbers are told of: by what they are scaled, and the bits of the largest.
struct RowFacts {
    const int* exponents_in;
    const int* largest_in;
    int* exponents_out;
    int* largest_out;
};
