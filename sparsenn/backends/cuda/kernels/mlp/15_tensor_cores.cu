// tensor_shared: a whole stack of dense layers on tensor cores.
//
// Idea      A warp takes 16 or 32 rows through all layers by itself, so there is no barrier between layers, and while it
//           computes its next rows are on their way. FLOAT32 splits each operand into two TF32 numbers, x = high + low,
//           and adds low * high, high * low and high * high (H. Ootomo and R. Yokota, "Recovering single precision
//           accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022); TF32 and HALF
//           round operands to those formats. Sums, bias and activation are float32 in all three.
// Layout    A warp's rows lie in its own piece of shared memory, row-major, with a stride that spreads the rows of a
//           fragment over the banks; a layer reads one buffer and writes the other, or the same where all its outputs
//           are in registers before the first is written. Weights lie as fragments: what a lane gives to one
//           instruction is consecutive, lanes follow each other; they are copied into shared memory once a block where
//           they fit, or read through the caches. Which input is which position of a fragment's k is free as long as
//           both operands agree: a lane takes neighbouring inputs, so that it reads its part of the rows as one vector.
// Needs     compute capability 8.0. Finite inputs: with FLOAT32 an infinite one makes its row no number, as it meets low
//           parts that are 0. PRECISION (FLOAT32, TF32, HALF), INPUT (float or half16), ROW_TILES (1 or 2: times 16
//           rows a warp), SHARED_WEIGHTS (whether they are copied into shared memory), MOST_WARPS (of a block).
// Before    tuned_large: weights in registers, half-precision pairs.
// Changes   any widths, activations and precisions; a fragment's products are one instruction of a warp.
#include "common.cuh"

#define FLOAT32 0
#define TF32 1
#define HALF 2
#ifndef PRECISION
#define PRECISION FLOAT32
#define INPUT float
#define ROW_TILES 2
#define SHARED_WEIGHTS 1
#define MOST_WARPS 8
#endif

typedef unsigned short half16;  // a half, as bits: its header is not always at hand where kernels are compiled

constexpr int ROWS = 16 * ROW_TILES;           // of a warp
constexpr int STEP = PRECISION == HALF ? 16 : 8;  // inputs of one instruction
constexpr int STEPS_AT_ONCE = PRECISION == HALF ? 1 : 2;
constexpr int MOST_TILES = 8;                  // of 8 outputs that a warp has in registers

#if PRECISION == HALF
typedef half16 Element;
typedef uint2 Weights;  // of a lane and an instruction: four halves
#elif PRECISION == TF32
typedef float Element;
typedef uint2 Weights;  // two numbers
#else
typedef float Element;
typedef uint4 Weights;  // two high parts, two low parts
#endif

struct Layer {
    int steps;       // of STEP inputs
    int tiles;       // of 8 outputs, those of padding included
    int outputs;
    int stored;      // outputs and padding that the next layer reads, a multiple of STEP
    int revised;     // whether sigmoid or tanh, or padding that is not zero by itself, is left to do
    int weights;     // where its fragments begin
    int bias;        // where its padded bias begins
    int activation;
    float clip;
    int target;      // buffer that it writes
};

struct Network {
    const Layer* layers;
    const Weights* weights;
    const float* bias;
    int count;           // layers
    int inputs;          // of the first
    int fragments;       // of all layers
    int biases;
    int stride;          // of a row in shared memory, in elements
    int buffers;         // of ROWS rows that a warp has; the first is for inputs
};

// ---- Numbers ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ half16 to_half(float x) {
    half16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
    return rounded;
}

__device__ __forceinline__ float from_half(half16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

template <typename Target>
__device__ __forceinline__ Target converted(float x) {
    if constexpr (sizeof(Target) == sizeof(float)) return x;
    else return to_half(x);
}

template <typename Target>
__device__ __forceinline__ Target converted(half16 x) {
    if constexpr (sizeof(Target) == sizeof(half16)) return x;
    else return from_half(x);
}

__device__ __forceinline__ unsigned to_tf32(float x) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

// x = high + low up to 22 bits. What rounds to infinity, is infinite or no number is left to the high part.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    high = to_tf32(x);
    const float rest = x - __uint_as_float(high);
    const bool finite = fabsf(rest) < __int_as_float(0x7f800000);
    if (!finite) high = __float_as_uint(x);
    low = finite ? to_tf32(rest) : 0;
}

// ---- Fragments --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tf32(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_half(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows' part of one instruction, for this lane. `at` is the lane's first element in the first of its two rows.
struct Rows {
    unsigned high[4];
    unsigned low[4];  // FLOAT32 only

