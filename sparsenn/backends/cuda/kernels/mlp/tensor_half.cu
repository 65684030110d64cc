// tensor_half: inputs, weights and intermediates in half precision, sums in float32.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and tensor cores multiply it twice as
//           fast; what it lacks is range.
// Layout    features and outputs row-major, both float32 or both half (INPUT); the image of the weights as in
//           fused.cuh: for each 16 x 8 tile 8 bytes a lane, the weights [2t][g], [2t + 1][g], [2t + 8][g],
//           [2t + 9][g], and where 8 inputs are left, 4 bytes a lane, [2t][g] and [2t + 1][g]. A warp takes
//           16 * ROW_TILES rows through all layers.
// Needs     compute capability 8.0; widths up to 128; shared memory for the image. Inputs and intermediates beyond
//           65,504 become infinite, and those below 3e-8 zero.
// Before    tensor_tf32.
// Changes   half the instructions and half the bytes of weights, and of rows where those come as halves. For 72-64-64-4
//           a row takes 9,728 multiply-adds, 5 to 8 clocks of a multiprocessor's tensor cores, 5 clocks of weights from
//           shared memory with 32 rows a warp, and 152 or 304 bytes of device memory, about 9 or 17 clocks at 4.2 TB/s:
//           no kernel can be faster than that.
#include "fused.cuh"

// A lane's share of tiles of inputs, two halves a register: row g, then row g + 8.
template <int TILES>
struct HalfRegisters {
    unsigned at[TILES][ROW_TILES][2];

    __device__ __forceinline__ void set(int tile, int m, unsigned above, unsigned below) {
        at[tile][m][0] = above;
        at[tile][m][1] = below;
    }
    __device__ __forceinline__ void put(int tile, int m, float a, float b, float c, float d) {
        set(tile, m, to_halves(a, b), to_halves(c, d));
    }
    __device__ __forceinline__ void get(int tile, int m, unsigned (&share)[2]) const {
        share[0] = at[tile][m][0];
        share[1] = at[tile][m][1];
    }
    // Adding 1 to an exponent whose bits are all set reaches the sign's bit.
    __device__ __forceinline__ bool are_finite() const {
        unsigned seen = 0;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) seen |= (at[tile][m][half] & 0x7c007c00u) + 0x04000400u;
        return (seen & 0x80008000u) == 0;
    }
};

// 2 or 4 neighbouring halves of a row, two a register.
template <int COUNT, int INPUTS>
__device__ __forceinline__ void read_halves(const half_bits* __restrict__ row, int column, bool there,
                                            unsigned (&pairs)[COUNT / 2]) {
    if constexpr (VECTOR && COUNT == 4) {
        const uint2 found =
            there && column < INPUTS ? __ldg(reinterpret_cast<const uint2*>(row + column)) : make_uint2(0, 0);
        pairs[0] = found.x;
        pairs[1] = found.y;
    } else if constexpr (VECTOR) {
        pairs[0] = there && column < INPUTS ? __ldg(reinterpret_cast<const unsigned*>(row + column)) : 0;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const int at = column + 2 * i;
            const unsigned low = there && at < INPUTS ? __ldg(row + at) : 0;
            const unsigned high = there && at + 1 < INPUTS ? __ldg(row + at + 1) : 0;
            pairs[i] = low | high << 16;
        }
    }
}

// Rows `first` and on of the features.
template <int INPUTS>
__device__ __forceinline__ void load_halves(const half_bits* __restrict__ features, int64 first, int64 rows, int lane,
                                            HalfRegisters<tiles_of(INPUTS)>& target) {
    constexpr int PAIRS = tiles_of(INPUTS) / 2;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        const int64 upper = first + 16 * m + g;
        const half_bits* above = features + upper * INPUTS;
        const half_bits* below = above + 8 * INPUTS;
        const bool has_above = upper < rows, has_below = upper + 8 < rows;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            unsigned a[2], b[2];
            read_halves<4, INPUTS>(above, 16 * pair + 4 * t, has_above, a);
            read_halves<4, INPUTS>(below, 16 * pair + 4 * t, has_below, b);
            target.set(2 * pair, m, a[0], b[0]);
            target.set(2 * pair + 1, m, a[1], b[1]);
        }
        if constexpr (tiles_of(INPUTS) % 2) {
            unsigned a[1], b[1];
            read_halves<2, INPUTS>(above, 16 * PAIRS + 2 * t, has_above, a);
            read_halves<2, INPUTS>(below, 16 * PAIRS + 2 * t, has_below, b);
            target.set(2 * PAIRS, m, a[0], b[0]);
        }
    }
}

