// What the rungs in half precision share: pairs of numbers in one register, dot products of them, a thread's part of a
// row and of the weights, and the layers over a tile of rows in shared memory.
//
// The second and first element of a pair lie in the high and low half of a 32-bit word. A row of a tile takes PITCH
// words, of which the first INPUTS / 2 or HIDDEN / 2 are used. Every product and every sum of up to DEPTH products is
// rounded to half precision; sums of those, bias and ReLU are float32. Numbers above 65,504 become infinite, and steps
// below 6e-8 are lost: inputs, weights and hidden values must not be of such sizes.
#pragma once
#include "mlp.cuh"
#include "ptx/numbers.cuh"

typedef unsigned Half2;

constexpr int PITCH = 36;
constexpr int DEPTH = 9;
static_assert(PITCH >= INPUTS / 2 && PITCH >= HIDDEN / 2, "a row fits into its place");
static_assert(PITCH % 8 == 4, "rows are 16-byte aligned, and 8 of them begin in banks that are 4 apart");

// ---- Arithmetic on pairs -----------------------------------------------------------------------------------------

// The sum of a pair's two numbers, in float32.
__device__ __forceinline__ float both(Half2 pair) {
    return to_float(static_cast<half_bits>(pair)) + to_float(static_cast<half_bits>(pair >> 16));
}

// The products go to as few sums as keep each within DEPTH steps.
template <int COUNT>
__device__ __forceinline__ float dot(const Half2 (&row)[COUNT], const Half2 (&weights)[COUNT]) {
    constexpr int SUMS = (COUNT + DEPTH - 1) / DEPTH;
    float total = 0.0f;
#pragma unroll
    for (int first = 0; first < SUMS; ++first) {
        Half2 sum = multiply_halves(row[first], weights[first]);
#pragma unroll
        for (int i = first + SUMS; i < COUNT; i += SUMS) sum = multiply_add_halves(row[i], weights[i], sum);
        total += both(sum);
    }
    return total;
}

// ---- A thread's part ---------------------------------------------------------------------------------------------

// PARTS threads share a row of PARTS * COUNT pairs: they take turns, WIDTH neighbouring pairs each, and what does not
// fill a turn is dealt out evenly at the end. This is which pair of the row the part's i-th is.
template <int PARTS, int WIDTH, int COUNT>
__device__ __forceinline__ constexpr int pair_of(int part, int i) {
    constexpr int REST = COUNT % WIDTH, WHOLE = COUNT - REST;
    return i < WHOLE ? (i / WIDTH * PARTS + part) * WIDTH + i % WIDTH : WHOLE * PARTS + part * REST + i - WHOLE;
}

// WIDTH pairs that are read and written at once.
template <int WIDTH>
struct alignas(4 * WIDTH) Pairs {
    Half2 pair[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ void read_pairs(const Half2* from, Half2* to) {
    const Pairs<WIDTH> read = *reinterpret_cast<const Pairs<WIDTH>*>(from);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = read.pair[i];
}

// A part of a row in shared memory, WIDTH pairs at a time.
template <int PARTS, int WIDTH, int COUNT>
__device__ __forceinline__ void read_part(const Half2* row, int part, Half2 (&values)[COUNT]) {
    constexpr int REST = COUNT % WIDTH, WHOLE = COUNT - REST;
#pragma unroll
    for (int i = 0; i < WHOLE; i += WIDTH) {
        read_pairs<WIDTH>(row + pair_of<PARTS, WIDTH, COUNT>(part, i), values + i);
    }
    if constexpr (REST > 0) read_pairs<REST>(row + pair_of<PARTS, WIDTH, COUNT>(part, WHOLE), values + WHOLE);
}

// The weights of one output that go with that part, from a float32 matrix (inputs, outputs).
template <int PARTS, int WIDTH, int COUNT>
__device__ __forceinline__ void take_weights(const float* __restrict__ weights, int outputs, int output, int part,
                                             Half2 (&taken)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float* first = weights + 2 * pair_of<PARTS, WIDTH, COUNT>(part, i) * outputs + output;
        taken[i] = to_halves(first[0], first[outputs]);
    }
}

// The same from packed weights: in half precision, the first pair of each of TAKERS threads, then the second of each...
template <int TAKERS, int COUNT>
__device__ __forceinline__ void take_packed(const Half2* __restrict__ packed, Half2 (&taken)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) taken[i] = packed[i * TAKERS + threadIdx.x % TAKERS];
}

// ---- Over a tile of rows -----------------------------------------------------------------------------------------

// Rows `first` to `first + ROWS` of the features to a tile, in half precision, by COUNT threads, of which this one is
// the `thread`-th and asks for AT_ONCE times 16 bytes before it waits. Rows past the last are zeros. The features are
// 16-byte aligned.
template <int ROWS, int COUNT, int AT_ONCE = 1>
__device__ __forceinline__ void load_tile(const float* __restrict__ features, int64 first, int64 rows, Half2* tile,
                                          int thread) {
    constexpr int QUADS = INPUTS / 4;
    const float4* source = reinterpret_cast<const float4*>(features) + first * QUADS;
    const int64 there = (rows - first) * QUADS;
#pragma unroll(AT_ONCE)
    for (int i = thread; i < ROWS * QUADS; i += COUNT) {
        float4 read = {0.0f, 0.0f, 0.0f, 0.0f};
        if (i < there) read = source[i];
        const Pairs<2> pairs = {{to_halves(read.x, read.y), to_halves(read.z, read.w)}};
        *reinterpret_cast<Pairs<2>*>(tile + i / QUADS * PITCH + i % QUADS * 2) = pairs;
    }
}

