// A convolution of stride 1 as a product by whole warpgroups: filters (rows) times pixels of the outputs (columns); its
// depth are the filters' taps and channels. What the three rungs named for it share.
//
// conv2d/unit_planes.cu lays images out first: all pixels of all images in one row of places, each row of an image
// followed by its zeros of padding, which are those before the next row, too. PITCH places lead to the next row, TALL
// rows to the next image. Outputs are counted in the same places. So the pixel that a tap wants is the output's own place
// and a distance that depends on the tap alone, and pixels of neighbouring outputs are neighbours. Places between the
// rows and images have outputs as well, which nobody keeps.
//
// A block computes BM filters and BN places. For each chunk of channels it has a *band* of pixels in shared memory, which
// all of its taps see: BN places and as many more as the taps reach. A place is CHUNK_UNITS units of 16 bytes; units of
// the same channels lie side by side. So a tap's pixels are a matrix that begins somewhere in the band, and instructions
// read it there. The filters of a tap and a chunk, a slab, come through a ring of STAGES places.
//
// The last warp asks for bands and slabs, in whole pieces that are copied without registers; all others multiply. They
// wait for each other at barriers in shared memory only. A block has every gridDim.x-th tile of the outputs. Bands and
// slabs are counted through all of its tiles, so that a tile's first ones come while the one before is finished.
//
// KIND: of `enum Kind`; floats are split in two in advance, so that there are two bands and two slabs. INPUT: float or
// half_bits, of the outputs. WARPGROUPS_M x WARPGROUPS_N warpgroups share a tile, each with 64 filters and COLUMNS
// places. STEPS: of 32 bytes of depth, in a chunk. BANDS: 2, one of which comes while the other is multiplied, or, if the
// channels are one chunk, 1. RUN: 4, 2 or 1; of so many places in line, from a multiple of it on, all
// outputs are kept, side by side and aligned, or none is. BLOCKS: that share a multiprocessor. ACTIVATION: of `enum
// Activation`.
#pragma once
#include "conv2d/warpgroup_instructions.cuh"
#include "gemm/kinds.cuh"

typedef INPUT Number;

constexpr int WARPGROUP = 4 * WARP, ROWS = 64;
constexpr int BM = ROWS * WARPGROUPS_M, BN = COLUMNS * WARPGROUPS_N;
constexpr int WORKERS = WARPGROUP * WARPGROUPS_M * WARPGROUPS_N, THREADS = WORKERS + WARP;
constexpr int SUMS = COLUMNS / 2;  // of a thread
constexpr int SPLITS = KIND == TENSOR_FLOAT32 ? 2 : 1;  // pieces of a number
constexpr int CHUNK_UNITS = 2 * STEPS;
constexpr int ROW_UNITS = CHUNK_UNITS * ROWS;  // units of 64 filters in a slab, of one piece
constexpr int SLAB_BYTES = 16 * SPLITS * ROW_UNITS, STAGE_BYTES = WARPGROUPS_M * SLAB_BYTES;

static_assert(STAGES >= 2 && (BANDS == 1 || BANDS == 2) && STEPS >= 1 && STEPS <= 4 && THREADS <= 1024,
              "what the plan chooses from");

struct Shape {
    int count, channels, height, width, filters, out_height, out_width;
    int kernel_height, kernel_width, pad_down, pad_across, apart_down, apart_across;
    int pitch, tall;
    int plane;  // places that are laid out
    int band;   // places of a band
    int chunks;
    int tiles_down, tiles;

    __device__ __forceinline__ int taps() const { return kernel_height * kernel_width; }
    __device__ __forceinline__ int out_plane() const { return out_height * out_width; }
    __device__ __forceinline__ int slabs() const { return chunks * taps(); }
    // The tiles of this block.
    __device__ __forceinline__ int own_tiles() const {
        const int block = blockIdx.x, blocks = gridDim.x;
        return (tiles - block - 1) / blocks + 1;
    }
    __device__ __forceinline__ int tile(int number) const { return static_cast<int>(blockIdx.x) + number * gridDim.x; }
    __device__ __forceinline__ int first_place(int number) const { return tile(number) / tiles_down * BN; }
    __device__ __forceinline__ int first_filter(int number) const { return tile(number) % tiles_down * BM; }
    __device__ __forceinline__ int piece_units() const { return CHUNK_UNITS * band; }  // of a band, one piece
    __device__ __forceinline__ unsigned band_bytes() const { return 16u * SPLITS * piece_units(); }
};

