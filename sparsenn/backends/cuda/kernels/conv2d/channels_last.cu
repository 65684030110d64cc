// channels_last: images with the channels of a pixel side by side, in half precision.
//
// Idea      A block takes 64 channels of 64 pixels. A warp reads eight channels, two pixels a lane, all at once, and
//           turns them round in registers to units of 16 bytes: eight channels of a pixel. Units go through shared memory,
//           so that both reads and writes are of 128 bytes in a row: the memory's rate bounds it.
// Layout    from (images, channels, pixels) float32 or half (INPUT) to (images, chunks, pixels, 64 channels) half. A
//           pixel's unit u lies in place u ^ (pixel / 2 % 8) of shared memory, which keeps eight lanes' banks apart.
// Needs     blocks of 256 threads, 8 KiB of shared memory, one block for each 64 pixels of each chunk of each image.
//           PAIRED: two pixels lie within an aligned word of two; an even number of pixels.
//
// Channels past the last one are zeros. Numbers beyond half precision become infinite.
#include "common.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"

typedef INPUT Number;

constexpr int PIXELS = 64, UNITS = 8, CHUNK = 64;
constexpr int THREADS = 256;
constexpr int ROUNDS = PIXELS * UNITS / THREADS;

static_assert(THREADS == WARP * UNITS && PIXELS == 2 * WARP, "a warp takes a unit of all pixels, a lane two pixels");

__device__ __forceinline__ unsigned place_of(unsigned shared, int pixel, int unit) {
    return shared + pixel * 128 + ((unit ^ pixel / 2 % 8) << 4);
}

// Two neighbouring pixels of a channel as two halves; zero for those past `left`.
__device__ __forceinline__ unsigned pair_of(const half_bits* from, int left) {
    if constexpr (PAIRED) return left > 0 ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0;
    const unsigned first = left > 0 ? __ldg(from) : 0, second = left > 1 ? __ldg(from + 1) : 0;
    return first | second << 16;
}
__device__ __forceinline__ unsigned pair_of(const float* from, int left) {
    if constexpr (PAIRED) {
        const float2 both = left > 0 ? __ldg(reinterpret_cast<const float2*>(from)) : float2{0.0f, 0.0f};
        return to_halves(both.x, both.y);
    }
    return to_halves(left > 0 ? __ldg(from) : 0.0f, left > 1 ? __ldg(from + 1) : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    channels_last(const Number* __restrict__ images, uint4* __restrict__ laid, int channels, int chunks, int pixels,
                  int tiles) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned room = shared_address(shared);
    const int block = block_number();
    const int rest = block / tiles, first_pixel = (block - rest * tiles) * PIXELS;
    const int image = rest / chunks, chunk = rest - image * chunks;
    const int unit = threadIdx.x / WARP, pixel = threadIdx.x % WARP * 2;
    const int channel = chunk * CHUNK + unit * 8, left = pixels - first_pixel - pixel;
    const Number* from = images + (static_cast<int64>(image) * channels + channel) * pixels + first_pixel + pixel;
    unsigned words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        words[i] = channel + i < channels ? pair_of(from + static_cast<int64>(i) * pixels, left) : 0;
    unsigned lower[4], upper[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        lower[i] = lower_halves(words[2 * i], words[2 * i + 1]);
        upper[i] = upper_halves(words[2 * i], words[2 * i + 1]);
    }
    write_four(place_of(room, pixel, unit), lower);
    write_four(place_of(room, pixel + 1, unit), upper);
    __syncthreads();
    uint4* to = laid + (static_cast<int64>(rest) * pixels + first_pixel) * UNITS;
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int number = i * THREADS + threadIdx.x;
        unsigned four[4];
        read_four(four, place_of(room, number / UNITS, number % UNITS));
        if (first_pixel + number / UNITS < pixels) to[number] = uint4{four[0], four[1], four[2], four[3]};
    }
}
