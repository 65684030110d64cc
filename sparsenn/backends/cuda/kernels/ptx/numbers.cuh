// Half precision, TF32, and what else is done with single numbers, with no header of the toolkit.
//
// A half is kept as its bits. Two in one word are a pair: the first, or left one, in the lower half, so that a pair lies in
// memory as its two numbers, one after the other.
#pragma once

typedef unsigned short half_bits;

// ---- Half precision ---------------------------------------------------------------------------------------------

// cvt.rn.f16.f32
__device__ __forceinline__ half_bits to_half(float value) {
    half_bits half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

// cvt.f32.f16
__device__ __forceinline__ float to_float(half_bits half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

// cvt.rn.f16x2: two numbers to a pair. Compute capability 8.0.
__device__ __forceinline__ unsigned to_halves(float left, float right) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
    return both;
}

// cvt.rn.relu.f16x2: max(0, ·) of both, without a further instruction; NaN stays NaN. Compute capability 8.0.
__device__ __forceinline__ unsigned to_positive_halves(float left, float right) {
    unsigned both;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
    return both;
}

// mul.rn.f16x2: the products of two pairs.
__device__ __forceinline__ unsigned multiply_halves(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// fma.rn.f16x2: a * b + c of pairs, rounded once.
__device__ __forceinline__ unsigned multiply_add_halves(unsigned a, unsigned b, unsigned c) {
    unsigned sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// ---- TF32, of which products take 11 significant bits and ignore those below --------------------------------------

// cvt.rna.tf32: to the nearest number, away from zero where two are. Compute capability 8.0.
__device__ __forceinline__ unsigned rounded_to_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// The same by integers, which keep up with products where conversions do not; the bits below TF32's are of any value. It is
// enough to add half of the last bit's worth; the maximum keeps that from turning a NaN into a number.
__device__ __forceinline__ unsigned to_tf32(unsigned number) {
    return static_cast<unsigned>(max(static_cast<int>(number + 0x1000u), static_cast<int>(number)));
}

// A number as products see it, without the bits that they ignore.
__device__ __forceinline__ unsigned cut_to_tf32(unsigned number) { return number & 0xffffe000u; }

// ---- float32 ----------------------------------------------------------------------------------------------------

// max.NaN: the larger one; NaN if either is. Compute capability 8.0.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// min.NaN: the smaller one; NaN if either is. Compute capability 8.0.
__device__ __forceinline__ float smaller_or_nan(float a, float b) {
    float found;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// max.NaN and min.NaN, one right after the other: a number that is at least 0 and at most `most`; NaN stays NaN. Compute
// capability 8.0.
__device__ __forceinline__ float clipped_or_nan(float z, float most) {
    asm("max.NaN.f32 %0, %0, 0f00000000;\nmin.NaN.f32 %0, %0, %1;" : "+f"(z) : "f"(most));
    return z;
}

// mov.b64: two numbers as one of 64 bits, the left one in the lower half.
__device__ __forceinline__ unsigned long long bits_of_two(float left, float right) {
    unsigned long long both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "f"(left), "f"(right));
    return both;
}
