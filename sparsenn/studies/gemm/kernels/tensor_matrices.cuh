// c = a b for row-major matrices a (rows x depth), b (depth x columns) and c (rows x columns), on the tensor cores: the
// source of products/tensor.cuh, and the kernel.
//
// A slab of a has a line of 128 bytes for each row, of which the 16-byte unit u lies in place u ^ (row % 8): eight rows'
// same units, which a matrix instruction reads at a time, are in different banks. A slab of b has its rows as they come,
// one for each term. Halves are transposed as they are read (ldmatrix), with units in place u ^ (term % 8) likewise.
// Floats cannot be; a lane reads four neighbours at once and takes them for the same column of four tiles. So the columns
// 4 (2 t + e) + i of 32 belong to tile i, and a lane's sums are of eight neighbours.
//
// INPUT, OUTPUT: float or half_bits. ALIGNED: rows of a and b begin at multiples of 16 bytes, not only of 4.
#pragma once
#include "products/tensor.cuh"

typedef INPUT Input;
typedef OUTPUT Output;
static_assert(sizeof(Input) == BYTES, "halves are multiplied as halves, floats as floats");

constexpr int UNIT = 16 / BYTES;  // numbers of 16 bytes
constexpr int STAGE_BYTES = (BM + BN) * LINE;
constexpr int B_LINE = BN * BYTES;
constexpr int B_UNITS = B_LINE / 16;
constexpr int GROUP = 8;  // rows of tiles that follow each other, so that what blocks read at a time is little

static_assert((BN & (BN - 1)) == 0 && BN >= 32, "units of a line of b are paired with lines by bits");
static_assert(KIND == TENSOR_HALF || WARP_COLUMNS % 32 == 0, "floats of b are read for four tiles at a time");

struct Matrices {
    const Input* a;
    const Input* b;
    int rows, columns, depth;
    int a_pitch, b_pitch;  // numbers from one row to the next
    int tiles_down, tiles_across;
};

// Which part of the depth and which tile a block has.
struct Place {
    int part, tile, row, column;

    __device__ __forceinline__ explicit Place(const Matrices& given) {
        const int down = given.tiles_down, across = given.tiles_across, block = block_number();
        part = block / (down * across);
        tile = block - part * (down * across);
        const int group = tile / (GROUP * across), within = tile - group * GROUP * across;
        const int height = min(GROUP, down - group * GROUP);
        row = (group * GROUP + within % height) * BM;
        column = within / height * BN;
    }
};

// 16 bytes of a row: `present` numbers from `from` on, then zeros.
__device__ __forceinline__ void copy_unit(unsigned to, const Input* from, int present) {
    constexpr int SIZE = ALIGNED ? 16 : 4, COUNT = SIZE / BYTES;
#pragma unroll
    for (int i = 0; i < UNIT; i += COUNT)
        copy_later<SIZE>(to + i * BYTES, from + i, BYTES * min(max(present - i, 0), COUNT));
}

// The place of b's unit `unit` in the line of a term.
__device__ __forceinline__ int b_place(int term, int unit) {
    if constexpr (KIND != TENSOR_HALF) return unit ^ (2 * (term & 3));
    if constexpr (B_UNITS < 8) return unit ^ (term >> 1 & 3);
    return unit ^ (term & 7);
}

struct MatrixSource {
    static constexpr bool ROUNDED = false;
    static constexpr int A_STEP = THREADS / 8, B_STEP = THREADS / B_UNITS;  // rows that all threads copy at a time
    static constexpr int A_COPIES = BM / A_STEP, B_COPIES = TERMS / B_STEP;
    static_assert(BM % A_STEP == 0 && THREADS % B_UNITS == 0 && TERMS % B_STEP == 0, "copies are shared evenly");
    static_assert(B_STEP % (KIND == TENSOR_HALF ? 8 : 4) == 0, "a thread's units lie in the same place of their lines");

    const Matrices& given;
    unsigned shared;
    int next;  // term that the next slab begins with
    bool whole;  // all rows and columns of the tile are there
    const Input* a_from;
    const Input* b_from;  // what this thread copies next
    unsigned a_to, b_to;  // and where to in a slab
    unsigned a_at, b_at;  // of this lane, in the slab that is being read

