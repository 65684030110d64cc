// The instructions that tensor-core kernels are made of, each as a function: copies that do not wait, reads of shared
// memory in the order that matrix instructions want, the products, and conversions.
//
// Addresses of shared memory are in bytes. Lane 4 g + t of a warp is (g, t) below.
#pragma once
#include "common.cuh"

typedef unsigned short half_bits;

// The block's number. It is asked for anew every time, so that what follows from it need not stay in registers.
__device__ __forceinline__ int block_number() {
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// ---- Copies from global to shared memory ------------------------------------------------------------------------

// SIZE bytes, of which the first `present` are read and the others become zero.
template <int SIZE>
__device__ __forceinline__ void copy_later(unsigned to, const void* from, int present) {
    static_assert(SIZE == 4 || SIZE == 16, "what the loaders ask for");
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present) : "memory");
}

// What the thread asked for since its last call is one group of copies.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most the last COUNT of the thread's groups are still on their way.
template <int COUNT>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

// ---- Shared memory ----------------------------------------------------------------------------------------------

// Four tiles of 8 rows of 16 bytes; lane i gives the place of row i % 8 of tile i / 8, and gets 4 bytes of each tile:
// the t-th of row g.
__device__ __forceinline__ void read_tiles(unsigned (&tiles)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(from)
                 : "memory");
}

// The same of tiles of 8 x 8 halves, transposed: column g, rows 2 t and 2 t + 1.
__device__ __forceinline__ void read_tiles_transposed(unsigned (&tiles)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void read_four(unsigned (&words)[4], unsigned from) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void write_four(unsigned to, const unsigned (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ int read_word(unsigned from) {
    int word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

__device__ __forceinline__ int2 read_pair(unsigned from) {
    int2 pair;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(from) : "memory");
    return pair;
}

__device__ __forceinline__ void write_word(unsigned to, int word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

__device__ __forceinline__ void write_pair(unsigned to, int first, int second) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}

// ---- Products ---------------------------------------------------------------------------------------------------

// sums = a b + given, for 16 rows and 8 columns. A lane has the sums of row g, columns 2 t and 2 t + 1, then of row g + 8.
// Of a step of 8 terms it has a: row g, term t; row g + 8, term t; row g, term t + 4; row g + 8, term t + 4; and
// b: terms t and t + 4 of column g.
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                              float c0, float c1, float c2, float c3) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

// The same for 16 terms in half precision: where one of TF32 was, there are the two next to each other.
__device__ __forceinline__ void multiply_half(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Numbers ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ half_bits to_half(float value) {
    half_bits half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

// Two of them, the left one in the lower half of the word.
__device__ __forceinline__ unsigned to_halves(float left, float right) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
    return both;
}

// To the nearest number of TF32's 11 significant bits. The instructions ignore the bits below those, so that it is
// enough to add half of the last one's worth; the maximum keeps that from turning a NaN into a number.
__device__ __forceinline__ unsigned to_tf32(unsigned number) {
    return static_cast<unsigned>(max(static_cast<int>(number + 0x1000u), static_cast<int>(number)));
}

// The lower halves, or the upper halves, of two words.
__device__ __forceinline__ unsigned lower_halves(unsigned left, unsigned right) {
    return __byte_perm(left, right, 0x5410);
}
__device__ __forceinline__ unsigned upper_halves(unsigned left, unsigned right) {
    return __byte_perm(left, right, 0x7632);
}
