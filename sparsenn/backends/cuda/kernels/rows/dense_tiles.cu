// dense_tiles: dense rows into tiles, and back.
//
// Idea      A block turns 32 rows by 128 columns in shared memory. Blocks that are started one after the other have
//           neighbouring columns, so that memory is read in long runs.
// Layout    matrix (rows, width) of ROW, tiles (tiles, room, side) of TILED: float or half_bits; side a multiple of 32, the
//           first `width` lines of a tile in use, as in rows/tiles.cu. Into tiles of halves, rows are scaled, as
//           sparse/two_of_four.cu says.
// Needs     blocks of 256; one for each 128 columns of each 32 rows of the tiles, and any number for largest_numbers.
// Used for  the rows of gather_chunks and gather_chunks_half, which stay in tiles from layer to layer.
#include "common.cuh"
#include "rows/turned_piece.cuh"
#include "sparse/row_scale.cuh"

#ifndef ROW
#define ROW float
#define TILED float
#endif

constexpr bool SCALED = sizeof(TILED) == sizeof(half_bits);

// Where a block's piece is.
struct Place {
    int64 first_row;
    int first_column, columns;
    int64 line;  // where the first one's rows begin, in tiles

    __device__ __forceinline__ Place(int width, int side, int room) {
        const int across = (width + PIECE_COLUMNS - 1) / PIECE_COLUMNS;
        first_column = blockIdx.x % across * PIECE_COLUMNS;
        columns = min(PIECE_COLUMNS, width - first_column);
        first_row = static_cast<int64>(blockIdx.x / across) * PIECE_ROWS;
        line = (first_row / side * room + first_column) * side + first_row % side;
    }
};

// largest: for each of `layers`, of `capacity` rows, the bits of the largest number: of the first the row's, of the others 0.
// exponents: how rows are scaled for the first. Rows past the last are zeros, up to `all`. A warp looks at one.
extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    largest_numbers(const ROW* __restrict__ matrix, int* __restrict__ exponents, int* __restrict__ largest, int64 rows,
                    int64 all, int64 capacity, int width, int layers) {
    const int lane = threadIdx.x % WARP;
    const int64 first = static_cast<int64>(blockIdx.x) * TURNING_WARPS + threadIdx.x / WARP;
    const bool fours = by_fours(matrix, width);
    for (int64 row = first; row < all; row += static_cast<int64>(gridDim.x) * TURNING_WARPS) {
        const ROW* own = matrix + row * width;
        int most = 0;
        if (row < rows && fours) {
#pragma unroll 8
            for (int column = FOUR * lane; column < width; column += FOUR * WARP)
                most = max(most, largest_bits(four_at(own + column)));
        } else if (row < rows) {
#pragma unroll 8
            for (int column = lane; column < width; column += WARP)
                most = max(most, bits_of_size(number_at(own + column)));
        }
        most = warp_max(most);
        if (lane == 0) exponents[row] = exponent_above(__int_as_float(most));
        for (int layer = lane; layer < layers; layer += WARP) largest[layer * capacity + row] = layer == 0 ? most : 0;
    }
}

// Rows past the last are zeros. exponents: null where rows are not scaled.
extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    rows_to_tiles(const ROW* __restrict__ matrix, TILED* __restrict__ tiles, const int* __restrict__ exponents, int rows,
                  int width, int side, int room) {
    __shared__ __align__(16) TurnedPiece piece;
    const Place place(width, side, room);
    const auto at = [&](int row) -> const ROW* {
        const int64 number = place.first_row + row;
        return number < rows ? matrix + number * width + place.first_column : nullptr;
    };
    if constexpr (SCALED) {
        piece.rows_in(at, place.columns, by_fours(matrix, width), [&](int row, float number) {
            return scaled(number, scale_to(__ldg(exponents + place.first_row + row)));
        });
    } else {
        piece.rows_in(at, place.columns, by_fours(matrix, width));
    }
    __syncthreads();
    piece.lines_out(tiles + place.line, side, place.columns);
}

extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    tiles_to_rows(const TILED* __restrict__ tiles, ROW* __restrict__ matrix, int rows, int width, int side, int room) {
    __shared__ __align__(16) TurnedPiece piece;
    const Place place(width, side, room);
    const auto at = [&](int row) -> ROW* {
        const int64 number = place.first_row + row;
        return number < rows ? matrix + number * width + place.first_column : nullptr;
    };
    piece.lines_in(tiles + place.line, side, place.columns);
    __syncthreads();
    piece.rows_out(at, place.columns, by_fours(matrix, width), [](int, int, const float (&)[FOUR]) {});
}
