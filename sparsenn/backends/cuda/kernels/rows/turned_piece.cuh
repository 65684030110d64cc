// 32 rows by 128 columns that a block turns in shared memory, between rows and the lines of tiles.
//
// Along rows, a warp moves 512 neighbouring bytes; along lines, 128 bytes of each of four. In shared memory, a line's rows
// are exchanged by a number that is the same for four neighbouring lines: lanes that take four columns of one row each find
// these in 32 banks. A piece may be at the edge: `columns` are those that are there. Rows and lines are float32 or halves,
// the piece is float32.
#pragma once
#include "fours.cuh"

constexpr int TURNING_THREADS = 256, TURNING_WARPS = TURNING_THREADS / WARP;
constexpr int FOUR = 4, PIECE_ROWS = WARP, PIECE_COLUMNS = FOUR * WARP;
constexpr int PARTS = PIECE_ROWS / FOUR, LINES_AT_ONCE = TURNING_THREADS / PARTS;

struct AsItIs {
    __device__ __forceinline__ float operator()(int, float number) const { return number; }
};

struct TurnedPiece {
    float values[PIECE_COLUMNS][PIECE_ROWS];

    // From rows: at(row) is where the piece's columns of a row begin, null where there is no such row: that becomes zeros.
    // `by_fours`: as of the matrix. change(row, number) is what becomes of a number.
    template <class At, class Change = AsItIs>
    __device__ __forceinline__ void rows_in(At at, int columns, bool by_fours, Change change = {}) {
        const int lane = threadIdx.x % WARP, first = FOUR * lane;
        float found[PIECE_ROWS / TURNING_WARPS][FOUR] = {};
#pragma unroll
        for (int k = 0; k < PIECE_ROWS / TURNING_WARPS; k++) {
            const auto* own = at(row_of(k));
            if (!own) continue;
            if (by_fours) {
                if (first < columns) {
                    const float4 four = four_at(own + first);
                    found[k][0] = four.x, found[k][1] = four.y, found[k][2] = four.z, found[k][3] = four.w;
                }
            } else {
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    if (first + i < columns) found[k][i] = number_at(own + first + i);
            }
        }
#pragma unroll
        for (int k = 0; k < PIECE_ROWS / TURNING_WARPS; k++)
#pragma unroll
            for (int i = 0; i < FOUR; i++) values[first + i][row_of(k) ^ lane] = change(row_of(k), found[k][i]);
    }

    // To rows. seen(row, column, four) is told each lane's four numbers of a row, and the first one's column; all lanes of a
    // warp call it. Zeros are at the edge.
    template <class At, class Seen>
    __device__ __forceinline__ void rows_out(At at, int columns, bool by_fours, Seen seen) const {
        const int lane = threadIdx.x % WARP, first = FOUR * lane;
#pragma unroll
        for (int k = 0; k < PIECE_ROWS / TURNING_WARPS; k++) {
            auto* own = at(row_of(k));
            if (!own) continue;
            float four[FOUR];
#pragma unroll
            for (int i = 0; i < FOUR; i++) four[i] = first + i < columns ? values[first + i][row_of(k) ^ lane] : 0.0f;
            if (by_fours) {
                if (first < columns) store_four(own + first, four);
            } else {
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    if (first + i < columns) store_one(own + first + i, four[i]);
            }
            seen(row_of(k), first, four);
        }
    }

    // From lines and to them: `lines` is the first one's first row, each begins `side` numbers behind the one before.
    template <class T>
    __device__ __forceinline__ void lines_in(const T* lines, int side, int columns) {
        float4 found[PIECE_COLUMNS / LINES_AT_ONCE];
#pragma unroll
        for (int k = 0; k < PIECE_COLUMNS / LINES_AT_ONCE; k++)
            if (line_of(k) < columns)
                found[k] = four_at(lines + static_cast<int64>(line_of(k)) * side + FOUR * part());
#pragma unroll
        for (int k = 0; k < PIECE_COLUMNS / LINES_AT_ONCE; k++)
            if (line_of(k) < columns)
                *reinterpret_cast<float4*>(place(line_of(k))) = exchanged(found[k], line_of(k) / FOUR % FOUR);
    }
    template <class T>
    __device__ __forceinline__ void lines_out(T* lines, int side, int columns) {
#pragma unroll
        for (int k = 0; k < PIECE_COLUMNS / LINES_AT_ONCE; k++)
            if (line_of(k) < columns)
                store_four(lines + static_cast<int64>(line_of(k)) * side + FOUR * part(),
                           exchanged(*reinterpret_cast<const float4*>(place(line_of(k))), line_of(k) / FOUR % FOUR));
    }

   private:
    __device__ __forceinline__ static int row_of(int k) { return threadIdx.x / WARP + k * TURNING_WARPS; }
    __device__ __forceinline__ static int line_of(int k) { return threadIdx.x / PARTS + k * LINES_AT_ONCE; }
    __device__ __forceinline__ static int part() { return threadIdx.x % PARTS; }
    __device__ __forceinline__ float* place(int line) { return &values[line][(part() ^ line / FOUR / FOUR % PARTS) * FOUR]; }

    // Number k becomes number k ^ by.
    __device__ __forceinline__ static float4 exchanged(float4 four, int by) {
        if (by & 1) four = make_float4(four.y, four.x, four.w, four.z);
        if (by & 2) four = make_float4(four.z, four.w, four.x, four.y);
        return four;
    }
};
