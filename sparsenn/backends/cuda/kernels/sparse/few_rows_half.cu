// few_rows_half: a layer of few rows in half precision, bound by reading the weights.
//
// Idea      As few_rows, but sums may be in any order. So a warp has an output, and its lanes share the weights: there are
//           many more warps than outputs of a multiprocessor, whose loads are under way while others add. Layers follow
//           each other as launches of a graph, each of which begins early: it asks for its first weights, which no other
//           kernel writes, and only then waits for the layer before.
// Layout    A weight is a word: its half, scaled for each output, and the 16-bit place of its input. An output has
//           `fours` times 32 lanes of four words, then `ones` times 32 words. Each lane has places of another remainder
//           by 32, as far as possible, or at least by 8 among eight neighbouring lanes: then reads of 16 bytes, eight rows
//           of an input, are in different banks, and those of one row in few that are the same. Words that fill up weigh 0, at places behind all inputs, which hold 0. Rows are
//           row-major at the ends of a chain; between layers, the rows of a group lie side by side for each input.
// Needs     a group's rows in shared memory, at most 65,528 inputs. Defines: ROWS (1, 8), of a group; THREADS (512, 1024).
// Beside    few_rows, which has a thread for each output, and adds in order.
#include "common.cuh"
#include "ptx/launches.cuh"
#include "ptx/numbers.cuh"

#ifndef ROWS
#define ROWS 1
#define THREADS 512
#endif
static_assert(ROWS == 1 || ROWS == 8, "rows of an input are read at once");

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

// Eight neighbouring numbers of a row, from number `first` on, as pairs of halves; 0 behind the last of `count`.
__device__ __forceinline__ void read_eight(unsigned (&pairs)[4], const void* row, int form, int first, int count) {
    const bool whole = first + 8 <= count;
    half_bits numbers[8];
    if (form == FLOATS) {
        const float* from = static_cast<const float*>(row) + first;
        float found[8];
        if (whole && reinterpret_cast<size_t>(from) % 16 == 0) {
            *reinterpret_cast<float4*>(found) = *reinterpret_cast<const float4*>(from);
            *reinterpret_cast<float4*>(found + 4) = *(reinterpret_cast<const float4*>(from) + 1);
        } else {
#pragma unroll
            for (int each = 0; each < 8; each++) found[each] = first + each < count ? from[each] : 0.0f;
        }
#pragma unroll
        for (int each = 0; each < 8; each++) numbers[each] = to_half_or_nan(found[each]);
    } else {
        const half_bits* from = static_cast<const half_bits*>(row) + first;
        if (whole && reinterpret_cast<size_t>(from) % 16 == 0) {
            const uint4 found = *reinterpret_cast<const uint4*>(from);
            pairs[0] = found.x, pairs[1] = found.y, pairs[2] = found.z, pairs[3] = found.w;
            return;
        }
#pragma unroll
        for (int each = 0; each < 8; each++) numbers[each] = first + each < count ? from[each] : half_bits(0);
    }
#pragma unroll
    for (int pair = 0; pair < 4; pair++) pairs[pair] = numbers[2 * pair] | static_cast<unsigned>(numbers[2 * pair + 1]) << 16;
}

__device__ __forceinline__ void add_word(unsigned word, const Numbers* source, float (&sums)[ROWS]) {
    const float weight = to_float(static_cast<half_bits>(word & 0xffffu));
    const Numbers numbers = source[word >> 16];
#pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = fmaf(weight, to_float(numbers.of[row]), sums[row]);
}

// Words of a lane that are under way.
struct Words {
    uint4 fours[4];
    unsigned ones[3];

    // Asks for up to four fours of an output, from number `first` on.
    __device__ __forceinline__ void ask_fours(const unsigned* words, const Run& run, int first, int lane) {
        const uint4* from = reinterpret_cast<const uint4*>(words + static_cast<size_t>(run.first) * WARP) + lane;
#pragma unroll
        for (int four = 0; four < 4; four++)
            if (first + four < run.fours) fours[four] = __ldg(from + (first + four) * WARP);
    }

    // Asks for an output's first words, and for its last ones.
    __device__ __forceinline__ void begin(const unsigned* words, const Run& run, int lane) {
        ask_fours(words, run, 0, lane);
        const unsigned* from = words + static_cast<size_t>(run.first + 4 * run.fours) * WARP + lane;
#pragma unroll
        for (int one = 0; one < 3; one++)
            if (one < run.ones) ones[one] = __ldg(from + one * WARP);
    }
};

