// rows_to_units: rows as the first layer of `two_of_four` reads them, halves in units of eight inputs.
//
// Idea      A block has TAKEN rows. They come to shared memory as they are, and their largest numbers are found; then each
//           thread takes eight inputs of a row, in the layer's order, scales them, and stores them as 16 bytes: TAKEN rows
//           of a unit lie side by side.
// Layout    `order` has the input of each place, `inputs` where there is none. Units and scales are as in
//           sparse/two_of_four.cu.
// Needs     shared memory for TAKEN whole rows, of the type INPUT.
#include "common.cuh"
#include "ptx/numbers.cuh"
#include "sparse/row_scale.cuh"

#ifndef INPUT
#define INPUT float
#endif

constexpr int THREADS = 256, WARPS = THREADS / WARP;
static_assert(ROWS % TAKEN == 0, "a block's rows are of one tile");

__device__ __forceinline__ float number_at(const float* place) { return __ldg(place); }
__device__ __forceinline__ float number_at(const half_bits* place) { return to_float(__ldg(place)); }

__device__ __forceinline__ int bits_of_size(float number) { return __float_as_int(number) & 0x7fffffff; }

// Shared memory has TAKEN times `stride` numbers, an odd number above `inputs`, so that rows begin in different banks.
// largest: for each of `layers`, of `room` rows: of the first the row's, of the others 0. exponents: of the first.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows_to_units(const INPUT* __restrict__ features, unsigned char* __restrict__ units, const int* __restrict__ order,
                  int* __restrict__ exponents, int* __restrict__ largest, int64 rows, int64 room, int inputs, int stride,
                  int all_units, int layers) {
    extern __shared__ __align__(16) float memory[];
    __shared__ float scales[TAKEN];
    const int lane = threadIdx.x % WARP;
    const int64 first = static_cast<int64>(blockIdx.x) * TAKEN;
    for (int number = threadIdx.x / WARP; number < TAKEN; number += WARPS) {
        const int64 row = first + number;
        float* own = memory + number * stride;
        int most = 0;
#pragma unroll 8
        for (int column = lane; column < inputs; column += WARP) {
            const float found = row < rows ? number_at(features + row * inputs + column) : 0.0f;
            own[column] = found;
            most = max(most, bits_of_size(found));
        }
        most = warp_max(most);
        if (lane == 0) {
            own[inputs] = 0.0f;
            const int exponent = exponent_above(__int_as_float(most));
            scales[number] = scale_to(exponent);
            exponents[row] = exponent;
        }
        for (int layer = lane; layer < layers; layer += WARP) largest[layer * room + row] = layer == 0 ? most : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < all_units * TAKEN; i += THREADS) {
        const int unit = i / TAKEN, number = i % TAKEN;
        const float* own = memory + number * stride;
        float numbers[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) numbers[k] = own[__ldg(order + unit * 8 + k)] * scales[number];
        const int64 row = first + number, tile = row / ROWS;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            unsigned pairs[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                pairs[k] = to_halves(numbers[2 * k], numbers[2 * k + 1]);
                numbers[2 * k] -= to_float(static_cast<half_bits>(pairs[k] & 0xffffu));
                numbers[2 * k + 1] -= to_float(static_cast<half_bits>(pairs[k] >> 16));
            }
            const int64 at = (tile * PLANES + plane) * all_units + unit;
            *reinterpret_cast<uint4*>(units + (at * ROWS + row % ROWS) * 16) =
                make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}
