// fused_fma: all layers in one kernel on the ordinary float32 units, each thread with a square of sums in registers.
//
// Idea      A block takes ROWS rows through all layers. A layer is a small matrix product: a thread has the sums of 8
//           rows and 4 columns, reads 8 inputs and 4 weights for 32 multiply-adds, and leaves its outputs where the
//           next layer finds its inputs. Rows come from global memory once, outputs go there once.
// Layout    features and outputs row-major float32. Inputs of a layer lie in shared memory by column, ROWS + 4 floats
//           each, so that rows are read 4 at a time. Image of the weights: for each layer (inputs, outputs padded to
//           4), row-major; then the biases, padded alike; then the clips. Without STAGED it stays in global memory.
//           not_finite: set to 1 if a number of the features is not; may be null.
// Needs     blocks of THREADS threads; shared memory for two layers' inputs, and for the image if STAGED.
// Before    tuned_large, the last of the ladder for one network.
// Changes   any widths; a number from shared memory serves 4 or 8 multiply-adds instead of one. For 72-64-64-4 a row
//           takes 8,960 multiply-adds: 70 clocks of a multiprocessor, 1.5 ms for 5,120,000 rows on 132 at 1.8 GHz;
//           1.4 KB from shared memory, 11 clocks, and 304 bytes from global memory: arithmetic bounds it.
#include "activation.cuh"

constexpr int WIDTH[] = {WIDTHS};
constexpr int ACTIVATION[] = {ACTIVATIONS};
constexpr int LAYERS = sizeof(ACTIVATION) / sizeof(int);
static_assert(sizeof(WIDTH) / sizeof(int) == LAYERS + 1, "a layer has inputs and outputs");
static_assert(ROWS % 8 == 0 && THREADS % WARP == 0, "a thread has up to 8 rows");

constexpr int STRIDE = ROWS + 4;  // from column to column

constexpr int padded(int width) { return (width + 3) / 4 * 4; }

constexpr int widest() {
    int found = 0;
    for (int layer = 0; layer <= LAYERS; ++layer) found = WIDTH[layer] > found ? WIDTH[layer] : found;
    return found;
}

constexpr int weight_place(int layer) {
    int place = 0;
    for (int before = 0; before < layer; ++before) place += WIDTH[before] * padded(WIDTH[before + 1]);
    return place;
}

constexpr int bias_place(int layer) {
    int place = weight_place(LAYERS);
    for (int before = 0; before < layer; ++before) place += padded(WIDTH[before + 1]);
    return place;
}

constexpr int IMAGE = (bias_place(LAYERS) + LAYERS + 3) / 4 * 4;  // floats

template <typename Vector>
__device__ __forceinline__ Vector read(const float* image, int place) {
    const Vector* found = reinterpret_cast<const Vector*>(image + place);
    if constexpr (STAGED) return *found;
    return __ldg(found);
}

// Rows of a thread's square: as many as keep all threads busy.
constexpr int rows_each(int columns) {
    int rows = 8;
    while (rows > 1 && ROWS / rows * (padded(columns) / 4) < THREADS) rows /= 2;
    return rows;
}

// COUNT rows of one column. Of 8, the second 4 come from the lower half of the tile: neighbouring threads read
// neighbouring fours.
template <int COUNT>
__device__ __forceinline__ float* place_of(float* column, int square, int part) {
    if constexpr (COUNT == 8) return column + 4 * square + part * (ROWS / 2);
    return column + COUNT * square;
}

