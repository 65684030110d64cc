// Barriers in shared memory on which threads, and copies that run by themselves, arrive (PTX ISA, "mbarrier"). Those that
// are waited for most may be given by their address in shared memory.
#pragma once
#include "common.cuh"

__device__ __forceinline__ void barrier_init(uint64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64* barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
                 : "memory");
}

// The calling thread arrives once all copies that it has begun are done; it does not wait for that.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Wait until the phase of that parity is over.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#endif
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
__device__ __forceinline__ void barrier_wait(uint64* barrier, unsigned parity) {
    barrier_wait(shared_address(barrier), parity);
}

// Where in the ring of stages a warp is. `parity` changes with every round.
struct Turn {
    int stage;
    unsigned parity;

    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};
