// tile: 32 rows lie along the lanes of a warp, and every weight is read once for all of them.
//
// Idea      Once rows are dense there is nothing to skip. The inputs of 32 rows stand in shared memory as a dense
//           tile; a warp takes a column of weights, and each lane gathers its own row's inputs. Index and weight are
//           the same for all lanes, sums stay in registers, and one read of a weight serves 32 multiply-adds.
// Layout    features CSR or dense by rows, weights CSC, output dense by rows. A block has 32 rows and
//           WARPS * COLUMNS columns, COLUMNS for each warp (block x: columns, y: rows); it goes through the inputs in
//           panels of PANEL. Input i of row r lies in panel[i][(r + i) % 32]: a row is filled, and an input is read,
//           without bank conflicts.
// Needs     blocks of WARPS warps; PANEL * 32 floats of shared memory.
// Before    row_per_warp.
// Changes   rows share the reading of weights, and the output is dense: nothing to count, reserve or sort.
#include "common.cuh"

constexpr int GROUP = WARPS * COLUMNS;
static_assert(WARP % WARPS == 0, "warps share the 32 rows evenly");
static_assert(PANEL * WARP * 4 <= 48 * 1024, "a panel must fit into 48 KiB of shared memory");
static_assert(GROUP * (WARP + 1) <= PANEL * WARP, "results are staged where the panel was");

__device__ __forceinline__ float& element(float* panel, int input, int row) {
    return panel[input * WARP + (row + input) % WARP];
}

// CSR rows: clear the panel, then put each row's entries where they belong. The entries of a row come in order, so
// each panel goes on where the last one ended.
struct SparseRows {
    Sparse<IN_INDEX> features;
    int64 next[WARP / WARPS];

    __device__ __forceinline__ SparseRows(const Sparse<IN_INDEX>& rows_of, int first_row, int rows, int warp)
        : features(rows_of) {
#pragma unroll
        for (int turn = 0; turn < WARP / WARPS; ++turn) {
            const int row = first_row + warp + turn * WARPS;
            next[turn] = row < rows ? features.offsets[row] : 0;
        }
    }

    __device__ __forceinline__ void load(float* panel, int start, int stop, int first_row, int rows, int warp,
                                         int lane) {
        for (int at = threadIdx.x; at < PANEL * WARP; at += WARPS * WARP) panel[at] = 0.0f;
        __syncthreads();
#pragma unroll
        for (int turn = 0; turn < WARP / WARPS; ++turn) {
            const int row = warp + turn * WARPS;
            const int64 end = first_row + row < rows ? features.offsets[first_row + row + 1] : 0;
            int taken = WARP;
            while (taken == WARP) {
                const int64 entry = next[turn] + lane;
                const int input = entry < end ? static_cast<int>(features.indices[entry]) : stop;
                if (input < stop) element(panel, input - start, row) = features.value(entry);
                taken = __popc(__ballot_sync(ALL_LANES, input < stop));
                next[turn] += taken;
            }
        }
    }
};

// Dense rows: copy, neighbouring lanes reading neighbouring inputs.
struct DenseRows {
    const float* matrix;
    int64 width;

    __device__ __forceinline__ void load(float* panel, int start, int stop, int first_row, int rows, int warp,
                                         int lane) {
        for (int row = warp; row < WARP; row += WARPS) {
            const bool inside = first_row + row < rows;
            const float* source = matrix + (first_row + row) * width + start;
            for (int input = lane; input < stop - start; input += WARP)
                element(panel, input, row) = inside ? source[input] : 0.0f;
        }
    }
};

// Add one panel's products to the sums of this warp's columns. 32 entries of a column are read at a time, a lane
// each, and handed round.
__device__ __forceinline__ void add_products(const Sparse<IN_INDEX>& weights, float* panel, int start, int stop,
                                             int64 (&next)[COLUMNS], const int64 (&end)[COLUMNS],
                                             float (&sums)[COLUMNS], int lane) {
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
        int taken = WARP;
        while (taken == WARP) {
            const int64 entry = next[column] + lane;
            const int input = entry < end[column] ? static_cast<int>(weights.indices[entry]) : stop;
            const float weight = input < stop ? weights.value(entry) : 0.0f;
            taken = __popc(__ballot_sync(ALL_LANES, input < stop));
            for (int turn = 0; turn < taken; ++turn) {
                const int source = __shfl_sync(ALL_LANES, input, turn) - start;
                sums[column] = fmaf(__shfl_sync(ALL_LANES, weight, turn), element(panel, source, lane), sums[column]);
            }
            next[column] += taken;
        }
    }
}

template <typename Rows>
__device__ __forceinline__ void tile(Rows source, int rows, int inputs, int columns, const Sparse<IN_INDEX>& weights,
                                     const Epilogue& epilogue, float* __restrict__ output) {
    __shared__ float panel[PANEL * WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int first_row = blockIdx.y * WARP, first_column = blockIdx.x * GROUP;
    float sums[COLUMNS];
    int64 next[COLUMNS], end[COLUMNS];
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) {
        const int column = first_column + warp * COLUMNS + k;
        sums[k] = 0.0f;
        next[k] = column < columns ? weights.offsets[column] : 0;
        end[k] = column < columns ? weights.offsets[column + 1] : 0;
    }
    for (int start = 0; start < inputs; start += PANEL) {
        const int stop = min(inputs, start + PANEL);
        __syncthreads();  // the panel before has been used
        source.load(panel, start, stop, first_row, rows, warp, lane);
        __syncthreads();
        add_products(weights, panel, start, stop, next, end, sums, lane);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) {
        const int local = warp * COLUMNS + k, column = first_column + local;
        if (column < columns) panel[local * (WARP + 1) + lane] = epilogue(sums[k], column);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * WARP; at += WARPS * WARP) {
        const int row = first_row + at / GROUP, column = first_column + at % GROUP;
        if (row < rows && column < columns)
            output[static_cast<int64>(row) * columns + column] = panel[(at % GROUP) * (WARP + 1) + at / GROUP];
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    spmspm_csr(int rows, int inputs, int columns, const int64* __restrict__ row_offsets,
               const IN_INDEX* __restrict__ row_indices, const float* __restrict__ row_values, int64 row_stride,
               const int64* __restrict__ column_offsets, const IN_INDEX* __restrict__ column_indices,
               const float* __restrict__ column_values, int64 column_stride, const float* __restrict__ bias,
               int activation, float clip, float* __restrict__ output) {
    const Sparse<IN_INDEX> features = {row_offsets, row_indices, row_values, row_stride};
    const SparseRows source(features, blockIdx.y * WARP, rows, threadIdx.x / WARP);
    const Sparse<IN_INDEX> weights = {column_offsets, column_indices, column_values, column_stride};
    tile(source, rows, inputs, columns, weights, {bias, activation, clip}, output);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    spmspm_dense(int rows, int inputs, int columns, const float* __restrict__ matrix,
                 const int64* __restrict__ column_offsets, const IN_INDEX* __restrict__ column_indices,
                 const float* __restrict__ column_values, int64 column_stride, const float* __restrict__ bias,
                 int activation, float clip, float* __restrict__ output) {
    const Sparse<IN_INDEX> weights = {column_offsets, column_indices, column_values, column_stride};
    tile(DenseRows{matrix, inputs}, rows, inputs, columns, weights, {bias, activation, clip}, output);
}
