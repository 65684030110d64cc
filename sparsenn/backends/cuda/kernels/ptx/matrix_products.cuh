// Products by which a warp multiplies small matrices in its registers (PTX ISA, "mma"). They need compute capability 8.0.
//
// All of them compute 16 rows and 8 columns of sums: lane 4 g + t has those of row g, columns 2 t and 2 t + 1, then of row
// g + 8. In TF32 of 8 terms it has of a: row g, term t; row g + 8, term t; row g, term t + 4; row g + 8, term t + 4; and of
// b: terms t and t + 4 of column g. Bits below TF32's do not count. In half precision there are two terms next to each other
// where one of TF32 is.
//
// There are two of each. The ones are carried out in the order in which they are written down, and each of them is; those
// named `_any_order` the compiler may move, and make one of two that are equal.
#pragma once

// In this order: mma.m16n8k8 in TF32, sums = a b + c of 8 terms, and sums += a b; mma.m16n8k4 in TF32, of 4 terms;
// mma.m16n8k16 in half precision, of 16 terms; mma.m16n8k8 in half precision, of 8 terms.
#define PRODUCTS(ORDER, MULTIPLY_TF32, MULTIPLY_HALF) \
    __device__ __forceinline__ void MULTIPLY_TF32(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                                                  unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) { \
        asm ORDER("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
            "{%10, %11, %12, %13};" \
            : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3]) \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3)); \
    } \
    __device__ __forceinline__ void MULTIPLY_TF32(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                                                  unsigned b0, unsigned b1) { \
        asm ORDER("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
            "{%0, %1, %2, %3};" \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
    } \
    __device__ __forceinline__ void MULTIPLY_TF32(float (&sums)[4], const unsigned (&a)[2], unsigned b) { \
        asm ORDER("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(b)); \
    } \
    __device__ __forceinline__ void MULTIPLY_HALF(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                                                  unsigned b0, unsigned b1) { \
        asm ORDER("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
            "{%0, %1, %2, %3};" \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
    } \
    __device__ __forceinline__ void MULTIPLY_HALF(float (&sums)[4], const unsigned (&a)[2], unsigned b) { \
        asm ORDER("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(b)); \
    }

PRODUCTS(volatile, multiply_tf32, multiply_half)
PRODUCTS(, multiply_tf32_any_order, multiply_half_any_order)

#undef PRODUCTS
