// rows_to_units: rows as the first layer of `two_of_four` reads them, halves in units of eight inputs.
//
// Idea      A block has TAKEN rows. They come to shared memory as they are, four numbers a load where rows begin at a
//           multiple of that, and their largest numbers are found: all warps share the rows, so that enough loads are
//           under way. Then each thread takes eight inputs of a row, in the layer's order, scales them, and stores them
//           as 16 bytes: TAKEN rows of a unit lie side by side.
// Layout    `order` has the input of each place, `inputs` where there is none. Units and scales are as in
//           sparse/two_of_four.cu; a row has room for `row_units`.
// Needs     shared memory for TAKEN whole rows, of the type INPUT.
#include "common.cuh"
#include "fours.cuh"
#include "sparse/row_scale.cuh"

#ifndef INPUT
#define INPUT float
#endif

constexpr int THREADS = 512, WARPS = THREADS / WARP;
constexpr int PARTS = TAKEN < WARPS ? WARPS / TAKEN : 1;  // warps of a row
constexpr int FOUR = 4;
static_assert(ROWS % TAKEN == 0, "a block's rows are of one tile");
static_assert(TAKEN % WARPS == 0 || WARPS % TAKEN == 0, "warps share the rows evenly");

// Brings a part of a row to shared memory, zeros where there is none; returns the bits of its largest number. A warp
// calls it.
__device__ __forceinline__ int bring(INPUT* own, const INPUT* __restrict__ row, bool present, int inputs, int part,
                                     bool fours) {
    const int lane = part * WARP + threadIdx.x % WARP;
    int most = 0;
    if (fours) {
#pragma unroll 4
        for (int column = FOUR * lane; column < inputs; column += FOUR * PARTS * WARP) {
            const float4 found = present ? four_at(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            store_four(own + column, found);
            most = max(most, largest_bits(found));
        }
    } else {
#pragma unroll 8
        for (int column = lane; column < inputs; column += PARTS * WARP) {
            const float found = present ? number_at(row + column) : 0.0f;
            store_one(own + column, found);
            most = max(most, bits_of_size(found));
        }
    }
    return warp_max(most);
}

// Shared memory has TAKEN times `stride` numbers, a multiple of four above `inputs`, with rows in different banks.
// count: takes the number of rows. largest: for each of `layers`, of `room` rows: of the first the row's, of the others 0.
// exponents: of the first.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows_to_units(const INPUT* __restrict__ features, unsigned char* __restrict__ units, const int* __restrict__ order,
                  int* __restrict__ exponents, int* __restrict__ largest, int* __restrict__ count, int64 rows, int64 room,
                  int inputs, int stride, int all_units, int row_units, int layers) {
    extern __shared__ __align__(16) INPUT memory[];
    __shared__ int found[TAKEN * PARTS];
    __shared__ float scales[TAKEN];
    const int64 first = static_cast<int64>(blockIdx.x) * TAKEN;
    const bool fours = by_fours(features, inputs);
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = static_cast<int>(rows);
    for (int share = threadIdx.x / WARP; share < TAKEN * PARTS; share += WARPS) {
        const int number = share / PARTS;
        const int64 row = first + number;
        const int most =
            bring(memory + number * stride, features + row * inputs, row < rows, inputs, share % PARTS, fours);
        if (threadIdx.x % WARP == 0) found[share] = most;
    }
    __syncthreads();
    if (threadIdx.x < TAKEN) {
        const int64 row = first + threadIdx.x;
        int most = 0;
        for (int part = 0; part < PARTS; ++part) most = max(most, found[threadIdx.x * PARTS + part]);
        const int exponent = exponent_above(__int_as_float(most));
        scales[threadIdx.x] = scale_to(exponent);
        exponents[row] = exponent;
        for (int layer = 0; layer < layers; ++layer) largest[layer * room + row] = layer == 0 ? most : 0;
        store_one(memory + threadIdx.x * stride + inputs, 0.0f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < all_units * TAKEN; i += THREADS) {
        const int unit = i / TAKEN, number = i % TAKEN;
        const int64 row = first + number, tile = row / ROWS;
        const INPUT* own = memory + number * stride;
        const int4* places = reinterpret_cast<const int4*>(order + unit * 8);
        const int4 left = __ldg(places), right = __ldg(places + 1);
        const int eight[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
        float numbers[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) numbers[k] = as_number(own[eight[k]]) * scales[number];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            unsigned pairs[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                pairs[k] = to_halves(numbers[2 * k], numbers[2 * k + 1]);
                numbers[2 * k] -= to_float(static_cast<half_bits>(pairs[k] & 0xffffu));
                numbers[2 * k + 1] -= to_float(static_cast<half_bits>(pairs[k] >> 16));
            }
            const int64 at = (tile * PLANES + plane) * row_units + unit;
            *reinterpret_cast<uint4*>(units + (at * ROWS + row % ROWS) * 16) =
                make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}
