// A convolution as a product on the tensor cores: filters (rows) times pixels of the outputs (columns); its depth are
// the filters' taps and channels. The source of gemm/tensor.cuh, and the kernel.
//
// Images and outputs are (images, channels, height, width), as they come; no other kernel runs before, unless
// CHANNELS_LAST says that conv2d/channels_last.cu has, which leaves images as (images, chunks, height, width, channels of
// a chunk) in half precision. The depth is cut
// into chunks of 64 channels (halves) or 32 (floats), and a chunk into one slab for each tap. A block copies the part of
// the images that its pixels see to shared memory once for each chunk, the *band*, and takes all taps from there.
//
// Pixels are counted within strips of TILE_WIDTH columns, row after row and image after image; a block has BN of them
// that follow each other. Its band has PITCH places for each row of the images, padded with zeros, and 128 bytes for each
// place: the channels of a chunk. Unit u of 16 bytes lies in place u ^ key, where the key of a pixel is made of bits 0, 2
// and 3 of its number. So the eight pixels 4 a + 2 j + b (a < 4, b < 2), which a matrix instruction reads at a time, are
// in different banks, whatever the tap: their numbers are shifted all alike. With a stride, columns that are a stride
// apart are neighbours in the band. A lane's sums are of four neighbouring pixels, and go straight to the outputs.
//
// Between the steps of a chunk's products, threads bring in the next chunk's band: a few numbers of one pixel each time,
// from as many channels, as one unit. With CHANNELS_LAST the units are copied as they are, which takes no registers.
//
// The filters are in the order in which lanes read them: chunk, tap, step of 32 bytes, 16 filters, lane, 16 bytes.
//
// INPUT: float or half_bits, of images and outputs. PAIRED: halves are read two at a time, which an even width allows.
// ACTIVATION: of `enum Activation`.
#pragma once
#include "conv2d/implicit_shape.cuh"

constexpr int UNIT = 16 / BYTES;  // numbers of 16 bytes
constexpr int UNITS = LINE / 16;  // of a place
constexpr int STAGE_BYTES = BM * LINE;
constexpr int FILTER_UNITS = 2 * BM;  // of a step
constexpr bool IN_TURN = CHANNELS_LAST && THREADS * BLOCKS >= 512;  // warps read and multiply in turn
constexpr int SAME_FOR_ALL = CHANNELS_LAST ? 16 : 0;  // bytes before the table, of what would take registers
constexpr int SKIP_FIRST = 32, SKIP_SECOND = 64;  // of two pixels read at once

static_assert(BM * 8 % THREADS == 0, "copies of filters are shared evenly");
static_assert(THREADS % FILTER_UNITS == 0 || FILTER_UNITS % THREADS == 0, "a thread copies the same unit of steps");
static_assert(!PAIRED || sizeof(Number) == 2, "two halves are a word");
static_assert(!CHANNELS_LAST || KIND == TENSOR_HALF && !PAIRED, "units of eight halves are copied");

struct PixelSource {
    static constexpr bool ROUNDED = true;  // filters beforehand, pixels on their way to shared memory
    static constexpr int COPIES = BM * 8 / THREADS;

    // A unit on its way from the images to the band.
    struct Unit {
        unsigned words[UNIT];
        int place, number;
    };

    const Shape& shape;
    unsigned bands, table, taps, stages;  // in shared memory
    const Number* images;  // from the block's first one on
    int chunk, last_chunk, tap;  // of the slab that is being read
    int next_shift;  // to the places of the next tap, where there is a register for it
    const uint4* filters;  // that this thread copies next
    int first_filter;
    int places[NT / 2];  // of pixels whose rows of tiles this lane gives the address of
    unsigned a_at, b_at[NT / 2];
    Unit held;
    int coming;  // chunk that comes in
    int number, entry;  // unit that the thread reads next of it, and where in the table
    int item;  // the same where channels are last, in one number: those of a place follow each other
    bool holds;

