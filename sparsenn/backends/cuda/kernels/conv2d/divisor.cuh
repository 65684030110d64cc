// Division by numbers that a launch is given.
#pragma once
#include "common.cuh"

// A number to divide by: the quotient of a number below 2^31 is twice the number times `factor`, of which the upper half
// counts, shifted (Granlund and Montgomery, "Division by invariant integers using multiplication").
struct Divisor {
    unsigned factor;
    int shift;

    __device__ __forceinline__ int divide(int number) const {
        return static_cast<unsigned>(static_cast<uint64>(2u * number) * factor >> 32) >> shift;
    }
};
