// tensor_float32: float32 on the tensor cores, every number split into two of TF32.
//
// Idea      TF32 has 11 significant bits. x = hi + lo, each of 11 bits, loses at most the last bit of x, so that
//           x w = lo_x hi_w + hi_x lo_w + hi_x hi_w to float32's own precision. Tensor cores cut off what they add
//           instead of rounding it; so they sum the products of 8 inputs only, starting from zero with the small ones,
//           and the sums of eights are added in registers, rounded to nearest (H. Ootomo and R. Yokota, 2022,
//           "Recovering single precision accuracy from Tensor Cores").
// Layout    features and outputs row-major float32; the image of the weights as in fused.cuh, 16 bytes a lane for each
//           8 x 8 tile: hi and lo of the weights [t][g] and [t + 4][g]; `plain`: the weights row-major, one layer after
//           the other. A warp takes 16 * ROW_TILES rows through all layers.
// Needs     compute capability 8.0; widths up to 128; shared memory for the image, and for two rows a warp.
// Before    fused_fma.
// Changes   multiplications on tensor cores, intermediates in registers. For 72-64-64-4 a row takes 27 instructions of
//           16 rows / 16 (27,648 multiply-adds, 3 x 9,216), 27 to 43 clocks of the tensor cores (1,024 multiply-adds a
//           clock at best), and with 16 rows a warp 4.6 KB of weights from shared memory, 36 clocks at 128 bytes a
//           clock. 32 rows a warp would halve the latter, but take the registers that hide what warps wait for.
//
// A row with an infinite sum, or one that is no number, is computed again by plain multiply-adds, because hi - hi of an
// infinity is no number, and because rounding to TF32 may overflow: the row's outputs are what float32 gives.
#include "fused.cuh"

// A grid is one block deep, but the compiler does not know. A loop of so many turns keeps it from beginning all
// products of a layer before it adds up the first: it would run out of registers.
#define TURNS gridDim.z

struct Precision : FloatPrecision {
    typedef Watched Watch;
    template <int TILES>
    using Inputs = FloatInputs<Precision, TILES>;
    // Tiles multiplied at a time; each is ROW_TILES chains of instructions.
    static constexpr int GROUP = ROW_TILES == 2 ? 3 : widest() <= 72 ? 8 : 4;
    static constexpr int SCRATCH = 110;

    static constexpr int weight_bytes(int input_tiles, int output_tiles) { return 512 * input_tiles * output_tiles; }
    __device__ __forceinline__ static float prepared(float value) { return value; }
    template <int COUNT>
    __device__ __forceinline__ static void multiply(float (&sums)[COUNT][ROW_TILES][4],
                                                    const unsigned (&inputs)[ROW_TILES][4],
                                                    const uint4 (&weights)[COUNT], bool high) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                multiply_tile(sums[j][m], inputs[m], high ? weights[j].x : weights[j].z,
                              high ? weights[j].y : weights[j].w);
    }

    // One tile of inputs times COUNT tiles of weights, from tile `first` of the panel on.
    template <int COUNT, int PANEL_TILES>
    __device__ __forceinline__ static void group(const unsigned (&high)[ROW_TILES][4],
                                                 const unsigned (&low)[ROW_TILES][4],
                                                 float (&sums)[PANEL_TILES][ROW_TILES][4],
                                                 const Image<Precision>& image, int place, int first) {
        uint4 weights[COUNT];
        float products[COUNT][ROW_TILES][4] = {};
#pragma unroll
        for (int j = 0; j < COUNT; ++j) weights[j] = image.read<uint4>(place + 512 * (first + j));
        multiply(products, low, weights, true);
        multiply(products, high, weights, false);
        multiply(products, high, weights, true);
#pragma unroll
        for (int j = 0; j < COUNT; ++j)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[first + j][m][i] += products[j][m][i];
    }

    // A tile of inputs as two numbers of TF32 each; the instruction ignores what is beyond TF32's bits.
    template <class In>
    __device__ __forceinline__ static void split(const In& in, int k, unsigned (&high)[ROW_TILES][4],
                                                 unsigned (&low)[ROW_TILES][4]) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            float share[4];
            in.get(k, m, share);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                high[m][i] = rounded_to_tf32(share[i]);
                low[m][i] = cut_to_tf32(__float_as_uint(share[i] - __uint_as_float(high[m][i])));
            }
        }
    }

    template <int INPUTS, int OUTPUTS, int TILES, class In>
    __device__ __forceinline__ static void accumulate(const In& in, float (&sums)[TILES][ROW_TILES][4],
                                                      const Image<Precision>& image, int place, int lane, int first) {
        constexpr int STEPS = tiles_of(INPUTS), REST = TILES % GROUP;
        // Steps that share a turn: several where tiles are few.
        constexpr int TOGETHER = TILES > GROUP / 2 ? 1 : smaller(GROUP / TILES, 4);
        place += 512 * first + 16 * lane;
#pragma unroll
        for (int start = 0; start < STEPS; start += TOGETHER) {
            unsigned high[ROW_TILES][4], low[ROW_TILES][4];
            if constexpr (TILES < GROUP) {
#pragma unroll 1
                for (unsigned turn = 0; turn < TURNS; ++turn)
#pragma unroll
                    for (int k = start; k < start + TOGETHER; ++k)
                        if (k < STEPS) {
                            split(in, k, high, low);
                            group<TILES>(high, low, sums, image, place + 512 * k * tiles_of(OUTPUTS), 0);
                        }
            } else {
                const int here = place + 512 * start * tiles_of(OUTPUTS);
                split(in, start, high, low);
#pragma unroll
                for (int j = 0; j + GROUP <= TILES; j += GROUP)
#pragma unroll 1
                    for (unsigned turn = 0; turn < TURNS; ++turn) group<GROUP>(high, low, sums, image, here, j);
                if constexpr (REST)
#pragma unroll 1
                    for (unsigned turn = 0; turn < TURNS; ++turn)
                        group<REST>(high, low, sums, image, here, TILES - REST);
            }
        }
    }
};

