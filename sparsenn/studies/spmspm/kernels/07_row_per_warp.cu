// row_per_warp: a warp scatters the non-zeros of one row through the rows of the weights.
//
// Idea      Gustavson's product by rows: each non-zero y[i] adds y[i] * W[i, :] to a row of sums in shared memory. Only
//           what is multiplied is read; nothing is compared. A row of W has each column once, so the lanes that walk
//           it never meet in one sum, and the non-zeros come in order: the result is the same bits in every run.
// Layout    features CSR, weights CSR (by input). Columns are cut into tiles of TILE, and a warp takes one row of one
//           tile: piece = row * tiles + tile. It writes its non-zeros by increasing column, at a place of its own
//           that it reserves when it knows their number: piece_starts, piece_lengths. Bringing the pieces into order
//           (gather.cu) gives sorted CSR.
// Needs     blocks of WARPS warps; TILE floats of shared memory for each.
// Before    warp_vote_privatized.
// Changes   work grows with the multiply-adds that are to be done, no longer with rows x columns, and no sort follows.
#include "common.cuh"

static_assert(TILE % WARP == 0, "a tile is walked by whole warps");
static_assert(WARPS * TILE * 4 <= 48 * 1024, "the sums of a block must fit into 48 KiB of shared memory");

// The first entry in first..last whose index is at least `index`.
__device__ __forceinline__ int64 lower_bound(const OUT_INDEX* indices, int64 first, int64 last, int index) {
    while (first < last) {
        const int64 middle = first + (last - first) / 2;
        if (indices[middle] < index) first = middle + 1;
        else last = middle;
    }
    return first;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    spmspm(int rows, int columns, int tiles, const int64* __restrict__ row_offsets,
           const IN_INDEX* __restrict__ row_indices, const float* __restrict__ row_values, int64 row_stride,
           const int64* __restrict__ weight_offsets, const OUT_INDEX* __restrict__ weight_indices,
           const float* __restrict__ weight_values, int64 weight_stride, const float* __restrict__ bias,
           int activation, float clip, unsigned* __restrict__ count, int64* __restrict__ piece_starts,
           int64* __restrict__ piece_lengths, OUT_INDEX* __restrict__ out_columns, float* __restrict__ out_values) {
    __shared__ float all_sums[WARPS][TILE];
    const Sparse<IN_INDEX> features = {row_offsets, row_indices, row_values, row_stride};
    const Sparse<OUT_INDEX> weights = {weight_offsets, weight_indices, weight_values, weight_stride};
    const Epilogue epilogue = {bias, activation, clip};
    const int lane = threadIdx.x % WARP;
    const int64 piece = static_cast<int64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    if (piece >= static_cast<int64>(rows) * tiles) return;  // whole warps leave, and warps never wait for each other
    float* sums = all_sums[threadIdx.x / WARP];
    const int row = static_cast<int>(piece / tiles), first = static_cast<int>(piece % tiles) * TILE;
    const int width = min(TILE, columns - first);

    for (int column = lane; column < width; column += WARP) sums[column] = 0.0f;
    __syncwarp();
    for (int64 at = features.offsets[row]; at < features.offsets[row + 1]; ++at) {
        const int input = features.indices[at];
        const float value = features.value(at);
        int64 begin = weights.offsets[input], end = weights.offsets[input + 1];
        if (tiles > 1) {
            begin = lower_bound(weights.indices, begin, end, first);
            end = lower_bound(weights.indices, begin, end, first + width);
        }
        for (int64 entry = begin + lane; entry < end; entry += WARP) {
            float* sum = &sums[weights.indices[entry] - first];
            *sum = fmaf(value, weights.value(entry), *sum);
        }
        __syncwarp();  // the next non-zero's lanes read what these wrote
    }

    unsigned nonzeros = 0;
    for (int start = 0; start < width; start += WARP) {
        const int column = start + lane;
        const float value = column < width ? epilogue(sums[column], first + column) : 0.0f;
        if (column < width) sums[column] = value;
        nonzeros += __popc(__ballot_sync(ALL_LANES, value != 0.0f));
    }
    unsigned place = 0;
    if (lane == 0) place = atomicAdd(count, nonzeros);
    place = __shfl_sync(ALL_LANES, place, 0);
    if (lane == 0) {
        piece_starts[piece] = place;
        piece_lengths[piece] = nonzeros;
    }
    for (int start = 0; start < width; start += WARP) {
        const int column = start + lane;
        const float value = column < width ? sums[column] : 0.0f;  // written by this lane above
        const unsigned votes = __ballot_sync(ALL_LANES, value != 0.0f);
        if (value != 0.0f) {
            const unsigned slot = place + __popc(votes & lanes_below(lane));
            out_columns[slot] = static_cast<OUT_INDEX>(first + column);
            out_values[slot] = value;
        }
        place += __popc(votes);
    }
}
