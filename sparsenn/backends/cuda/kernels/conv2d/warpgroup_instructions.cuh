// The instructions of compute capability 9.0 by which four warps together multiply matrices that lie in shared memory
// (PTX ISA, "wgmma"), and the copies that feed them. They need the architecture sm_90a.
//
// A matrix has rows of 16-byte units: 8 halves or 4 floats that are multiplied with the same unit of the other. Eight
// rows of one unit follow each other in 128 bytes; the next eight rows, and the next unit, are at distances of their
// own. Any multiple of 16 bytes may be where a matrix begins.
#pragma once
#include "barriers.cuh"
#include "gemm/instructions.cuh"

// ---- Copies and barriers ----------------------------------------------------------------------------------------

// Barriers have been made, or numbers written, that copies or products by themselves are to see.
__device__ __forceinline__ void show_to_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrive, and let the phase end no sooner than `bytes` of copies have, too.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrive if `wanted`, with no branch: threads that part while products are computed would make the compiler wait for them.
__device__ __forceinline__ void barrier_arrive_if(unsigned barrier, bool wanted) {
    asm volatile("{\n.reg .pred wanted;\n.reg .b64 state;\nsetp.ne.b32 wanted, %1, 0;\n"
                 "@wanted mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier), "r"(static_cast<int>(wanted))
                 : "memory");
}

// Copy a multiple of 16 bytes from and to multiples of 16, by a machine of its own.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Sixteen bytes to shared memory if `wanted`, with no branch.
__device__ __forceinline__ void write_four_if(unsigned to, const unsigned (&words)[4], bool wanted) {
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
                 "@wanted st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3]), "r"(static_cast<int>(wanted))
                 : "memory");
}

// ---- Numbers that a warp has in common --------------------------------------------------------------------------

// A number that all lanes have, in a way that the compiler sees that.
__device__ __forceinline__ int of_warp(int number) { return __shfl_sync(ALL_LANES, number, 0); }

// A number that is computed once: the compiler sees no other way to it.
__device__ __forceinline__ unsigned computed_once(unsigned number) {
    asm volatile("" : "+r"(number));
    return number;
}

// ---- Results ----------------------------------------------------------------------------------------------------

// The activation of a number; what is no number stays none.
template <int ACTIVATION_CODE>
__device__ __forceinline__ float finished(float z, float clip) {
    if constexpr (ACTIVATION_CODE != RELU) return activate(z, ACTIVATION_CODE, clip);
    asm("max.NaN.f32 %0, %0, 0f00000000;\nmin.NaN.f32 %0, %0, %1;" : "+f"(z) : "f"(clip));
    return z;
}

// Words, or half a one, side by side to an aligned place if `wanted`, with no branch.
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

// ---- Matrices ---------------------------------------------------------------------------------------------------

// A matrix from `place` on, whose next unit is `unit_bytes` further. To move it by so many times 16 bytes is to add them.
// This is the lower half of what instructions are given; the upper half says that the next eight rows are 128 bytes further.
__device__ __forceinline__ unsigned matrix_at(unsigned place, unsigned unit_bytes) {
    return place / 16 | unit_bytes / 16 << 16;
}

// ---- Products ---------------------------------------------------------------------------------------------------

// Before the first of some products, and after registers that they add to were written.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// What was begun since the last call is one group of products.
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most the last COUNT groups are still being computed.
template <int COUNT>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

// The same for all of them; from here on the sums may be read.
template <int SUMS>
__device__ __forceinline__ void await_sums(float (&sums)[SUMS]) {
    await_products<0>();
#pragma unroll
    for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define EIGHT(n) "+f"(sums[n]), "+f"(sums[n + 1]), "+f"(sums[n + 2]), "+f"(sums[n + 3]), "+f"(sums[n + 4]), \
        "+f"(sums[n + 5]), "+f"(sums[n + 6]), "+f"(sums[n + 7])
#define OPERANDS_16 EIGHT(0), EIGHT(8)
#define OPERANDS_32 OPERANDS_16, EIGHT(16), EIGHT(24)
#define OPERANDS_48 OPERANDS_32, EIGHT(32), EIGHT(40)
#define OPERANDS_56 OPERANDS_48, EIGHT(48)
#define OPERANDS_64 OPERANDS_56, EIGHT(56)
#define OPERANDS_80 OPERANDS_64, EIGHT(64), EIGHT(72)
#define OPERANDS_96 OPERANDS_80, EIGHT(80), EIGHT(88)
#define OPERANDS_112 OPERANDS_96, EIGHT(96), EIGHT(104)
#define OPERANDS_128 OPERANDS_112, EIGHT(112), EIGHT(120)
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_64 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_112 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_128 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// One step of 32 bytes of depth: 16 halves, or 8 floats of which TF32's bits count. LEFT, RIGHT and KEEP are the operands
// behind the sums.
#define MULTIPLY_AS(NAME, KIND, FLAGS, COLUMNS, SUMS, LEFT, RIGHT, KEEP) \
    __device__ __forceinline__ void NAME(float (&sums)[SUMS], unsigned left, unsigned right, int keep) { \
        asm volatile("{\n.reg .pred keep;\n.reg .b32 upper;\n.reg .b64 left, right;\nsetp.ne.b32 keep, " KEEP ", 0;\n" \
            "mov.b32 upper, 8;\nmov.b64 left, {" LEFT ", upper};\nmov.b64 right, {" RIGHT ", upper};\n" \
            "wgmma.mma_async.sync.aligned.m64n" #COLUMNS KIND " {" NAMES_##SUMS "}, left, right, keep, " FLAGS ";\n}" \
            : OPERANDS_##SUMS : "r"(left), "r"(right), "r"(keep) : "memory"); \
    }
#define MULTIPLY(COLUMNS, SUMS, LEFT, RIGHT, KEEP) \
    MULTIPLY_AS(warpgroup_half, "k16.f32.f16.f16", "1, 1, 0, 0", COLUMNS, SUMS, LEFT, RIGHT, KEEP) \
    MULTIPLY_AS(warpgroup_tf32, "k8.f32.tf32.tf32", "1, 1", COLUMNS, SUMS, LEFT, RIGHT, KEEP)

// sums = left times right, plus the sums where `keep` is not 0: 64 rows of the left, all rows of the right matrix. A
// quarter of a warpgroup has 16 rows; of these its lane 4 g + t has rows g and g + 8: for each eight rows of the right
// matrix four sums, of row g with the rights' rows 2 t and 2 t + 1, then of row g + 8 with the same.
MULTIPLY(32, 16, "%16", "%17", "%18")
MULTIPLY(64, 32, "%32", "%33", "%34")
MULTIPLY(96, 48, "%48", "%49", "%50")
MULTIPLY(112, 56, "%56", "%57", "%58")
MULTIPLY(128, 64, "%64", "%65", "%66")
MULTIPLY(160, 80, "%80", "%81", "%82")
MULTIPLY(192, 96, "%96", "%97", "%98")
MULTIPLY(224, 112, "%112", "%113", "%114")
MULTIPLY(256, 128, "%128", "%129", "%130")

#undef MULTIPLY
#undef MULTIPLY_AS
#undef EIGHT
