// Barriers in shared memory on which threads, and copies that run by themselves, arrive (PTX ISA, "mbarrier"), and fences
// before what runs by itself. Barriers that are waited for most may be given by their address in shared memory.
#pragma once
#include "common.cuh"

// mbarrier.init: its phase ends once so many have arrived. Compute capability 8.0.
__device__ __forceinline__ void barrier_init(uint64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// mbarrier.arrive. Compute capability 8.0.
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64* barrier) { barrier_arrive(shared_address(barrier)); }

// mbarrier.arrive, predicated: arrive if `wanted`, with no branch; threads that part while products are computed would make
// the compiler wait for them. Compute capability 8.0.
__device__ __forceinline__ void barrier_arrive_if(unsigned barrier, bool wanted) {
    asm volatile("{\n.reg .pred wanted;\n.reg .b64 state;\nsetp.ne.b32 wanted, %1, 0;\n"
                 "@wanted mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier), "r"(static_cast<int>(wanted))
                 : "memory");
}

// mbarrier.arrive.expect_tx: arrive, and let the phase end no sooner than `bytes` of copies have, too. Compute capability
// 9.0.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// cp.async.mbarrier.arrive: the calling thread arrives once all copies that it has begun are done; it does not wait for
// that. Compute capability 8.0.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_after_copies(uint64* barrier) {
    barrier_arrive_after_copies(shared_address(barrier));
}

// mbarrier.try_wait or, before compute capability 9.0, test_wait: until the phase of that parity is over. Compute capability
// 8.0.
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

// fence.proxy.async, of shared memory: barriers have been made, or numbers written, that copies or products by themselves
// are to see. Compute capability 9.0.
__device__ __forceinline__ void show_to_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// fence.proxy.async: the same of all memory, also of what others wrote and this thread has seen. Compute capability 9.0.
__device__ __forceinline__ void show_all_to_engines() { asm volatile("fence.proxy.async;" ::: "memory"); }
