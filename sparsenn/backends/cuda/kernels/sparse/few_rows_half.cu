// few_rows_half: a layer of few rows in half precision, bound by reading the weights.
//
// Idea      As few_rows, but sums may be in any order. So a warp has an output, and its lanes share the weights: there are
//           many more warps than outputs of a multiprocessor, whose loads are under way while others add. Layers follow
//           each other as launches of a graph.
// Layout    A weight is a word: its half, scaled for each output, and the 16-bit place of its input. An output has
//           `fours` times 32 lanes of four words, then `ones` times 32 words. Of eight neighbouring lanes, each has
//           places of another remainder by 8, as far as possible: then their reads of 16 bytes, eight rows of an input,
//           are in different banks. Words that fill up weigh 0, at places behind all inputs, which hold 0. Rows are
//           row-major at the ends of a chain; between layers, the rows of a group lie side by side for each input.
// Needs     a group's rows in shared memory, at most 65,528 inputs. Defines: ROWS (1, 8), of a group.
// Beside    few_rows, which has a thread for each output, and adds in order.
#include "common.cuh"
#include "ptx/numbers.cuh"

#ifndef ROWS
#define ROWS 1
#endif
static_assert(ROWS == 1 || ROWS == 8, "rows of an input are read at once");

constexpr int THREADS = 512;
enum Form { BETWEEN, FLOATS, HALVES };  // of rows

struct alignas(2 * ROWS) Numbers {
    half_bits of[ROWS];
};

struct Run {
    int first;  // word of an output, in units of 32
    int fours, ones;
    float bias, scale;
};

// A half; NaN beyond its range, which no later layer makes a finite number of.
__device__ __forceinline__ half_bits to_half_or_nan(float value) {
    const half_bits half = to_half(value);
    return (half & 0x7fff) == 0x7c00 && fabsf(value) <= 3.4028235e38f ? half_bits(0x7fff) : half;
}

__device__ __forceinline__ float number_at(const void* rows, int form, size_t at) {
    return form == FLOATS ? static_cast<const float*>(rows)[at] : to_float(static_cast<const half_bits*>(rows)[at]);
}

__device__ __forceinline__ void add_word(unsigned word, const Numbers* source, float (&sums)[ROWS]) {
    const float weight = to_float(static_cast<half_bits>(word & 0xffffu));
    const Numbers numbers = source[word >> 16];
#pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = fmaf(weight, to_float(numbers.of[row]), sums[row]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    few_rows_half(const unsigned* words, const Run* runs, int inputs, int outputs, const void* in, int form_in, void* out,
                  int form_out, int rows, int activation, float clip) {
    extern __shared__ uint4 memory[];
    Numbers* source = reinterpret_cast<Numbers*>(memory);
    const int first_row = blockIdx.y * ROWS, filled = (inputs + 7) / 8 * 8 + 8;
    int copied = 0;  // numbers of a single row, eight at a time
    if (ROWS == 1 && form_in != FLOATS) {
        const half_bits* row = static_cast<const half_bits*>(in) + static_cast<size_t>(first_row) * inputs;
        if (reinterpret_cast<size_t>(row) % 16 == 0) {
            copied = inputs / 8 * 8;
            for (int eight = threadIdx.x; eight < inputs / 8; eight += THREADS)
                memory[eight] = reinterpret_cast<const uint4*>(row)[eight];
        }
    }
    for (int place = copied + threadIdx.x; place < filled; place += THREADS) {
        Numbers found = {};
        if (place < inputs) {
            if (form_in == BETWEEN)
                found = static_cast<const Numbers*>(in)[static_cast<size_t>(blockIdx.y) * inputs + place];
            else
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    const size_t at = static_cast<size_t>(first_row + row) * inputs + place;
                    if (first_row + row < rows) found.of[row] = to_half_or_nan(number_at(in, form_in, at));
                }
        }
        source[place] = found;
    }
    __syncthreads();
    const int lane = threadIdx.x % WARP, warps = gridDim.x * (THREADS / WARP);
    for (int output = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP; output < outputs; output += warps) {
        const Run run = runs[output];
        const unsigned* own = words + static_cast<size_t>(run.first) * WARP;
        float sums[ROWS] = {};
#pragma unroll 4
        for (int four = 0; four < run.fours; four++) {
            const uint4 found = __ldg(reinterpret_cast<const uint4*>(own) + four * WARP + lane);
            add_word(found.x, source, sums);
            add_word(found.y, source, sums);
            add_word(found.z, source, sums);
            add_word(found.w, source, sums);
        }
        own += run.fours * (4 * WARP);
#pragma unroll
        for (int one = 0; one < 3; one++)
            if (one < run.ones) add_word(__ldg(own + one * WARP + lane), source, sums);
        Numbers found = {};
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float sum = activate(warp_sum(sums[row]) * run.scale + run.bias, activation, clip);
            const size_t at = static_cast<size_t>(first_row + row) * outputs + output;
            if (form_out == BETWEEN)
                found.of[row] = to_half_or_nan(sum);
            else if (lane == row && first_row + row < rows) {
                if (form_out == FLOATS)
                    static_cast<float*>(out)[at] = sum;
                else
                    static_cast<half_bits*>(out)[at] = to_half(sum);
            }
        }
        if (form_out == BETWEEN && lane == 0)
            static_cast<Numbers*>(out)[static_cast<size_t>(blockIdx.y) * outputs + output] = found;
    }
}
