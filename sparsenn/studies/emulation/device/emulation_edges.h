// ptx/edges.cuh, emulated.
#pragma once
#include "emulation_memory.h"

template <int ROWS>
void add_edge(float (&sums)[ROWS], float weight, unsigned line) {
    constexpr int PIECE = ROWS < 4 ? ROWS : 4;
    for (int row = 0; row < ROWS; ++row) {
        const unsigned place = line + row / PIECE * 512;
        check_shared(place, 4 * PIECE);
        float value;
        std::memcpy(&value, shared + place + row % PIECE * 4, 4);
        sums[row] = std::fmaf(weight, value, sums[row]);
    }
}

template <int OUTPUTS_OF_WARP, int ROWS>
void add_edges(float (&sums)[OUTPUTS_OF_WARP][ROWS], unsigned at, unsigned lines) {
    constexpr unsigned PLACES = 1 << 17;  // of an output
    for (int output = 0, edge = 0; output < OUTPUTS_OF_WARP;) {
        unsigned place;
        float weight;
        if (at % 16) emulated::fail("edges are not aligned");
        check_shared(at, 16);
        std::memcpy(&weight, shared + at + 4 * edge, 4);
        std::memcpy(&place, shared + at + 8 + 4 * edge, 4);
        if (place / PLACES > unsigned(output)) {
            ++output;
            continue;
        }
        add_edge(sums[output], weight, lines + place - output * PLACES);
        at += edge ? 16 : 0;
        edge ^= 1;
    }
}
