// from_dense: the non-zeros of a dense matrix as CSR.
//
// Idea      A warp takes a row 32 columns at a time; a vote says which are not zero, and the votes below a lane's own
//           where its entry goes. Columns come out in order.
// Layout    matrix (rows, width) by rows; offsets (rows + 1,) int64, the scan of each row's non-zeros (rows/count.cu).
// Needs     blocks of whole warps.
#include "common.cuh"

extern "C" __global__ void from_dense(int rows, int width, const float* __restrict__ matrix,
                                      const int64* __restrict__ offsets, INDEX* __restrict__ indices,
                                      float* __restrict__ values) {
    const int lane = threadIdx.x % WARP;
    for (int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < rows;
         row += gridDim.x * (blockDim.x / WARP)) {
        int64 place = offsets[row];
        for (int start = 0; start < width; start += WARP) {
            const int column = start + lane;
            const float value = column < width ? matrix[static_cast<int64>(row) * width + column] : 0.0f;
            const unsigned votes = __ballot_sync(ALL_LANES, value != 0.0f);
            if (value != 0.0f) {
                const int64 slot = place + __popc(votes & lanes_below(lane));
                indices[slot] = static_cast<INDEX>(column);
                values[slot] = value;
            }
            place += __popc(votes);
        }
    }
}