    __device__ __forceinline__ MatrixSource(const Matrices& given, unsigned shared, const Place& at, int first)
        : given(given), shared(shared), next(first) {
        const int thread = threadIdx.x, line = thread / 8, unit = thread % 8;
        const int term = thread / B_UNITS, b_unit = thread % B_UNITS;
        whole = at.row + BM <= given.rows && at.column + BN <= given.columns;
        a_from = given.a + static_cast<int64>(at.row + line) * given.a_pitch + first + unit * UNIT;
        b_from = given.b + static_cast<int64>(first + term) * given.b_pitch + at.column + b_unit * UNIT;
        a_to = shared + line * LINE + ((unit ^ (line & 7)) << 4);
        b_to = shared + BM * LINE + term * B_LINE + (b_place(term, b_unit) << 4);
    }

    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void leave() {}
    __device__ __forceinline__ void work(int) {}
    __device__ __forceinline__ bool needs(int) const { return true; }

    __device__ __forceinline__ void copy(int stage) {
        const unsigned a = a_to + stage * STAGE_BYTES, b = b_to + stage * STAGE_BYTES;
        if (whole && next + TERMS <= given.depth) {
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i)
                copy_unit(a + i * A_STEP * LINE, a_from + static_cast<int64>(given.a_pitch) * (i * A_STEP), UNIT);
#pragma unroll
            for (int i = 0; i < B_COPIES; ++i)
                copy_unit(b + i * B_STEP * B_LINE, b_from + static_cast<int64>(given.b_pitch) * (i * B_STEP), UNIT);
        } else {
            const Place at(given);
            const int line = at.row + threadIdx.x / 8, deep = given.depth - next - threadIdx.x % 8 * UNIT;
            const int term = next + threadIdx.x / B_UNITS, wide = given.columns - at.column - threadIdx.x % B_UNITS * UNIT;
#pragma unroll 1
            for (int i = 0; i < A_COPIES; ++i)
                copy_unit(a + i * A_STEP * LINE, a_from + static_cast<int64>(given.a_pitch) * (i * A_STEP),
                          line + i * A_STEP < given.rows ? deep : 0);
#pragma unroll 1
            for (int i = 0; i < B_COPIES; ++i)
                copy_unit(b + i * B_STEP * B_LINE, b_from + static_cast<int64>(given.b_pitch) * (i * B_STEP),
                          term + i * B_STEP < given.depth ? wide : 0);
        }
        next += TERMS;
        a_from += TERMS;
        b_from += static_cast<int64>(given.b_pitch) * TERMS;
    }

    __device__ __forceinline__ void enter(int stage) {
        const unsigned from = shared + stage * STAGE_BYTES;
        const int lane = lane_of_thread(), slice = slice_of_thread() * STEPS;
        const int line = warp_row() * WARP_ROWS + lane % 16;
        a_at = from + line * LINE + (((lane / 16 + 2 * slice) ^ (lane & 7)) << 4);
        b_at = from + BM * LINE + slice * (TERMS / 4) * B_LINE;
        if constexpr (KIND == TENSOR_HALF)
            b_at += lane % 16 * B_LINE + (b_place(lane % 16, warp_column() * (WARP_COLUMNS / 8) + lane / 16) << 4);
        else
            b_at += lane % 4 * B_LINE + (b_place(lane % 4, warp_column() * (WARP_COLUMNS / 4) + lane / 4) << 4);
    }

    __device__ __forceinline__ void read(Fragments& to, int step) const {
#pragma unroll
        for (int m = 0; m < MT; ++m) read_tiles(to.a[m], (a_at ^ (step << 5)) + m * 16 * LINE);
        const unsigned b = b_at + step * (TERMS / 4) * B_LINE;
        if constexpr (KIND == TENSOR_HALF) {
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                unsigned tiles[4];
                read_tiles_transposed(tiles, b ^ (n << 4));
                to.b[n][0] = tiles[0];
                to.b[n][1] = tiles[1];
                to.b[n + 1][0] = tiles[2];
                to.b[n + 1][1] = tiles[3];
            }
        } else {
#pragma unroll
            for (int n = 0; n < NT; n += 4) {
                unsigned upper[4], lower[4];
                read_four(upper, b + n * 32);
                read_four(lower, b + n * 32 + 4 * B_LINE);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    to.b[n + i][0] = upper[i];
                    to.b[n + i][1] = lower[i];
                }
            }
        }
    }
};

