// The loop over a warp's edges for rows of halves, which tensor cores multiply; as ptx/edges.cuh is for float32.
//
// An edge is, for each 128 rows, a product of small matrices (PTX ISA, "mma.m16n8k8"): one is the input's rows as they lie in
// the lanes, 16 by 8; the other, 8 by 8, is diagonal and has nothing but the edge's weight. So each row is multiplied by the
// weight and added, as float32, to the sum that the same lane has. Numbers are finite: zeros of the diagonal meet other rows.
//
// An edge is a word: the weight's lower byte; then the place of the input's line of rows, in bytes from the chunk's first, a
// multiple of 256; from bit 18 on the output; and the weight's upper byte. Edges lie by output, four read in one go, the last
// one followed by words of no output to the end of its four, whose lines are read, too. Of each four that are read, it is
// looked at once whether they are of the output at hand; the next output looks again at what is left.
#pragma once

#include "sparse/each_output.cuh"

#define READ_LINE_4(K) "ld.shared.v2.b32 {x" #K "_0, x" #K "_1}, [line];\n"
#define READ_LINE_8(K) "ld.shared.v4.b32 {x" #K "_0, x" #K "_1, x" #K "_2, x" #K "_3}, [line];\n"
#define READ_LINE(K) "lop3.b32 line, edge_" #K ", 0x3ff00, own, 0xea;\nadd.u32 line, line, %1;\n" OF_KIND(READ_LINE, VECTOR)(K)
#define READ_FOUR \
    "ld.shared.v4.b32 {edge_0, edge_1, edge_2, edge_3}, [%0];\nadd.u32 %0, %0, 16;\n" \
    READ_LINE(0) READ_LINE(1) READ_LINE(2) READ_LINE(3)

// Edge K of four: whether it is of another output than J; its diagonal; and its product, of two words of rows or of four.
#define LOOK(K, J) "lop3.b32 line, edge_" #K ", " #J " << 18, outputs, 0x28;\nsetp.ne.u32 not_" #K ", line, 0;\n"
#define WEIGH(K) "prmt.b32 diagonal, edge_" #K ", 0, %2;\n"
#define MULTIPLY(W0, W1, S0, S1, S2, S3) \
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%" #S0 ", %" #S1 ", %" #S2 ", %" #S3 "}, {" W0 ", " W1 "}, {diagonal}, " \
    "{%" #S0 ", %" #S1 ", %" #S2 ", %" #S3 "};\n"
#define ADD_4(K, S0, S1, S2, S3) MULTIPLY("x" #K "_0", "x" #K "_1", S0, S1, S2, S3)
#define ADD_8(K, S0, S1, S2, S3, S4, S5, S6, S7) \
    ADD_4(K, S0, S1, S2, S3) MULTIPLY("x" #K "_2", "x" #K "_3", S4, S5, S6, S7)
#define ADD(K, ...) OF_KIND(ADD, VECTOR)(K, __VA_ARGS__)

// To the next output with edge K, unless that is of this one.
#define UNLESS(K, NEXT) "@not_" #K " bra.uni edge_" #K "_of_" #NEXT ";\n"

#define ADD_EDGES_OF(J, NEXT, ...) \
    "edge_0_of_" #J ":\n" LOOK(0, J) LOOK(1, J) LOOK(2, J) LOOK(3, J) UNLESS(0, NEXT) \
    "add_0_of_" #J ":\n" ADD(0, __VA_ARGS__) WEIGH(1) UNLESS(1, NEXT) \
    "add_1_of_" #J ":\n" ADD(1, __VA_ARGS__) WEIGH(2) UNLESS(2, NEXT) \
    "add_2_of_" #J ":\n" ADD(2, __VA_ARGS__) WEIGH(3) UNLESS(3, NEXT) \
    "add_3_of_" #J ":\n" ADD(3, __VA_ARGS__) READ_FOUR WEIGH(0) LOOK(0, J) LOOK(1, J) LOOK(2, J) LOOK(3, J) \
    "@!not_0 bra.uni add_0_of_" #J ";\nbra.uni edge_0_of_" #NEXT ";\n" \
    "edge_1_of_" #J ":\n" LOOK(1, J) LOOK(2, J) LOOK(3, J) UNLESS(1, NEXT) "bra.uni add_1_of_" #J ";\n" \
    "edge_2_of_" #J ":\n" LOOK(2, J) LOOK(3, J) UNLESS(2, NEXT) "bra.uni add_2_of_" #J ";\n" \
    "edge_3_of_" #J ":\n" LOOK(3, J) UNLESS(3, NEXT) "bra.uni add_3_of_" #J ";\n"

#define BEHIND(COUNT) "edge_0_of_" #COUNT ":\nedge_1_of_" #COUNT ":\nedge_2_of_" #COUNT ":\nedge_3_of_" #COUNT ":\n"
#define BEHIND_ALL(COUNT) BEHIND(COUNT)

// Adds the products of a warp's edges to the sums of a lane's rows, output by output, one edge after the other.
//   at     where the warp's first four are.
//   lines  where the chunk begins.
__device__ __forceinline__ void add_edges(float (&sums)[OUTPUTS][VECTOR], unsigned at, unsigned lines, int lane) {
    const int above = lane / 4 - lane % 4 * 2;  // how far the first of the lane's two terms is above the diagonal
    const unsigned bytes = above == 0 ? 0x4430 : above == 1 ? 0x3044 : 0x4444;  // of an edge that the lane's two terms are
    unsigned third = bytes | lane * (2 * VECTOR) << 16;  // and where its rows are in a line
    asm volatile("{\n.reg .pred not_0, not_1, not_2, not_3;\n.reg .b32 edge_0, edge_1, edge_2, edge_3, line, diagonal;\n"
                 ".reg .b32 x0_0, x0_1, x0_2, x0_3, x1_0, x1_1, x1_2, x1_3, x2_0, x2_1, x2_2, x2_3, x3_0, x3_1, x3_2, x3_3;\n"
                 ".reg .b32 own, outputs;\nshr.u32 own, %2, 16;\nmov.b32 outputs, 0xfc0000;\n"
                 READ_FOUR WEIGH(0) EACH_OUTPUT(ADD_EDGES_OF) BEHIND_ALL(OUTPUTS) "}"
                 : "+r"(at), "+r"(lines), "+r"(third) EACH_OUTPUT(SUMS_OF_ONE));
}

#undef READ_LINE
#undef READ_FOUR
#undef LOOK
#undef WEIGH
#undef MULTIPLY
#undef ADD
#undef UNLESS
#undef BEHIND
#undef BEHIND_ALL
