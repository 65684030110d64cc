// What the tensor-core kernels share: the image of the weights, how rows come in and go out in the layout that the
// matrix instructions use, and the loop of a warp over its tiles of rows.
//
// A warp takes 16 * ROW_TILES rows through all layers. In the instructions, lane l holds of a 16 x 8 tile of sums the
// columns 2t, 2t + 1 of the rows g and g + 8, where g = l / 4 and t = l % 4. Such tiles of one layer's outputs are,
// lane by lane, tiles of the next layer's inputs, if the rows of its weights are ordered to suit; no lane ever needs
// what another one has computed. The first layer's weights are ordered so that a lane reads four neighbouring inputs at
// once.
//
// A source that includes this defines `struct Precision`: how weights lie in the image, how sums become inputs of the
// next layer, and the multiplication.
//
// WIDTHS: inputs, then the outputs of each layer. ACTIVATIONS: of each layer. ROW_TILES, WARPS: shape of a block.
// VECTOR: rows may be read 4 numbers at a time.
#pragma once
#include "activation.cuh"
#include "ptx/copies.cuh"
#include "ptx/matrix_products.cuh"
#include "ptx/numbers.cuh"

constexpr int WIDTH[] = {WIDTHS};
constexpr int ACTIVATION[] = {ACTIVATIONS};
constexpr int LAYERS = sizeof(ACTIVATION) / sizeof(int);
static_assert(sizeof(WIDTH) / sizeof(int) == LAYERS + 1, "a layer has inputs and outputs");

constexpr int tiles_of(int width) { return (width + 7) / 8; }
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

constexpr int widest() {
    int found = 0;
    for (int layer = 0; layer <= LAYERS; ++layer) found = larger(found, WIDTH[layer]);
    return found;
}

// sums += inputs * weights for a tile of 16 rows and 8 columns; 8 inputs. The inputs come in the order of sums.
__device__ __forceinline__ void multiply_tile(float (&sums)[4], const unsigned (&inputs)[4], unsigned first,
                                              unsigned second) {
    multiply_tf32(sums, inputs[0], inputs[2], inputs[1], inputs[3], first, second);
}

// ---- The image of the weights -----------------------------------------------------------------------------------

// Biases, each layer's padded with zeros to whole tiles; clips; padding to 16 bytes; then each layer's weights.
constexpr int bias_place(int layer) {
    int place = 0;
    for (int before = 0; before < layer; ++before) place += 8 * tiles_of(WIDTH[before + 1]);
    return 4 * place;
}

constexpr int VECTOR_BYTES = (bias_place(LAYERS) + 4 * LAYERS + 15) / 16 * 16;

template <class Precision>
constexpr int weight_place(int layer) {
    int place = VECTOR_BYTES;
    for (int before = 0; before < layer; ++before)
        place += Precision::weight_bytes(tiles_of(WIDTH[before]), tiles_of(WIDTH[before + 1]));
    return place;
}

template <class Precision>
struct Image {
    const unsigned char* start;  // in shared memory

    template <typename Unit>
    __device__ __forceinline__ Unit read(int place) const {
        return *reinterpret_cast<const Unit*>(start + place);
    }

    // Begin to copy the image; each layer's part is a group of its own, so that the first one can be used early.
    template <int LAYER = 0>
    __device__ __forceinline__ static void copy(const unsigned char* __restrict__ source, unsigned char* target) {
        if constexpr (LAYER < LAYERS) {
            constexpr int first = LAYER == 0 ? 0 : weight_place<Precision>(LAYER);
            const unsigned to = shared_address(target);
            for (int at = first + 16 * threadIdx.x; at < weight_place<Precision>(LAYER + 1); at += 16 * blockDim.x)
                copy_later<16>(to + at, source + at);
            close_copies();
            copy<LAYER + 1>(source, target);
        }
    }

    // Wait until the part of LAYER is there; all threads of the block must call.
    template <int LAYER>
    __device__ __forceinline__ static void arrive() {
        await_copies<LAYERS - 1 - LAYER>();
        __syncthreads();
    }

    template <int LAYER = 0>
    __device__ __forceinline__ static void arrive_all() {
        arrive<LAYER>();
        if constexpr (LAYER + 1 < LAYERS) arrive_all<LAYER + 1>();
    }
};

// ---- Rows in and out --------------------------------------------------------------------------------------------

// A lane's share of one 16 x 8 tile of inputs: columns c, c + 1 of row g, then of row g + 8, where c = 2t. In the first
// layer two neighbouring tiles share their 16 columns otherwise: the first has c = 4t, the second c = 4t + 2. Weights
// follow suit.
template <int TILES>
struct FloatRegisters {
    float at[TILES][ROW_TILES][4];

