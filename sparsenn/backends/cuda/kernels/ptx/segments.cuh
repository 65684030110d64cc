// The loop over the edges of one output, for rows that lie along the lanes: all lanes of a warp go through it alike
// (bra.uni). It is written out because few edges are read there: compilers unroll it, and begin with more instructions than
// there are edges. Addresses are in bytes, of shared memory.
//
// An edge is a weight and the place of an input's line of rows, in bytes from the chunk's first. What is read in one go is
// one or two weights and the places of the edges behind them, so that lines and what comes next are under way at a time.
// Rows are float32, or, if HALVES, two halves to a word, which become float32 as they are read.
#pragma once

#define REGISTERS ".reg .pred more;\n.reg .b32 line, unit, end_of_pairs;\n.reg .f32 weight, weight_1;\n" \
    ".reg .f32 a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7;\n" \
    ".reg .b32 w0, w1, w2, w3;\n.reg .b16 lower, upper;\n"

#if HALVES
#define WIDEN(WORD, LOWER, UPPER) \
    "mov.b32 {lower, upper}, " WORD ";\ncvt.f32.f16 " LOWER ", lower;\ncvt.f32.f16 " UPPER ", upper;\n"
#define READ_LINE_1(X) "ld.shared.b16 lower, [line];\ncvt.f32.f16 " X "0, lower;\n"
#define READ_LINE_2(X) "ld.shared.b32 w0, [line];\n" WIDEN("w0", X "0", X "1")
#define READ_LINE_4(X) "ld.shared.v2.b32 {w0, w1}, [line];\n" WIDEN("w0", X "0", X "1") WIDEN("w1", X "2", X "3")
#define READ_LINE_8(X) \
    "ld.shared.v4.b32 {w0, w1, w2, w3}, [line];\n" WIDEN("w0", X "0", X "1") WIDEN("w1", X "2", X "3") \
        WIDEN("w2", X "4", X "5") WIDEN("w3", X "6", X "7")
#else
#define READ_LINE_1(X) "ld.shared.f32 " X "0, [line];\n"
#define READ_LINE_2(X) "ld.shared.v2.f32 {" X "0, " X "1}, [line];\n"
#define READ_LINE_4(X) "ld.shared.v4.f32 {" X "0, " X "1, " X "2, " X "3}, [line];\n"
#define READ_LINE_8(X) READ_LINE_4(X) "ld.shared.v4.f32 {" X "4, " X "5, " X "6, " X "7}, [line + 512];\n"
#endif

#define ADD(NUMBER, WEIGHT, X) "fma.rn.ftz.f32 %" #NUMBER ", " WEIGHT ", " X #NUMBER ", %" #NUMBER ";\n"
#define ADD_1(WEIGHT, X) ADD(0, WEIGHT, X)
#define ADD_2(WEIGHT, X) ADD_1(WEIGHT, X) ADD(1, WEIGHT, X)
#define ADD_4(WEIGHT, X) ADD_2(WEIGHT, X) ADD(2, WEIGHT, X) ADD(3, WEIGHT, X)
#define ADD_8(WEIGHT, X) ADD_4(WEIGHT, X) ADD(4, WEIGHT, X) ADD(5, WEIGHT, X) ADD(6, WEIGHT, X) ADD(7, WEIGHT, X)

#define SUMS_1 "+f"(sums[0])
#define SUMS_2 SUMS_1, "+f"(sums[1])
#define SUMS_4 SUMS_2, "+f"(sums[2]), "+f"(sums[3])
#define SUMS_8 SUMS_4, "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7])

