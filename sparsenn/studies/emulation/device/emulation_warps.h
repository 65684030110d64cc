// What kernels of sparse layers use of CUDA C++ beside what `emulation.h` has: votes, shuffles and atomics.
#pragma once

struct alignas(16) int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }

inline Dimensions block_dimensions() { return {static_cast<unsigned>(emulated::threads->size()), 1, 1}; }
#ifndef blockDim
#define blockDim block_dimensions()
#endif

struct Vote { bool wanted; };

inline unsigned __ballot_sync(unsigned, bool wanted) {
    unsigned found = 0;
    emulated::together<Vote, unsigned>(20, {wanted}, found, [](const Vote* const* all, unsigned* const* results) {
        unsigned votes = 0;
        for (int lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(all[lane]->wanted) << lane;
        for (int lane = 0; lane < 32; ++lane) *results[lane] = votes;
    });
    return found;
}
inline bool __any_sync(unsigned lanes, bool wanted) { return __ballot_sync(lanes, wanted) != 0; }
inline bool __all_sync(unsigned lanes, bool wanted) { return __ballot_sync(lanes, wanted) == 0xffffffffu; }

template <class Number>
Number __shfl_sync(unsigned, Number value, int from) {
    struct Given { Number value; int from; };
    Number found{};
    emulated::together<Given, Number>(21, {value, from}, found, [](const Given* const* all, Number* const* results) {
        for (int lane = 0; lane < 32; ++lane) *results[lane] = all[all[lane]->from % 32]->value;
    });
    return found;
}

int __reduce_add_sync(unsigned, int);
int __reduce_max_sync(unsigned, int);

inline int atomicAdd(int* counter, int value) { return (*counter += value) - value; }
inline unsigned atomicOr(unsigned* place, unsigned bits) {
    const unsigned before = *place;
    *place |= bits;
    return before;
}
inline int atomicCAS(int* place, int expected, int value) {
    const int before = *place;
    if (before == expected) *place = value;
    return before;
}

// Selectors of 0 to 7; the bit that spreads a byte's sign is not emulated.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    unsigned found = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const unsigned selector = selectors >> 4 * byte & 0xf;
        if (selector > 7) emulated::fail("a byte that is not emulated");
        found |= static_cast<unsigned>(both >> 8 * selector & 0xff) << 8 * byte;
    }
    return found;
}
