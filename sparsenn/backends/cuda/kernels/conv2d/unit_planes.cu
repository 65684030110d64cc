// unit_planes: images in one row of places with their padding, cut into planes of 16 bytes a place.
//
// Idea      Who multiplies by whole warpgroups wants a few channels of a pixel next to each other, and pixels of the same
//           channels in a row. A thread has one place; it reads a number from each of a unit's channels, neighbours those
//           next to it, and writes them as 16 bytes.
// Layout    from (images, channels, height, width) float32 or half (INPUT) to (pieces, units, places) of 16 bytes: 8 halves
//           or 4 floats. A float that is split has two pieces, TF32's number and the rest; otherwise there is one. What
//           place a pixel has is said in conv2d/warpgroup.cu; all others are zeros.
// Needs     blocks of 256 threads, one for UNITS units of 256 places. Numbers beyond half precision become infinite.
#include "common.cuh"
#include "products/kinds.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"

typedef INPUT Number;

constexpr int BYTES = KIND == TENSOR_HALF ? 2 : 4, UNIT = 16 / BYTES;  // numbers of a unit
constexpr int UNITS = 4;  // of a block

static_assert(KIND == TENSOR_HALF || sizeof(Number) == 4, "halves are multiplied as halves");

__device__ __forceinline__ unsigned bits_of(const half_bits* from) { return __ldg(from); }
__device__ __forceinline__ unsigned bits_of(const float* from) { return __float_as_uint(__ldg(from)); }

// TF32's number closest to a number; one that would become infinite is cut off instead. What is no number stays none.
__device__ __forceinline__ unsigned rounded(unsigned number) {
    const unsigned size = number & 0x7fffffffu;
    if (size > 0x7f800000u) return number | 0x00400000u;
    return cut_to_tf32(size < 0x7f7ff000u ? number + 0x1000u : number);
}

extern "C" __global__ void __launch_bounds__(256)
    unit_planes(const Number* __restrict__ images, uint4* __restrict__ laid, int count, int channels, int height, int width,
                int pitch, int tall, int front, int units, int plane) {
    const int groups = (units + UNITS - 1) / UNITS, block = block_number();
    const int first_unit = block % groups * UNITS, place = block / groups * 256 + threadIdx.x;
    if (place >= plane) return;
    const int number = place - front, row = number < 0 ? 0 : number / pitch;
    const int x = number - row * pitch, image = row / tall, y = row - image * tall;
    const bool there = number >= 0 && x < width && y < height && image < count;
    const int64 size = static_cast<int64>(height) * width;
    const Number* from = images + static_cast<int64>(image) * channels * size + y * static_cast<int64>(width) + x;
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const int unit = first_unit + i;
        if (unit >= units) break;
        unsigned numbers[UNIT];
#pragma unroll
        for (int j = 0; j < UNIT; ++j) {
            const int channel = unit * UNIT + j;
            numbers[j] = there && channel < channels ? bits_of(from + channel * size) : 0;
        }
        uint4* to = laid + static_cast<int64>(unit) * plane + place;
        if constexpr (KIND == TENSOR_HALF) {
            unsigned words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned left = numbers[2 * j], right = numbers[2 * j + 1];
                if constexpr (sizeof(Number) == 2)
                    words[j] = left | right << 16;
                else
                    words[j] = to_halves(__uint_as_float(left), __uint_as_float(right));
            }
            *to = uint4{words[0], words[1], words[2], words[3]};
        } else {
            unsigned high[4], low[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                high[j] = rounded(numbers[j]);
                low[j] = rounded(__float_as_uint(__uint_as_float(numbers[j]) - __uint_as_float(high[j])));
            }
            *to = uint4{high[0], high[1], high[2], high[3]};
            if constexpr (KIND == TENSOR_FLOAT32)
                to[static_cast<int64>(units) * plane] = uint4{low[0], low[1], low[2], low[3]};
        }
    }
}
