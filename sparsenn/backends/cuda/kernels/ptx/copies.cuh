// Copies from global to shared memory that nobody waits for until they are needed. Addresses of shared memory are in
// bytes.
#pragma once

// cp.async: 4, 8 or 16 BYTES, from a multiple of their number to another. Compute capability 8.0.
template <int BYTES>
__device__ __forceinline__ void copy_later(unsigned to, const void* from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes are copied at once");
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

// The same, of which the first `present` bytes are read and the others become zero; `from` is an address even if none are.
template <int BYTES>
__device__ __forceinline__ void copy_later(unsigned to, const void* from, int present) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes are copied at once");
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(present)
                     : "memory");
}

// cp.async.commit_group: what the thread asked for since its last call is one group of copies. Compute capability 8.0.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// cp.async.wait_group: until at most the last COUNT of the thread's groups are under way. Compute capability 8.0.
template <int COUNT>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

// cp.async.wait_all: until all of the thread's copies are done, in groups or not. Compute capability 8.0.
__device__ __forceinline__ void await_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// cp.async.bulk: a multiple of 16 bytes, from and to multiples of 16, by a machine of its own; they arrive at a barrier in
// shared memory. Compute capability 9.0.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
