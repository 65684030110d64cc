// implicit_float32: a convolution as a product of filters and pixels on the tensor cores, in float32.
//
// Idea      Every output is a row of the filters times the pixels that its window meets. Those are never written down as
//           a matrix: a block copies the part of the images that its outputs see to shared memory, once for each chunk of
//           32 channels, and finds all taps there, at addresses shifted by the tap. Numbers are split into two of TF32.
// Layout    images and outputs (images, channels, height, width) float32, as they come; the part of them in shared
//           memory with the channels of a pixel side by side; filters in the order in which lanes read them
//           (conv2d/implicit.cuh, products/tensor.cuh).
// Needs     compute capability 8.0; one group; shared memory for a block's part of the images. A layer's filters, in the
//           kernel's order, besides the plain ones.
// Before    tensor_float32, which is made for few channels.
// Changes   depth is cut by channels, then taps, so that any number of channels will do, and few pixels are shared out
//           along the depth, too. For 3 x 3 taps a block reads about 1.5 times its pixels for each chunk instead of 9
//           times, with no kernel before that rearranges them. 64 x 128 outputs take 192 instructions for 8 terms, about
//           310 clocks of a multiprocessor, and 32 clocks of reading shared memory: the tensor cores would bound it, if
//           warps waited for nothing.
//
// Outputs that come out infinite or as no number are computed again by plain multiply-adds: they are what float32 gives.
// ACTIVATION: of `enum Activation`.
#include "conv2d/implicit.cuh"

// One output, before bias and activation, as float32 has it; of images as they come.
__device__ __forceinline__ float plain_sum(const Shape& shape, const float* weights, int filter, int image, int y,
                                           int x) {
    float sum = 0.0f;
#pragma unroll 1
        for (int channel = 0; channel < shape.channels; ++channel)
#pragma unroll 1
            for (int tap = 0; tap < shape.taps(); ++tap) {
                const int row = y * shape.stride_down - shape.pad_down + tap / shape.kernel_width * shape.apart_down;
                const int column =
                    x * shape.stride_across - shape.pad_across + tap % shape.kernel_width * shape.apart_across;
                if (row < 0 || row >= shape.height || column < 0 || column >= shape.width) continue;
                const int64 plane = static_cast<int64>(image) * shape.channels + channel;
                const float* from = shape.images + plane * shape.plane();
                const int64 weight = (static_cast<int64>(filter) * shape.channels + channel) * shape.taps() + tap;
                sum = fmaf(from[row * shape.width + column], weights[weight], sum);
            }
    return sum;
}

// Four pixels in a row, of one filter: from `pixel` on, whose number is `number`.
struct Target {
    const Shape& shape;
    float* to;  // the first pixel's output of filter 0
    Pixel pixel;
    int left, number;  // the strip's first column
    bool whole;  // the outputs are neighbours, and aligned

    __device__ __forceinline__ Target(const Shape& shape, float* outputs, int strip, int number)
        : shape(shape), pixel(shape, number), left(strip * shape.tile_width), number(number) {
        const int size = shape.out_height * shape.out_width;
        const int within = pixel.y * shape.out_width + left + pixel.x;
        to = outputs + static_cast<int64>(pixel.image) * shape.filters * size + within;
        // Where a strip is as wide as the outputs, rows follow each other without a gap.
        const int row_end = min(shape.tile_width, shape.out_width - left);
        const bool gapless = shape.tile_width == shape.out_width;
        whole = (gapless ? within + 4 <= size : pixel.x + 4 <= row_end) && within % 4 == 0 && size % 4 == 0;
    }

    template <class Value>
    __device__ __forceinline__ void each(int filter, const Value& value) const {
        Pixel at = pixel;
        const int64 size = shape.out_height * shape.out_width;
        const int64 filters = static_cast<int64>(shape.filters) * size;
        const int row_end = min(shape.tile_width, shape.out_width - left);
        float* row = to + filter * size - at.x;
#pragma unroll 1
        for (int i = 0; i < 4 && number + i < shape.pixels; ++i) {
            if (at.x < row_end) store_one(row + at.x, value(i, at));
            if (++at.x < shape.tile_width) continue;
            at.x = 0;
            row += shape.out_width;
            if (++at.y < shape.out_height) continue;
            at.y = 0;
            ++at.image;
            row += filters - size;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(const float* __restrict__ images, const uint4* __restrict__ filters, const float* __restrict__ weights,
           const float* __restrict__ bias, float* __restrict__ outputs, float4* partial, unsigned* counters,
           float clip, int count, int channels, int height, int width, int filter_count, int out_height, int out_width,
           int kernel_height, int kernel_width, int stride_down, int stride_across, int pad_down, int pad_across,
           int apart_down, int apart_across, int tile_width, int strips, int pixels, int tiles_down, int tiles,
           int band_rows, int phase, int tall, int entries, int chunks, int parts, int part_chunks, int bands) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shape shape{images, count, channels, height, width, filter_count, out_height, out_width, kernel_height,
                      kernel_width, stride_down, stride_across, pad_down, pad_across, apart_down, apart_across,
                      tile_width, strips, pixels, tiles_down, tiles, band_rows, phase, tall, entries, chunks, parts,
                      part_chunks, bands};
    Sums sums = {};
    {
        const Place at(shape);
        PixelSource source(shape, filters, shared_address(shared), at);
        const int slabs = (source.last_chunk - source.chunk + 1) * shape.taps();
        accumulate(source, sums, slabs);
    }
    const bool mine = join_slices(sums, shared);
    if (parts > 1) {
        const Place at(shape);
        partial += static_cast<int64>(at.tile) * parts * (BM * BN / 4);
        if (!join_parts(sums, mine, partial, counters + at.tile, at.part, parts, shared)) return;
    }
    if (!mine) return;

    const Place at(shape);
    const int lane = lane_of_thread();
    const int first_filter = at.filter + warp_row() * WARP_ROWS + lane / 4;
#pragma unroll
    for (int pair = 0; pair < NT / 2; ++pair)
#pragma unroll 1
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            const int number = at.pixel + warp_column() * WARP_COLUMNS + 16 * pair + lane % 4 * 4;
            if (number >= pixels) continue;
            const Target target(shape, outputs, at.strip, number);
#pragma unroll
            for (int i = 0; i < 2 * MT; ++i) {
                const int filter = first_filter + 8 * i;
                if (filter >= filter_count) continue;
                const float(&left)[4] = sums[i / 2][2 * pair];
                const float(&right)[4] = sums[i / 2][2 * pair + 1];
                float values[4] = {left[i % 2 * 2], left[i % 2 * 2 + 1], right[i % 2 * 2], right[i % 2 * 2 + 1]};
                const float add = __ldg(bias + filter);
                if (strange(values)) {
                    target.each(filter, [&](int, const Pixel& pixel) {
                        const float sum =
                            plain_sum(shape, weights, filter, pixel.image, pixel.y, target.left + pixel.x);
                        return activate_as<ACTIVATION>(sum + add, clip);
                    });
                    continue;
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) values[j] = activate_as<ACTIVATION>(values[j] + add, clip);
                if (target.whole)
                    store_four(target.to + static_cast<int64>(filter) * (out_height * out_width), values);
                else
                    target.each(filter, [&](int j, const Pixel&) {
                        return j < 2 ? j == 0 ? values[0] : values[1] : j == 2 ? values[2] : values[3];
                    });
            }
        }
}
