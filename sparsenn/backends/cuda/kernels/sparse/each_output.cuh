// EACH_OUTPUT(F): F of one output of a warp after the other, with its number, the next one's, and the operands of an assembler
// statement that its VECTOR sums are; EACH_OUTPUT(SUMS_OF_ONE) are these operands, the fourth and those behind it.
#pragma once

#define PASTED(NAME, KIND) NAME##_##KIND
#define OF_KIND(NAME, KIND) PASTED(NAME, KIND)
#define EACH_OUTPUT OF_KIND(OF_KIND(EACH, VECTOR), OUTPUTS)
#define SUMS_OF_ONE OF_KIND(SUMS, VECTOR)

#define EACH_1_8(F) F(0, 1, 3) F(1, 2, 4) F(2, 3, 5) F(3, 4, 6) F(4, 5, 7) F(5, 6, 8) F(6, 7, 9) F(7, 8, 10)
#define EACH_2_4(F) F(0, 1, 3, 4) F(1, 2, 5, 6) F(2, 3, 7, 8) F(3, 4, 9, 10)
#define EACH_2_8(F) EACH_2_4(F) F(4, 5, 11, 12) F(5, 6, 13, 14) F(6, 7, 15, 16) F(7, 8, 17, 18)
#define EACH_2_16(F) \
    EACH_2_8(F) F(8, 9, 19, 20) F(9, 10, 21, 22) F(10, 11, 23, 24) F(11, 12, 25, 26) F(12, 13, 27, 28) \
    F(13, 14, 29, 30) F(14, 15, 31, 32) F(15, 16, 33, 34)
#define EACH_2_20(F) EACH_2_16(F) F(16, 17, 35, 36) F(17, 18, 37, 38) F(18, 19, 39, 40) F(19, 20, 41, 42)
#define EACH_2_28(F) \
    EACH_2_20(F) F(20, 21, 43, 44) F(21, 22, 45, 46) F(22, 23, 47, 48) F(23, 24, 49, 50) F(24, 25, 51, 52) \
    F(25, 26, 53, 54) F(26, 27, 55, 56) F(27, 28, 57, 58)
#define EACH_2_32(F) EACH_2_28(F) F(28, 29, 59, 60) F(29, 30, 61, 62) F(30, 31, 63, 64) F(31, 32, 65, 66)
#define EACH_4_4(F) F(0, 1, 3, 4, 5, 6) F(1, 2, 7, 8, 9, 10) F(2, 3, 11, 12, 13, 14) F(3, 4, 15, 16, 17, 18)
#define EACH_4_8(F) \
    EACH_4_4(F) F(4, 5, 19, 20, 21, 22) F(5, 6, 23, 24, 25, 26) F(6, 7, 27, 28, 29, 30) F(7, 8, 31, 32, 33, 34)
#define EACH_4_10(F) EACH_4_8(F) F(8, 9, 35, 36, 37, 38) F(9, 10, 39, 40, 41, 42)
#define EACH_4_12(F) EACH_4_10(F) F(10, 11, 43, 44, 45, 46) F(11, 12, 47, 48, 49, 50)
#define EACH_4_14(F) EACH_4_12(F) F(12, 13, 51, 52, 53, 54) F(13, 14, 55, 56, 57, 58)
#define EACH_4_16(F) EACH_4_14(F) F(14, 15, 59, 60, 61, 62) F(15, 16, 63, 64, 65, 66)
#define EACH_8_8(F) \
    F(0, 1, 3, 4, 5, 6, 7, 8, 9, 10) F(1, 2, 11, 12, 13, 14, 15, 16, 17, 18) F(2, 3, 19, 20, 21, 22, 23, 24, 25, 26) \
    F(3, 4, 27, 28, 29, 30, 31, 32, 33, 34) F(4, 5, 35, 36, 37, 38, 39, 40, 41, 42) \
    F(5, 6, 43, 44, 45, 46, 47, 48, 49, 50) F(6, 7, 51, 52, 53, 54, 55, 56, 57, 58) \
    F(7, 8, 59, 60, 61, 62, 63, 64, 65, 66)
#define EACH_8_10(F) EACH_8_8(F) F(8, 9, 67, 68, 69, 70, 71, 72, 73, 74) F(9, 10, 75, 76, 77, 78, 79, 80, 81, 82)

#define SUMS_1(J, ...) , "+f"(sums[J][0])
#define SUMS_2(J, ...) SUMS_1(J), "+f"(sums[J][1])
#define SUMS_4(J, ...) SUMS_2(J), "+f"(sums[J][2]), "+f"(sums[J][3])
#define SUMS_8(J, ...) SUMS_4(J), "+f"(sums[J][4]), "+f"(sums[J][5]), "+f"(sums[J][6]), "+f"(sums[J][7])
