// What the plain rungs of gemm and conv2d share: four ways to compute a product of two matrices, left times right.
//
// What is multiplied is a policy: gemm's matrices lie in memory (matrices.cuh); of a convolution the left one is
// the filters, the right one has a column of inputs for each pixel of the outputs and exists nowhere
// (patches.cuh of studies/conv2d). A policy has
//
//   rows(), columns(), depth()       sizes; an output is a sum of `depth` terms
//   Row row(int), Column column(int64)  where a row of the left factor and a column of the right one are read
//   Term term(int), each_term(body)  what is known of a term; and all of them in turn
//   left(Row, Term), right(Column, Term)  two factors
//   store(int, int64, float)         takes the sum of a row and a column
#pragma once
#include "common.cuh"

__device__ __forceinline__ int64 parts_of(int64 total, int size) { return (total + size - 1) / size; }

// One output a thread. Neighbouring threads have neighbouring rows (ROWS_ACROSS) or neighbouring columns.
template <bool ROWS_ACROSS, typename Product>
__device__ __forceinline__ void one_output_a_thread(const Product& product) {
    const int64 output = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64 across = ROWS_ACROSS ? product.rows() : product.columns();
    if (output >= product.rows() * product.columns()) return;
    const int64 further = output / across, near = output - further * across;
    const int row = static_cast<int>(ROWS_ACROSS ? near : further);
    const int64 column = ROWS_ACROSS ? further : near;
    const auto left = product.row(row);
    const auto right = product.column(column);
    float sum = 0.0f;
    product.each_term([&](const auto& term) { sum = fmaf(product.left(left, term), product.right(right, term), sum); });
    product.store(row, column, sum);
}

// The tile of SQUARE * OWN rows and columns that a block computes. Thread (x, y) has the columns x, x + SQUARE, ... and
// the rows y, y + SQUARE, ... of it, so that the lanes of a warp read and write neighbours. Blocks that follow each other
// have the same columns. Beyond the last row or column, the last one is computed again and not stored.
template <int SQUARE, int OWN>
struct Tile {
    static constexpr int SIZE = SQUARE * OWN;
    int row, x, y;
    int64 column;

    template <typename Product>
    __device__ __forceinline__ explicit Tile(const Product& product)
        : x(threadIdx.x % SQUARE), y(threadIdx.x / SQUARE) {
        const unsigned tiles_down = static_cast<unsigned>(parts_of(product.rows(), SIZE));
        row = static_cast<int>(blockIdx.x % tiles_down) * SIZE;
        column = static_cast<int64>(blockIdx.x / tiles_down) * SIZE;
    }

    template <typename Product>
    __device__ __forceinline__ int row_within(const Product& product, int at) const {
        return static_cast<int>(row + at < product.rows() ? row + at : product.rows() - 1);
    }

    template <typename Product>
    __device__ __forceinline__ int64 column_within(const Product& product, int at) const {
        return column + at < product.columns() ? column + at : product.columns() - 1;
    }

    template <typename Product>
    __device__ __forceinline__ void store(const Product& product, const float (&sums)[OWN][OWN]) const {
#pragma unroll
        for (int i = 0; i < OWN; ++i)
#pragma unroll
            for (int j = 0; j < OWN; ++j)
                if (row + y + i * SQUARE < product.rows() && column + x + j * SQUARE < product.columns())
                    product.store(row + y + i * SQUARE, column + x + j * SQUARE, sums[i][j]);
    }
};

// OWN x OWN outputs a thread, in registers: a factor that is read serves OWN of them.
template <int SQUARE, int OWN, typename Product>
__device__ __forceinline__ void tile_in_registers(const Product& product) {
    const Tile<SQUARE, OWN> tile(product);
    typename Product::Row lefts[OWN];
    typename Product::Column rights[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        lefts[i] = product.row(tile.row_within(product, tile.y + i * SQUARE));
        rights[i] = product.column(tile.column_within(product, tile.x + i * SQUARE));
    }
    float sums[OWN][OWN] = {};
    product.each_term([&](const auto& term) {
        float left[OWN], right[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            left[i] = product.left(lefts[i], term);
            right[i] = product.right(rights[i], term);
        }
#pragma unroll
        for (int i = 0; i < OWN; ++i)
#pragma unroll
            for (int j = 0; j < OWN; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    });
    tile.store(product, sums);
}

// The same; a block puts LENGTH terms of its rows and columns into shared memory, then all threads multiply.
template <int SQUARE, int OWN, int LENGTH, typename Product>
__device__ __forceinline__ void tile_in_shared_memory(const Product& product) {
    constexpr int SIZE = SQUARE * OWN, COUNT = SQUARE * SQUARE;
    static_assert(COUNT % LENGTH == 0 && COUNT % SIZE == 0, "a block reads whole rows of a tile");
    __shared__ float lefts[LENGTH][SIZE + 2], rights[LENGTH][SIZE];  // + 2: lanes write to banks of their own
    const Tile<SQUARE, OWN> tile(product);
    const int thread = threadIdx.x;
    const auto column = product.column(tile.column_within(product, thread % SIZE));
    float sums[OWN][OWN] = {};
    for (int first = 0; first < product.depth(); first += LENGTH) {
        const int own = first + thread % LENGTH;
        const auto own_term = product.term(own);
        for (int row = thread / LENGTH; row < SIZE; row += COUNT / LENGTH) {
            const auto left = product.row(tile.row_within(product, row));
            lefts[thread % LENGTH][row] = own < product.depth() ? product.left(left, own_term) : 0.0f;
        }
        for (int k = thread / SIZE; k < LENGTH; k += COUNT / SIZE)
            rights[k][thread % SIZE] =
                first + k < product.depth() ? product.right(column, product.term(first + k)) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < LENGTH; ++k) {
            float left[OWN], right[OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                left[i] = lefts[k][tile.y + i * SQUARE];
                right[i] = rights[k][tile.x + i * SQUARE];
            }
#pragma unroll
            for (int i = 0; i < OWN; ++i)
#pragma unroll
                for (int j = 0; j < OWN; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
        __syncthreads();
    }
    tile.store(product, sums);
}