// One row by one warp, with plain multiply-adds; `from` and `to` hold a layer's inputs and outputs.
template <int LAYER = 0>
__device__ __forceinline__ void plain_row(const float* __restrict__ plain, const Image<Precision>& image, float* from,
                                          float* to, float* outputs, int lane) {
    constexpr int INPUTS = WIDTH[LAYER], OUTPUTS = WIDTH[LAYER + 1];
    constexpr bool LAST = LAYER + 1 == LAYERS;
    __syncwarp();
    float clip = 0.0f;
    if constexpr (ACTIVATION[LAYER] == RELU_CLIPPED || is_curved(ACTIVATION[LAYER]))
        clip = image.read<float>(bias_place(LAYERS) + 4 * LAYER);
#pragma unroll 1
    for (int n = lane; n < OUTPUTS; n += WARP) {
        float sum = 0.0f;
#pragma unroll 1
        for (int k = 0; k < INPUTS; ++k) sum = fmaf(from[k], plain[k * OUTPUTS + n], sum);
        (LAST ? outputs : to)[n] =
            activated<ACTIVATION[LAYER]>(sum + image.read<float>(bias_place(LAYER) + 4 * n), clip);
    }
    if constexpr (!LAST) plain_row<LAYER + 1>(plain + INPUTS * OUTPUTS, image, to, from, outputs, lane);
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    mlp(const float* __restrict__ features, float* outputs, const unsigned char* __restrict__ image,
        const float* __restrict__ plain, int64 rows, unsigned* not_finite) {
    extern __shared__ __align__(16) unsigned char shared[];
    Image<Precision>::copy(image, shared);
    Tiles<Precision> mine = tiles<Precision>(features, outputs, rows, not_finite, shared);
    const int warp = threadIdx.x / WARP, lane = mine.lane;
    float* own = reinterpret_cast<float*>(shared + weight_place<Precision>(LAYERS)) + warp * 2 * widest();
    mine.run(first_tile(), [&](int tile, const Watched& watch) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // Each of a row's four lanes has seen a part of its sums.
                unsigned strange = __ballot_sync(ALL_LANES, watch.strange & 1u << (2 * m + half));
                while (strange) {
                    const int g = (__ffs(strange) - 1) / 4;
                    const int64 row = static_cast<int64>(tile) * (16 * ROW_TILES) + 16 * m + 8 * half + g;
                    strange &= ~(15u << (4 * g));
                    if (row >= rows) continue;
                    for (int k = lane; k < WIDTH[0]; k += WARP) own[k] = features[row * WIDTH[0] + k];
                    plain_row(plain, mine.image, own, own + widest(), outputs + row * WIDTH[LAYERS], lane);
                    __syncwarp();
                }
            }
    });
}
