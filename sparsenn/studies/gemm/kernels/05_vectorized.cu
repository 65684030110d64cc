// vectorized: four numbers at a time, and the next tiles of the factors under way.
//
// Idea      A thread computes 8 x 8 elements of the product, so that 16 numbers read serve 64 multiply-adds; it reads
//           them from shared memory four at a time, and all its loops are unrolled. Factors are copied to shared memory
//           by the hardware, past the registers, three tiles ahead of the multiplication. Where the product has too few
//           tiles for the device, the sums are cut into parts that blocks of their own compute, and add_parts adds
//           those up, always in the same order.
// Layout    a (rows x depth), b (depth x columns) and c (rows x columns), float32, row-major; parts are matrices like
//           c, one after the other.
// Needs     blocks of WARPS_DOWN * WARPS_ACROSS warps, one for each tile and, along y, part of the sums; QUADS (four
//           neighbours of b and c can be moved at a time) only where there are 4, 8, ... columns and both are aligned
//           to 16 bytes. add_parts: blocks of 256 threads.
// Before    shared_tiled.
// Changes   the size of the tiles, the width of reads, and when factors are copied.
#include "tiles_ahead.cuh"

// Threads copy single numbers of a, TERMS neighbours of a row and several rows at a time, and quads of b if they can.
struct Feed {
    static constexpr int ROWS_AT_ONCE = THREADS / TERMS, WIDE = QUADS ? QUAD : 1;
    static constexpr int COLUMN_THREADS = COLUMNS / WIDE, TERMS_AT_ONCE = THREADS / COLUMN_THREADS;

    const float* left;
    const float* right;
    int64 left_step, right_step;
    unsigned left_to, right_to;
    int rows_there, left_terms_there, right_terms_there;

    __device__ __forceinline__ Feed(unsigned stages, int rows, int columns, int depth, int row, int column, int term,
                                    const float* a, const float* b)
        : left_step(static_cast<int64>(ROWS_AT_ONCE) * depth),
          right_step(static_cast<int64>(TERMS_AT_ONCE < TERMS ? TERMS_AT_ONCE : TERMS) * columns) {
        const int own_row = threadIdx.x / TERMS, own_term = threadIdx.x % TERMS;
        left = a + static_cast<int64>(row + own_row) * depth + term + own_term;
        left_to = stages + (own_term * (ROWS + QUAD) + own_row) * sizeof(float);
        rows_there = rows - row - own_row;
        left_terms_there = depth - term - own_term;
        const int own_column = threadIdx.x % COLUMN_THREADS * WIDE, first = threadIdx.x / COLUMN_THREADS;
        right = b + static_cast<int64>(term + first) * columns + column + own_column;
        right_to = stages + RIGHT_BYTES + (first * COLUMNS + own_column) * sizeof(float);
        right_terms_there = column + own_column < columns ? depth - term - first : 0;
    }

    __device__ __forceinline__ void copy(unsigned stage) {
        const int rows = left_terms_there > 0 ? rows_there : 0;
        const float* from = left;
#pragma unroll
        for (int row = 0; row < ROWS; row += ROWS_AT_ONCE, from += left_step)
            copy_later<4>(left_to + stage + row * sizeof(float), from, row < rows ? 4 : 0);
        left += TERMS;
        left_terms_there -= TERMS;
#pragma unroll
        for (int term = 0; term < TERMS; term += TERMS_AT_ONCE, right += right_step)
            if (TERMS_AT_ONCE <= TERMS || static_cast<int>(threadIdx.x) < TERMS * COLUMN_THREADS)
                copy_later<4 * WIDE>(right_to + stage + term * (COLUMNS * sizeof(float)), right,
                                     term < right_terms_there ? 4 * WIDE : 0);
        right_terms_there -= TERMS;
    }
};

// c: the product, or the parts' sums where there are several. tiles: of terms, that a part consists of at most.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(int rows, int columns, int depth, int tiles, const float* __restrict__ a, const float* __restrict__ b,
         float* __restrict__ c) {
    const unsigned tiles_down = (static_cast<unsigned>(rows) + ROWS - 1) / ROWS;
    const int row = static_cast<int>(blockIdx.x % tiles_down) * ROWS;
    const int column = static_cast<int>(blockIdx.x / tiles_down) * COLUMNS;
    const int first = static_cast<int>(blockIdx.y) * tiles, all = (depth + TERMS - 1) / TERMS;
    const Place place;
    float sums[EACH][EACH] = {};
    const int count = all - first < tiles ? all - first : tiles;
    add_tiles<Feed>(sums, place, count, rows, columns, depth, row, column, first * TERMS, a, b);
    float* part = c + static_cast<int64>(blockIdx.y) * rows * columns;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int to_row = row + place.row + Place::row_of(i);
        if (to_row >= rows) continue;
#pragma unroll
        for (int j = 0; j < EACH; j += QUAD) {
            const int to_column = column + place.column + Place::column_of(j);
            float* to = part + static_cast<int64>(to_row) * columns + to_column;
            if constexpr (QUADS) {
                if (to_column < columns)
                    *reinterpret_cast<float4*>(to) =
                        make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            } else {
#pragma unroll
                for (int at = 0; at < QUAD; ++at)
                    if (to_column + at < columns) to[at] = sums[i][j + at];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    add_parts(int64 count, int parts, const float* __restrict__ sums, float* __restrict__ c) {
    const int64 element = static_cast<int64>(blockIdx.x) * 256 + threadIdx.x;
    if (element >= count) return;
    float sum = sums[element];
    for (int part = 1; part < parts; ++part) sum += sums[part * count + element];
    c[element] = sum;
}
