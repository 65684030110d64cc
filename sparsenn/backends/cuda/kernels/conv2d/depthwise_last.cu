// depthwise_last: a filter for each channel, where the channels of a pixel are neighbours.
//
// Idea      A thread takes EACH neighbouring channels of OUTPUTS neighbouring output pixels: it reads a pixel once for all windows
//           that it lies in, and a row of weights once for all outputs.
// Layout    images (images, height, width, lanes), outputs (images, output height, output width, lanes) of NUMBER, float or
//           half_bits, up to 2^31 - 1 numbers of each; weights (ROWS, COLUMNS, lanes) and bias float32; lanes in whole EACH,
//           which are 16 bytes of NUMBER.
// Needs     blocks of THREADS threads that cover count, EACH channels of OUTPUTS pixels each. Windows of ROWS x COLUMNS, DOWN and
//           ACROSS from one another, and taps of a window APART_DOWN and APART_ACROSS; above, beside: padding.
#include "conv2d/activated.cuh"
#include "fours.cuh"

static_assert(EACH * sizeof(NUMBER) == 16, "a thread reads 16 bytes");

constexpr int SPAN = (OUTPUTS - 1) * ACROSS + (COLUMNS - 1) * APART_ACROSS + 1;  // pixels of a row that a thread sees

// Whether a window of an output has a tap at a pixel.
__device__ __forceinline__ constexpr bool is_seen(int x) {
    for (int j = 0; j < COLUMNS; ++j)
        for (int o = 0; o < OUTPUTS; ++o)
            if (o * ACROSS + j * APART_ACROSS == x) return true;
    return false;
}

__device__ __forceinline__ void unpack(const uint4& bits, float (&numbers)[EACH]) {
#pragma unroll
    for (int k = 0; k < EACH; k += 4) {
        const float4 four = EACH == 8 ? four_of(k ? make_uint2(bits.z, bits.w) : make_uint2(bits.x, bits.y))
                                      : make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y),
                                                    __uint_as_float(bits.z), __uint_as_float(bits.w));
        numbers[k] = four.x, numbers[k + 1] = four.y, numbers[k + 2] = four.z, numbers[k + 3] = four.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d(unsigned count, int lanes, int height, int width, int output_height, int output_width, int above, int beside,
           const NUMBER* __restrict__ images, const float* __restrict__ weights, const float* __restrict__ bias,
           float clip, NUMBER* __restrict__ outputs) {
    const unsigned thread = blockIdx.x * THREADS + threadIdx.x;
    if (thread >= count) return;
    const unsigned slices = lanes / EACH, spans = (output_width + OUTPUTS - 1) / OUTPUTS;
    const unsigned rest = thread / slices, line = rest / spans, image = line / output_height;
    const int channel = static_cast<int>(thread % slices) * EACH, first = static_cast<int>(rest % spans) * OUTPUTS;
    const int top = static_cast<int>(line % output_height) * DOWN - above, left = first * ACROSS - beside;
    const NUMBER* from = images + image * height * width * lanes + channel;
    float sums[OUTPUTS][EACH];
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
        for (int k = 0; k < EACH; ++k) sums[o][k] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < ROWS; ++i) {
        const int row = top + i * APART_DOWN;
        const bool is_row = row >= 0 && row < height;
        uint4 seen[SPAN];  // all asked for before the first is used
#pragma unroll
        for (int x = 0; x < SPAN; ++x) {
            seen[x] = make_uint4(0, 0, 0, 0);
            if (is_seen(x) && is_row && left + x >= 0 && left + x < width)
                seen[x] = __ldg(reinterpret_cast<const uint4*>(from + (row * width + left + x) * lanes));
        }
        float factors[COLUMNS][EACH];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int k = 0; k < EACH; k += 4) {
                const float4 four = four_at(weights + (i * COLUMNS + j) * lanes + channel + k);
                factors[j][k] = four.x, factors[j][k + 1] = four.y, factors[j][k + 2] = four.z, factors[j][k + 3] = four.w;
            }
        }
#pragma unroll
        for (int x = 0; x < SPAN; ++x) {
            if (!is_seen(x)) continue;
            float pixel[EACH];
            unpack(seen[x], pixel);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o)
                    if (o * ACROSS + j * APART_ACROSS == x) {
#pragma unroll
                        for (int k = 0; k < EACH; ++k) sums[o][k] = fmaf(pixel[k], factors[j][k], sums[o][k]);
                    }
        }
    }
    const Finish finish{bias, clip};
    NUMBER* to = outputs + (line * output_width + first) * lanes + channel;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
        if (first + o >= output_width) break;
#pragma unroll
        for (int k = 0; k < EACH; k += 4) {
            const float four[4] = {finish(sums[o][k], channel + k), finish(sums[o][k + 1], channel + k + 1),
                                   finish(sums[o][k + 2], channel + k + 2), finish(sums[o][k + 3], channel + k + 3)};
            store_four(to + o * lanes + k, four);
        }
    }
}