// Where a lane's sums belong. Four at a time, the `part`-th of tiles 2 `pair` and 2 `pair` + 1 or, of floats, of tiles
// 4 (pair / 2) and on, are neighbours in one row; lanes of halves exchange some for that.
struct Four {
    int column;  // within the warp's
    float values[4];
};

__device__ __forceinline__ Four four_sums(const Sums& sums, int m, int below, int pair, int lane) {
    const int t = lane % 4, i = 2 * below;
    Four found;
    if constexpr (KIND == TENSOR_HALF) {
        const float(&even)[4] = sums[m][2 * pair];
        const float(&odd)[4] = sums[m][2 * pair + 1];
        // The even lane of two takes both lanes' sums of the even tile, the odd lane those of the odd tile.
        const bool second = t % 2;
        const float other0 = __shfl_xor_sync(ALL_LANES, second ? even[i] : odd[i], 1);
        const float other1 = __shfl_xor_sync(ALL_LANES, second ? even[i + 1] : odd[i + 1], 1);
        found.column = 16 * pair + (second ? 8 : 0) + 4 * (t / 2);
        found.values[0] = second ? other0 : even[i];
        found.values[1] = second ? other1 : even[i + 1];
        found.values[2] = second ? odd[i] : other0;
        found.values[3] = second ? odd[i + 1] : other1;
    } else {
        const int first = pair / 2 * 4, e = pair % 2;
        found.column = 8 * first + 8 * t + 4 * e;
#pragma unroll
        for (int n = 0; n < 4; ++n) found.values[n] = sums[m][first + n][i + e];
    }
    return found;
}

// One number of c as float32 has it.
__device__ __forceinline__ float plain_sum(const Matrices& given, int row, int column) {
    float sum = 0.0f;
    if constexpr (KIND == TENSOR_FLOAT32)
#pragma unroll 1
        for (int k = 0; k < given.depth; ++k)
            sum = fmaf(given.a[static_cast<int64>(row) * given.a_pitch + k],
                       given.b[static_cast<int64>(k) * given.b_pitch + column], sum);
    return sum;
}

// Four neighbours of a row that begins at `line`, or as many as the row has left.
__device__ __forceinline__ void store(const Matrices& given, Output* line, int row, int column,
                                      const float (&values)[4]) {
    if (KIND == TENSOR_FLOAT32 && strange(values)) {
#pragma unroll 1
        for (int i = column; i < min(column + 4, given.columns); ++i) store_one(line + i, plain_sum(given, row, i));
    } else if (given.columns % 4 == 0) {
        store_four(line + column, values);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < given.columns) store_one(line + column + i, values[i]);
    }
}

// partial, counters: of each tile, as join_parts has them; a part is `part_slabs` slabs of the depth.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(const Input* __restrict__ a, const Input* __restrict__ b, Output* __restrict__ c, float4* partial,
         unsigned* counters, int rows, int columns, int depth, int a_pitch, int b_pitch, int tiles_down,
         int tiles_across, int parts, int part_slabs) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Matrices given{a, b, rows, columns, depth, a_pitch, b_pitch, tiles_down, tiles_across};
    Sums sums = {};
    {
        const Place at(given);
        const int slabs = (depth + TERMS - 1) / TERMS, first = at.part * part_slabs;
        MatrixSource source(given, shared_address(shared), at, first * TERMS);
        accumulate(source, sums, min(part_slabs, slabs - first));
    }
    const bool mine = join_slices(sums, shared);
    if (parts > 1) {
        const Place at(given);
        partial += static_cast<int64>(at.tile) * parts * (BM * BN / 4);
        if (!join_parts(sums, mine, partial, counters + at.tile, at.part, parts, shared)) return;
    }
    if (!mine) return;

    const Place at(given);
    const int lane = lane_of_thread();
    const int first_row = at.row + warp_row() * WARP_ROWS + lane / 4;
    const int first_column = at.column + warp_column() * WARP_COLUMNS;
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i)
#pragma unroll 1
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            const int down = first_row + 8 * i;
            Output* line = c + static_cast<int64>(down) * columns;
#pragma unroll
            for (int pair = 0; pair < NT / 2; ++pair) {
                const Four found = four_sums(sums, i / 2, i % 2, pair, lane);
                const int across = first_column + found.column;
                if (down < rows && across < columns) store(given, line, down, across, found.values);
            }
        }
}
