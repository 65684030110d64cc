// equal_rows: rows that are equal bit for bit are computed once from here on.
//
// Idea      A warp takes a row, looks at the places of a table that the row's hash names in turn, and either claims the
//           first free one or finds there a row that it compares with whole: the hash alone never decides. All rows
//           were written by earlier launches, so whoever claims a place, its row can be read. Which of equal rows is
//           kept depends on timing; as they are equal, no result does.
// Layout    An open-addressed table of row numbers, -1 where free; rows and hashes as tile_layers and row_layers leave
//           them.
// Needs     a table of a power of two, at least twice the rows, filled with -1.
#include "resident.cuh"

constexpr int AT_ONCE = 8;  // elements of a lane that are on their way together

__device__ __forceinline__ bool same_row(const float* one, const float* other, int width) {
    for (int base = 0; base < width; base += 32 * AT_ONCE) {
        unsigned difference = 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int place = base + 32 * k + threadIdx.x % 32;
            if (place < width) difference |= __float_as_uint(one[place]) ^ __float_as_uint(other[place]);
        }
        if (__any_sync(0xffffffffu, difference != 0)) return false;
    }
    return true;
}

// A kept row's weight becomes the sum of those it stands for.
extern "C" __global__ void __launch_bounds__(256) equal_rows(const Stage* stages, int width) {
    const Stage& stage = *stages;
    const float* rows = stage.rows_out;
    const int lane = threadIdx.x % 32;
    const int warps = gridDim.x * (blockDim.x / 32);
    for (int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < *stage.count_out; row += warps) {
        const unsigned long long hash = stage.hashes_out[row];
        for (unsigned place = (unsigned)hash & stage.mask;; place = (place + 1) & stage.mask) {
            int known = 0;
            if (lane == 0) known = atomicCAS(&stage.table[place], -1, row);
            known = __shfl_sync(0xffffffffu, known, 0);
            if (known == -1) {
                if (lane == 0) {
                    const int position = atomicAdd(stage.list_count, 1);
                    stage.kept[row] = row;
                    stage.index[row] = position;
                    stage.list[position] = row;
                }
                break;
            }
            if (stage.hashes_out[known] == hash &&
                same_row(rows + (size_t)row * width, rows + (size_t)known * width, width)) {
                if (lane == 0) {
                    stage.kept[row] = known;
                    add_to_global(&stage.weights_out[known], stage.weights_out[row]);
                }
                break;
            }
        }
    }
}

// Follows each input through the stages to its row in the last one's `rows_out`, -1 if it died on the way.
extern "C" __global__ void __launch_bounds__(256)
    follow_rows(const Stage* stages, int count, const Call* call, int* owner) {
    const int input = blockIdx.x * blockDim.x + threadIdx.x;
    if (input >= call->rows) return;
    int row = input;
    for (int number = 0; number < count && row >= 0; number++) {
        const Stage& stage = stages[number];
        row = stage.next[row];
        if (row >= 0 && stage.kept) row = stage.index[stage.kept[row]];
    }
    const int* list = stages[count - 1].list;
    owner[input] = row >= 0 && list ? list[row] : row;
}
