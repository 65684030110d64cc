// Numbers of which the compiler is to know less, or more, than it sees, so that it uses registers as it is told to.
#pragma once
#include "common.cuh"

// mov from %ctaid.x, volatile: the block's number. It is asked for anew every time, so that what follows from it need not
// stay in registers.
__device__ __forceinline__ int block_number() {
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// No instruction: a number that is computed once, because the compiler sees no other way to it.
__device__ __forceinline__ unsigned computed_once(unsigned number) {
    asm volatile("" : "+r"(number));
    return number;
}

// shfl.idx: a number that all lanes have, in a way that the compiler sees that.
__device__ __forceinline__ int of_warp(int number) { return __shfl_sync(ALL_LANES, number, 0); }

// setmaxnreg: from here on the warps of a warpgroup, which must all come here, have COUNT registers a thread: less than the
// kernel was compiled for, or more, once others have given some back. Compute capability 9.0.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
