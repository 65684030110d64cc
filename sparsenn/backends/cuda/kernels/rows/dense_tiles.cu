// dense_tiles: dense rows into tiles, and back.
//
// Idea      A block turns 32 rows by 128 columns in shared memory. Blocks that are started one after the other have
//           neighbouring columns, so that memory is read in long runs.
// Layout    matrix (rows, width) float32; tiles (tiles, width, side) float32, side a multiple of 32, as in rows/tiles.cu.
// Needs     blocks of 256; one for each 128 columns of each 32 rows of the tiles.
// Used for  the rows of gather_chunks, which stay in tiles from layer to layer.
#include "common.cuh"
#include "rows/turned_piece.cuh"

// Where a block's piece is.
struct Place {
    int64 first_row;
    int first_column, columns;
    int64 line;  // where the first one's rows begin, in tiles

    __device__ __forceinline__ Place(int width, int side) {
        const int across = (width + PIECE_COLUMNS - 1) / PIECE_COLUMNS;
        first_column = blockIdx.x % across * PIECE_COLUMNS;
        columns = min(PIECE_COLUMNS, width - first_column);
        first_row = static_cast<int64>(blockIdx.x / across) * PIECE_ROWS;
        line = (first_row / side * width + first_column) * side + first_row % side;
    }
};

// Rows past the last are zeros.
extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    rows_to_tiles(const float* __restrict__ matrix, float* __restrict__ tiles, int rows, int width, int side) {
    __shared__ __align__(16) TurnedPiece piece;
    const Place place(width, side);
    const auto at = [&](int row) -> const float* {
        const int64 number = place.first_row + row;
        return number < rows ? matrix + number * width + place.first_column : nullptr;
    };
    piece.rows_in(at, place.columns, by_fours(matrix, width));
    __syncthreads();
    piece.lines_out(tiles + place.line, side, place.columns);
}

extern "C" __global__ void __launch_bounds__(TURNING_THREADS)
    tiles_to_rows(const float* __restrict__ tiles, float* __restrict__ matrix, int rows, int width, int side) {
    __shared__ __align__(16) TurnedPiece piece;
    const Place place(width, side);
    const auto at = [&](int row) -> float* {
        const int64 number = place.first_row + row;
        return number < rows ? matrix + number * width + place.first_column : nullptr;
    };
    piece.lines_in(tiles + place.line, side, place.columns);
    __syncthreads();
    piece.rows_out(at, place.columns, by_fours(matrix, width), [](int, int, const float (&)[FOUR]) {});
}
