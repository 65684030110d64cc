// ptx/segments.cuh, emulated.
#pragma once
#include "emulation_memory.h"

#if HALVES
template <int ROWS>
void add_edge(float (&sums)[ROWS], float weight, unsigned line) {
    check_shared(line, 2 * ROWS);
    for (int row = 0; row < ROWS; ++row) {
        half_bits value;
        std::memcpy(&value, shared + line + 2 * row, 2);
        sums[row] = std::fmaf(weight, to_float(value), sums[row]);
    }
}
#else
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
#endif

template <int ROWS, int COUNT>
void add_edges(float (&sums)[ROWS], unsigned& at, unsigned (&ahead)[COUNT], unsigned end, unsigned begin,
               unsigned lines) {
    while (at < end) {
        unsigned places[COUNT];
        float weights[COUNT];
        std::memcpy(places, ahead, sizeof places);
        check_shared(begin + at, 8 * COUNT);
        std::memcpy(weights, shared + begin + at, sizeof weights);
        std::memcpy(ahead, shared + begin + at + sizeof weights, sizeof ahead);
        for (int edge = 0; edge < COUNT && at + 8 * edge < end; ++edge) add_edge(sums, weights[edge], lines + places[edge]);
        at += 8 * COUNT;
    }
}
