// transpose: a matrix of each image turned over, between images as the engine has them and a library's with channels last.
//
// Idea      cuDNN multiplies in TF32 and in half precision where the channels of a pixel are neighbours. A block takes a tile
//           through shared memory, so that both reads and writes are of neighbours: channels by pixels before the
//           library's convolution, and pixels by channels after it, then with bias and activation on the way (FINISH).
// Layout    from (images, rows, columns) of FROM to (images, columns, rows) of TO, float or half_bits. The bias is of the
//           columns.
// Needs     blocks of TILE x DOWN threads, one for TILE x TILE numbers of an image, and (TILE + 1) x TILE floats of shared
//           memory. Numbers beyond half precision become infinite where TO is half_bits.
// Before    the library's own kernels for images with channels first, which do the same, but more slowly.
// Changes   bias and activation take no pass of their own.
#include "common.cuh"
#include "fours.cuh"
#include "ptx/opaque.cuh"

constexpr int TILE = 32, DOWN = 8;  // numbers of a tile each way, and rows that a block's threads take at once

extern "C" __global__ void __launch_bounds__(TILE* DOWN)
    transpose(const FROM* __restrict__ from, TO* __restrict__ to, const float* __restrict__ bias, int rows, int columns,
              int tiles_down, int tiles_across, int activation, float clip) {
    extern __shared__ __align__(16) unsigned char shared[];
    float* tile = reinterpret_cast<float*>(shared);
    const int block = block_number(), rest = block / tiles_across, image = rest / tiles_down;
    const int first_column = (block - rest * tiles_across) * TILE, first_row = (rest - image * tiles_down) * TILE;
    const int across = threadIdx.x % TILE, down = threadIdx.x / TILE;
    const int64 size = static_cast<int64>(rows) * columns;
    from += image * size;
    to += image * size;
    const int column = first_column + across;
#pragma unroll
    for (int i = 0; i < TILE / DOWN; ++i) {
        const int row = first_row + down + i * DOWN;
        if (row < rows && column < columns)
            tile[(down + i * DOWN) * (TILE + 1) + across] = number_at(from + static_cast<int64>(row) * columns + column);
    }
    __syncthreads();
    const int row = first_row + across;
#pragma unroll
    for (int i = 0; i < TILE / DOWN; ++i) {
        const int output_row = first_column + down + i * DOWN;
        if (row < rows && output_row < columns) {
            float value = tile[across * (TILE + 1) + down + i * DOWN];
            if constexpr (FINISH) value = activate(value + __ldg(bias + output_row), activation, clip);
            store_one(to + static_cast<int64>(output_row) * rows + row, value);
        }
    }
}
