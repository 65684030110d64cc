// The instructions of compute capability 9.0 by which four warps together multiply matrices that lie in shared memory
// (PTX ISA, "wgmma"). They need the architecture sm_90a.
//
// A matrix has rows of 16-byte units: 8 halves or 4 floats that are multiplied with the same unit of the other. Eight
// rows of one unit follow each other in 128 bytes; the next eight rows, and the next unit, are at distances of their
// own. Any multiple of 16 bytes may be where a matrix begins.
#pragma once

// A matrix from `place` on, whose next unit is `unit_bytes` further. To move it by so many times 16 bytes is to add them.
// This is the lower half of what instructions are given; the upper half says that the next eight rows are 128 bytes further.
__device__ __forceinline__ unsigned matrix_at(unsigned place, unsigned unit_bytes) {
    return place / 16 | unit_bytes / 16 << 16;
}

// wgmma.fence: before the first of some products, and after registers that they add to were written.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// wgmma.commit_group: what was begun since the last call is one group of products.
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// wgmma.wait_group: until at most the last COUNT groups are still being computed.
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
#define OPERANDS_8 EIGHT(0)
#define OPERANDS_16 OPERANDS_8, EIGHT(8)
#define OPERANDS_24 OPERANDS_16, EIGHT(16)
#define OPERANDS_32 OPERANDS_24, EIGHT(24)
#define OPERANDS_40 OPERANDS_32, EIGHT(32)
#define OPERANDS_48 OPERANDS_40, EIGHT(40)
#define OPERANDS_56 OPERANDS_48, EIGHT(48)
#define OPERANDS_64 OPERANDS_56, EIGHT(56)
#define OPERANDS_80 OPERANDS_64, EIGHT(64), EIGHT(72)
#define OPERANDS_96 OPERANDS_80, EIGHT(80), EIGHT(88)
#define OPERANDS_112 OPERANDS_96, EIGHT(96), EIGHT(104)
#define OPERANDS_128 OPERANDS_112, EIGHT(112), EIGHT(120)
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_32 NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_64 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_112 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_128 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// wgmma.mma_async, one step of 32 bytes of depth: 16 halves, or 8 floats of which TF32's bits count. LEFT, RIGHT and KEEP are the operands
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
MULTIPLY(16, 8, "%8", "%9", "%10")
MULTIPLY(32, 16, "%16", "%17", "%18")
MULTIPLY(48, 24, "%24", "%25", "%26")
MULTIPLY(64, 32, "%32", "%33", "%34")
MULTIPLY(80, 40, "%40", "%41", "%42")
MULTIPLY(96, 48, "%48", "%49", "%50")
MULTIPLY(112, 56, "%56", "%57", "%58")
MULTIPLY(128, 64, "%64", "%65", "%66")
MULTIPLY(160, 80, "%80", "%81", "%82")
MULTIPLY(192, 96, "%96", "%97", "%98")
MULTIPLY(224, 112, "%112", "%113", "%114")
MULTIPLY(256, 128, "%128", "%129", "%130")

// wgmma.mma_async.sp, one step of 32 halves of depth, of which the left matrix has at most two in each four neighbours that
// are not zero: its rows are those, 16 of them, and `places` says which of the four they are, in two bits each. Of lanes
// 4 g + t those count whose t is 2 SELECTOR or one more; the first of them speaks of the first 16 halves of depth, the other
// of the last 16: four bits for each four of row g, then those of row g + 8 (PTX ISA, "Sparse matrix storage"). PLACES is
// the operand behind KEEP, CHOSEN that of the selector.
#define MULTIPLY_SPARSE(COLUMNS, SUMS, LEFT, RIGHT, KEEP, PLACES, CHOSEN) \
    template <int SELECTOR> \
    __device__ __forceinline__ void warpgroup_half_sparse(float (&sums)[SUMS], unsigned left, unsigned right, \
                                                          unsigned places, int keep) { \
        asm volatile("{\n.reg .pred keep;\n.reg .b32 upper;\n.reg .b64 left, right;\nsetp.ne.b32 keep, " KEEP ", 0;\n" \
            "mov.b32 upper, 8;\nmov.b64 left, {" LEFT ", upper};\nmov.b64 right, {" RIGHT ", upper};\n" \
            "wgmma.mma_async.sp.sync.aligned.m64n" #COLUMNS "k32.f32.f16.f16 {" NAMES_##SUMS "}, left, right, " \
            PLACES ", " CHOSEN ", keep, 1, 1, 0, 0;\n}" \
            : OPERANDS_##SUMS : "r"(left), "r"(right), "r"(keep), "r"(places), "n"(SELECTOR) : "memory"); \
    }

MULTIPLY_SPARSE(16, 8, "%8", "%9", "%10", "%11", "%12")
MULTIPLY_SPARSE(32, 16, "%16", "%17", "%18", "%19", "%20")
MULTIPLY_SPARSE(64, 32, "%32", "%33", "%34", "%35", "%36")
MULTIPLY_SPARSE(96, 48, "%48", "%49", "%50", "%51", "%52")
MULTIPLY_SPARSE(128, 64, "%64", "%65", "%66", "%67", "%68")
MULTIPLY_SPARSE(160, 80, "%80", "%81", "%82", "%83", "%84")
MULTIPLY_SPARSE(192, 96, "%96", "%97", "%98", "%99", "%100")
MULTIPLY_SPARSE(256, 128, "%128", "%129", "%130", "%131", "%132")

#undef MULTIPLY_SPARSE
#undef MULTIPLY
#undef MULTIPLY_AS
#undef EIGHT