template <int COUNT>
__device__ __forceinline__ void read_rows(const float* column, int square, float (&rows)[COUNT]) {
    float* from = const_cast<float*>(column);
    if constexpr (COUNT >= 4) {
#pragma unroll
        for (int part = 0; part < COUNT / 4; ++part) {
            const float4 four = *reinterpret_cast<const float4*>(place_of<COUNT>(from, square, part));
            rows[4 * part] = four.x;
            rows[4 * part + 1] = four.y;
            rows[4 * part + 2] = four.z;
            rows[4 * part + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) rows[i] = column[COUNT * square + i];
    }
}

template <int COUNT>
__device__ __forceinline__ void write_rows(float* column, int square, const float (&rows)[COUNT]) {
    if constexpr (COUNT >= 4) {
#pragma unroll
        for (int part = 0; part < COUNT / 4; ++part)
            *reinterpret_cast<float4*>(place_of<COUNT>(column, square, part)) =
                make_float4(rows[4 * part], rows[4 * part + 1], rows[4 * part + 2], rows[4 * part + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) column[COUNT * square + i] = rows[i];
    }
}

template <int LAYER>
__device__ __forceinline__ void layer(const float* image, const float* inputs, float* outputs) {
    constexpr int INPUTS = WIDTH[LAYER], OUTPUTS = WIDTH[LAYER + 1];
    constexpr int EACH = rows_each(OUTPUTS), SQUARES = ROWS / EACH;
    for (int item = threadIdx.x; item < SQUARES * (padded(OUTPUTS) / 4); item += THREADS) {
        const int square = item % SQUARES, column = item / SQUARES * 4;
        float sums[4][EACH] = {};
#pragma unroll 4
        for (int k = 0; k < INPUTS; ++k) {
            float rows[EACH];
            read_rows<EACH>(inputs + k * STRIDE, square, rows);
            const float4 weights = read<float4>(image, weight_place(LAYER) + k * padded(OUTPUTS) + column);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                sums[0][i] = fmaf(rows[i], weights.x, sums[0][i]);
                sums[1][i] = fmaf(rows[i], weights.y, sums[1][i]);
                sums[2][i] = fmaf(rows[i], weights.z, sums[2][i]);
                sums[3][i] = fmaf(rows[i], weights.w, sums[3][i]);
            }
        }
        constexpr int KIND = ACTIVATION[LAYER] == RELU_CLIPPED ? RELU : ACTIVATION[LAYER];
        const float clip = read<float>(image, bias_place(LAYERS) + LAYER);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (column + n >= OUTPUTS) break;
            const float bias = read<float>(image, bias_place(LAYER) + column + n);
#pragma unroll
            for (int i = 0; i < EACH; ++i) sums[n][i] = activate_as<KIND>(sums[n][i] + bias, clip);
            write_rows<EACH>(outputs + (column + n) * STRIDE, square, sums[n]);
        }
    }
    __syncthreads();
}

// Returns where the last layer's outputs lie.
template <int LAYER>
__device__ __forceinline__ const float* layers(const float* image, float* inputs, float* outputs) {
    layer<LAYER>(image, inputs, outputs);
    if constexpr (LAYER + 1 < LAYERS) return layers<LAYER + 1>(image, outputs, inputs);
    return outputs;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    mlp(const float* __restrict__ features, float* __restrict__ outputs, const float* __restrict__ image, int64 rows,
        unsigned* not_finite) {
    extern __shared__ __align__(16) float memory[];
    constexpr int INPUTS = WIDTH[0], OUTPUTS = WIDTH[LAYERS];
    float* here = memory + (STAGED ? IMAGE : 0);
    if constexpr (STAGED)
        for (int i = threadIdx.x; i < IMAGE / 4; i += THREADS)
            reinterpret_cast<float4*>(memory)[i] = __ldg(reinterpret_cast<const float4*>(image) + i);
    const int64 step = static_cast<int64>(gridDim.x) * ROWS;
    float seen = 0.0f;  // no number, once a number of the features times 0 is none
    for (int64 first = static_cast<int64>(blockIdx.x) * ROWS; first < rows; first += step) {
        const float* source = features + first * INPUTS;
        const int there = static_cast<int>(rows - first < ROWS ? rows - first : ROWS);
        if constexpr (VECTOR) {
            for (int i = threadIdx.x; i < ROWS * (INPUTS / 4); i += THREADS) {
                const int row = i % ROWS, column = i / ROWS * 4;
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (row < there) four = __ldg(reinterpret_cast<const float4*>(source + row * INPUTS + column));
                seen = fmaf(four.x, 0.0f, fmaf(four.y, 0.0f, fmaf(four.z, 0.0f, fmaf(four.w, 0.0f, seen))));
                here[column * STRIDE + row] = four.x;
                here[(column + 1) * STRIDE + row] = four.y;
                here[(column + 2) * STRIDE + row] = four.z;
                here[(column + 3) * STRIDE + row] = four.w;
            }
        } else {
            for (int i = threadIdx.x; i < ROWS * INPUTS; i += THREADS) {
                const int row = i % ROWS, column = i / ROWS;
                const float number = row < there ? __ldg(source + row * INPUTS + column) : 0.0f;
                seen = fmaf(number, 0.0f, seen);
                here[column * STRIDE + row] = number;
            }
        }
        __syncthreads();
        const float* found = layers<0>(STAGED ? memory : image, here, here + widest() * STRIDE);
        for (int i = threadIdx.x; i < there * OUTPUTS; i += THREADS)
            outputs[first * OUTPUTS + i] = found[i % OUTPUTS * STRIDE + i / OUTPUTS];
        __syncthreads();  // before the next rows come in
    }
    if (not_finite != nullptr && !(seen == 0.0f)) *not_finite = 1;
}
