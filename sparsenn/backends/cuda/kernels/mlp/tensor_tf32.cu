// tensor_tf32: inputs, weights and intermediates rounded to TF32, sums in float32.
//
// Idea      One multiplication in TF32 instead of three: 11 significant bits for what is multiplied, float32's range.
// Layout    features and outputs row-major float32; the image of the weights as in fused.cuh, 8 bytes a lane for each
//           8 x 8 tile: the weights [t][g] and [t + 4][g]. A warp takes 16 * ROW_TILES rows through all layers.
// Needs     compute capability 8.0; widths up to 128; shared memory for the image. Numbers that round to more than the
//           largest float32 become infinite.
// Before    tensor_float32.
// Changes   a third of the multiplications, half of the weights' bytes, nothing is split. For 72-64-64-4 a row takes
//           9,216 multiply-adds, 9 to 14 clocks of a multiprocessor's tensor cores, 9 clocks of weights from shared
//           memory with 32 rows a warp, and 304 bytes of device memory, about 17 clocks at 4.2 TB/s: no kernel can
//           be faster than that.
#include "fused.cuh"

struct Precision : FloatPrecision {
    typedef Unwatched Watch;
    template <int TILES>
    using Inputs = FloatInputs<Precision, TILES>;
    static constexpr int SCRATCH = 44;

    static constexpr int weight_bytes(int input_tiles, int output_tiles) { return 256 * input_tiles * output_tiles; }
    __device__ __forceinline__ static float prepared(float value) { return __uint_as_float(rounded_to_tf32(value)); }
    template <int INPUTS, int OUTPUTS, int TILES, class In>
    __device__ __forceinline__ static void accumulate(const In& in, float (&sums)[TILES][ROW_TILES][4],
                                                      const Image<Precision>& image, int place, int lane, int first) {
        constexpr int STEPS = tiles_of(INPUTS);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            unsigned inputs[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                float share[4];
                in.get(k, m, share);
#pragma unroll
                for (int i = 0; i < 4; ++i) inputs[m][i] = __float_as_uint(share[i]);
            }
            const int here = place + 256 * (k * tiles_of(OUTPUTS) + first) + 8 * lane;
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const uint2 weights = image.read<uint2>(here + 256 * j);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) multiply_tile(sums[j][m], inputs[m], weights.x, weights.y);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    mlp(const float* __restrict__ features, float* outputs, const unsigned char* __restrict__ image, int64 rows,
        unsigned* not_finite) {
    extern __shared__ __align__(16) unsigned char shared[];
    Image<Precision>::copy(image, shared);
    tiles<Precision>(features, outputs, rows, not_finite, shared).run(first_tile(), [](int, const Unwatched&) {});
}
