// to_dense: sparse rows as a dense matrix.
//
// Idea      A block takes a piece of a row, a thread an entry at a time; positions without an entry were zero before.
//           Rows are cut into pieces so that few long rows, such as images, keep all multiprocessors busy.
// Layout    CSR rows, iso or not; matrix (rows, width) by rows, zeros at first.
// Needs     the grid's first dimension covers width in pieces of PIECE entries, its second any rows.
#include "common.cuh"

extern "C" __global__ void to_dense(int64 rows, int64 width, const int64* __restrict__ offsets,
                                    const INDEX* __restrict__ indices, const float* __restrict__ values, int iso,
                                    float* __restrict__ matrix) {
    for (int64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64 first = offsets[row] + static_cast<int64>(blockIdx.x) * PIECE;
        const int64 last = min(offsets[row + 1], first + PIECE);
        for (int64 entry = first + threadIdx.x; entry < last; entry += blockDim.x)
            matrix[row * width + indices[entry]] = values[iso ? 0 : entry];
    }
}
