// The source of products/tensor.cuh whose right factor is the pixels of the outputs, which it takes from a part of the images
// in shared memory, the *band*: its layout, where each output's pixels lie in it, how they get there, and the filters.
// Images and outputs are (images, channels, height, width) float32, as they come; no other kernel runs before.
//
// The depth is cut into chunks of 32 channels, and a chunk into one slab for each tap. A block copies the part of the images
// that its pixels see to shared memory once for each chunk, and takes all taps from there. Between the steps of a chunk's
// products, threads bring in the next chunk's band: a number of one pixel each time, from four channels, as one unit.
//
// Pixels are counted within strips of TILE_WIDTH columns, row after row and image after image; a block has BN of them
// that follow each other. Its band has PITCH places for each row of the images, padded with zeros, and 128 bytes for each
// place: the channels of a chunk. Unit u of 16 bytes lies in place u ^ key, where the key of a pixel is made of bits 0, 2
// and 3 of its number. So the eight pixels 4 a + 2 j + b (a < 4, b < 2), which a matrix instruction reads at a time, are
// in different banks, whatever the tap: their numbers are shifted all alike. With a stride, columns that are a stride
// apart are neighbours in the band. A lane's sums are of four neighbouring pixels, and go straight to the outputs.
//
// The filters are in the order in which lanes read them: chunk, tap, step of 32 bytes, 16 filters, lane, 16 bytes.
#pragma once
#include "conv2d/implicit_shape.cuh"

constexpr int UNIT = 16 / BYTES;  // numbers of 16 bytes
constexpr int UNITS = LINE / 16;  // of a place
constexpr int STAGE_BYTES = BM * LINE;
constexpr int FILTER_UNITS = 2 * BM;  // of a step

static_assert(KIND == TENSOR_FLOAT32, "units of four numbers are brought as they are");
static_assert(BM * 8 % THREADS == 0, "copies of filters are shared evenly");
static_assert(THREADS % FILTER_UNITS == 0 || FILTER_UNITS % THREADS == 0, "a thread copies the same unit of steps");

struct PixelSource {
    static constexpr bool ROUNDED = true;
    static constexpr int COPIES = BM * 8 / THREADS;

    // A unit on its way from the images to the band.
    struct Unit {
        unsigned words[UNIT];
        int place, number;
    };

    const Shape& shape;
    unsigned bands, table, taps, stages;  // in shared memory
    int chunk, last_chunk, tap;  // of the slab that is being read
    const uint4* filters;  // that this thread copies next
    int first_filter;
    int places[NT / 2];  // of pixels whose rows of tiles this lane gives the address of
    unsigned a_at, b_at[NT / 2];
    const float* images;  // from the block's first one on
    int next_shift;  // to the places of the next tap
    Unit held;
    int coming;  // chunk that comes in
    int number, entry;  // unit that the thread reads next of it, and where in the table
    bool holds;

    __device__ __forceinline__ PixelSource(const Shape& shape, const uint4* filters, unsigned shared, const Place& at)
        : shape(shape), stages(shared), first_filter(at.filter), holds(false) {
        bands = shared + STAGES * STAGE_BYTES;
        table = bands + shape.bands * shape.band_bytes();
        taps = table + 8 * shape.entries;
        chunk = at.part * shape.part_chunks;
        last_chunk = min(chunk + shape.part_chunks, shape.chunks) - 1;
        tap = -1;
        const int unit = threadIdx.x % FILTER_UNITS, step = threadIdx.x / FILTER_UNITS;
        this->filters = filters + (static_cast<int64>(chunk) * shape.taps() * 4 + step) * step_units() +
                        2 * first_filter + unit;
    }

    // Numbers of an image.
    __device__ __forceinline__ static int64 image_size(const Shape& shape) {
        return static_cast<int64>(shape.channels) * shape.plane();
    }

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