    __device__ __forceinline__ PixelSource(const Shape& shape, const uint4* filters, unsigned shared, const Place& at)
        : shape(shape), stages(shared), first_filter(at.filter), holds(false) {
        bands = shared + STAGES * STAGE_BYTES;
        table = bands + shape.bands * shape.band_bytes() + SAME_FOR_ALL;
        taps = table + 8 * shape.entries;
        chunk = at.part * shape.part_chunks;
        last_chunk = min(chunk + shape.part_chunks, shape.chunks) - 1;
        tap = -1;
        const int unit = threadIdx.x % FILTER_UNITS, step = threadIdx.x / FILTER_UNITS;
        this->filters = filters + (static_cast<int64>(chunk) * shape.taps() * 4 + step) * step_units() +
                        2 * first_filter + unit;
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

    // What is read for a place of the band, or for two: the place, and where in the images, -1 for zeros.
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
            const int source = image * static_cast<int>(shape.image()) + y * shape.width + x;
            write_pair(table + 8 * entry, there ? source : -1, with_number(row * shape.pitch() + column, number) | skip);
        }
    }

    __device__ __forceinline__ bool more() const {
        if constexpr (CHANNELS_LAST) return item < UNITS * shape.entries;
        return number < UNITS;
    }

    __device__ __forceinline__ void settle() {
        while (entry >= shape.entries) {
            entry -= shape.entries;
            ++number;
        }
    }

    __device__ __forceinline__ void start(int chunk_that_comes) {
        coming = chunk_that_comes;
        const bool comes = chunk_that_comes <= (CHANNELS_LAST ? read_word(table - 12) : last_chunk);
        if constexpr (CHANNELS_LAST) {
            item = comes ? threadIdx.x : UNITS * shape.entries;
        } else {
            entry = threadIdx.x;
            number = comes ? 0 : UNITS;
            settle();
        }
    }

    __device__ __forceinline__ static unsigned word_at(const Number* from) {
        if constexpr (PAIRED)
            return __ldg(reinterpret_cast<const unsigned*>(from));
        else if constexpr (sizeof(Number) == 2)
            return __ldg(from);
        else
            return __float_as_uint(__ldg(from));
    }

    __device__ __forceinline__ void get(Unit& unit) {
        const int2 described = read_pair(table + 8 * entry);
        unit.place = described.y;
        unit.number = number;
        const int channel = coming * TERMS + number * UNIT, plane = shape.plane();
        const int there = described.x < 0 ? 0 : shape.channels - channel;
        const Number* from = images + (described.x + channel * plane);
        if (there >= UNIT) {
#pragma unroll
            for (int i = 0; i < UNIT; ++i) unit.words[i] = word_at(from + static_cast<int64>(plane) * i);
        } else {
#pragma unroll
            for (int i = 0; i < UNIT; ++i) unit.words[i] = i < there ? word_at(from + static_cast<int64>(plane) * i) : 0;
        }
        entry += THREADS;
        settle();
    }

    __device__ __forceinline__ void put(const Unit& unit) {
        const unsigned band = band_of(coming);
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (KIND == TENSOR_FLOAT32)
                words[i] = unit.words[i];
            else if constexpr (KIND == TENSOR_TF32)
                words[i] = to_tf32(unit.words[i]);
            else if constexpr (sizeof(Number) == 2)
                words[i] = lower_halves(unit.words[2 * i], unit.words[2 * i + 1]);
            else
                words[i] = to_halves(__uint_as_float(unit.words[2 * i]), __uint_as_float(unit.words[2 * i + 1]));
        }
        if (!PAIRED || !(unit.place & SKIP_FIRST)) write_four(unit_address(band, unit.place, unit.number), words);
        if constexpr (PAIRED) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = upper_halves(unit.words[2 * i], unit.words[2 * i + 1]);
            if (!(unit.place & SKIP_SECOND))
                write_four(unit_address(band, (unit.place & -LINE) + LINE + (unit.place + 1 & 15), unit.number), words);
        }
    }

    // ---- What the pipeline calls ------------------------------------------------------------------------------------

    __device__ __forceinline__ void begin() {
        next_shift = 0;  // the first tap's
        const Place at(shape);
        const Pixel first(shape, at.pixel);
        if constexpr (CHANNELS_LAST) {
            const int turns = max(early_taps(), 1) * THREADS;
            write_pair(table - 16, first.image, last_chunk);
            write_word(table - 8, (UNITS * shape.entries + turns - 1) / turns);
        } else {
            images = shape.images + first.image * shape.image();
        }
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

    // Units that a thread copies during each slab, where channels are last.
    __device__ __forceinline__ int pace() const { return read_word(table - 8); }

    // Copy the next units of the chunk that comes in, as many as are left but COUNT at most. Units of 16 bytes that
    // follow each other in a place are neighbouring threads'.
    template <int COUNT>
    __device__ __forceinline__ void copy_units() {
        const int which = chunk + (tap >= 0);  // before the first slab, the first
        const unsigned band = band_of(which), unit = threadIdx.x % UNITS;
        const int64 first = read_word(table - 16) * shape.image() + static_cast<int64>(which) * shape.plane();
        const uint4* from = reinterpret_cast<const uint4*>(shape.images) + first * UNITS + unit;
        int2 entries[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (item + i * THREADS < UNITS * shape.entries) entries[i] = read_pair(table + (item + i * THREADS & -8));
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (item + i * THREADS < UNITS * shape.entries)
                copy_later<16>(unit_address(band, entries[i].y, unit),
                               from + static_cast<int64>(max(entries[i].x, 0)) * UNITS, entries[i].x < 0 ? 0 : 16);
        item += COUNT * THREADS;
    }

    // Slabs of a chunk after which enough others follow for copies that were begun there to have arrived.
    __device__ __forceinline__ int early_taps() const { return shape.taps() - STAGES + 1; }

    // The rest of what comes in, COUNT units at a time.
    template <int COUNT>
    __device__ __forceinline__ void bring_all() {
        if constexpr (CHANNELS_LAST) {
#pragma unroll 1
            while (more()) copy_units<COUNT>();
            close_copies();
            await_copies<0>();
        } else {
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
    }

    __device__ __forceinline__ void bring() {
        if (holds) put(held);
        holds = more();
        if (holds) get(held);
    }

    __device__ __forceinline__ void work(int step) {
        if constexpr (!CHANNELS_LAST) {
            if (step % (STEPS / 2) == 0) bring();
        } else if (step == 0) {
#pragma unroll 1
            for (int left = more() ? pace() : 0; left > 0 && more(); --left) copy_units<1>();
        }
    }

    // The next chunk's band must be there once this one's last tap is done.
    __device__ __forceinline__ void leave() {
        if (tap != shape.taps() - 1) return;
        if constexpr (CHANNELS_LAST) {
            if (early_taps() < 1) bring_all<1>();
        } else {
            if (holds) put(held);
            holds = false;
            bring_all<(MT * NT < 16 ? 4 : 1)>();
        }
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
        int shift = next_shift;
        if constexpr (CHANNELS_LAST)
            shift = read_word(taps + 4 * tap);
        else
            next_shift = read_word(taps + (tap + 1 == shape.taps() ? 0 : 4 * (tap + 1)));
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

// ---- Results ----------------------------------------------------------------------------------------------------

// One output, before bias and activation, as float32 has it.
__device__ __forceinline__ float plain_sum(const Shape& shape, const float* weights, int filter, int image, int y,
                                           int x) {
    float sum = 0.0f;
    if constexpr (KIND == TENSOR_FLOAT32)
#pragma unroll 1
        for (int channel = 0; channel < shape.channels; ++channel)
#pragma unroll 1
            for (int tap = 0; tap < shape.taps(); ++tap) {
                const int row = y * shape.stride_down - shape.pad_down + tap / shape.kernel_width * shape.apart_down;
                const int column =
                    x * shape.stride_across - shape.pad_across + tap % shape.kernel_width * shape.apart_across;
                if (row < 0 || row >= shape.height || column < 0 || column >= shape.width) continue;
                const Number* from = shape.images + image * shape.image() + static_cast<int64>(channel) * shape.plane();
                const int64 weight = (static_cast<int64>(filter) * shape.channels + channel) * shape.taps() + tap;
                sum = fmaf(from[row * shape.width + column], weights[weight], sum);
            }
    return sum;
}

// Four pixels in a row, of one filter: from `pixel` on, whose number is `number`.
struct Target {
    const Shape& shape;
    Number* to;  // the first pixel's output of filter 0
    Pixel pixel;
    int left, number;  // the strip's first column
    bool whole;  // the outputs are neighbours, and aligned

    __device__ __forceinline__ Target(const Shape& shape, Number* outputs, int strip, int number)
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
        Number* row = to + filter * size - at.x;
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
    conv2d(const Number* __restrict__ images, const uint4* __restrict__ filters, const float* __restrict__ weights,
           const float* __restrict__ bias, Number* __restrict__ outputs, float4* partial, unsigned* counters,
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
        if constexpr (IN_TURN)
            accumulate_in_turn(source, sums, slabs);
        else
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
                if (KIND == TENSOR_FLOAT32 && strange(values)) {
                    target.each(filter, [&](int, const Pixel& pixel) {
                        const float sum =
                            plain_sum(shape, weights, filter, pixel.image, pixel.y, target.left + pixel.x);
                        return activate(sum + add, ACTIVATION, clip);
                    });
                    continue;
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) values[j] = activate(values[j] + add, ACTIVATION, clip);
                if (target.whole)
                    store_four(target.to + static_cast<int64>(filter) * (out_height * out_width), values);
                else
                    target.each(filter, [&](int j, const Pixel&) {
                        return j < 2 ? j == 0 ? values[0] : values[1] : j == 2 ? values[2] : values[3];
                    });
            }
        }
}
