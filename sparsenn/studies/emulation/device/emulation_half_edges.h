// ptx/half_edges.cuh, emulated.
#pragma once
#include "emulation_matrix_products.h"
#include "emulation_memory.h"

template <int WORDS>
struct Rows { unsigned words[WORDS]; half_bits weight; };
template <int WORDS>
struct Added { double products[2 * WORDS]; };

// The diagonal has zeros beside the weight, by which the rows of four neighbouring lanes are multiplied, too.
template <int WORDS>
void rows_of_warp(const Rows<WORDS>* const* given, Added<WORDS>* const* taken) {
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 2 * WORDS; ++i) {
            double sum = 0;
            for (int other = lane / 4 * 4; other < lane / 4 * 4 + 4; ++other)
                for (int e = 0; e < 2; ++e) {
                    const bool diagonal = other == lane && e == i % 2;
                    const double row = to_float(given[other]->words[i / 2] >> 16 * e);
                    sum += row * (diagonal ? to_float(given[other]->weight) : 0.0);
                }
            taken[lane]->products[i] = sum;
        }
}

template <int OUTPUTS_OF_WARP, int ROWS>
void add_edges(float (&sums)[OUTPUTS_OF_WARP][ROWS], unsigned at, unsigned lines, int lane) {
    constexpr unsigned BEHIND_ALL = 63;
    for (unsigned number = 0;; ++number) {
        const unsigned from = at + number / 4 * 16;
        if (from % 16) emulated::fail("edges are not aligned");
        check_shared(from, 16);
        unsigned edge;
        std::memcpy(&edge, shared + from + number % 4 * 4, 4);
        const unsigned output = edge >> 18 & 63, line = lines + (edge & 0x3ff00) + lane * 2 * ROWS;
        if (output == BEHIND_ALL) return;
        if (output >= OUTPUTS_OF_WARP) emulated::fail("an edge has no output");
        check_shared(line, 2 * ROWS);
        Rows<ROWS / 2> given;
        std::memcpy(given.words, shared + line, 2 * ROWS);
        given.weight = edge & 0xff | edge >> 24 << 8;
        Added<ROWS / 2> found;
        emulated::together<Rows<ROWS / 2>, Added<ROWS / 2>>(9, given, found, rows_of_warp<ROWS / 2>);
        for (int row = 0; row < ROWS; ++row) sums[output][row] = cut(sums[output][row] + found.products[row]);
    }
}
