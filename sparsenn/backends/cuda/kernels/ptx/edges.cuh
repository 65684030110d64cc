// The loop over a warp's edges, for rows that lie along the lanes: all lanes go through it alike (bra.uni). It is written out
// because an output has few edges there: compilers unroll its loop, and begin with more instructions than there are edges.
// Addresses are in bytes, of shared memory.
//
// An edge is a weight and a place: that of its input's line of rows, in bytes from the chunk's first, and its output, 2^17 for
// each. Edges lie by output, two weights before their two places, read in one go, the last one followed by a place behind all
// outputs. The two edges of a pair may be of different outputs, so there are two ways through an output's edges: one that
// begins with the first edge of the pair at hand, one with the second. Rows are float32, or, if HALVES, two halves to a word,
// which become float32 as they are read.
#pragma once

#define PASTED(NAME, KIND) NAME##_##KIND
#define OF_KIND(NAME, KIND) PASTED(NAME, KIND)

#if HALVES
#define WIDEN(WORD, LOWER, UPPER) \
    "mov.b32 {lower, upper}, " WORD ";\ncvt.f32.f16 " LOWER ", lower;\ncvt.f32.f16 " UPPER ", upper;\n"
#define READ_LINE_1 "ld.shared.b16 lower, [line];\ncvt.f32.f16 a0, lower;\n"
#define READ_LINE_2 "ld.shared.b32 w0, [line];\n" WIDEN("w0", "a0", "a1")
#define READ_LINE_4 "ld.shared.v2.b32 {w0, w1}, [line];\n" WIDEN("w0", "a0", "a1") WIDEN("w1", "a2", "a3")
#define READ_LINE_8 \
    "ld.shared.v4.b32 {w0, w1, w2, w3}, [line];\n" WIDEN("w0", "a0", "a1") WIDEN("w1", "a2", "a3") \
        WIDEN("w2", "a4", "a5") WIDEN("w3", "a6", "a7")
#else
#define READ_LINE_1 "ld.shared.f32 a0, [line];\n"
#define READ_LINE_2 "ld.shared.v2.f32 {a0, a1}, [line];\n"
#define READ_LINE_4 "ld.shared.v4.f32 {a0, a1, a2, a3}, [line];\n"
#define READ_LINE_8 READ_LINE_4 "ld.shared.v4.f32 {a4, a5, a6, a7}, [line + 512];\n"
#endif

#define ADD(WEIGHT, SUM, ROW) "fma.rn.ftz.f32 %" #SUM ", " WEIGHT ", a" #ROW ", %" #SUM ";\n"
#define ADD_1(WEIGHT, S0) ADD(WEIGHT, S0, 0)
#define ADD_2(WEIGHT, S0, S1) ADD(WEIGHT, S0, 0) ADD(WEIGHT, S1, 1)
#define ADD_4(WEIGHT, S0, S1, S2, S3) ADD_2(WEIGHT, S0, S1) ADD(WEIGHT, S2, 2) ADD(WEIGHT, S3, 3)
#define ADD_8(WEIGHT, S0, S1, S2, S3, S4, S5, S6, S7) \
    ADD_4(WEIGHT, S0, S1, S2, S3) ADD(WEIGHT, S4, 4) ADD(WEIGHT, S5, 5) ADD(WEIGHT, S6, 6) ADD(WEIGHT, S7, 7)

// One after the other, each output's number, the next one's, and the operands that its sums are.
#define EACH_1_8(F) F(0, 1, 2) F(1, 2, 3) F(2, 3, 4) F(3, 4, 5) F(4, 5, 6) F(5, 6, 7) F(6, 7, 8) F(7, 8, 9)
#define EACH_1_40(F) \
    EACH_1_8(F) F(8, 9, 10) F(9, 10, 11) F(10, 11, 12) F(11, 12, 13) F(12, 13, 14) F(13, 14, 15) F(14, 15, 16) \
    F(15, 16, 17) F(16, 17, 18) F(17, 18, 19) F(18, 19, 20) F(19, 20, 21) F(20, 21, 22) F(21, 22, 23) F(22, 23, 24) \
    F(23, 24, 25) F(24, 25, 26) F(25, 26, 27) F(26, 27, 28) F(27, 28, 29) F(28, 29, 30) F(29, 30, 31) F(30, 31, 32) \
    F(31, 32, 33) F(32, 33, 34) F(33, 34, 35) F(34, 35, 36) F(35, 36, 37) F(36, 37, 38) F(37, 38, 39) F(38, 39, 40) \
    F(39, 40, 41)
