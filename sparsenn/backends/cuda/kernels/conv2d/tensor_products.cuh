// The products of the tensor-core convolutions of few channels.
//
// An item is ACROSS neighbouring output pixels of a row, and DOWN of such below each other. A product takes 16 items;
// its 8 columns are pairs of a filter and one of the ACROSS pixels. So what an item multiplies with a row of the
// filters are the SPAN = KERNEL_WIDTH + ACROSS - 1 neighbouring numbers of an image's row that its pixels' windows
// meet, as they lie in memory; weights are zero where a pixel's window does not reach. Nothing is unrolled or
// transposed, and an image's row that has been read serves up to DOWN rows of outputs.
//
// Inputs go into products by quads, one register of each of a lane's two items: 4 floats or 8 halves of a row. A step
// is two quads. The quads of AT_ONCE channels, row after row of the filters, are stepped through as one sequence, so
// that no more than its last step may lack a quad. Weights come in the same order: a tile of 8 columns of a step is
// Precision::WORDS registers of each lane, which stay there if HELD, and are read from shared memory otherwise.
//
// Sizes: as in sizes.cuh. How they are cut: ACROSS, DOWN, AT_ONCE, PANEL (tiles of columns that a warp sums at a time),
// HELD; BAND (output rows of an image in shared memory at a time), PITCH (numbers from one of its rows to the next).
#pragma once
#include "conv2d/sizes.cuh"
#include "ptx/matrix_products.cuh"
#include "ptx/numbers.cuh"

// A grid is one block deep, but the compiler does not know. A loop of so many turns keeps it from beginning all
// products of an item before it adds up the first: it would run out of registers.
#define ONCE gridDim.z

constexpr int smaller(int a, int b) { return a < b ? a : b; }

constexpr int SPAN = KERNEL_WIDTH + ACROSS - 1;
constexpr int BESIDE = parts(OUTPUT_WIDTH, ACROSS);  // items beside each other
constexpr int BANDS = parts(OUTPUT_HEIGHT, BAND);
constexpr int ROWS = BAND + KERNEL_HEIGHT - 1;  // of an image, padding included, that a band meets
constexpr int PLANE = ROWS * PITCH;
constexpr int REACH = KERNEL_HEIGHT + DOWN - 1;  // rows of an image that an item meets
constexpr int TURNS = CHANNELS / AT_ONCE;
constexpr int FILTER_ROWS = AT_ONCE * KERNEL_HEIGHT;  // of a turn
constexpr int PANELS = parts(parts(FILTERS * ACROSS, 8), PANEL);
constexpr int SHARES = 8 / ACROSS;  // filters of a tile of columns

static_assert(ACROSS == 1 || ACROSS == 2 || ACROSS == 4 || ACROSS == 8, "a tile of columns has whole filters");
static_assert(STRIDE_DOWN * STRIDE_ACROSS * DILATION_DOWN * DILATION_ACROSS * GROUPS == 1, "a plain convolution");
static_assert(CHANNELS % AT_ONCE == 0, "every turn has as many channels");
static_assert(!HELD || (TURNS == 1 && PANELS == 1), "registers hold the weights of one turn and one panel");
static_assert(ACROSS == 1 || PITCH % 2 == 0, "numbers are read in pairs");

template <class Precision>
struct Sizes {
    static constexpr int QUADS = Precision::QUADS;
    static constexpr int COUNT = FILTER_ROWS * QUADS;  // of a turn
    static constexpr int STEPS = parts(COUNT, 2);
    static constexpr int WEIGHT_BYTES = PANELS * TURNS * STEPS * PANEL * WARP * 4 * Precision::WORDS;
    static constexpr int SLOT_NUMBERS =
        CHANNELS * PLANE + (parts(BAND, DOWN) * DOWN - BAND) * PITCH + QUADS * Precision::QUAD;  // that are read

    // The steps that can be done once row `row` of the filters has met its row of the image, and not before.
    static constexpr int first_step(int row) { return row * QUADS / 2; }
    static constexpr int last_step(int row) { return row + 1 == FILTER_ROWS ? STEPS : (row + 1) * QUADS / 2; }
    static constexpr int MOST = QUADS / 2 + 1;  // of a row
};

// ---- Rows of an image into registers ----------------------------------------------------------------------------

