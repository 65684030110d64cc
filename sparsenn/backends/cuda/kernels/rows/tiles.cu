// tiles: rows of sparse features into tiles, and what is counted in them for statistics.
//
// Idea      Rows lie along the lanes. Into tiles: a warp scatters one sparse row down its lane of a tile of zeros.
//           Counting: a thread keeps 4 rows and goes down the lines of a piece of a tile; integers, so that the order
//           does not matter; a block adds its sums to the totals once.
// Layout    tiles (tiles, room, side) float32, side a multiple of 32: row r is lane r % side of tile r / side. The first
//           `width` lines of a tile are in use.
//           features CSR.
//           counters (layers, 3): active inputs, non-zeros, multiply-adds. count_tiles is given a layer's line; what
//           the next layer multiplies goes to the line behind.
// Needs     scatter_rows: blocks of whole warps; tiles of zeros. count_tiles: blocks of 256, side 4 to 1024
//           and a power of two.
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

constexpr int COUNTING = 256;  // threads of a block
constexpr int PIECE = 4;       // neighbouring rows of a thread
enum Counter { ACTIVE, NONZEROS, EDGES, COUNTERS };

// Block x: tile, y: `lines` of its lines. Rows from `rows` on only fill the last tile up and are not counted.
// copies, degrees: of each line, how many neurons it stands for, and how many edges leave it; degrees may be null.
// multiplicity: of each row, how many inputs it stands for. alive: of each row, not 0 where it has a non-zero.
extern "C" __global__ void __launch_bounds__(COUNTING)
    count_tiles(const float4* __restrict__ tiles, int rows, int width, int side, int room, int lines,
                const int64* __restrict__ copies, const int64* __restrict__ degrees,
                const int64* __restrict__ multiplicity, const unsigned char* __restrict__ alive,
                uint64* __restrict__ counters) {
    __shared__ uint64 sums[COUNTERS];
    if (threadIdx.x < COUNTERS) sums[threadIdx.x] = 0;
    __syncthreads();

    const int pieces = side / PIECE, step = COUNTING / pieces, piece = threadIdx.x % pieces;
    const int first_line = blockIdx.y * lines, last_line = min(width, first_line + lines);
    const int64 first_row = static_cast<int64>(blockIdx.x) * side + piece * PIECE;
    const int inside = static_cast<int>(max(int64(0), min(int64(PIECE), rows - first_row)));
    const float4* tile = tiles + static_cast<int64>(blockIdx.x) * room * pieces + piece;
    int64 weights[PIECE] = {}, edges = 0;
#pragma unroll 4
    for (int line = first_line + threadIdx.x / pieces; line < last_line; line += step) {
        const float4 four = tile[static_cast<int64>(line) * pieces];
        const bool there[PIECE] = {four.x != 0.0f && inside > 0, four.y != 0.0f && inside > 1,
                                   four.z != 0.0f && inside > 2, four.w != 0.0f && inside > 3};
        const int64 many = copies[line];
#pragma unroll
        for (int k = 0; k < PIECE; k++) weights[k] += there[k] ? many : 0;
        if (degrees) edges += degrees[line] * (there[0] + there[1] + there[2] + there[3]);
    }

    const bool tells = blockIdx.y == 0 && threadIdx.x < pieces;  // of each row one thread says whether it is active
    int64 nonzeros = 0, active = 0;
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
        if (k >= inside) continue;
        const int64 inputs = multiplicity[first_row + k];
        nonzeros += weights[k] * inputs;
        if (tells && alive[first_row + k]) active += inputs;
    }
    nonzeros = warp_sum(nonzeros);
    edges = warp_sum(edges);
    active = warp_sum(active);
    if (threadIdx.x % WARP == 0) {
        atomicAdd(&sums[ACTIVE], static_cast<uint64>(active));
        atomicAdd(&sums[NONZEROS], static_cast<uint64>(nonzeros));
        atomicAdd(&sums[EDGES], static_cast<uint64>(edges));
    }
    __syncthreads();
    if (threadIdx.x < COUNTERS && sums[threadIdx.x]) {
        const int line = threadIdx.x == EDGES ? COUNTERS : 0;
        atomicAdd(&counters[line + threadIdx.x], sums[threadIdx.x]);
    }
}
