// Rows of inputs that all have one value, as bits in shared memory: of a tile of 2^log_rows rows, bit
// i * 2^log_rows + r says whether row r has input i.
#pragma once

#include "common.cuh"

__device__ __forceinline__ void set_bit(unsigned* words, unsigned input, int row, int log_rows) {
    const unsigned place = (input << log_rows) + row;
    atomicOr(&words[place >> 5], 1u << (place & 31));
}

// Sets the bits of a part of one row's entries; a warp calls it. Indices are read 32 bits at a time, several of them
// before the first is used.
__device__ __forceinline__ void set_bits(unsigned* words, const INDEX* __restrict__ indices, int64 first, int64 last,
                                         int row, int log_rows, int part, int parts) {
    constexpr int EACH = 4 / sizeof(INDEX), BATCH = 4;
    const int lane = threadIdx.x % WARP;
    if (EACH == 2) {
        if (part == 0 && lane == 0 && first < last && reinterpret_cast<uint64>(indices + first) % 4)
            set_bit(words, indices[first], row, log_rows);
        first += reinterpret_cast<uint64>(indices + first) % 4 != 0;
        if (part == 0 && lane == 1 && first < last && (last - first) % 2)
            set_bit(words, indices[last - 1], row, log_rows);
        if (last <= first) return;
    }
    const unsigned* __restrict__ read = reinterpret_cast<const unsigned*>(indices + first);
    const int count = static_cast<int>((last - first) / EACH), step = parts * WARP;
#pragma unroll 1
    for (int at = part * WARP + lane; at < count; at += BATCH * step) {
        unsigned found[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (at + k * step < count) found[k] = __ldg(read + at + k * step);
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (at + k * step >= count) break;
            set_bit(words, EACH == 2 ? found[k] & 0xffff : found[k], row, log_rows);
            if (EACH == 2) set_bit(words, found[k] >> 16, row, log_rows);
        }
    }
}
