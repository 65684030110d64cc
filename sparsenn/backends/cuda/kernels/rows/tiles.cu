// tiles: rows of sparse features into tiles.
//
// Idea      Rows lie along the lanes: a warp scatters one sparse row down its lane of a tile of zeros.
// Layout    tiles (tiles, room, side) float32, side a multiple of 32: row r is lane r % side of tile r / side. The first
//           `width` lines of a tile are in use.
//           features CSR.
// Needs     blocks of whole warps; tiles of zeros.
// Used for  the rows of gather_chunks, which stay in tiles from layer to layer.
#include "common.cuh"

extern "C" __global__ void scatter_rows(int rows, int room, int side, const int64* __restrict__ offsets,
                                        const INDEX* __restrict__ indices, const float* __restrict__ values, int iso,
                                        float* __restrict__ tiles) {
    const int lane = threadIdx.x % WARP;
    for (int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; row < rows;
         row += gridDim.x * (blockDim.x / WARP)) {
        float* target = tiles + static_cast<int64>(row / side) * room * side + row % side;
        for (int64 at = offsets[row] + lane; at < offsets[row + 1]; at += WARP)
            target[static_cast<int64>(indices[at]) * side] = values[iso ? 0 : at];
    }
}