// Where a block's things lie in shared memory.
struct Memory {
    unsigned stages, bands;
    uint64 *full, *empty, *band_full, *band_empty;  // barriers: one a stage, one a band

    __device__ __forceinline__ Memory(unsigned char* shared, const Shape& shape) {
        stages = shared_address(shared);
        bands = stages + STAGES * STAGE_BYTES;
        full = reinterpret_cast<uint64*>(shared + STAGES * STAGE_BYTES + BANDS * shape.band_bytes());
        empty = full + STAGES;
        band_full = empty + STAGES;
        band_empty = band_full + BANDS;
    }
};

// Which output a place has.
struct Output {
    int image, y, x;

    __device__ __forceinline__ Output(const Shape& shape, int place) {
        const int row = place / shape.pitch;
        x = place - row * shape.pitch;
        image = row / shape.tall;
        y = row - image * shape.tall;
    }
    __device__ __forceinline__ bool kept(const Shape& shape) const {
        return x < shape.out_width && y < shape.out_height && image < shape.count;
    }
    __device__ __forceinline__ int offset(const Shape& shape) const {  // of filter 0
        return (image * shape.filters * shape.out_height + y) * shape.out_width + x;
    }
    __device__ __forceinline__ void advance(const Shape& shape) {
        if (++x < shape.pitch) return;
        x = 0;
        if (++y < shape.tall) return;
        y = 0;
        ++image;
    }
};

// ---- The warp that asks for what the others need ----------------------------------------------------------------

// Ask for a band once there is room for it; bands are those of each tile's chunks.
__device__ __forceinline__ void bring_band(const Shape& shape, const Memory& memory, const uint4* laid, int number) {
    const int turn = number / BANDS, which = number % BANDS;
    const int tile = number / shape.chunks, chunk = number - tile * shape.chunks;
    if (turn > 0) barrier_wait(memory.band_empty + which, turn - 1 & 1);
    barrier_expect(memory.band_full + which, shape.band_bytes());
    unsigned to = memory.bands + which * shape.band_bytes();
#pragma unroll 1
    for (int piece = 0; piece < SPLITS; ++piece)
#pragma unroll 1
        for (int unit = 0; unit < CHUNK_UNITS; ++unit, to += 16 * shape.band) {
            const int64 plane = (piece * shape.chunks + chunk) * CHUNK_UNITS + unit;
            copy_bulk(to, laid + plane * shape.plane + shape.first_place(tile), 16 * shape.band, memory.band_full + which);
        }
}

// The slab before which a band is asked for. With that one's stage free, all is multiplied up to the slab that had it: for
// chunks of many taps that is the last one of the band whose place is taken.
__device__ __forceinline__ int due(const Shape& shape, int band) {
    return BANDS > 1 ? min((band - 1) * shape.taps() + STAGES - 1, band * shape.taps()) : band * shape.taps();
}

// One thread asks for everything, in the order in which it is needed; bands somewhat sooner.
__device__ __forceinline__ void bring_all(const Shape& shape, const Memory& memory, const uint4* laid,
                                          const uint4* filters) {
    const int last_rows = (shape.filters - 1) / ROWS, bands = shape.own_tiles() * shape.chunks;
    int coming = 0, slab = 0;  // band that is asked for next, and slab
    for (int tile = 0; tile < shape.own_tiles(); ++tile)
        for (int own = 0; own < shape.slabs(); ++own, ++slab) {
            const int turn = slab / STAGES, stage = slab - turn * STAGES;
            if (turn > 0) barrier_wait(memory.empty + stage, turn - 1 & 1);
            while (coming < bands && slab >= due(shape, coming)) bring_band(shape, memory, laid, coming++);
            barrier_expect(memory.full + stage, STAGE_BYTES);
#pragma unroll
            for (int group = 0; group < WARPGROUPS_M; ++group) {
                const int rows = min(shape.first_filter(tile) / ROWS + group, last_rows);  // beyond the last, again those
                copy_bulk(memory.stages + stage * STAGE_BYTES + group * SLAB_BYTES,
                          filters + (static_cast<int64>(rows) * shape.slabs() + own) * (SPLITS * ROW_UNITS), SLAB_BYTES,
                          memory.full + stage);
            }
        }
}

