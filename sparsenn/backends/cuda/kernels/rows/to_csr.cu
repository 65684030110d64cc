// count_numbers and list_numbers: the numbers of a dense matrix that are not zero, as CSR with indices of 32 bits.
//
// Idea      A warp takes a row, its lanes neighbouring numbers; those that are not zero find their places by a vote.
// Layout    matrix (rows, width) of NUMBER; counts (rows,). offsets (rows + 1,), from a scan of the counts, become starts
//           (rows + 1,); columns and values have an entry for each number, by row and then by column.
// Needs     blocks of whole warps, any number of them: they go on in strides. NaN is not zero; -0.0 is.
#include "common.cuh"
#include "ptx/numbers.cuh"

__device__ __forceinline__ float as_float(float number) { return number; }
__device__ __forceinline__ float as_float(half_bits number) { return to_float(number); }

__device__ __forceinline__ int64 first_row() { return (blockIdx.x * static_cast<int64>(blockDim.x) + threadIdx.x) / WARP; }
__device__ __forceinline__ int64 rows_at_once() { return static_cast<int64>(gridDim.x) * blockDim.x / WARP; }

extern "C" __global__ void count_numbers(int64 rows, int64 width, const NUMBER* __restrict__ matrix,
                                         int64* __restrict__ counts) {
    const int lane = threadIdx.x % WARP;
    for (int64 row = first_row(); row < rows; row += rows_at_once()) {
        int count = 0;
        for (int64 column = lane; column < width; column += WARP) count += as_float(matrix[row * width + column]) != 0.0f;
        count = warp_sum(count);
        if (lane == 0) counts[row] = count;
    }
}

extern "C" __global__ void list_numbers(int64 rows, int64 width, const NUMBER* __restrict__ matrix,
                                        const int64* __restrict__ offsets, int* __restrict__ starts,
                                        int* __restrict__ columns, float* __restrict__ values) {
    const int lane = threadIdx.x % WARP;
    for (int64 row = first_row(); row <= rows; row += rows_at_once()) {
        int64 place = offsets[row];
        if (lane == 0) starts[row] = static_cast<int>(place);
        if (row == rows) continue;
        for (int64 begin = 0; begin < width; begin += WARP) {
            const int64 column = begin + lane;
            const float number = column < width ? as_float(matrix[row * width + column]) : 0.0f;
            const unsigned votes = __ballot_sync(ALL_LANES, number != 0.0f);
            if (number != 0.0f) {
                const int64 at = place + __popc(votes & lanes_below(lane));
                columns[at] = static_cast<int>(column);
                values[at] = number;
            }
            place += __popc(votes);
        }
    }
}