// Where a lane reads of an item's rows: pairs of neighbouring numbers, and single ones.
template <typename Number>
struct Place {
    const Number* pairs;
    const Number* singles;
};

// One float of each quad of a lane's two items. Where numbers can be read in pairs, two quads share their 8 numbers so
// that a lane has two neighbours; weights follow suit.
template <int QUADS>
struct RawFloats {
    static constexpr int PAIRS = ACROSS == 1 ? 0 : QUADS / 2;
    float numbers[2][QUADS];

    __device__ __forceinline__ void load(const Place<float> (&from)[2], int offset) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const float2 both = *reinterpret_cast<const float2*>(from[which].pairs + offset + 8 * i);
                numbers[which][2 * i] = both.x;
                numbers[which][2 * i + 1] = both.y;
            }
#pragma unroll
            for (int i = 2 * PAIRS; i < QUADS; ++i) numbers[which][i] = from[which].singles[offset + 4 * i];
        }
    }
};

// ---- Weights ----------------------------------------------------------------------------------------------------

template <class Precision>
struct Weights {
    static constexpr int WORDS = Precision::WORDS, STEPS = HELD ? Sizes<Precision>::STEPS : 1;
    unsigned held[STEPS][HELD ? PANEL : 1][WORDS];
    const unsigned* from;  // the lane's own

    __device__ __forceinline__ static void read(const unsigned* from, unsigned (&words)[WORDS]) {
        if constexpr (WORDS == 4) {
            const uint4 found = *reinterpret_cast<const uint4*>(from);
            words[0] = found.x, words[1] = found.y, words[2] = found.z, words[3] = found.w;
        } else {
            const uint2 found = *reinterpret_cast<const uint2*>(from);
            words[0] = found.x, words[1] = found.y;
        }
    }
    __device__ __forceinline__ static constexpr int place(int step, int tile) {
        return (step * PANEL + tile) * WARP * WORDS;
    }
    __device__ __forceinline__ void hold() {
        if constexpr (HELD)
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int n = 0; n < PANEL; ++n) read(from + place(s, n), held[s][n]);
    }
    __device__ __forceinline__ void get(int step, int tile, unsigned (&words)[WORDS]) const {
        if constexpr (HELD)
#pragma unroll
            for (int i = 0; i < WORDS; ++i) words[i] = held[step][tile][i];
        else
            read(from + place(step, tile), words);
    }
};

// ---- Products ---------------------------------------------------------------------------------------------------

// The steps that a row of the filters completes, of channel `c` of the turn: row `ky - v * SLOPE` for output row v.
// GROUP tiles of the panel, from tile `first` on.
template <class Precision, int SLOPE, int GROUP>
__device__ __forceinline__ void multiply_group(const typename Precision::Row (&rows)[AT_ONCE][REACH], int c, int ky,
                                               int first, const Weights<Precision>& weights,
                                               float (&sums)[DOWN][PANEL][4]) {
    typedef Sizes<Precision> S;
    float products[DOWN][GROUP][4] = {};
    unsigned words[SLOPE ? 1 : S::MOST][GROUP][Precision::WORDS];
    if constexpr (SLOPE == 0)
#pragma unroll
        for (int i = 0; i < S::MOST; ++i)
#pragma unroll
            for (int n = 0; n < GROUP; ++n)
                if (S::first_step(c * KERNEL_HEIGHT + ky) + i < S::last_step(c * KERNEL_HEIGHT + ky))
                    weights.get(S::first_step(c * KERNEL_HEIGHT + ky) + i, first + n, words[i][n]);
#pragma unroll
    for (int pass = 0; pass < Precision::PASSES; ++pass)
#pragma unroll
        for (int i = 0; i < S::MOST; ++i)
#pragma unroll
            for (int v = 0; v < DOWN; ++v) {
                const int row = c * KERNEL_HEIGHT + ky - v * SLOPE, step = S::first_step(row) + i;
                if (ky - v * SLOPE < 0 || ky - v * SLOPE >= KERNEL_HEIGHT || step >= S::last_step(row)) continue;
                const int a = 2 * step / S::QUADS, b = (2 * step + 1) / S::QUADS;  // rows of the two quads
                const bool both = 2 * step + 1 < S::COUNT;
                const typename Precision::Row& left = rows[a / KERNEL_HEIGHT][a % KERNEL_HEIGHT + v];
                const typename Precision::Row& right = both ? rows[b / KERNEL_HEIGHT][b % KERNEL_HEIGHT + v] : left;
#pragma unroll
                for (int n = 0; n < GROUP; ++n) {
                    if constexpr (SLOPE) weights.get(step, first + n, words[0][n]);
                    Precision::multiply(pass, Precision::PASSES == 1 ? sums[v][first + n] : products[v][n], left,
                                        2 * step % S::QUADS, right, (2 * step + 1) % S::QUADS, both,
                                        words[SLOPE ? 0 : i][n]);
                }
            }
    if constexpr (Precision::PASSES > 1)
#pragma unroll
        for (int v = 0; v < DOWN; ++v)
            if (ky - v * SLOPE >= 0 && ky - v * SLOPE < KERNEL_HEIGHT)
#pragma unroll
                for (int n = 0; n < GROUP; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& sum = sums[v][first + n][i];
                        sum = TURNS == 1 && c == 0 && ky == v * SLOPE ? products[v][n][i] : sum + products[v][n][i];
                    }
}

