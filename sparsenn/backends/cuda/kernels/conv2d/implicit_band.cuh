// What kernels share whose products take the pixels of the outputs from a part of the images in shared memory, the *band*:
// its layout, where each output's pixels lie in it, and the filters. How the band gets there is for others to say.
//
// The depth is cut into chunks of 64 channels (halves) or 32 (floats), and a chunk into one slab for each tap. A block copies
// the part of the images that its pixels see to shared memory once for each chunk, and takes all taps from there.
//
// Pixels are counted within strips of TILE_WIDTH columns, row after row and image after image; a block has BN of them
// that follow each other. Its band has PITCH places for each row of the images, padded with zeros, and 128 bytes for each
// place: the channels of a chunk. Unit u of 16 bytes lies in place u ^ key, where the key of a pixel is made of bits 0, 2
// and 3 of its number. So the eight pixels 4 a + 2 j + b (a < 4, b < 2), which a matrix instruction reads at a time, are
// in different banks, whatever the tap: their numbers are shifted all alike. With a stride, columns that are a stride
// apart are neighbours in the band. A lane's sums are of four neighbouring pixels, and go straight to the outputs.
//
// The filters are in the order in which lanes read them: chunk, tap, step of 32 bytes, 16 filters, lane, 16 bytes.
//
// PAIRED: two places of a row are read at once, within a word of the images; the table has one entry for them.
#pragma once
#include "conv2d/implicit_shape.cuh"

constexpr int UNIT = 16 / BYTES;  // numbers of 16 bytes
constexpr int UNITS = LINE / 16;  // of a place
constexpr int STAGE_BYTES = BM * LINE;
constexpr int FILTER_UNITS = 2 * BM;  // of a step
constexpr int SKIP_FIRST = 32, SKIP_SECOND = 64;  // of two places read at once

static_assert(BM * 8 % THREADS == 0, "copies of filters are shared evenly");
static_assert(THREADS % FILTER_UNITS == 0 || FILTER_UNITS % THREADS == 0, "a thread copies the same unit of steps");

// What the sources of gemm/tensor.cuh have in common. A `Source` of these adds how a chunk's band is brought:
//
//   BEFORE_TABLE             bytes of shared memory that it keeps for itself
//   image_size(shape)        how far it is from one of its images to the next
//   prepare(first)           what is to be done first, if `first` is the block's first pixel
//   start(chunk)             a chunk's band is what comes next, if there is such a chunk
//   bring_all<COUNT>()       bring the rest of what comes, COUNT units at a time
//   shift_of_tap()           how far the pixels of the tap that is entered are from the first one's
template <class Source>
struct BandSource {
    static constexpr bool ROUNDED = true;  // filters beforehand, pixels on their way to shared memory
    static constexpr int COPIES = BM * 8 / THREADS;

    const Shape& shape;
    unsigned bands, table, taps, stages;  // in shared memory
    int chunk, last_chunk, tap;  // of the slab that is being read
    const uint4* filters;  // that this thread copies next
    int first_filter;
    int places[NT / 2];  // of pixels whose rows of tiles this lane gives the address of
    unsigned a_at, b_at[NT / 2];

    __device__ __forceinline__ BandSource(const Shape& shape, const uint4* filters, unsigned shared, const Place& at)
        : shape(shape), stages(shared), first_filter(at.filter) {
        bands = shared + STAGES * STAGE_BYTES;
        table = bands + shape.bands * shape.band_bytes() + Source::BEFORE_TABLE;
        taps = table + 8 * shape.entries;
        chunk = at.part * shape.part_chunks;
        last_chunk = min(chunk + shape.part_chunks, shape.chunks) - 1;
        tap = -1;
        const int unit = threadIdx.x % FILTER_UNITS, step = threadIdx.x / FILTER_UNITS;
        this->filters = filters + (static_cast<int64>(chunk) * shape.taps() * 4 + step) * step_units() +
                        2 * first_filter + unit;
    }

    __device__ __forceinline__ Source& self() { return static_cast<Source&>(*this); }

    // Units of 16 bytes that all filters have in a step.
    __device__ __forceinline__ int step_units() const { return (shape.filters + 15) / 16 * WARP; }
    __device__ __forceinline__ unsigned band_of(int number) const {
        return bands + (shape.bands > 1 && number % 2 ? shape.band_bytes() : 0);
    }