    __device__ __forceinline__ void read(const Element* at, int stride) {
        const uint2 upper = *reinterpret_cast<const uint2*>(at);
        const uint2 lower = *reinterpret_cast<const uint2*>(at + 8 * stride);
#if PRECISION == HALF
        high[0] = upper.x, high[1] = lower.x, high[2] = upper.y, high[3] = lower.y;
#else
        const unsigned bits[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
        for (int k = 0; k < 4; k++) {
#if PRECISION == TF32
            high[k] = to_tf32(__uint_as_float(bits[k]));
#else
            split(__uint_as_float(bits[k]), high[k], low[k]);
#endif
        }
#endif
    }

    __device__ __forceinline__ void multiply(float (&sum)[4], const Weights& weights) const {
#if PRECISION == HALF
        multiply_half(sum, high, weights.x, weights.y);
#elif PRECISION == TF32
        multiply_tf32(sum, high, weights.x, weights.y);
#else
        float part[4] = {};  // tensor cores cut sums off where float32 rounds them: only short ones are left to them
        multiply_tf32(part, low, weights.x, weights.y);
        multiply_tf32(part, high, weights.z, weights.w);
        multiply_tf32(part, high, weights.x, weights.y);
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] += part[k];
#endif
    }
};

// ---- A layer ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store(Element* at, float first, float second) {
#if PRECISION == HALF
    *reinterpret_cast<unsigned*>(at) = to_half(first) | static_cast<unsigned>(to_half(second)) << 16;
#else
    *reinterpret_cast<float2*>(at) = make_float2(first, second);
#endif
}

// TILES tiles of outputs, from tile `first` on. `source` and `target` are the warp's buffers.
template <int TILES>
__device__ __forceinline__ void some_outputs(const Layer& layer, const Weights* weights, const float* bias, int first,
                                             const Element* source, Element* target, int stride, int lane) {
    constexpr int WIDTH = STEP / 4;  // elements of a lane in a row and an instruction
    const Element* own = source + lane / 4 * stride + lane % 4 * WIDTH;
    const Weights* fragments = weights + layer.weights + static_cast<int64>(first) * layer.steps * WARP + lane;
    float sums[ROW_TILES][TILES][4] = {};
#pragma unroll STEPS_AT_ONCE
    for (int step = 0; step < layer.steps; step++) {
        Rows rows[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) rows[m].read(own + 16 * m * stride + step * STEP, stride);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const Weights here = fragments[(tile * layer.steps + step) * WARP];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) rows[m].multiply(sums[m][tile], here);
        }
    }
    __syncwarp();  // all have read what may now be overwritten
    const float infinity = __int_as_float(0x7f800000);
    const float least = layer.activation == RELU ? 0.0f : -infinity;
    const float most = layer.activation == RELU ? layer.clip : infinity;
    Element* to = target + lane / 4 * stride + first * 8 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const float2 own_bias = *reinterpret_cast<const float2*>(bias + layer.bias + (first + tile) * 8 + lane % 4 * 2);
        if ((first + tile) * 8 >= layer.stored) break;
#pragma unroll
        for (int m = 0; m < 2 * ROW_TILES; m++) {
            const float left = sums[m / 2][tile][m % 2 * 2] + own_bias.x;
            const float right = sums[m / 2][tile][m % 2 * 2 + 1] + own_bias.y;
            store(to + 8 * m * stride + 8 * tile, left < least ? least : left > most ? most : left,
                  right < least ? least : right > most ? most : right);  // no number stays none
        }
    }
}

// What cannot be done to sums on their way: sigmoid and tanh, once for all, and zeros for the next layer's padding.
__device__ __noinline__ void revise(const Layer& layer, Element* rows, int stride, int lane) {
    __syncwarp();
    const bool costly = layer.activation == SIGMOID || layer.activation == TANH;
    for (int column = (costly ? 0 : layer.outputs) + lane; column < layer.stored; column += WARP)
#pragma unroll 1
        for (int row = 0; row < ROWS; row++) {
            Element* at = rows + row * stride + column;
            const float z = column < layer.outputs ? converted<float>(*at) : 0.0f;
            *at = converted<Element>(column < layer.outputs ? activate(z, layer.activation, layer.clip) : 0.0f);
        }
}

__device__ __forceinline__ void run_layer(const Layer& layer, const Weights* weights, const float* bias,
                                          const Element* source, Element* target, int stride, int lane) {
    int first = 0;
    for (; first + MOST_TILES <= layer.tiles; first += MOST_TILES)
        some_outputs<MOST_TILES>(layer, weights, bias, first, source, target, stride, lane);
    const int rest = layer.tiles - first;
    if (rest == 4) some_outputs<4>(layer, weights, bias, first, source, target, stride, lane);
    if (rest == 2) some_outputs<2>(layer, weights, bias, first, source, target, stride, lane);
    if (rest == 1) some_outputs<1>(layer, weights, bias, first, source, target, stride, lane);
    if (layer.revised) revise(layer, target, stride, lane);
    __syncwarp();
}