    __device__ __forceinline__ void put(int tile, int m, float a, float b, float c, float d) {
        at[tile][m][0] = a;
        at[tile][m][1] = b;
        at[tile][m][2] = c;
        at[tile][m][3] = d;
    }
    __device__ __forceinline__ void get(int tile, int m, float (&share)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) share[i] = at[tile][m][i];
    }
    // A number that is not finite times 0 is no number.
    __device__ __forceinline__ bool are_finite() const {
        float seen[4] = {};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) seen[i] = fmaf(at[tile][m][i], 0.0f, seen[i]);
        return (seen[0] + seen[1]) + (seen[2] + seen[3]) == 0.0f;
    }
};

// COUNT neighbouring numbers of a row, zeros beyond its end or where the row is not there.
template <int COUNT, int INPUTS>
__device__ __forceinline__ void read_floats(const float* __restrict__ row, int column, bool there,
                                            float (&numbers)[COUNT]) {
    if constexpr (VECTOR && COUNT == 4) {
        const float4 found = there && column < INPUTS ? __ldg(reinterpret_cast<const float4*>(row + column))
                                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        numbers[0] = found.x;
        numbers[1] = found.y;
        numbers[2] = found.z;
        numbers[3] = found.w;
    } else if constexpr (VECTOR && COUNT == 2) {
        const float2 found = there && column < INPUTS ? __ldg(reinterpret_cast<const float2*>(row + column))
                                                      : make_float2(0.0f, 0.0f);
        numbers[0] = found.x;
        numbers[1] = found.y;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            numbers[i] = there && column + i < INPUTS ? __ldg(row + column + i) : 0.0f;
    }
}

// Rows `first` and on of the features.
template <int INPUTS>
__device__ __forceinline__ void load_floats(const float* __restrict__ features, int64 first, int64 rows, int lane,
                                            FloatRegisters<tiles_of(INPUTS)>& target) {
    constexpr int PAIRS = tiles_of(INPUTS) / 2;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        const int64 upper = first + 16 * m + g;
        const float* above = features + upper * INPUTS;
        const float* below = above + 8 * INPUTS;
        const bool has_above = upper < rows, has_below = upper + 8 < rows;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            float a[4], b[4];
            read_floats<4, INPUTS>(above, 16 * pair + 4 * t, has_above, a);
            read_floats<4, INPUTS>(below, 16 * pair + 4 * t, has_below, b);
            target.put(2 * pair, m, a[0], a[1], b[0], b[1]);
            target.put(2 * pair + 1, m, a[2], a[3], b[2], b[3]);
        }
        if constexpr (tiles_of(INPUTS) % 2) {
            float a[2], b[2];
            read_floats<2, INPUTS>(above, 16 * PAIRS + 2 * t, has_above, a);
            read_floats<2, INPUTS>(below, 16 * PAIRS + 2 * t, has_below, b);
            target.put(2 * PAIRS, m, a[0], a[1], b[0], b[1]);
        }
    }
}

// Where the last layer's sums go: row-major into global memory.
template <class Precision, typename Number>
struct OutputRows {
    static constexpr int OUTPUTS = WIDTH[LAYERS];
    Number* outputs;
    int64 first, rows;
    int lane;

    template <int KIND>
    __device__ __forceinline__ void take(int tile, int m, const float (&sums)[4], float clip) {
        const int column = 8 * tile + 2 * (lane % 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64 row = first + 16 * m + 8 * half + lane / 4;
            const float left = activated<KIND>(sums[2 * half], clip), right = activated<KIND>(sums[2 * half + 1], clip);
            Number* target = outputs + row * OUTPUTS + column;
            if (row < rows) {
                if constexpr (OUTPUTS % 2 == 0) {
                    if (column < OUTPUTS) Precision::store_pair(target, left, right);
                } else {
                    if (column < OUTPUTS) Precision::store(target, left);
                    if (column + 1 < OUTPUTS) Precision::store(target + 1, right);
                }
            }
        }
    }
};

__device__ __forceinline__ void store_floats(float* target, float left, float right) {
    *reinterpret_cast<float2*>(target) = make_float2(left, right);
}

// Rows that wait in registers until their tile's turn, and inputs of a layer, as both float32 precisions have them.
struct FloatRaw {
    static constexpr int TILES = tiles_of(WIDTH[0]);
    static constexpr int REGISTERS = 4 * TILES * ROW_TILES;
    FloatRegisters<TILES> rows_of;