// The same for all tiles of the panel.
template <class Precision>
__device__ __forceinline__ void multiply_row(const typename Precision::Row (&rows)[AT_ONCE][REACH], int c, int ky,
                                             const Weights<Precision>& weights, float (&sums)[DOWN][PANEL][4]) {
    constexpr int GROUP = smaller(PANEL, DOWN >= Precision::CHAINS ? 1 : Precision::CHAINS / DOWN);
    const unsigned turns = Precision::PASSES > 1 || !HELD ? ONCE : 1;
#pragma unroll
    for (int first = 0; first + GROUP <= PANEL; first += GROUP) {
        unsigned once = 0;
#pragma unroll 1
        do multiply_group<Precision, HELD, GROUP>(rows, c, ky, first, weights, sums);
        while (++once < turns);
    }
    if constexpr (PANEL % GROUP) {
        unsigned once = 0;
#pragma unroll 1
        do multiply_group<Precision, HELD, PANEL % GROUP>(rows, c, ky, PANEL / GROUP * GROUP, weights, sums);
        while (++once < turns);
    }
}

// Whether there are such steps at all.
template <class Precision>
__device__ __forceinline__ constexpr bool completes(int c, int ky) {
    for (int v = 0; v < (HELD ? DOWN : 1); ++v) {
        const int row = c * KERNEL_HEIGHT + ky - v;
        if (ky - v < 0 || ky - v >= KERNEL_HEIGHT) continue;
        if (Sizes<Precision>::first_step(row) < Sizes<Precision>::last_step(row)) return true;
    }
    return false;
}

// 16 items times a turn's channels. Weights in registers cost nothing to come back to: each row of the image is used up
// when it is read. Otherwise each row of the filters is used up, and DOWN rows of the image wait in registers.
//
// A row is read before the one ahead of it is used.
template <class Precision>
__device__ __forceinline__ void multiply_turn(const Place<typename Precision::Input> (&from)[2],
                                              const Weights<Precision>& weights, float (&sums)[DOWN][PANEL][4]) {
    constexpr int WAITING = HELD ? 0 : DOWN - 1, USES = REACH - WAITING;
    typename Precision::Row rows[AT_ONCE][REACH];
    typename Precision::Raw raw;
#pragma unroll
    for (int c = 0; c < AT_ONCE; ++c) {
#pragma unroll
        for (int r = 0; r < WAITING; ++r) {
            raw.load(from, c * PLANE + r * PITCH);
            rows[c][r].take(raw);
        }
        if (WAITING || c == 0) raw.load(from, c * PLANE + WAITING * PITCH);
#pragma unroll
        for (int r = 0; r < USES; ++r) {
            const typename Precision::Raw present = raw;
            if (r + 1 < USES)
                raw.load(from, c * PLANE + (WAITING + r + 1) * PITCH);
            else if (WAITING == 0 && c + 1 < AT_ONCE)
                raw.load(from, (c + 1) * PLANE);
            rows[c][WAITING + r].take(present);
            if (completes<Precision>(c, r)) multiply_row(rows, c, r, weights, sums);
        }
    }
}
