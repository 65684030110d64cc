// tensor_float32: float32 on the tensor cores, every number split into two of TF32.
//
// Idea      TF32 has 11 significant bits. x = hi + lo, each of 11 bits, loses at most the last bit or two of x, so that
//           x w = lo_x hi_w + hi_x lo_w + hi_x hi_w to float32's own precision. Tensor cores cut off what they add
//           instead of rounding it; so they sum the products of one row of a filter only, starting from zero with the
//           small ones, and the rows' sums are added in registers, rounded to nearest (H. Ootomo and R. Yokota, 2022,
//           "Recovering single precision accuracy from Tensor Cores").
// Layout    images, outputs and `plain`, the weights, in NCHW order, float32; `image`: the weights as in
//           tensor_products.cuh, 16 bytes a lane for a step and 8 columns: hi of its two weights, then lo.
// Needs     compute capability 8.0; stride 1, dilation 1, one group; shared memory for the weights, unless HELD, and
//           for two bands of an image. With fewer than 32 products a sum, plain multiply-adds are more precise.
// Before    the direct convolutions of plain multiply-adds.
// Changes   multiplications on tensor cores. With 7 x 7 filters, ACROSS = 2 uses 7 of 8 products. Per row of 16 items
//           and 8 columns a warp reads 4 registers and splits them in 12 instructions, for up to 7 times 3 products.
//
// An item with an infinite sum, or one that is no number, is computed again by plain multiply-adds.
#include "tensor.cuh"

struct Precision {
    typedef float Input;
    static constexpr int QUAD = 4, QUADS = parts(SPAN, QUAD);  // numbers of a quad, quads of a row
    static constexpr int WORDS = 4, PASSES = 3;
    static constexpr int CHAINS = 8;  // products of one pass, more or less, that do not wait for each other

    typedef RawFloats<QUADS> Raw;

    // A number as two of TF32. The first is rounded to nearest by adding half of its last bit and cutting off; products
    // cut off by themselves. Beyond the largest number it becomes infinite, and what is left is not finite then either.
    struct Row {
        unsigned high[QUADS][2], low[QUADS][2];

        __device__ __forceinline__ void take(const Raw& raw) {
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int which = 0; which < 2; ++which) {
                    high[q][which] = __float_as_uint(raw.numbers[which][q]) + 0x1000u;
                    low[q][which] = __float_as_uint(raw.numbers[which][q] - __uint_as_float(cut_to_tf32(high[q][which])));
                }
        }
    };

    __device__ __forceinline__ static void multiply(int pass, float (&sums)[4], const Row& left, int a,
                                                    const Row& right, int b, bool both, const unsigned (&words)[4]) {
        const unsigned first = words[pass == 1 ? 2 : 0], second = words[pass == 1 ? 3 : 1];
        const auto& one = pass == 0 ? left.low : left.high;
        const auto& other = pass == 0 ? right.low : right.high;
        if (both)
            multiply_tf32_any_order(sums, one[a][0], one[a][1], other[b][0], other[b][1], first, second);
        else
            multiply_tf32_any_order(sums, one[a], first);
    }
    __device__ __forceinline__ static float value(float number) { return number; }
    __device__ __forceinline__ static float rounded(float weight) { return weight; }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d(const float* __restrict__ images, float* outputs, const unsigned* __restrict__ image,
           const float* __restrict__ plain, const float* __restrict__ bias, float clip, int units) {
    convolve<Precision>(images, outputs, image, plain, bias, clip, units);
}
