// Half precision by PTX, so that no header of the toolkit is needed. The first number of a pair is the low half of its
// word: a pair lies in memory as its two numbers, one after the other.
#pragma once
#include "common.cuh"

typedef unsigned short Half;
typedef unsigned Half2;

__device__ __forceinline__ Half to_half(float value) {
    Half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

__device__ __forceinline__ float to_float(Half half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

__device__ __forceinline__ Half2 pair_of(Half first, Half second) {
    return first | static_cast<unsigned>(second) << 16;
}

__device__ __forceinline__ Half2 to_half2(float first, float second) {
    Half2 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ float first_of(Half2 pair) { return to_float(static_cast<Half>(pair & 0xffffu)); }

__device__ __forceinline__ float second_of(Half2 pair) { return to_float(static_cast<Half>(pair >> 16)); }

// The second number of one pair and the first of the next.
__device__ __forceinline__ Half2 between(Half2 pair, Half2 next) { return __byte_perm(pair, next, 0x5432); }

// a * b + c, rounded once.
__device__ __forceinline__ Half2 multiply_add(Half2 a, Half2 b, Half2 c) {
    Half2 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