// Adds up the lanes' sums; each lane gets the sum of row `lane` / (32 / ROWS).
__device__ __forceinline__ float sum_of_lanes(const float (&sums)[ROWS], int lane) {
    float own[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) own[row] = sums[row];
#pragma unroll
    for (int rows = ROWS / 2, distance = WARP / 2; distance > 0; rows /= 2, distance /= 2) {
        if (rows == 0) {
            own[0] += __shfl_xor_sync(ALL_LANES, own[0], distance);
            continue;
        }
        const bool upper = lane & distance;  // which half of the rows the lane goes on with
#pragma unroll
        for (int row = 0; row < rows; row++) {
            const float other = __shfl_xor_sync(ALL_LANES, upper ? own[row] : own[row + rows], distance);
            own[row] = (upper ? own[row + rows] : own[row]) + other;
        }
    }
    return own[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    few_rows_half(const unsigned* words, const Run* runs, int inputs, int outputs, const void* in, int form_in, void* out,
                  int form_out, int rows, int activation, float clip) {
    extern __shared__ uint4 memory[];
    Numbers* source = reinterpret_cast<Numbers*>(memory);
    const int lane = threadIdx.x % WARP, warps = gridDim.x * (THREADS / WARP);
    int output = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    begin_next_launch();
    Run next = {};
    if (output < outputs) next = runs[output];
    Words ahead;
    ahead.begin(words, next, lane);
    await_previous_launch();
    const int first_row = blockIdx.y * ROWS, filled = (inputs + 7) / 8 * 8 + 8;
    if (ROWS > 1 && form_in == BETWEEN) {
        const Numbers* from = static_cast<const Numbers*>(in) + static_cast<size_t>(blockIdx.y) * inputs;
#pragma unroll 8
        for (int place = threadIdx.x; place < inputs; place += THREADS) source[place] = from[place];
        for (int place = inputs + threadIdx.x; place < filled; place += THREADS) source[place] = {};
    } else {
#pragma unroll 2
        for (int unit = threadIdx.x; unit < ROWS * (filled / 8); unit += THREADS) {
            const int row = unit % ROWS, first = unit / ROWS * 8, size = form_in == FLOATS ? 4 : 2;
            const char* from = static_cast<const char*>(in) + static_cast<size_t>(first_row + row) * inputs * size;
            unsigned pairs[4];
            read_eight(pairs, from, form_in, first, first_row + row < rows ? inputs : 0);
            if (ROWS == 1)
                memory[unit] = {pairs[0], pairs[1], pairs[2], pairs[3]};
            else
#pragma unroll
                for (int each = 0; each < 8; each++)
                    source[first + each].of[row] = static_cast<half_bits>(pairs[each / 2] >> each % 2 * 16);
        }
    }
    __syncthreads();
    for (; output < outputs; output += warps) {
        const Run run = next;
        if (output + warps < outputs) next = runs[output + warps];
        float sums[ROWS] = {};
        for (int first = 0; first < run.fours; first += 4) {
            if (first > 0) ahead.ask_fours(words, run, first, lane);
#pragma unroll
            for (int four = 0; four < 4; four++)
                if (first + four < run.fours) {
                    add_word(ahead.fours[four].x, source, sums);
                    add_word(ahead.fours[four].y, source, sums);
                    add_word(ahead.fours[four].z, source, sums);
                    add_word(ahead.fours[four].w, source, sums);
                }
        }
#pragma unroll
        for (int one = 0; one < 3; one++)
            if (one < run.ones) add_word(ahead.ones[one], source, sums);
        if (output + warps < outputs) ahead.begin(words, next, lane);
        constexpr int SAME = WARP / ROWS;  // lanes that have the sum of a row
        const float sum = activate(sum_of_lanes(sums, lane) * run.scale + run.bias, activation, clip);
        const int row = lane / SAME;
        const size_t at = static_cast<size_t>(first_row + row) * outputs + output;
        if (lane % SAME != 0)
            continue;
        if (form_out == BETWEEN)
            static_cast<Numbers*>(out)[static_cast<size_t>(blockIdx.y) * outputs + output].of[row] = to_half_or_nan(sum);
        else if (first_row + row < rows) {
            if (form_out == FLOATS)
                static_cast<float*>(out)[at] = sum;
            else
                static_cast<half_bits*>(out)[at] = to_half(sum);
        }
    }
}
