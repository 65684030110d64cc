// dense_tiles: dense rows into tiles, and back.
//
// Idea      A block turns 32 rows by 128 columns in shared memory. Along rows, a warp moves 512 neighbouring bytes; along
//           lines, 128 bytes of each of four. Blocks that are started one after the other have neighbouring columns, so
//           that memory is read in long runs.
// Layout    matrix (rows, width) float32; tiles (tiles, width, side) float32, side a multiple of 32, as in rows/tiles.cu.
//           In shared memory, a line's rows are exchanged by a number that is the same for four neighbouring lines: lanes
//           that take four columns of one row each find these in 32 banks.
// Needs     blocks of 256; one for each 128 columns of each 32 rows of the tiles.
// Used for  the rows of gather_chunks, which stay in tiles from layer to layer.
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP, FOUR = 4;
constexpr int SIDE = WARP, COLUMNS = FOUR * WARP;
constexpr int LINES_AT_ONCE = THREADS * FOUR / SIDE;  // of all threads, four rows each

// What a block turns.
struct Piece {
    float values[COLUMNS][SIDE];

    __device__ __forceinline__ static int exchanged(int line) { return line / FOUR % WARP; }

    // Row `row`, columns 4 * lane and on.
    __device__ __forceinline__ void put_row(int row, int lane, const float (&four)[FOUR]) {
#pragma unroll
        for (int k = 0; k < FOUR; k++) values[FOUR * lane + k][row ^ lane] = four[k];
    }
    __device__ __forceinline__ void take_row(int row, int lane, float (&four)[FOUR]) const {
#pragma unroll
        for (int k = 0; k < FOUR; k++) four[k] = values[FOUR * lane + k][row ^ lane];
    }

    // A line's rows 4 * part and on.
    __device__ __forceinline__ void put_line(int line, int part, float4 four) {
        const int by = exchanged(line);
        *reinterpret_cast<float4*>(&values[line][(FOUR * part ^ by) / FOUR * FOUR]) = among_four(four, by % FOUR);
    }
    __device__ __forceinline__ float4 take_line(int line, int part) const {
        const int by = exchanged(line);
        return among_four(*reinterpret_cast<const float4*>(&values[line][(FOUR * part ^ by) / FOUR * FOUR]), by % FOUR);
    }

    // Number k becomes number k ^ by.
    __device__ __forceinline__ static float4 among_four(float4 four, int by) {
        if (by & 1) four = make_float4(four.y, four.x, four.w, four.z);
        if (by & 2) four = make_float4(four.z, four.w, four.x, four.y);
        return four;
    }
};

// Where a block's piece is.
struct Place {
    int64 first_row;
    int first_column, columns;
    float* lines;  // the first one's first row

    __device__ __forceinline__ Place(float* tiles, int width, int side) {
        const int across = (width + COLUMNS - 1) / COLUMNS;
        const int64 part = blockIdx.x / across;  // of 32 rows
        first_column = blockIdx.x % across * COLUMNS;
        columns = min(COLUMNS, width - first_column);
        first_row = part * SIDE;
        lines = tiles + (first_row / side * width + first_column) * side + first_row % side;
    }
};

__device__ __forceinline__ bool by_fours(const float* matrix, int width) {
    return width % FOUR == 0 && reinterpret_cast<uint64>(matrix) % sizeof(float4) == 0;
}

// Rows past the last are zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows_to_tiles(const float* __restrict__ matrix, float* __restrict__ tiles, int rows, int width, int side) {
    __shared__ __align__(16) Piece piece;
    const Place place(tiles, width, side);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool aligned = by_fours(matrix, width);
    float found[SIDE / WARPS][FOUR] = {};
#pragma unroll
    for (int k = 0; k < SIDE / WARPS; k++) {
        const int64 row = place.first_row + warp + k * WARPS;
        const float* own = matrix + row * width + place.first_column + FOUR * lane;
        if (row >= rows) continue;
        if (aligned) {
            if (FOUR * lane < place.columns) {
                const float4 four = *reinterpret_cast<const float4*>(own);
                found[k][0] = four.x, found[k][1] = four.y, found[k][2] = four.z, found[k][3] = four.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                if (FOUR * lane + i < place.columns) found[k][i] = own[i];
        }
    }
#pragma unroll
    for (int k = 0; k < SIDE / WARPS; k++) piece.put_row(warp + k * WARPS, lane, found[k]);
    __syncthreads();
    const int part = threadIdx.x % (SIDE / FOUR);
    for (int line = threadIdx.x / (SIDE / FOUR); line < place.columns; line += LINES_AT_ONCE)
        *reinterpret_cast<float4*>(place.lines + static_cast<int64>(line) * side + FOUR * part) =
            piece.take_line(line, part);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tiles_to_rows(float* __restrict__ tiles, float* __restrict__ matrix, int rows, int width, int side) {
    __shared__ __align__(16) Piece piece;
    const Place place(tiles, width, side);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int part = threadIdx.x % (SIDE / FOUR), first_line = threadIdx.x / (SIDE / FOUR);
    float4 found[COLUMNS / LINES_AT_ONCE];
#pragma unroll
    for (int k = 0; k < COLUMNS / LINES_AT_ONCE; k++) {
        const int line = first_line + k * LINES_AT_ONCE;
        if (line < place.columns)
            found[k] = *reinterpret_cast<const float4*>(place.lines + static_cast<int64>(line) * side + FOUR * part);
    }
#pragma unroll
    for (int k = 0; k < COLUMNS / LINES_AT_ONCE; k++) {
        const int line = first_line + k * LINES_AT_ONCE;
        if (line < place.columns) piece.put_line(line, part, found[k]);
    }
    __syncthreads();
    const bool aligned = by_fours(matrix, width);
#pragma unroll
    for (int k = 0; k < SIDE / WARPS; k++) {
        const int64 row = place.first_row + warp + k * WARPS;
        float* own = matrix + row * width + place.first_column + FOUR * lane;
        float four[FOUR];
        if (row >= rows || FOUR * lane >= place.columns) continue;
        piece.take_row(warp + k * WARPS, lane, four);
        if (aligned) {
            *reinterpret_cast<float4*>(own) = make_float4(four[0], four[1], four[2], four[3]);
        } else {
#pragma unroll
            for (int i = 0; i < FOUR; i++)
                if (FOUR * lane + i < place.columns) own[i] = four[i];
        }
    }
}
