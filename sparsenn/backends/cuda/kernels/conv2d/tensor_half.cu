// tensor_half: images and weights in half precision, sums in float32.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and tensor cores multiply it twice as
//           fast; what it lacks is range.
// Layout    images and outputs in NCHW order, both float32 or both half (INPUT); float32 images are rounded as they go
//           from shared memory to registers. `plain`: the weights in NCHW order, float32; `image`: the weights as in
//           tensor_products.cuh, 8 bytes a lane for a step and 8 columns.
// Needs     compute capability 8.0; stride 1, dilation 1, one group; shared memory for the weights, unless HELD, and
//           for two bands of an image. Numbers beyond 65,504 become infinite, and those below 3e-8 zero.
// Before    tensor_tf32.
// Changes   half the products and half the bytes of weights, and of images and outputs where those are halves.
#include "tensor.cuh"

struct Precision {
    typedef INPUT Input;
    static constexpr int QUAD = 8, QUADS = parts(SPAN, QUAD);  // numbers of a quad, quads of a row
    static constexpr int WORDS = 2, PASSES = 1;
    static constexpr int CHAINS = 16;
    static_assert(ACROSS > 1, "halves are read in pairs");

    // As read: two halves, or two floats.
    struct Raw {
        static constexpr int WORDS = sizeof(Input) / 2;
        unsigned words[QUADS][2][WORDS];

        __device__ __forceinline__ void load(const Place<Input> (&from)[2], int offset) {
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int which = 0; which < 2; ++which) {
                    const Input* pair = from[which].pairs + offset + 8 * q;
                    if constexpr (WORDS == 1) {
                        words[q][which][0] = *reinterpret_cast<const unsigned*>(pair);
                    } else {
                        const uint2 both = *reinterpret_cast<const uint2*>(pair);
                        words[q][which][0] = both.x;
                        words[q][which][1] = both.y;
                    }
                }
        }
    };

    struct Row {
        unsigned words[QUADS][2];

        __device__ __forceinline__ void take(const Raw& raw) {
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int which = 0; which < 2; ++which) {
                    const auto& read = raw.words[q][which];
                    if constexpr (Raw::WORDS == 1)
                        words[q][which] = read[0];
                    else
                        words[q][which] = to_halves(__uint_as_float(read[0]), __uint_as_float(read[1]));
                }
        }
    };

    __device__ __forceinline__ static void multiply(int, float (&sums)[4], const Row& left, int a, const Row& right,
                                                    int b, bool both, const unsigned (&words)[2]) {
        if (both)
            multiply_half_any_order(sums, left.words[a][0], left.words[a][1], right.words[b][0], right.words[b][1],
                                    words[0], words[1]);
        else
            multiply_half_any_order(sums, left.words[a], words[0]);
    }
    __device__ __forceinline__ static float rounded(float weight) {
        return to_float(to_half(weight));
    }
    __device__ __forceinline__ static float value(half_bits number) { return to_float(number); }
    __device__ __forceinline__ static float value(float number) { return rounded(number); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d(const INPUT* __restrict__ images, INPUT* outputs, const unsigned* __restrict__ image,
           const float* __restrict__ plain, const float* __restrict__ bias, float clip, int units) {
    convolve<Precision>(images, outputs, image, plain, bias, clip, units);
}