// ---- The warps that multiply ------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
    if constexpr (KIND == TENSOR_HALF)
        warpgroup_half(sums, left, right, keep);
    else
        warpgroup_tf32(sums, left, right, keep);
}

// sums += left times right over all steps of a slab; or = where `keep` is 0.
__device__ __forceinline__ void multiply_steps(float (&sums)[SUMS], unsigned left, unsigned right, int band, int keep) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        multiply(sums, left + step * 2 * ROWS, right + step * 2 * band, step > 0 ? 1 : keep);
}

// If `done`, a slab's place may be filled again; and if it was a band's last one, the band's, too.
__device__ __forceinline__ void release(const Memory& memory, int stage, int band, bool done, bool last) {
    const bool one = threadIdx.x % WARP == 0;
    barrier_arrive_if(memory.empty + stage, one && done);
    barrier_arrive_if(memory.band_empty + band, one && done && last);
}

// The sums of the thread, over all chunks and taps of a tile. Nothing in the loop parts the threads of a warp, and nothing
// but products touches the sums: either would make the compiler wait for each product.
__device__ __forceinline__ void accumulate(const Shape& shape, const Memory& memory, int tile, float (&sums)[SUMS]) {
    const int group = threadIdx.x / WARPGROUP, row = group / WARPGROUPS_N, column = group % WARPGROUPS_N;
    const unsigned left = matrix_at(memory.stages + row * SLAB_BYTES, 16 * ROWS);
    const unsigned right = matrix_at(memory.bands + column * COLUMNS * 16, 16 * shape.band);
    const int taps = shape.taps(), last = (tile + 1) * shape.slabs() - 1;
    int slab = tile * shape.slabs(), number = tile * shape.chunks, tap = 0, down = 0, across = 0;
    int stage = slab % STAGES, band = number % BANDS;
#pragma unroll 1
    do {
        barrier_wait(memory.band_full + band, number / BANDS & 1);
        barrier_wait(memory.full + stage, slab / STAGES & 1);
        const unsigned own = left + stage * (STAGE_BYTES / 16);
        const unsigned seen = right + band * (shape.band_bytes() / 16) + (down * shape.pitch + across);
        if constexpr (KIND == TENSOR_FLOAT32) {
            // The sums of a slab start anew: those of the instructions are cut off instead of rounded. The pieces that
            // matter least come first.
            float parts[SUMS];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) parts[i] = 0.0f;
            begin_products();
            multiply_steps(parts, own + ROW_UNITS, seen, shape.band, 0);
            multiply_steps(parts, own, seen + shape.piece_units(), shape.band, 1);
            multiply_steps(parts, own, seen, shape.band, 1);
            close_products();
            await_sums(parts);
            release(memory, stage, band, true, tap == taps - 1);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[i] += parts[i];
        } else {
            begin_products();
            multiply_steps(sums, own, seen, shape.band, 1);
            close_products();
            await_products<1>();
            // With that the slab before is done, if the tile has one; at a first tap the band before, too.
            const int before = tap > 0 ? band : BANDS - 1 - band;
            release(memory, (stage > 0 ? stage : STAGES) - 1, before, last - slab < shape.slabs() - 1, tap == 0);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        const bool row_ends = across + shape.apart_across == shape.kernel_width * shape.apart_across;
        across = row_ends ? 0 : across + shape.apart_across;
        down = row_ends ? down + shape.apart_down : down;
        const bool chunk_ends = ++tap == taps;
        tap = chunk_ends ? 0 : tap;
        down = chunk_ends ? 0 : down;
        number += chunk_ends;
        band = number % BANDS;
    } while (++slab <= last);
    await_sums(sums);
    if constexpr (KIND != TENSOR_FLOAT32) release(memory, last % STAGES, (number - 1) % BANDS, true, true);
}

// ---- Results ----------------------------------------------------------------------------------------------------

