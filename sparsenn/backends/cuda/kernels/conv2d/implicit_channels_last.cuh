// A convolution as a product on the tensor cores, of images whose channels conv2d/channels_last.cu has put side by side:
// (images, chunks, height, width, channels of a chunk) in half precision. Outputs are (images, filters, height, width). The
// source of gemm/tensor.cuh that copies pixels; conv2d/implicit_band.cuh says where they lie.
//
// While a chunk is multiplied, threads ask for the next chunk's band: units of 16 bytes are copied as they are, which takes
// no registers.
//
// INPUT: float or half_bits, of outputs. ACTIVATION: of `enum Activation`.
#pragma once
#include "conv2d/implicit_band.cuh"

static_assert(KIND == TENSOR_HALF && !PAIRED, "units of eight halves are copied");

struct PixelSource : BandSource<PixelSource> {
    static constexpr bool IN_TURN = THREADS * BLOCKS >= 512;  // warps read and multiply in turn
    static constexpr int BEFORE_TABLE = 16;  // of what would take registers, and is the same for all threads

    int item;  // unit and place in the table that the thread copies next, in one number: units of a place follow each other

    __device__ __forceinline__ PixelSource(const Shape& shape, const uint4* filters, unsigned shared, const Place& at)
        : BandSource(shape, filters, shared, at) {}

    // Places of an image, of all chunks.
    __device__ __forceinline__ static int64 image_size(const Shape& shape) {
        return static_cast<int64>(shape.chunks) * shape.plane();
    }

    // ---- The band ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ bool more() const { return item < UNITS * shape.entries; }

    __device__ __forceinline__ void start(int chunk_that_comes) {
        item = chunk_that_comes <= read_word(table - 12) ? threadIdx.x : UNITS * shape.entries;
    }

    // Units that a thread copies during each slab.
    __device__ __forceinline__ int pace() const { return read_word(table - 8); }

    // Copy the next units of the chunk that comes in, as many as are left but COUNT at most. Units of 16 bytes that
    // follow each other in a place are neighbouring threads'.
    template <int COUNT>
    __device__ __forceinline__ void copy_units() {
        const int which = chunk + (tap >= 0);  // before the first slab, the first
        const unsigned band = band_of(which), unit = threadIdx.x % UNITS;
        const int64 first = read_word(table - 16) * image_size(shape) + static_cast<int64>(which) * shape.plane();
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
#pragma unroll 1
        while (more()) copy_units<COUNT>();
        close_copies();
        await_copies<0>();
    }

    // ---- What the pipeline calls ------------------------------------------------------------------------------------

    __device__ __forceinline__ void prepare(const Pixel& first) {
        const int turns = max(early_taps(), 1) * THREADS;
        write_pair(table - 16, first.image, last_chunk);
        write_word(table - 8, (UNITS * shape.entries + turns - 1) / turns);
    }

    __device__ __forceinline__ void work(int step) {
        if (step > 0) return;
#pragma unroll 1
        for (int left = more() ? pace() : 0; left > 0 && more(); --left) copy_units<1>();
    }

    // The next chunk's band must be there once this one's last tap is done.
    __device__ __forceinline__ void leave() {
        if (tap == shape.taps() - 1 && early_taps() < 1) bring_all<1>();
    }

    __device__ __forceinline__ int shift_of_tap() const { return read_word(taps + 4 * tap); }
};

// Takes the source that is defined above.
#include "conv2d/implicit_kernel.cuh"