__device__ __forceinline__ void put_hidden(Half2* tile, int row, int unit, float sum) {
    reinterpret_cast<half_bits*>(tile + row * PITCH)[unit] = to_half(relu(sum));
}

// A hidden layer from one tile to another, PARTS threads a unit; a thread takes ROWS rows, one after the other. If
// CIRCULAR, threads of other units begin at other rows, so that those of a warp read different rows at any time.
template <int PARTS, int WIDTH, int ROWS, bool CIRCULAR, int COUNT>
__device__ __forceinline__ void hidden_layer(const Half2* from, const Half2 (&weights)[COUNT], float bias, Half2* to) {
    static_assert(!CIRCULAR || ROWS % (WARP / PARTS) == 0, "rows go round a whole number of times");
    const int part = threadIdx.x % PARTS, unit = threadIdx.x / PARTS % HIDDEN;
    const int first = threadIdx.x / (PARTS * HIDDEN) * ROWS;
#pragma unroll(PARTS > 2 ? 1 : 2)
    for (int step = 0; step < ROWS; ++step) {
        const int row = first + (CIRCULAR ? (step + unit) % ROWS : step);
        Half2 values[COUNT];
        read_part<PARTS, WIDTH>(from + row * PITCH, part, values);
        const float sum = group_sum<PARTS>(dot(values, weights));
        if (part == 0) put_hidden(to, row, unit, sum + bias);
    }
}

// The same by two threads a unit, which take two rows at a time: one exchange finishes a row for each of them.
template <int WIDTH, int ROWS, int COUNT>
__device__ __forceinline__ void hidden_layer_by_two(const Half2* from, const Half2 (&weights)[COUNT], float bias,
                                                    Half2* to) {
    const int part = threadIdx.x % 2, unit = threadIdx.x / 2 % HIDDEN, first = threadIdx.x / (2 * HIDDEN) * ROWS;
#pragma unroll 2
    for (int step = 0; step < ROWS; step += 2) {
        float sums[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            Half2 values[COUNT];
            read_part<2, WIDTH>(from + (first + step + i) * PITCH, part, values);
            sums[i] = dot(values, weights);
        }
        const float kept = part ? sums[1] : sums[0], sent = part ? sums[0] : sums[1];
        const float sum = kept + __shfl_xor_sync(ALL_LANES, sent, 1);
        put_hidden(to, first + step + part, unit, sum + bias);
    }
}

// How many lanes share an output of the last layer if each holds COUNT pairs of weights, and which output and part of
// it are this thread's.
template <int COUNT>
constexpr int LANES = HIDDEN / 2 / COUNT;

template <int COUNT>
__device__ __forceinline__ int output_of_thread() {
    return threadIdx.x / LANES<COUNT> % OUTPUTS;
}

template <int COUNT>
__device__ __forceinline__ int part_of_thread() {
    return threadIdx.x % LANES<COUNT>;
}

// The last layer from a tile to the outputs of rows `first` to `first + ROWS`, by the first THREADS_TAKING threads of
// the block, each with COUNT pairs of weights. A row of the tile takes OUTPUTS * LANES threads.
template <int ROWS, int THREADS_TAKING, int COUNT>
__device__ __forceinline__ void output_layer(const Half2* from, const Half2 (&weights)[COUNT], float bias,
                                             int64 first, int64 rows, float* __restrict__ outputs) {
    constexpr int THREADS_PER_ROW = OUTPUTS * LANES<COUNT>;
    static_assert(ROWS * THREADS_PER_ROW % THREADS_TAKING == 0, "all threads take equally many rows");
    const int part = part_of_thread<COUNT>(), output = output_of_thread<COUNT>();
#pragma unroll 1
    for (int row = threadIdx.x / THREADS_PER_ROW; row < ROWS; row += THREADS_TAKING / THREADS_PER_ROW) {
        Half2 values[COUNT];
        read_part<LANES<COUNT>, (COUNT < 4 ? COUNT : 4)>(from + row * PITCH, part, values);
        const float sum = group_sum<LANES<COUNT>>(dot(values, weights));
        if (part == 0 && first + row < rows) outputs[(first + row) * OUTPUTS + output] = sum + bias;
    }
}

// ---- The arguments -----------------------------------------------------------------------------------------------

#define MLP_PARAMETERS(Weight)                                                                                         \
    int64 rows, const float *__restrict__ features, const Weight *__restrict__ weights1,                               \
        const float *__restrict__ bias1, const Weight *__restrict__ weights2, const float *__restrict__ bias2,         \
        const Weight *__restrict__ weights3, const float *__restrict__ bias3, float *__restrict__ outputs
