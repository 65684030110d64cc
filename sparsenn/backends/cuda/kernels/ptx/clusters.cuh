// What the blocks of a cluster do together. All of it needs compute capability 9.0.
#pragma once

// barrier.cluster.arrive and .wait: until all threads of the cluster's blocks have come here; what they wrote is seen then.
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// mapa: the address that a place of this block's shared memory has in the cluster's `block`.
__device__ __forceinline__ unsigned cluster_address(unsigned own, int block) {
    unsigned other;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(block));
    return other;
}

// st.shared::cluster: write a number to a block's shared memory.
__device__ __forceinline__ void cluster_store(unsigned to, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// red.shared::cluster.add: add to a number in a block's shared memory, as one among many.
__device__ __forceinline__ void cluster_add(unsigned to, int value) {
    asm volatile("red.shared::cluster.add.s32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
