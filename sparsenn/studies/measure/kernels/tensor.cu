// tensor: how many multiply-adds a second the tensor cores do, in TF32 or in half precision with sums in float32.
//
// Idea      Every warp goes on with TILES independent 16 x 8 tiles of sums, all in registers: sums += a * b, where a
//           and b are matrices of one number each, powers of two, so that sums stay exact and can be foretold.
// Layout    sums (threads,) float32: each thread's 4 * TILES sums added up. a and b: bits of two half numbers each, or
//           of one TF32 number.
// Needs     compute capability 8.0; a grid and blocks of one dimension, of whole warps. HALF is 1 for half precision, 0
//           for TF32.
#include "common.cuh"
#include "ptx/matrix_products.cuh"

constexpr int TILES = 8;

// Products stay what they are: those of equal operands would otherwise be one to the compiler.
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a, unsigned b) {
#if HALF
    multiply_half(sums, a, a, a, a, b, b);
#else
    multiply_tf32(sums, a, a, a, a, b, b);
#endif
}

extern "C" __global__ void tensor(unsigned a, unsigned b, int rounds, float* sums) {
    float tiles[TILES][4] = {};
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) multiply(tiles[tile], a, b);
    }
    float all = 0.0f;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        all += (tiles[tile][0] + tiles[tile][1]) + (tiles[tile][2] + tiles[tile][3]);
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