// Adds an output's products to the sums of a lane's rows, one edge after the other, each by fma with denormal numbers as
// zeros, as all code is compiled. AT, AHEAD, END and LINES are the operands behind the sums.
//   at     where in the record the next weight is read; behind the output's edges afterwards.
//   ahead  place of the next edge's line.
//   end    of the output's weights and places, in the record.
//   begin  where the record does, for all lanes.
//   lines  where this lane's rows of the chunk begin.
#define ADD_EDGES_ONE_BY_ONE(ROWS, AT, AHEAD, END, BEGIN, LINES) \
    __device__ __forceinline__ void add_edges(float (&sums)[ROWS], unsigned& at, unsigned (&ahead)[1], unsigned end, \
                                              unsigned begin, unsigned lines) { \
        asm volatile("{\n" REGISTERS \
            "setp.lt.u32 more, " AT ", " END ";\n@!more bra.uni done;\n" \
            "next:\n" \
            "add.u32 line, " AHEAD ", " LINES ";\n" \
            READ_LINE_##ROWS("a") \
            "add.u32 unit, " BEGIN ", " AT ";\n" \
            "ld.shared.v2.b32 {weight, " AHEAD "}, [unit];\n" \
            "add.u32 " AT ", " AT ", 8;\n" \
            "setp.lt.u32 more, " AT ", " END ";\n" \
            ADD_##ROWS("weight", "a") \
            "@more bra.uni next;\n" \
            "done:\n}" \
            : SUMS_##ROWS, "+r"(at), "+r"(ahead[0]) : "r"(end), "r"(begin), "r"(lines)); \
    }

// The same two at a time, and what may be left alone. Weights lie at multiples of 16 bytes; the next output's begin at one.
#define ADD_EDGES_BY_TWO(ROWS, AT, AHEAD, AHEAD_1, END, BEGIN, LINES) \
    __device__ __forceinline__ void add_edges(float (&sums)[ROWS], unsigned& at, unsigned (&ahead)[2], unsigned end, \
                                              unsigned begin, unsigned lines) { \
        asm volatile("{\n" REGISTERS \
            "and.b32 end_of_pairs, " END ", -16;\n" \
            "setp.lt.u32 more, " AT ", end_of_pairs;\n@!more bra.uni left;\n" \
            "next:\n" \
            "add.u32 line, " AHEAD ", " LINES ";\n" \
            READ_LINE_##ROWS("a") \
            "add.u32 line, " AHEAD_1 ", " LINES ";\n" \
            READ_LINE_##ROWS("b") \
            "add.u32 unit, " BEGIN ", " AT ";\n" \
            "ld.shared.v4.b32 {weight, weight_1, " AHEAD ", " AHEAD_1 "}, [unit];\n" \
            "add.u32 " AT ", " AT ", 16;\n" \
            "setp.lt.u32 more, " AT ", end_of_pairs;\n" \
            ADD_##ROWS("weight", "a") ADD_##ROWS("weight_1", "b") \
            "@more bra.uni next;\n" \
            "left:\n" \
            "setp.lt.u32 more, " AT ", " END ";\n@!more bra.uni done;\n" \
            "add.u32 line, " AHEAD ", " LINES ";\n" \
            READ_LINE_##ROWS("a") \
            "add.u32 unit, " BEGIN ", " AT ";\n" \
            "ld.shared.v4.b32 {weight, weight_1, " AHEAD ", " AHEAD_1 "}, [unit];\n" \
            "add.u32 " AT ", " AT ", 16;\n" \
            ADD_##ROWS("weight", "a") \
            "done:\n}" \
            : SUMS_##ROWS, "+r"(at), "+r"(ahead[0]), "+r"(ahead[1]) : "r"(end), "r"(begin), "r"(lines)); \
    }

ADD_EDGES_ONE_BY_ONE(1, "%1", "%2", "%3", "%4", "%5")
ADD_EDGES_ONE_BY_ONE(2, "%2", "%3", "%4", "%5", "%6")
ADD_EDGES_ONE_BY_ONE(4, "%4", "%5", "%6", "%7", "%8")
ADD_EDGES_ONE_BY_ONE(8, "%8", "%9", "%10", "%11", "%12")
ADD_EDGES_BY_TWO(1, "%1", "%2", "%3", "%4", "%5", "%6")
ADD_EDGES_BY_TWO(2, "%2", "%3", "%4", "%5", "%6", "%7")
ADD_EDGES_BY_TWO(4, "%4", "%5", "%6", "%7", "%8", "%9")
ADD_EDGES_BY_TWO(8, "%8", "%9", "%10", "%11", "%12", "%13")

#undef ADD_EDGES_ONE_BY_ONE
#undef ADD_EDGES_BY_TWO
#undef REGISTERS
#undef WIDEN
#undef READ_LINE_1
#undef READ_LINE_2
#undef READ_LINE_4
#undef READ_LINE_8
#undef ADD
#undef ADD_1
#undef ADD_2
#undef ADD_4
#undef ADD_8
#undef SUMS_1
#undef SUMS_2
#undef SUMS_4
#undef SUMS_8