// One output, before bias and activation, as float32 has it.
__device__ __forceinline__ float plain_sum(const Shape& shape, const Number* images, const float* weights, int filter,
                                           const Output& output) {
    float sum = 0.0f;
#pragma unroll 1
    for (int channel = 0; channel < shape.channels; ++channel)
#pragma unroll 1
        for (int tap = 0; tap < shape.taps(); ++tap) {
            const int row = output.y - shape.pad_down + tap / shape.kernel_width * shape.apart_down;
            const int column = output.x - shape.pad_across + tap % shape.kernel_width * shape.apart_across;
            if (row < 0 || row >= shape.height || column < 0 || column >= shape.width) continue;
            const int64 plane = static_cast<int64>(output.image) * shape.channels + channel;
            const int64 weight = (static_cast<int64>(filter) * shape.channels + channel) * shape.taps() + tap;
            if constexpr (sizeof(Number) == 4)
                sum = fmaf(images[(plane * shape.height + row) * shape.width + column], weights[weight], sum);
        }
    return sum;
}

// Four sums of a filter, of places in line, to the outputs.
__device__ __forceinline__ void store_run(const Shape& shape, const Number* images, const float* weights, float add,
                                          float clip, int filter, Output output, float (&values)[4], Number* outputs) {
    if (KIND == TENSOR_FLOAT32 && strange(values)) {
        Output at = output;
#pragma unroll
        for (int i = 0; i < 4; ++i, at.advance(shape))
            if (at.kept(shape)) values[i] = plain_sum(shape, images, weights, filter, at);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = activate(values[i] + add, ACTIVATION, clip);
    if constexpr (RUN == 4) {
        if (output.kept(shape)) store_four(outputs + output.offset(shape), values);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i, output.advance(shape)) {
            if (i % RUN || !output.kept(shape)) continue;
            if constexpr (RUN == 2)
                store_two(outputs + output.offset(shape), values[i], values[i + 1]);
            else
                store_one(outputs + output.offset(shape), values[i]);
        }
    }
}

// The sums of a tile to the outputs. Neighbouring lanes have two places in line of each eight; of every two such eights
// the one takes the first and the other the second, four places each.
__device__ __forceinline__ void store(const Shape& shape, const Number* images, const float* weights, const float* bias,
                                      float clip, int tile, const float (&sums)[SUMS], Number* outputs) {
    const int group = threadIdx.x / WARPGROUP, warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP, odd = lane % 2;
    const int place = shape.first_place(tile) + group % WARPGROUPS_N * COLUMNS + 8 * odd + lane % 4 / 2 * 4;
    const int first = shape.first_filter(tile) + group / WARPGROUPS_N * ROWS + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i += 2) {
        const Output output(shape, place + 8 * i);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = 4 * i + 2 * half, filter = first + 8 * half;
            const float left = __shfl_xor_sync(ALL_LANES, odd ? sums[at] : sums[at + 4], 1);
            const float right = __shfl_xor_sync(ALL_LANES, odd ? sums[at + 1] : sums[at + 5], 1);
            float values[4] = {odd ? left : sums[at], odd ? right : sums[at + 1], odd ? sums[at + 4] : left,
                               odd ? sums[at + 5] : right};
            if (filter < shape.filters)
                store_run(shape, images, weights, __ldg(bias + filter), clip, filter, output, values,
                          outputs + static_cast<int64>(filter) * shape.out_plane());
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(const uint4* __restrict__ laid, const uint4* __restrict__ filters, const Number* __restrict__ images,
           const float* __restrict__ weights, const float* __restrict__ bias, Number* __restrict__ outputs, float clip,
           int count, int channels, int height, int width, int filter_count, int out_height, int out_width,
           int kernel_height, int kernel_width, int pad_down, int pad_across, int apart_down, int apart_across,
           int pitch, int tall, int plane, int band, int chunks, int tiles_down, int tiles) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shape shape{count, channels, height, width, filter_count, out_height, out_width, kernel_height, kernel_width,
                      pad_down, pad_across, apart_down, apart_across, pitch, tall, plane, band, chunks,
                      tiles_down, tiles};
    const Memory memory(shared, shape);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(memory.full + i, 1);
            barrier_init(memory.empty + i, WORKERS / WARP);
        }
        for (int i = 0; i < BANDS; ++i) {
            barrier_init(memory.band_full + i, 1);
            barrier_init(memory.band_empty + i, WORKERS / WARP);
        }
        show_to_engines();
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) bring_all(shape, memory, laid, filters);
        return;
    }
#pragma unroll 1
    for (int tile = 0; tile < shape.own_tiles(); ++tile) {
        float sums[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
        accumulate(shape, memory, tile, sums);
        store(shape, images, weights, bias, clip, tile, sums, outputs);
    }
}