// ---- Rows in and out --------------------------------------------------------------------------------------------

// Begins to bring a warp's rows into `target`; rows past the last are left as they are, and never written out.
__device__ __forceinline__ void fetch_rows(const INPUT* features, int64 first, int64 rows, int inputs, Element* target,
                                           int stride, int lane) {
    const int count = first + ROWS <= rows ? ROWS : first < rows ? static_cast<int>(rows - first) : 0;
    const INPUT* from = features + first * inputs;
    const int total = count * inputs;
    constexpr int WIDE = 16 / sizeof(INPUT);
    if (inputs % WIDE == 0) {
        const int pieces = inputs / WIDE;
        int row = lane / pieces, piece = lane % pieces;
        for (int at = lane * WIDE; at < total; at += WARP * WIDE) {
            Element* to = target + row * stride + piece * WIDE;
            if constexpr (sizeof(INPUT) == sizeof(Element)) {
                const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + at) : "memory");
            } else {
#if PRECISION == HALF
                const float4 four = *reinterpret_cast<const float4*>(from + at);
                store(to, four.x, four.y);
                store(to + 2, four.z, four.w);
#endif
            }
            piece += WARP;
            while (piece >= pieces) piece -= pieces, row++;
        }
    } else {
        int row = lane / inputs, column = lane % inputs;
        for (int at = lane; at < total; at += WARP) {
            target[row * stride + column] = converted<Element>(from[at]);
            column += WARP;
            while (column >= inputs) column -= inputs, row++;
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void rows_are_here() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

__device__ __forceinline__ void write_rows(INPUT* target, int64 first, int64 rows, int outputs, const Element* source,
                                           int stride, int lane) {
    const int count = first + ROWS <= rows ? ROWS : static_cast<int>(rows - first);
    INPUT* to = target + first * outputs;
    const int total = count * outputs;
    int row = lane / outputs, column = lane % outputs;
    for (int at = lane; at < total; at += WARP) {
        to[at] = converted<INPUT>(source[row * stride + column]);
        column += WARP;
        while (column >= outputs) column -= outputs, row++;
    }
}

// Each warp of the grid takes every so many rows. Shared memory: weights (where they fit), bias, buffers of each warp.
extern "C" __global__ void __launch_bounds__(WARP * MOST_WARPS, 1)
    tensor_cores(const Network* __restrict__ network, const INPUT* __restrict__ features, INPUT* __restrict__ target,
                 int64 rows) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Layer layers[32];
    const Network net = *network;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    Weights* shared_weights = reinterpret_cast<Weights*>(memory);
    float* bias = reinterpret_cast<float*>(shared_weights + (SHARED_WEIGHTS ? net.fragments : 0));
    const int buffer = ROWS * net.stride;
    Element* own = reinterpret_cast<Element*>(bias + net.biases) + warp * net.buffers * buffer;
    const int64 all = static_cast<int64>(gridDim.x) * warps;
    int64 tile = static_cast<int64>(blockIdx.x) + static_cast<int64>(gridDim.x) * warp;

    for (int at = lane; at < net.buffers * buffer; at += WARP) own[at] = converted<Element>(0.0f);
    __syncwarp();
    fetch_rows(features, tile * ROWS, rows, net.inputs, own, net.stride, lane);
    if (SHARED_WEIGHTS)
        for (int at = threadIdx.x; at < net.fragments; at += blockDim.x) shared_weights[at] = net.weights[at];
    for (int at = threadIdx.x; at < net.biases; at += blockDim.x) bias[at] = net.bias[at];
    for (int at = threadIdx.x; at < net.count; at += blockDim.x) layers[at] = net.layers[at];
    __syncthreads();
    const Weights* weights = SHARED_WEIGHTS ? shared_weights : net.weights;
    for (; tile * ROWS < rows; tile += all) {
        rows_are_here();
        const Element* source = own;
        for (int number = 0; number < net.count; number++) {
            const Layer& layer = layers[number];
            Element* to = own + layer.target * buffer;
            run_layer(layer, weights, bias, source, to, net.stride, lane);
            source = to;
            if (number == 0) fetch_rows(features, (tile + all) * ROWS, rows, net.inputs, own, net.stride, lane);
        }
        write_rows(target, tile * ROWS, rows, layers[net.count - 1].outputs, source, net.stride, lane);
        __syncwarp();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
