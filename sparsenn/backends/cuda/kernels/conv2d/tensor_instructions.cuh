// The instructions that the tensor-core convolutions are made of: products of fragments, roundings, and copies that run
// by themselves.
//
// In a product lane l has g = l / 4 and t = l % 4. Of 16 items times K inputs it holds the rows g and g + 8, of
// K inputs times 8 columns the column g, and of the sums the columns 2t and 2t + 1 of the rows g and g + 8
// (PTX ISA, "Matrix Fragments for mma").
#pragma once
#include "barriers.cuh"
#include "conv2d/half.cuh"

// ---- Products ---------------------------------------------------------------------------------------------------

// sums += inputs * weights in TF32, 8 inputs of an item: a lane has the inputs t and t + 4. Bits beyond TF32's do not
// count.
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], unsigned a, unsigned b, unsigned c, unsigned d,
                                              unsigned first, unsigned second) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(first), "r"(second));
}

// The same with 4 inputs of an item.
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], unsigned a, unsigned b, unsigned first) {
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a), "r"(b), "r"(first));
}

// sums += inputs * weights in half precision, 16 inputs of an item: a lane has 2t, 2t + 1 and 2t + 8, 2t + 9.
__device__ __forceinline__ void multiply_half(float (&sums)[4], unsigned a, unsigned b, unsigned c, unsigned d,
                                              unsigned first, unsigned second) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(first), "r"(second));
}

// The same with 8 inputs of an item.
__device__ __forceinline__ void multiply_half(float (&sums)[4], unsigned a, unsigned b, unsigned first) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a), "r"(b), "r"(first));
}

// ---- Numbers ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned rounded_to_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// The larger of `size` and |z|; NaN if either is.
__device__ __forceinline__ float larger_size(float size, float z) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(size), "f"(fabsf(z)));
    return larger;
}

// Two neighbours at once; left to itself, the compiler stores one after the other.
__device__ __forceinline__ void store_two(float* target, float left, float right) {
    uint64 both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "f"(left), "f"(right));
    *reinterpret_cast<uint64*>(target) = both;
}

// ---- Copies -----------------------------------------------------------------------------------------------------

// Begin to copy BYTES (4, 8 or 16) to shared memory; zeros, unless `there`.
template <int BYTES>
__device__ __forceinline__ void begin_copy(void* target, const void* source, bool there = true) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)), "l"(source),
                     "n"(BYTES), "r"(there ? BYTES : 0)
                     : "memory");
}
