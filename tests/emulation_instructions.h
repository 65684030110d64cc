// gemm/instructions.cuh, emulated; fragments as the PTX ISA's figures have them.

typedef unsigned short half_bits;

inline int block_number() { return blockIdx.x; }

// ---- Copies ---------------------------------------------------------------------------------------------------------

template <int SIZE>
void copy_later(unsigned to, const void* from, int present) {
    if (present < 0 || present > SIZE || to % SIZE || to + SIZE > emulated::SHARED) emulated::fail("a copy's size or place");
    if (present && reinterpret_cast<uintptr_t>(from) % SIZE) emulated::fail("a copy's source is not aligned");
    if (present) emulated::readable(from, present);
    const emulated::Copy copy{shared + to, static_cast<const unsigned char*>(from), SIZE, present};
    if (emulated::chance() % 2)
        copy.carry_out();
    else
        emulated::current->groups.back().push_back(copy);
}

inline void close_copies() { emulated::current->groups.emplace_back(); }

template <int COUNT>
void await_copies() {
    auto& groups = emulated::current->groups;
    for (size_t i = 0; i + COUNT + 1 < groups.size(); ++i) {
        for (const auto& copy : groups[i]) copy.carry_out();
        groups[i].clear();
    }
}

// ---- Shared memory --------------------------------------------------------------------------------------------------

inline void check_shared(unsigned place, unsigned size) {
    if (place % size || place + size > emulated::SHARED) emulated::fail("a place outside of shared memory, or not aligned");
}

// Eight places of 16 bytes are read at a time, unless two of them that differ are in the same banks.
inline void count_conflicts(const unsigned* const* places) {
    int most = 0;
    for (unsigned bank = 0; bank < 8; ++bank) {
        std::vector<unsigned> found;
        for (int i = 0; i < 8; ++i)
            if (*places[i] / 16 % 8 == bank && std::find(found.begin(), found.end(), *places[i]) == found.end())
                found.push_back(*places[i]);
        most = std::max(most, static_cast<int>(found.size()));
    }
    conflicts += most - 1;
    ++reads;
}

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

// ---- Products -------------------------------------------------------------------------------------------------------

inline float from_half(half_bits bits) { return static_cast<float>(as<_Float16>(bits)); }

// Toward zero, as tensor cores do.
inline float cut(double value) {
    if (!std::isfinite(value)) return static_cast<float>(value);
    const float nearest = static_cast<float>(value);
    return std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? std::nextafterf(nearest, 0.0f) : nearest;
}

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
                left[row][t + 4 * step] = as<float>(given[lane]->a[i] & 0xffffe000u);
                if (i < 2) right[t + 4 * i][g] = as<float>(given[lane]->b[i] & 0xffffe000u);
            } else
                for (int e = 0; e < 2; ++e) {
                    left[row][2 * t + e + 8 * step] = from_half(given[lane]->a[i] >> 16 * e);
                    if (i < 2) right[2 * t + e + 8 * i][g] = from_half(given[lane]->b[i] >> 16 * e);
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

inline void multiply_tf32(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float c0, float c1,
                          float c2, float c3) {
    Products found;
    const Factors given{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c0, c1, c2, c3}};
    emulated::together<Factors, Products>(5, given, found, products_of_warp<8>);
    std::memcpy(sums, found.sums, sizeof sums);
}

inline void multiply_half(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Products found;
    const Factors given{{a[0], a[1], a[2], a[3]}, {b0, b1}, {sums[0], sums[1], sums[2], sums[3]}};
    emulated::together<Factors, Products>(6, given, found, products_of_warp<16>);
    std::memcpy(sums, found.sums, sizeof sums);
}

// ---- Numbers --------------------------------------------------------------------------------------------------------

inline half_bits to_half(float value) { return as<half_bits>(static_cast<_Float16>(value)); }
inline unsigned to_halves(float left, float right) {
    return to_half(left) | static_cast<unsigned>(to_half(right)) << 16;
}
inline unsigned to_tf32(unsigned number) {
    return static_cast<unsigned>(std::max(static_cast<int>(number + 0x1000u), static_cast<int>(number)));
}

inline unsigned lower_halves(unsigned left, unsigned right) { return (left & 0xffffu) | right << 16; }
inline unsigned upper_halves(unsigned left, unsigned right) { return left >> 16 | (right & 0xffff0000u); }
