// ptx/matrix_products.cuh, emulated; fragments as the PTX ISA's figures have them.
#pragma once
#include "emulation_numbers.h"

struct Factors { unsigned a[4], b[2]; float c[4]; };
struct Products { float sums[4]; };

template <int TERMS>
void products_of_warp(const Factors* const* given, Products* const* taken) {
    double left[16][TERMS], right[TERMS][8];
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) {
            const int row = g + i % 2 * 8, step = i / 2;
            if (TERMS == 8) {
                left[row][t + 4 * step] = as<float>(cut_to_tf32(given[lane]->a[i]));
                if (i < 2) right[t + 4 * i][g] = as<float>(cut_to_tf32(given[lane]->b[i]));
            } else
                for (int e = 0; e < 2; ++e) {
                    left[row][2 * t + e + 8 * step] = to_float(given[lane]->a[i] >> 16 * e);
                    if (i < 2) right[2 * t + e + 8 * i][g] = to_float(given[lane]->b[i] >> 16 * e);
                }
        }
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            double sum = given[lane]->c[i];
            for (int k = 0; k < TERMS; ++k) sum += left[lane / 4 + i / 2 * 8][k] * right[k][lane % 4 * 2 + i % 2];
            taken[lane]->sums[i] = cut(sum);
        }
}

inline void multiply_tf32(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                          float c0, float c1, float c2, float c3) {
    Products found;
    const Factors given{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
    emulated::together<Factors, Products>(5, given, found, products_of_warp<8>);
    std::memcpy(sums, found.sums, sizeof sums);
}

inline void multiply_tf32(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    multiply_tf32(sums, a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3]);
}

inline void multiply_half(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    Products found;
    const Factors given{{a0, a1, a2, a3}, {b0, b1}, {sums[0], sums[1], sums[2], sums[3]}};
    emulated::together<Factors, Products>(6, given, found, products_of_warp<16>);
    std::memcpy(sums, found.sums, sizeof sums);
}
