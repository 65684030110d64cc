// A convolution as a product on the tensor cores: filters (rows) times pixels of the outputs (columns); its depth are the
// filters' taps and channels. Images and outputs are (images, channels, height, width), as they come; no other kernel runs
// before. The source of products/tensor.cuh that gathers pixels; conv2d/implicit_band.cuh says where they lie.
//
// Between the steps of a chunk's products, threads bring in the next chunk's band: a few numbers of one pixel each time,
// from as many channels, as one unit.
//
// INPUT: float or half_bits, of images and outputs. PAIRED: halves are read two at a time, which an even width allows.
// ACTIVATION: of `enum Activation`.
#pragma once
#include "conv2d/implicit_band.cuh"

static_assert(!PAIRED || sizeof(Number) == 2, "two halves are a word");

struct PixelSource : BandSource<PixelSource> {
    static constexpr bool IN_TURN = false;  // warps read ahead
    static constexpr int BEFORE_TABLE = 0;

    // A unit on its way from the images to the band.
    struct Unit {
        unsigned words[UNIT];
        int place, number;
    };

    const Number* images;  // from the block's first one on
    int next_shift;  // to the places of the next tap
    Unit held;
    int coming;  // chunk that comes in
    int number, entry;  // unit that the thread reads next of it, and where in the table
    bool holds;

    __device__ __forceinline__ PixelSource(const Shape& shape, const uint4* filters, unsigned shared, const Place& at)
        : BandSource(shape, filters, shared, at), holds(false) {}

    // Numbers of an image.
    __device__ __forceinline__ static int64 image_size(const Shape& shape) {
        return static_cast<int64>(shape.channels) * shape.plane();
    }

    // ---- The band ---------------------------------------------------------------------------------------------------

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

    __device__ __forceinline__ void prepare(const Pixel& first) {
        next_shift = 0;  // the first tap's
        images = shape.images + first.image * image_size(shape);
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

// Takes the source that is defined above.
#include "conv2d/implicit_kernel.cuh"