    __device__ __forceinline__ void load(const float* features, int64 first, int64 rows, int lane) {
        load_floats<WIDTH[0]>(features, first, rows, lane, rows_of);
    }

    // The rows become inputs of the first layer.
    template <class Inputs>
    __device__ __forceinline__ void begin(Inputs& in) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                float share[4];
                rows_of.get(tile, m, share);
                in.put(tile, m, share[0], share[1], share[2], share[3]);
            }
    }
};

template <class Precision, int TILES>
struct FloatInputs : FloatRegisters<TILES> {
    __device__ __forceinline__ void put(int tile, int m, float a, float b, float c, float d) {
        FloatRegisters<TILES>::put(tile, m, Precision::prepared(a), Precision::prepared(b), Precision::prepared(c),
                                   Precision::prepared(d));
    }
    template <int KIND>
    __device__ __forceinline__ void take(int tile, int m, const float (&sums)[4], float clip) {
        put(tile, m, activated<KIND>(sums[0], clip), activated<KIND>(sums[1], clip), activated<KIND>(sums[2], clip),
            activated<KIND>(sums[3], clip));
    }
};

// Types and constants that both float32 precisions share.
struct FloatPrecision {
    typedef float Input;
    typedef float Output;
    typedef FloatRaw Raw;
    static constexpr int REGISTERS = 4;  // of a lane, for a tile of inputs
    static constexpr int PANEL = 16 / ROW_TILES;  // 64 registers of sums

    __device__ __forceinline__ static void store(float* target, float value) { *target = value; }
    __device__ __forceinline__ static void store_pair(float* target, float left, float right) {
        store_floats(target, left, right);
    }
};

// ---- Layers -----------------------------------------------------------------------------------------------------

// Tiles of columns whose sums a warp has at a time, from tile `first` on.
template <class Precision, int LAYER, int PANEL, class In, class Out, class Watch>
__device__ __forceinline__ void panel(const In& in, Out& out, Watch& watch, const Image<Precision>& image, int lane,
                                      int first) {
    float sums[PANEL][ROW_TILES][4];
#pragma unroll
    for (int j = 0; j < PANEL; ++j) {
        const float2 bias = image.template read<float2>(bias_place(LAYER) + 32 * (first + j) + 8 * (lane % 4));
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            sums[j][m][0] = sums[j][m][2] = bias.x;
            sums[j][m][1] = sums[j][m][3] = bias.y;
        }
    }
    Precision::template accumulate<WIDTH[LAYER], WIDTH[LAYER + 1], PANEL>(in, sums, image,
                                                                          weight_place<Precision>(LAYER), lane, first);
    watch.see(sums);
    if constexpr (LAYER + 1 < LAYERS && WIDTH[LAYER + 1] % 8) {
        // Beyond the layer's width an infinite input times a weight of 0 has left NaN, which must not reach the next.
#pragma unroll
        for (int j = 0; j < PANEL; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * (first + j) + 2 * (lane % 4) + i % 2 >= WIDTH[LAYER + 1])
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) sums[j][m][i] = 0.0f;
    }
    float clip = 0.0f;
    if constexpr (ACTIVATION[LAYER] == RELU_CLIPPED || is_curved(ACTIVATION[LAYER]))
        clip = image.template read<float>(bias_place(LAYERS) + 4 * LAYER);
#pragma unroll
    for (int j = 0; j < PANEL; ++j)
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) out.template take<ACTIVATION[LAYER]>(first + j, m, sums[j][m], clip);
}

template <class Precision, int LAYER, class In, class Out, class Watch>
__device__ __forceinline__ void layer(const In& in, Out& out, Watch& watch, const Image<Precision>& image, int lane) {
    constexpr int TILES = tiles_of(WIDTH[LAYER + 1]), PANEL = smaller(TILES, Precision::PANEL);
    constexpr int WHOLE = TILES / PANEL;
#pragma unroll
    for (int i = 0; i < WHOLE; ++i)
        panel<Precision, LAYER, PANEL>(in, out, watch, image, lane, i * PANEL);
    if constexpr (TILES % PANEL)
        panel<Precision, LAYER, TILES % PANEL>(in, out, watch, image, lane, WHOLE * PANEL);
}

// Notes which rows had a sum that is infinite or not a number: those times 0 are not 0.
struct Watched {
    unsigned strange;  // a bit for each of the lane's rows: 2 m, 2 m + 1 for the one 8 below

