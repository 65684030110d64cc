// The arguments that the rungs from naive to warp_vote_privatized have in common.
//
// features  CSR of `rows` rows, weights CSC of `columns` columns; both indexed by IN_INDEX along the layer's inputs
// output    COO in any order: *count entries (0 before the launch) of room for rows x columns; rows counted from 0 in
//           this launch, columns of type OUT_INDEX
#pragma once
#include "common.cuh"

#define SPMSPM_PARAMETERS                                                                                            \
    int rows, int columns, const int64 *__restrict__ row_offsets, const IN_INDEX *__restrict__ row_indices,          \
        const float *__restrict__ row_values, int64 row_stride, const int64 *__restrict__ column_offsets,            \
        const IN_INDEX *__restrict__ column_indices, const float *__restrict__ column_values, int64 column_stride,   \
        const float *__restrict__ bias, int activation, float clip, unsigned *__restrict__ count,                    \
        int *__restrict__ out_rows, OUT_INDEX *__restrict__ out_columns, float *__restrict__ out_values

#define SPMSPM_UNPACK                                                                                                \
    const Layer layer = {{row_offsets, row_indices, row_values, row_stride},                                         \
                         {column_offsets, column_indices, column_values, column_stride},                             \
                         {bias, activation, clip}};                                                                  \
    const Entries out = {out_rows, out_columns, out_values};

struct Layer {
    Sparse<IN_INDEX> features;
    Sparse<IN_INDEX> weights;
    Epilogue epilogue;

    // One element of act(Y W + b).
    __device__ __forceinline__ float output(int row, int column) const {
        return epilogue(intersect(features, row, weights, column), column);
    }
};

struct Entries {
    int* rows;
    OUT_INDEX* columns;
    float* values;

    __device__ __forceinline__ void put(unsigned slot, int row, int column, float value) const {
        rows[slot] = row;
        columns[slot] = static_cast<OUT_INDEX>(column);
        values[slot] = value;
    }
};
