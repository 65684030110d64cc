// Reads and writes of shared and global memory that C++ has no words for. Addresses of shared memory are in bytes. Lane
// 4 g + t of a warp is (g, t) below.
#pragma once
#include "ptx/numbers.cuh"

// ---- Shared memory ----------------------------------------------------------------------------------------------

// ldmatrix.x4: four tiles of 8 rows of 16 bytes; lane i gives the place of row i % 8 of tile i / 8, and gets 4 bytes of each
// tile: the t-th of row g. Compute capability 7.5.
__device__ __forceinline__ void read_tiles(unsigned (&tiles)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(from)
                 : "memory");
}

// ldmatrix.x4.trans: the same of tiles of 8 x 8 halves, transposed: column g, rows 2 t and 2 t + 1. Compute capability 7.5.
__device__ __forceinline__ void read_tiles_transposed(unsigned (&tiles)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(from)
                 : "memory");
}

// stmatrix.x4.trans: the reverse: four tiles of 8 x 8 halves are written, transposed; lane i gives the place of row i % 8 of
// tile i / 8, and of each tile column g, rows 2 t and 2 t + 1. Compute capability 9.0.
__device__ __forceinline__ void write_tiles_transposed(unsigned to, const unsigned (&tiles)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(tiles[0]),
                 "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
                 : "memory");
}

// ld.shared.v4: 16 bytes from a multiple of 16.
__device__ __forceinline__ void read_four(unsigned (&words)[4], unsigned from) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

// ld.volatile.shared.v4: the same, also where the assembler knows what was read there before.
__device__ __forceinline__ uint4 read_four_again(unsigned from) {
    uint4 found;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(from));
    return found;
}

// ld.shared.v2: 8 bytes from a multiple of 8.
__device__ __forceinline__ int2 read_pair(unsigned from) {
    int2 pair;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(from) : "memory");
    return pair;
}

// ld.shared: 4 bytes from a multiple of 4.
__device__ __forceinline__ int read_word(unsigned from) {
    int word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

// st.shared.v4: 16 bytes to a multiple of 16.
__device__ __forceinline__ void write_four(unsigned to, const unsigned (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

// st.shared.v4, predicated: the same if `wanted`, with no branch.
__device__ __forceinline__ void write_four_if(unsigned to, const unsigned (&words)[4], bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
                 "@wanted st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3]), "r"(static_cast<int>(wanted))
                 : "memory");
}

// st.shared.v2: 8 bytes to a multiple of 8.
__device__ __forceinline__ void write_pair(unsigned to, int first, int second) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}

// st.shared: 4 bytes to a multiple of 4.
__device__ __forceinline__ void write_word(unsigned to, int word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// red.shared.add: adds to a number and waits for nothing; an atomicAdd would first add up those of a warp.
__device__ __forceinline__ void add_to_shared(int* number, int value) {
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(number));
    asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(place), "r"(value) : "memory");
}

// red.shared.max: raises a number to another and waits for nothing.
__device__ __forceinline__ void raise_in_shared(int* number, int value) {
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(number));
    asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(place), "r"(value) : "memory");
}

// ---- Global memory ----------------------------------------------------------------------------------------------

// ld.global.cg.v4, volatile: 16 bytes past the multiprocessor's own cache, as often as it is asked for.
__device__ __forceinline__ uint4 read_past_l1(const uint4* from) {
    uint4 found;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(from));
    return found;
}

// ld.global.nc, volatile: a word that nobody writes meanwhile, asked for here, however much later it is used.
__device__ __forceinline__ unsigned read_early(const unsigned* from) {
    unsigned found;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(found) : "l"(from));
    return found;
}

// prefetch.global.L2: asks for the cache line of a place to be brought into the level 2 cache.
__device__ __forceinline__ void bring_to_l2(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }

// red.global.add: adds to a number in global memory and waits for nothing. An atomicAdd whose pointer was read from memory
// waits for an answer: the compiler does not know that it is not one to shared memory.
__device__ __forceinline__ void add_to_global(unsigned long long* number, unsigned long long value) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(number)), "l"(value) : "memory");
}
__device__ __forceinline__ void add_to_global(int* number, int value) {
    asm volatile("red.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(number)), "r"(value) : "memory");
}

// red.global.max, predicated: raises a number in global memory to another if `wanted`, with no branch, and waits for nothing.
__device__ __forceinline__ void raise_in_global(int* number, int value, bool wanted = true) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n@wanted red.global.max.s32 [%0], %1;\n}" ::"l"(
                     __cvta_generic_to_global(number)),
                 "r"(value), "r"(static_cast<int>(wanted))
                 : "memory");
}

// ld.acquire.gpu: what the writer of that number wrote before it is seen after. Compute capability 7.0.
__device__ __forceinline__ int read_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ unsigned long long read_acquire(const unsigned long long* from) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

// st.global, predicated: 16, 8, 4 or 2 bytes to a multiple of their number if `wanted`, with no branch.
__device__ __forceinline__ void store_if(void* to, const unsigned (&words)[4], bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %0, 0;\n"
                 "@wanted st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(static_cast<int>(wanted)),
                 "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}
__device__ __forceinline__ void store_if(void* to, const unsigned (&words)[2], bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %0, 0;\n@wanted st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"(
                     static_cast<int>(wanted)),
                 "l"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
}
__device__ __forceinline__ void store_if(void* to, const unsigned (&words)[1], bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %0, 0;\n@wanted st.global.b32 [%1], %2;\n}" ::"r"(
                     static_cast<int>(wanted)),
                 "l"(to), "r"(words[0])
                 : "memory");
}
__device__ __forceinline__ void store_if(void* to, half_bits bits, bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %0, 0;\n@wanted st.global.b16 [%1], %2;\n}" ::"r"(
                     static_cast<int>(wanted)),
                 "l"(to), "h"(bits)
                 : "memory");
}
