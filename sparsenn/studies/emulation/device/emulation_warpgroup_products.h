// ptx/warpgroup_products.cuh, emulated. Products of a group are computed when it is closed, or as late as may be.
#pragma once
#include <map>

#include "emulation_numbers.h"

inline unsigned matrix_at(unsigned place, unsigned unit_bytes) {
    if (place % 16 || unit_bytes % 16 || place / 16 >= 1 << 14 || unit_bytes / 16 >= 1 << 14)
        emulated::fail("a matrix that cannot be described");
    return place / 16 | unit_bytes / 16 << 16;
}

// Where 16 bytes of a row lie, as the PTX ISA has matrices that are not swizzled, with rows of neighbouring terms.
inline const unsigned char* unit_of(unsigned matrix, int row, int unit) {
    const unsigned field = (1 << 14) - 1;
    const unsigned place = 16 * (matrix & field) + unit * 16 * (matrix >> 16 & field) + row / 8 * 128 + row % 8 * 16;
    check_shared(place, 16);
    return shared + place;
}

// By thread: groups of products that are not computed, the last of which is not closed.
typedef std::vector<std::function<void()>> Group;

inline std::vector<Group>& groups_of_thread() {
    static std::map<const emulated::Thread*, std::vector<Group>> groups;
    static long block;
    if (block != emulated::blocks_begun) groups.clear();
    block = emulated::blocks_begun;
    auto& own = groups[emulated::current];
    if (own.empty()) own.emplace_back();
    return own;
}

inline void compute(Group& group) {
    for (const auto& product : group) product();
    group.clear();
}

inline void begin_products() {}

inline void close_products() {
    auto& groups = groups_of_thread();
    if (emulated::chance() % 2)
        for (Group& group : groups) compute(group);
    groups.emplace_back();
}

template <int COUNT>
void await_products() {
    auto& groups = groups_of_thread();
    while (groups.size() > COUNT + 1) {
        compute(groups.front());
        groups.erase(groups.begin());
    }
}

template <int SUMS>
void await_sums(float (&)[SUMS]) {
    await_products<0>();
    if (!groups_of_thread().back().empty()) emulated::fail("products that belong to no group");
}

template <int TERMS, int SUMS>
void warpgroup(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
    const int thread = threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const auto term = [](unsigned matrix, int row, int k) {
        const unsigned char* unit = unit_of(matrix, row, k / (TERMS / 2));
        if constexpr (TERMS == 16) {
            half_bits bits;
            std::memcpy(&bits, unit + k % 8 * 2, 2);
            return static_cast<double>(to_float(bits));
        } else {
            unsigned bits;
            std::memcpy(&bits, unit + k % 4 * 4, 4);
            return static_cast<double>(as<float>(cut_to_tf32(bits)));
        }
    };
    float* own = sums;
    groups_of_thread().back().push_back([=] {
        double rows[2][TERMS];
        for (int half = 0; half < 2; ++half)
            for (int k = 0; k < TERMS; ++k) rows[half][k] = term(left, thread / 32 * 16 + g + 8 * half, k);
        for (int i = 0; i < SUMS / 4; ++i)
            for (int e = 0; e < 2; ++e) {
                double column[TERMS];
                for (int k = 0; k < TERMS; ++k) column[k] = term(right, 8 * i + 2 * t + e, k);
                for (int half = 0; half < 2; ++half) {
                    float& sum = own[4 * i + 2 * half + e];
                    double total = keep ? sum : 0.0;
                    for (int k = 0; k < TERMS; ++k) total += rows[half][k] * column[k];
                    sum = cut(total);
                }
            }
    });
}

template <int SUMS>
void warpgroup_half(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
    warpgroup<16>(sums, left, right, keep);
}
template <int SUMS>
void warpgroup_tf32(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
    warpgroup<8>(sums, left, right, keep);
}

// Which of the four the left matrix's numbers are of, as the lanes of a row say it that are asked.
struct Places { unsigned word[2]; };

template <int SELECTOR>
Places places_of_rows(unsigned places) {
    Places found;
    emulated::together<unsigned, Places>(
        40 + SELECTOR, places, found, [](const unsigned* const* all, Places* const* results) {
            for (int lane = 0; lane < 32; ++lane)
                for (int half = 0; half < 2; ++half) results[lane]->word[half] = *all[lane / 4 * 4 + 2 * SELECTOR + half];
        });
    return found;
}

inline float half_of(unsigned matrix, int row, int k) {
    half_bits bits;
    std::memcpy(&bits, unit_of(matrix, row, k / 8) + k % 8 * 2, 2);
    return to_float(bits);
}

template <int SELECTOR, int SUMS>
void warpgroup_half_sparse(float (&sums)[SUMS], unsigned left, unsigned right, unsigned places, int keep) {
    const int thread = threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const Places found = places_of_rows<SELECTOR>(places);
    float* own = sums;
    groups_of_thread().back().push_back([=] {
        for (int lower = 0; lower < 2; ++lower) {
            float numbers[16];
            int depth[16];
            for (int k = 0; k < 16; ++k) {
                const unsigned four = found.word[k / 8] >> (16 * lower + k % 8 / 2 * 4) & 15;
                if ((four & 3) >= four >> 2) emulated::fail("places of weights that do not rise");
                numbers[k] = half_of(left, thread / 32 * 16 + g + 8 * lower, k);
                depth[k] = k / 2 * 4 + (k % 2 ? four >> 2 : four & 3);
            }
            for (int i = 0; i < SUMS / 4; ++i)
                for (int e = 0; e < 2; ++e) {
                    float& sum = own[4 * i + 2 * lower + e];
                    double total = keep ? sum : 0.0;
                    for (int k = 0; k < 16; ++k)
                        total += static_cast<double>(numbers[k]) * half_of(right, 8 * i + 2 * t + e, depth[k]);
                    sum = cut(total);
                }
        }
    });
}
