// tensor_tf32: images and weights rounded to TF32, sums in float32.
//
// Idea      One product in TF32 instead of three: 11 significant bits for what is multiplied, float32's range.
// Layout    images, outputs and `plain`, the weights, in NCHW order, float32; `image`: the weights as in
//           tensor_products.cuh, 8 bytes a lane for a step and 8 columns.
// Needs     compute capability 8.0; stride 1, dilation 1, one group; shared memory for the weights, unless HELD, and
//           for two bands of an image. Numbers that round to more than the largest float32 become infinite.
// Before    tensor_float32.
// Changes   a third of the products, half of the weights' bytes, nothing is split or added up in registers.
#include "tensor.cuh"

struct Precision {
    typedef float Input;
    static constexpr int QUAD = 4, QUADS = parts(SPAN, QUAD);  // numbers of a quad, quads of a row
    static constexpr int WORDS = 2, PASSES = 1;
    static constexpr int CHAINS = 16;

    typedef RawFloats<QUADS> Raw;

    struct Row {
        unsigned words[QUADS][2];

        __device__ __forceinline__ void take(const Raw& raw) {
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int which = 0; which < 2; ++which) words[q][which] = rounded_to_tf32(raw.numbers[which][q]);
        }
    };

    __device__ __forceinline__ static void multiply(int, float (&sums)[4], const Row& left, int a, const Row& right,
                                                    int b, bool both, const unsigned (&words)[2]) {
        if (both)
            multiply_tf32_any_order(sums, left.words[a][0], left.words[a][1], right.words[b][0], right.words[b][1],
                                    words[0], words[1]);
        else
            multiply_tf32_any_order(sums, left.words[a], words[0]);
    }
    __device__ __forceinline__ static float value(float number) { return rounded(number); }
    __device__ __forceinline__ static float rounded(float weight) { return __uint_as_float(rounded_to_tf32(weight)); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d(const float* __restrict__ images, float* outputs, const unsigned* __restrict__ image,
           const float* __restrict__ plain, const float* __restrict__ bias, float clip, int units) {
    convolve<Precision>(images, outputs, image, plain, bias, clip, units);
}
