// The loop over a warp's edges, for rows that lie along the lanes: all lanes go through it alike (bra.uni). It is written out
// because an output has few edges there: compilers unroll its loop, and begin with more instructions than there are edges.
// Addresses are in bytes, of shared memory.
//
// An edge is a weight and a place: that of its input's line of rows, in bytes from the chunk's first, and its output, 2^17 for
// each. Edges lie by output, two weights before their two places, read in one go, the last one followed by a place behind all
// outputs. The two edges of a pair may be of different outputs, so there are two ways through an output's edges: one that
// begins with the first edge of the pair at hand, one with the second.
#pragma once

#include "sparse/each_output.cuh"

#define READ_LINE_1 "ld.shared.f32 a0, [line];\n"
#define READ_LINE_2 "ld.shared.v2.f32 {a0, a1}, [line];\n"
#define READ_LINE_4 "ld.shared.v4.f32 {a0, a1, a2, a3}, [line];\n"
#define READ_LINE_8 READ_LINE_4 "ld.shared.v4.f32 {a4, a5, a6, a7}, [line + 512];\n"

#define ADD(WEIGHT, SUM, ROW) "fma.rn.ftz.f32 %" #SUM ", " WEIGHT ", a" #ROW ", %" #SUM ";\n"
#define ADD_1(WEIGHT, S0) ADD(WEIGHT, S0, 0)
#define ADD_2(WEIGHT, S0, S1) ADD(WEIGHT, S0, 0) ADD(WEIGHT, S1, 1)
#define ADD_4(WEIGHT, S0, S1, S2, S3) ADD_2(WEIGHT, S0, S1) ADD(WEIGHT, S2, 2) ADD(WEIGHT, S3, 3)
#define ADD_8(WEIGHT, S0, S1, S2, S3, S4, S5, S6, S7) \
    ADD_4(WEIGHT, S0, S1, S2, S3) ADD(WEIGHT, S4, 4) ADD(WEIGHT, S5, 5) ADD(WEIGHT, S6, 6) ADD(WEIGHT, S7, 7)

#define PLACES "131072"  // of an output; as in `chunk_blocks.py`
#define FIND_LINE(PLACE, J) "add.u32 line, " PLACE ", %1;\nsub.u32 line, line, " #J " * " PLACES ";\n"

#define ADD_EDGES_OF(J, NEXT, ...) \
    "first_" #J ":\n" \
    "setp.ge.u32 other, place_0, " #NEXT " * " PLACES ";\n@other bra.uni first_" #NEXT ";\n" \
    "more_" #J ":\n" \
    FIND_LINE("place_0", J) OF_KIND(READ_LINE, VECTOR) OF_KIND(ADD, VECTOR)("weight_0", __VA_ARGS__) \
    "second_" #J ":\n" \
    "setp.ge.u32 other, place_1, " #NEXT " * " PLACES ";\n@other bra.uni second_" #NEXT ";\n" \
    FIND_LINE("place_1", J) OF_KIND(READ_LINE, VECTOR) \
    "mov.f32 weight, weight_1;\n" READ_PAIR OF_KIND(ADD, VECTOR)("weight", __VA_ARGS__) \
    "setp.lt.u32 other, place_0, " #NEXT " * " PLACES ";\n@other bra.uni more_" #J ";\n"

#define READ_PAIR "ld.shared.v4.b32 {weight_0, weight_1, place_0, place_1}, [%0];\nadd.u32 %0, %0, 16;\n"
#define BEHIND(COUNT) "first_" #COUNT ":\nsecond_" #COUNT ":\n"
#define BEHIND_ALL(COUNT) BEHIND(COUNT)

#if !TEAMS
// Adds the products of a warp's edges to the sums of a lane's rows, output by output, one edge after the other, each by fma
// with denormal numbers as zeros, as all code is compiled.
//   at     where the warp's first pair is.
//   lines  where this lane's rows of the chunk begin.
__device__ __forceinline__ void add_edges(float (&sums)[OUTPUTS][VECTOR], unsigned at, unsigned lines) {
    unsigned third = 0;  // operand, which is not used here: sums come behind it
    asm volatile("{\n.reg .pred other;\n.reg .b32 line, place_0, place_1;\n.reg .f32 weight, weight_0, weight_1;\n"
                 ".reg .f32 a0, a1, a2, a3, a4, a5, a6, a7;\n"
                 READ_PAIR EACH_OUTPUT(ADD_EDGES_OF) BEHIND_ALL(OUTPUTS) "}"
                 : "+r"(at), "+r"(lines), "+r"(third) EACH_OUTPUT(SUMS_OF_ONE));
}
#endif

#undef ADD
#undef PLACES
#undef FIND_LINE
#undef READ_PAIR
#undef BEHIND
#undef BEHIND_ALL