    __device__ __forceinline__ void copy(int stage) {
        const unsigned to = stages + stage * STAGE_BYTES + threadIdx.x * 16;
        const int left = 16 * (step_units() - 2 * first_filter - threadIdx.x % FILTER_UNITS);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int step = i * THREADS / FILTER_UNITS, further = i * THREADS % FILTER_UNITS;
            copy_later<16>(to + i * THREADS * 16, filters + static_cast<int64>(step) * step_units() + further,
                           16 * further < left ? 16 : 0);
        }
        filters += static_cast<int64>(4) * step_units();
    }

    // ---- The band ---------------------------------------------------------------------------------------------------

    // What is read for an entry of the table, a place of the band or two: the place, and where in the images, -1 for zeros.
    __device__ __forceinline__ void describe(const Place& at, const Pixel& first) {
        const int per_row = PAIRED ? shape.pitch() / 2 + 1 : shape.pitch();
        const int left = at.strip * shape.tile_width * shape.stride_across - shape.pad_across;
#pragma unroll 1
        for (int entry = threadIdx.x; entry < shape.entries; entry += THREADS) {
            const int row = entry / per_row, within = entry - row * per_row;
            const int tall_row = first.y * shape.stride_down + row, image = tall_row / shape.tall;
            const int y = tall_row - image * shape.tall - shape.pad_down;
            int column, x, number = row / shape.stride_down * shape.tile_width, skip = 0;
            if constexpr (PAIRED) {
                column = 2 * within - (left & 1);
                x = left + column;
                number += column;
                skip = (column < 0 || column >= shape.pitch() ? SKIP_FIRST : 0) |
                       (column + 1 >= shape.pitch() ? SKIP_SECOND : 0);
            } else {
                const int apart = within / shape.phase;
                column = within;
                x = left + (within - apart * shape.phase) * shape.stride_across + apart;
                number += within - apart * shape.phase;
            }
            const bool there = first.image + image < shape.count && y >= 0 && y < shape.height && x >= 0 &&
                               x < shape.width;
            const int source = image * static_cast<int>(Source::image_size(shape)) + y * shape.width + x;
            write_pair(table + 8 * entry, there ? source : -1,
                       with_number(row * shape.pitch() + column, number) | skip);
        }
    }

    // ---- What the pipeline calls ------------------------------------------------------------------------------------

    __device__ __forceinline__ void begin() {
        const Place at(shape);
        const Pixel first(shape, at.pixel);
        self().prepare(first);
        describe(at, first);
#pragma unroll 1
        for (int number = threadIdx.x; number < shape.taps(); number += THREADS) {
            const int down = number / shape.kernel_width * shape.apart_down;
            const int across = number % shape.kernel_width * shape.apart_across, further = across / shape.stride_across;
            const int place = down * shape.pitch() + across % shape.stride_across * shape.phase + further;
            write_word(taps + 4 * number, with_number(place, down / shape.stride_down * shape.tile_width + further));
        }
        const int lane = lane_of_thread();
        const int within = lane % 8 / 2 * 4 + lane / 16 * 2 + lane % 2;
#pragma unroll
        for (int pair = 0; pair < NT / 2; ++pair) {
            const int number = at.pixel + warp_column() * WARP_COLUMNS + 16 * pair + within;
            const Pixel pixel(shape, number);
            const int row = (pixel.image - first.image) * (shape.tall / shape.stride_down) + pixel.y - first.y;
            places[pair] = number < shape.pixels ? with_number(row * shape.stride_down * shape.pitch() + pixel.x,
                                                               row * shape.tile_width + pixel.x)
                                                 : 0;
        }
        __syncthreads();
        self().start(chunk);
        self().template bring_all<4>();
    }

    // Beyond the last channel there are zeros only.
    __device__ __forceinline__ bool needs(int step) const {
        return chunk * TERMS + (slice_of_thread() * STEPS + step) * (TERMS / 4) < shape.channels;
    }

    __device__ __forceinline__ void enter(int stage) {
        if (++tap == shape.taps()) {
            tap = 0;
            ++chunk;
        }
        if (tap == 0) self().start(chunk + 1);
        const int lane = lane_of_thread(), slice = slice_of_thread() * STEPS;
        a_at = stages + stage * STAGE_BYTES + (slice * FILTER_UNITS + warp_row() * MT * WARP + lane) * 16;
        const int shift = self().shift_of_tap();
        const unsigned band = band_of(chunk);
#pragma unroll
        for (int pair = 0; pair < NT / 2; ++pair)
            b_at[pair] = unit_address(band, places[pair] + shift, lane / 8 % 2 + 2 * slice);
    }

    __device__ __forceinline__ void read(Fragments& to, int step) const {
#pragma unroll
        for (int m = 0; m < MT; ++m) read_four(to.a[m], a_at + (step * FILTER_UNITS + m * WARP) * 16);
#pragma unroll
        for (int pair = 0; pair < NT / 2; ++pair) {
            unsigned tiles[4];
            read_tiles(tiles, b_at[pair] ^ (step << 5));
            to.b[2 * pair][0] = tiles[0];
            to.b[2 * pair][1] = tiles[1];
            to.b[2 * pair + 1][0] = tiles[2];
            to.b[2 * pair + 1][1] = tiles[3];
        }
    }
};