    // An entry of the table for each place of the band: the place, and where it is in the images, -1 for zeros.
    __device__ __forceinline__ void describe(const Place& at, const Pixel& first) {
        const int left = at.strip * shape.tile_width * shape.stride_across - shape.pad_across;
#pragma unroll 1
        for (int entry = threadIdx.x; entry < shape.entries; entry += THREADS) {
            const int row = entry / shape.pitch(), column = entry - row * shape.pitch();
            const int tall_row = first.y * shape.stride_down + row, image = tall_row / shape.tall;
            const int y = tall_row - image * shape.tall - shape.pad_down;
            const int apart = column / shape.phase, along = column - apart * shape.phase;
            const int x = left + along * shape.stride_across + apart;
            const int number = row / shape.stride_down * shape.tile_width + along;
            const bool there = first.image + image < shape.count && y >= 0 && y < shape.height && x >= 0 &&
                               x < shape.width;
            const int source = image * static_cast<int>(image_size(shape)) + y * shape.width + x;
            write_pair(table + 8 * entry, there ? source : -1, with_number(row * shape.pitch() + column, number));
        }
    }

    __device__ __forceinline__ bool more() const { return number < UNITS; }

    __device__ __forceinline__ void settle() {
        while (entry >= shape.entries) {
            entry -= shape.entries;
            ++number;
        }
    }

    __device__ __forceinline__ void start(int chunk_that_comes) {
        coming = chunk_that_comes;
        entry = threadIdx.x;
        number = chunk_that_comes <= last_chunk ? 0 : UNITS;
        settle();
    }

    __device__ __forceinline__ void get(Unit& unit) {
        const int2 described = read_pair(table + 8 * entry);
        unit.place = described.y;
        unit.number = number;
        const int channel = coming * TERMS + number * UNIT, plane = shape.plane();
        const int there = described.x < 0 ? 0 : shape.channels - channel;
        const float* from = images + (described.x + channel * plane);
        if (there >= UNIT) {
#pragma unroll
            for (int i = 0; i < UNIT; ++i) unit.words[i] = __float_as_uint(__ldg(from + static_cast<int64>(plane) * i));
        } else {
#pragma unroll
            for (int i = 0; i < UNIT; ++i)
                unit.words[i] = i < there ? __float_as_uint(__ldg(from + static_cast<int64>(plane) * i)) : 0;
        }
        entry += THREADS;
        settle();
    }

    __device__ __forceinline__ void put(const Unit& unit) const {
        write_four(unit_address(band_of(coming), unit.place, unit.number), unit.words);
    }

    // The rest of what comes in, COUNT units at a time.
    template <int COUNT>
    __device__ __forceinline__ void bring_all() {
#pragma unroll 1
        while (more()) {
            Unit units[COUNT];
            bool have[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                have[i] = more();
                if (have[i]) get(units[i]);
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (have[i]) put(units[i]);
        }
    }

    __device__ __forceinline__ void bring() {
        if (holds) put(held);
        holds = more();
        if (holds) get(held);
    }

    // ---- What the pipeline calls ------------------------------------------------------------------------------------

    __device__ __forceinline__ void begin() {
        const Place at(shape);
        const Pixel first(shape, at.pixel);
        next_shift = 0;  // the first tap's
        images = shape.images + first.image * image_size(shape);
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
        start(chunk);
        bring_all<4>();
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
        if (tap == 0) start(chunk + 1);
        const int lane = lane_of_thread(), slice = slice_of_thread() * STEPS;
        a_at = stages + stage * STAGE_BYTES + (slice * FILTER_UNITS + warp_row() * MT * WARP + lane) * 16;
        const int shift = shift_of_tap();
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

    __device__ __forceinline__ void work(int step) {
        if (step % (STEPS / 2) == 0) bring();
    }

    // The next chunk's band must be there once this one's last tap is done.
    __device__ __forceinline__ void leave() {
        if (tap != shape.taps() - 1) return;
        if (holds) put(held);
        holds = false;
        bring_all<(MT * NT < 16 ? 4 : 1)>();
    }

    __device__ __forceinline__ int shift_of_tap() {
        const int shift = next_shift;
        next_shift = read_word(taps + (tap + 1 == shape.taps() ? 0 : 4 * (tap + 1)));
        return shift;
    }
};