#define EACH_2_4(F) F(0, 1, 2, 3) F(1, 2, 4, 5) F(2, 3, 6, 7) F(3, 4, 8, 9)
#define EACH_2_8(F) EACH_2_4(F) F(4, 5, 10, 11) F(5, 6, 12, 13) F(6, 7, 14, 15) F(7, 8, 16, 17)
#define EACH_2_16(F) \
    EACH_2_8(F) F(8, 9, 18, 19) F(9, 10, 20, 21) F(10, 11, 22, 23) F(11, 12, 24, 25) F(12, 13, 26, 27) \
    F(13, 14, 28, 29) F(14, 15, 30, 31) F(15, 16, 32, 33)
#define EACH_2_20(F) EACH_2_16(F) F(16, 17, 34, 35) F(17, 18, 36, 37) F(18, 19, 38, 39) F(19, 20, 40, 41)
#define EACH_2_28(F) \
    EACH_2_20(F) F(20, 21, 42, 43) F(21, 22, 44, 45) F(22, 23, 46, 47) F(23, 24, 48, 49) F(24, 25, 50, 51) \
    F(25, 26, 52, 53) F(26, 27, 54, 55) F(27, 28, 56, 57)
#define EACH_2_32(F) EACH_2_28(F) F(28, 29, 58, 59) F(29, 30, 60, 61) F(30, 31, 62, 63) F(31, 32, 64, 65)
#define EACH_4_4(F) F(0, 1, 2, 3, 4, 5) F(1, 2, 6, 7, 8, 9) F(2, 3, 10, 11, 12, 13) F(3, 4, 14, 15, 16, 17)
#define EACH_4_8(F) \
    EACH_4_4(F) F(4, 5, 18, 19, 20, 21) F(5, 6, 22, 23, 24, 25) F(6, 7, 26, 27, 28, 29) F(7, 8, 30, 31, 32, 33)
#define EACH_4_12(F) \
    EACH_4_8(F) F(8, 9, 34, 35, 36, 37) F(9, 10, 38, 39, 40, 41) F(10, 11, 42, 43, 44, 45) \
    F(11, 12, 46, 47, 48, 49)
#define EACH_4_14(F) EACH_4_12(F) F(12, 13, 50, 51, 52, 53) F(13, 14, 54, 55, 56, 57)
#define EACH_4_16(F) EACH_4_14(F) F(14, 15, 58, 59, 60, 61) F(15, 16, 62, 63, 64, 65)
#define EACH_8_8(F) \
    F(0, 1, 2, 3, 4, 5, 6, 7, 8, 9) F(1, 2, 10, 11, 12, 13, 14, 15, 16, 17) F(2, 3, 18, 19, 20, 21, 22, 23, 24, 25) \
    F(3, 4, 26, 27, 28, 29, 30, 31, 32, 33) F(4, 5, 34, 35, 36, 37, 38, 39, 40, 41) \
    F(5, 6, 42, 43, 44, 45, 46, 47, 48, 49) F(6, 7, 50, 51, 52, 53, 54, 55, 56, 57) \
    F(7, 8, 58, 59, 60, 61, 62, 63, 64, 65)
#define EACH_8_10(F) EACH_8_8(F) F(8, 9, 66, 67, 68, 69, 70, 71, 72, 73) F(9, 10, 74, 75, 76, 77, 78, 79, 80, 81)

#define SUMS_1(J, ...) , "+f"(sums[J][0])
#define SUMS_2(J, ...) SUMS_1(J), "+f"(sums[J][1])
#define SUMS_4(J, ...) SUMS_2(J), "+f"(sums[J][2]), "+f"(sums[J][3])
#define SUMS_8(J, ...) SUMS_4(J), "+f"(sums[J][4]), "+f"(sums[J][5]), "+f"(sums[J][6]), "+f"(sums[J][7])

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
    asm volatile("{\n.reg .pred other;\n.reg .b32 line, place_0, place_1;\n.reg .f32 weight, weight_0, weight_1;\n"
                 ".reg .f32 a0, a1, a2, a3, a4, a5, a6, a7;\n.reg .b32 w0, w1, w2, w3;\n.reg .b16 lower, upper;\n"
                 READ_PAIR OF_KIND(OF_KIND(EACH, VECTOR), OUTPUTS)(ADD_EDGES_OF) BEHIND_ALL(OUTPUTS) "}"
                 : "+r"(at), "+r"(lines) OF_KIND(OF_KIND(EACH, VECTOR), OUTPUTS)(OF_KIND(SUMS, VECTOR)));
}
#endif

#undef PASTED
#undef OF_KIND
#undef WIDEN
#undef ADD
#undef PLACES
#undef FIND_LINE
#undef READ_PAIR
#undef BEHIND
#undef BEHIND_ALL
