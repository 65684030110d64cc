// ptx/memory.cuh, emulated.
#pragma once
#include "emulation_numbers.h"

struct Tiles { unsigned word[4]; };

template <bool TRANSPOSED>
void tiles_of_warp(const unsigned* const* from, Tiles* const* to) {
    for (int tile = 0; tile < 4; ++tile) {
        const unsigned char* rows[8];
        for (int row = 0; row < 8; ++row) {
            const unsigned place = *from[8 * tile + row];
            check_shared(place, 16);
            rows[row] = shared + place;
        }
        count_conflicts(from + 8 * tile);
        for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4, t = lane % 4;
            unsigned& word = to[lane]->word[tile];
            if (TRANSPOSED) {
                half_bits pair[2];
                for (int i = 0; i < 2; ++i) std::memcpy(pair + i, rows[2 * t + i] + 2 * g, 2);
                word = pair[0] | static_cast<unsigned>(pair[1]) << 16;
            } else {
                std::memcpy(&word, rows[g] + 4 * t, 4);
            }
        }
    }
}

inline void read_tiles(unsigned (&tiles)[4], unsigned from) {
    Tiles found;
    emulated::together<unsigned, Tiles>(2, from, found, tiles_of_warp<false>);
    std::memcpy(tiles, found.word, sizeof tiles);
}

inline void read_tiles_transposed(unsigned (&tiles)[4], unsigned from) {
    Tiles found;
    emulated::together<unsigned, Tiles>(3, from, found, tiles_of_warp<true>);
    std::memcpy(tiles, found.word, sizeof tiles);
}

struct TilesTo { unsigned word[4], to; };

inline void write_tiles_transposed(unsigned to, const unsigned (&tiles)[4]) {
    struct Nothing {} nothing;
    emulated::together<TilesTo, Nothing>(
        5, {{tiles[0], tiles[1], tiles[2], tiles[3]}, to}, nothing, [](const TilesTo* const* all, Nothing* const*) {
            for (int tile = 0; tile < 4; ++tile) {
                unsigned places[8];
                const unsigned* given[8];
                for (int row = 0; row < 8; ++row) {
                    places[row] = all[8 * tile + row]->to;
                    check_shared(places[row], 16);
                    given[row] = places + row;
                }
                count_conflicts(given);
                for (int lane = 0; lane < 32; ++lane)
                    for (int i = 0; i < 2; ++i) {
                        const half_bits bits = all[lane]->word[tile] >> 16 * i;
                        std::memcpy(shared + places[lane % 4 * 2 + i] + lane / 4 * 2, &bits, 2);
                    }
            }
        });
}

// Sixteen bytes a lane go eight lanes at a time.
inline void fours_of_warp(const unsigned* const* from, Tiles* const* to) {
    for (int first = 0; first < 32; first += 8) {
        for (int lane = first; lane < first + 8; ++lane) {
            check_shared(*from[lane], 16);
            std::memcpy(to[lane]->word, shared + *from[lane], 16);
        }
        count_conflicts(from + first);
    }
}

inline void read_four(unsigned (&words)[4], unsigned from) {
    Tiles found;
    emulated::together<unsigned, Tiles>(4, from, found, fours_of_warp);
    std::memcpy(words, found.word, sizeof words);
}

inline void write_four(unsigned to, const unsigned (&words)[4]) {
    check_shared(to, 16);
    if (emulated::chance() % 16 == 0) emulated::pause(emulated::READY);  // others may go on first
    std::memcpy(shared + to, words, 16);
}

inline void write_four_if(unsigned to, const unsigned (&words)[4], bool wanted) {
    if (wanted) write_four(to, words);
}

inline int2 read_pair(unsigned from) {
    check_shared(from, 8);
    int2 found;
    std::memcpy(&found, shared + from, 8);
    return found;
}

inline void write_pair(unsigned to, int first, int second) {
    check_shared(to, 8);
    std::memcpy(shared + to, &first, 4);
    std::memcpy(shared + to + 4, &second, 4);
}

inline int read_word(unsigned from) {
    check_shared(from, 4);
    int found;
    std::memcpy(&found, shared + from, 4);
    return found;
}

inline void write_word(unsigned to, int word) {
    check_shared(to, 4);
    std::memcpy(shared + to, &word, 4);
}

template <class Numbers>
void store_if(void* to, const Numbers& numbers, bool wanted) {
    if (!wanted) return;
    if (reinterpret_cast<uintptr_t>(to) % sizeof numbers) emulated::fail("a store that is not aligned");
    emulated::readable(to, sizeof numbers);
    std::memcpy(to, &numbers, sizeof numbers);
}

inline void add_to_shared(int* number, int value) { *number += value; }
inline void raise_in_shared(int* number, int value) { *number = std::max(*number, value); }
inline unsigned read_early(const unsigned* from) {
    unsigned found;
    std::memcpy(&found, emulated::readable(from, sizeof found), sizeof found);
    return found;
}
template <class Number>
Number read_acquire(const Number* from) {
    Number found;
    std::memcpy(&found, emulated::readable(from, sizeof found), sizeof found);
    return found;
}
inline void bring_to_l2(const void* place) { emulated::readable(place, 1); }
inline void add_to_global(unsigned long long* number, unsigned long long value) { *number += value; }
inline void add_to_global(int* number, int value) { *number += value; }
inline void raise_in_global(int* number, int value, bool wanted = true) {
    if (!wanted) return;
    ++raised;
    emulated::readable(number, sizeof(int));
    *number = std::max(*number, value);
}