struct HalfRaw {
    static constexpr int TILES = tiles_of(WIDTH[0]);
    static constexpr int REGISTERS = 2 * TILES * ROW_TILES;
    HalfRegisters<TILES> rows_of;

    __device__ __forceinline__ void load(const half_bits* features, int64 first, int64 rows, int lane) {
        load_halves<WIDTH[0]>(features, first, rows, lane, rows_of);
    }

    // The rows become inputs of the first layer.
    template <class Inputs>
    __device__ __forceinline__ void begin(Inputs& in) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                unsigned share[2];
                rows_of.get(tile, m, share);
                in.set(tile, m, share[0], share[1]);
            }
    }
};

template <int TILES>
struct HalfInputs : HalfRegisters<TILES> {
    template <int KIND>
    __device__ __forceinline__ void take(int tile, int m, const float (&sums)[4], float clip) {
        if constexpr (KIND == RELU)
            this->set(tile, m, to_positive_halves(sums[0], sums[1]), to_positive_halves(sums[2], sums[3]));
        else
            this->put(tile, m, activated<KIND>(sums[0], clip), activated<KIND>(sums[1], clip),
                      activated<KIND>(sums[2], clip), activated<KIND>(sums[3], clip));
    }
};

template <typename Number>
struct Rows;
template <>
struct Rows<float> {
    typedef FloatRaw Raw;
};
template <>
struct Rows<half_bits> {
    typedef HalfRaw Raw;
};

struct Precision {
    typedef INPUT Input;
    typedef INPUT Output;
    typedef Rows<INPUT>::Raw Raw;
    typedef Unwatched Watch;
    template <int TILES>
    using Inputs = HalfInputs<TILES>;
    static constexpr int REGISTERS = 2;  // of a lane, for a tile of inputs
    static constexpr int PANEL = 8 / ROW_TILES;  // 8 chains of instructions
    static constexpr int SCRATCH = 64;

    static constexpr int weight_bytes(int input_tiles, int output_tiles) { return 128 * input_tiles * output_tiles; }
    __device__ __forceinline__ static void store(float* target, float value) { *target = value; }
    __device__ __forceinline__ static void store(half_bits* target, float value) { *target = to_half(value); }
    __device__ __forceinline__ static void store_pair(float* target, float left, float right) {
        store_floats(target, left, right);
    }
    __device__ __forceinline__ static void store_pair(half_bits* target, float left, float right) {
        *reinterpret_cast<unsigned*>(target) = to_halves(left, right);
    }
    template <int INPUTS, int OUTPUTS, int TILES, class In>
    __device__ __forceinline__ static void accumulate(const In& in, float (&sums)[TILES][ROW_TILES][4],
                                                      const Image<Precision>& image, int place, int lane, int first) {
        constexpr int STEPS = tiles_of(INPUTS) / 2;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            unsigned left[ROW_TILES][2], right[ROW_TILES][2];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                in.get(2 * k, m, left[m]);
                in.get(2 * k + 1, m, right[m]);
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const uint2 weights = image.read<uint2>(place + 256 * (k * tiles_of(OUTPUTS) + first + j) + 8 * lane);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
                    multiply_half(sums[j][m], left[m][0], left[m][1], right[m][0], right[m][1], weights.x, weights.y);
            }
        }
        if constexpr (tiles_of(INPUTS) % 2)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                unsigned share[2];
                in.get(2 * STEPS, m, share);
#pragma unroll
                for (int j = 0; j < TILES; ++j)
                    multiply_half(
                        sums[j][m], share,
                        image.read<unsigned>(place + 256 * STEPS * tiles_of(OUTPUTS) + 128 * (first + j) + 4 * lane));
            }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    mlp(const INPUT* __restrict__ features, INPUT* outputs, const unsigned char* __restrict__ image, int64 rows,
        unsigned* not_finite) {
    extern __shared__ __align__(16) unsigned char shared[];
    Image<Precision>::copy(image, shared);
    tiles<Precision>(features, outputs, rows, not_finite, shared).run(first_tile(), [](int, const Unwatched&) {});
}