    template <int PANEL>
    __device__ __forceinline__ void see(const float (&sums)[PANEL][ROW_TILES][4]) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float seen = 0.0f;
#pragma unroll
                for (int j = 0; j < PANEL; ++j)
                    seen = fmaf(sums[j][m][2 * half], 0.0f, fmaf(sums[j][m][2 * half + 1], 0.0f, seen));
                if (!(seen == 0.0f)) strange |= 1u << (2 * m + half);
            }
    }
};

struct Unwatched {
    unsigned strange;

    template <int PANEL>
    __device__ __forceinline__ void see(const float (&)[PANEL][ROW_TILES][4]) {}
};

// ---- The loop of a warp -----------------------------------------------------------------------------------------

template <class Precision>
constexpr int registers_of(int layer) {  // of a lane for the inputs of `layer`
    return Precision::REGISTERS * tiles_of(WIDTH[layer]) * ROW_TILES;
}

// Before which layer the next tile's rows are asked for: the first from where on there are registers for them.
template <class Precision>
constexpr int ask_before() {
    const int room = smaller(240, 65536 / (WARP * WARPS)) - Precision::SCRATCH;
    const int raw = Precision::Raw::REGISTERS;
    int found = LAYERS;
    for (int layer = LAYERS - 1; layer > 0; --layer) {
        const int next = layer + 1 < LAYERS ? registers_of<Precision>(layer + 1) : 0;
        if (raw + registers_of<Precision>(layer) + next > room) break;
        found = layer;
    }
    return found;
}

template <class Precision>
struct Tiles {
    typedef typename Precision::Raw Raw;
    typedef typename Precision::Watch Watch;
    typedef typename Precision::Input Input;
    typedef typename Precision::Output Output;
    static constexpr int ASK_BEFORE = ask_before<Precision>();

    const Input* features;
    Output* outputs;
    int64 rows;
    unsigned* not_finite;  // set to 1 if a number of the features is not; may be null
    int count, step;  // tiles
    Image<Precision> image;
    int lane;
    bool fresh;  // the image may not have arrived yet

    __device__ __forceinline__ void ask(int tile, Raw& raw) const {
        if (tile < count) raw.load(features, static_cast<int64>(tile) * (16 * ROW_TILES), rows, lane);
    }

    template <int LAYER, class In>
    __device__ __forceinline__ void from(const In& in, int tile, Raw& raw, Watch& watch) {
        if (fresh) Image<Precision>::template arrive<LAYER>();
        if constexpr (LAYER == ASK_BEFORE) ask(tile + step, raw);
        if constexpr (LAYER + 1 == LAYERS) {
            OutputRows<Precision, Output> out{outputs, static_cast<int64>(tile) * (16 * ROW_TILES), rows, lane};
            layer<Precision, LAYER>(in, out, watch, image, lane);
        } else {
            typename Precision::template Inputs<tiles_of(WIDTH[LAYER + 1])> out;
            layer<Precision, LAYER>(in, out, watch, image, lane);
            from<LAYER + 1>(out, tile, raw, watch);
        }
    }

    // `finish(tile, watch)` is called once a tile's rows have been written.
    template <class Finish>
    __device__ __forceinline__ void run(int tile, Finish finish) {
        Raw raw;
        ask(tile, raw);
        for (; tile < count; tile += step) {
            Watch watch{0};
            typename Precision::template Inputs<tiles_of(WIDTH[0])> in;
            if (not_finite != nullptr && !raw.rows_of.are_finite()) *not_finite = 1;
            raw.begin(in);
            from<0>(in, tile, raw, watch);
            finish(tile, watch);
            fresh = false;
            if constexpr (ASK_BEFORE == LAYERS) ask(tile + step, raw);
        }
        if (fresh) Image<Precision>::arrive_all();  // a warp without a tile takes part in its block's barriers
    }
};

// Set a warp up. Blocks take tiles in turn, and so do the warps of a block, so that all multiprocessors have some.
template <class Precision>
__device__ __forceinline__ Tiles<Precision> tiles(const typename Precision::Input* features,
                                                  typename Precision::Output* outputs, int64 rows,
                                                  unsigned* not_finite, const unsigned char* shared) {
    const int count = static_cast<int>((rows + 16 * ROW_TILES - 1) / (16 * ROW_TILES));
    const int step = gridDim.x * (blockDim.x / WARP);
    const int lane = threadIdx.x % WARP;
    return {features, outputs, rows, not_finite, count, step, {shared}, lane, true};
}

__device__ __forceinline__ int first_tile() { return blockIdx.x + gridDim.x * (threadIdx.x / WARP); }
