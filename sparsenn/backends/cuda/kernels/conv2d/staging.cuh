// Copies from global to shared memory that go on while the thread does other work (cp.async).
#pragma once
#include "common.cuh"

// COUNT floats, 1, 2 or 4, from an address that is a multiple of their size to another.
template <int COUNT>
__device__ __forceinline__ void copy_async(float* to, const float* from) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "4, 8 or 16 bytes are copied at once");
    if constexpr (COUNT == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(4 * COUNT)
                     : "memory");
    }
}

// The same, or zeros if `wanted` is false; `from` must be a valid address even then.
template <int COUNT>
__device__ __forceinline__ void copy_async_or_zero(float* to, const float* from, bool wanted) {
    const int bytes = wanted ? 4 * COUNT : 0;
    if constexpr (COUNT == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
                     "n"(4 * COUNT), "r"(bytes)
                     : "memory");
    }
}

// Waits for this thread's copies; a barrier must follow before other threads read them.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
