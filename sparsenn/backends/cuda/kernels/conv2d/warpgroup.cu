// warpgroup: a convolution of stride 1 as a product by whole warpgroups: filters (rows) times pixels of the outputs
// (columns); its depth are the filters' taps and channels.
//
// Idea      Four warps together multiply 64 filters by up to 128 pixels with one instruction that reads both from shared
//           memory by itself (compute capability 9.0, "wgmma"). With pixels in one row, padding included, and planes of 16
//           bytes a pixel, a tap's pixels are a matrix that lies there already, at a distance: no pixel is copied for a
//           tap, and no register holds one. A float is a number of TF32 and a rest; three of their four products count.
//           Where 11 bits suffice, one product in TF32 does, or half an instruction in half precision.
// Layout    laid: as conv2d/unit_planes.cu leaves images, floats in two pieces. filters: (64 filters, chunk, tap, piece,
//           unit, filter) of 16 bytes, zeros past the last filter or channel. images, weights and bias as they come;
//           outputs (images, filters, height, width) of INPUT.
// Needs     compute capability 9.0, built for sm_90a; stride 1 and one group; room for a band. Denormal numbers are zero,
//           and pixels beyond 65,504 infinite in half precision.
// Before    implicit_float32, whose warps wait for shared memory and copies more than they multiply.
// Changes   who reads shared memory, and who asks for copies: a warp that does nothing else. In TF32 and half precision,
//           sums stay in the instructions from the first slab to the last, two of which are multiplied at a time.
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
// read it there. The filters of TAPS taps, neighbours in a row, and a chunk are a slab; slabs come through a ring of
// STAGES places. Warps wait for each other once a slab: the more products it has, the less that takes.
//
// The last warp asks for bands and slabs, in whole pieces that are copied without registers; all others multiply. They
// wait for each other at barriers in shared memory only. A block has every gridDim.x-th tile of the outputs. Bands and
// slabs are counted through all of its tiles, so that a tile's first ones come while the one before is finished.
//
// KIND: of `enum Kind`; floats are split in two in advance, so that there are two bands and two slabs. INPUT: float or
// half_bits, of the outputs. WARPGROUPS_M x WARPGROUPS_N warpgroups share a tile, each with 64 filters and COLUMNS
// places. STEPS: of 32 bytes of depth, in a chunk. TAPS: of a slab, 1 or those of a row. RUN: 4, 2 or 1; of so many
// places in line, from a multiple of it on, all outputs are kept, side by side and aligned, or none is. ACTIVATION: of
// `enum Activation`.
#include "conv2d/divisor.cuh"
#include "conv2d/warpgroup_results.cuh"
#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "ptx/opaque.cuh"
#include "ptx/warpgroup_products.cuh"
#include "turn.cuh"
#include "products/kinds.cuh"

constexpr int BARRIER_BYTES = 8;
constexpr int BANDS = 2;  // one comes while the other is multiplied
constexpr int BM = ROWS * WARPGROUPS_M, BN = COLUMNS * WARPGROUPS_N;
constexpr int WORKERS = WARPGROUP * WARPGROUPS_M * WARPGROUPS_N, THREADS = WORKERS + WARP;
constexpr int SPLITS = KIND == TENSOR_FLOAT32 ? 2 : 1;  // pieces of a number
constexpr int CHUNK_UNITS = 2 * STEPS;
constexpr int ROW_UNITS = CHUNK_UNITS * ROWS;  // units of 64 filters, of one tap and piece
constexpr int TAP_UNITS = SPLITS * ROW_UNITS, SLAB_UNITS = TAPS * TAP_UNITS;
constexpr int SLAB_BYTES = 16 * SLAB_UNITS, STAGE_BYTES = WARPGROUPS_M * SLAB_BYTES;

static_assert(STAGES >= 2 && STEPS >= 1 && STEPS <= 4 && THREADS <= 1024, "what the plan chooses from");

struct Shape {
    int count, channels, height, width, filters, out_height, out_width;
    int kernel_height, kernel_width, pad_down, pad_across, apart_down, apart_across;
    int pitch, tall;
    int plane;  // places that are laid out
    int band;   // places of a band
    int chunks;
    int tiles_down, tiles;
    Divisor by_pitch, by_tall;

    __device__ __forceinline__ int taps() const { return kernel_height * kernel_width; }
    __device__ __forceinline__ int chunk_slabs() const { return taps() / TAPS; }
    __device__ __forceinline__ int out_plane() const { return out_height * out_width; }
    __device__ __forceinline__ int slabs() const { return chunks * chunk_slabs(); }
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
    unsigned full, empty, band_full, band_empty;  // barriers: one a stage, one a band

    __device__ __forceinline__ Memory(unsigned char* shared, const Shape& shape) {
        stages = computed_once(shared_address(shared));
        bands = stages + STAGES * STAGE_BYTES;
        full = bands + BANDS * shape.band_bytes();
        empty = full + STAGES * BARRIER_BYTES;
        band_full = empty + STAGES * BARRIER_BYTES;
        band_empty = band_full + BANDS * BARRIER_BYTES;
    }
};

// Which output a place has.
struct Output {
    int image, y, x;

    __device__ __forceinline__ Output(const Shape& shape, int place) {
        const int row = shape.by_pitch.divide(place);
        x = place - row * shape.pitch;
        image = shape.by_tall.divide(row);
        y = row - image * shape.tall;
    }
    __device__ __forceinline__ bool kept(const Shape& shape) const {
        return x < shape.out_width && y < shape.out_height && image < shape.count;
    }
    __device__ __forceinline__ unsigned offset(const Shape& shape) const {  // of filter 0, where it is kept
        return (static_cast<unsigned>(image) * shape.filters * shape.out_height + y) * shape.out_width + x;
    }
};

// ---- The warp that asks for what the others need ----------------------------------------------------------------

// The bands of all of a block's tiles and their chunks, one after the other.
struct Bands {
    int tile = 0, chunk = 0, number = 0;
    Turn turn{0, 1};

    // The slab before which a band is asked for. With that one's stage free, all is multiplied up to the slab that had it:
    // for chunks of many slabs that is the last one of the band whose place is taken.
    __device__ __forceinline__ int due(const Shape& shape) const {
        const int first = number * shape.chunk_slabs();
        return min(first - shape.chunk_slabs() + STAGES - 1, first);
    }

    // Ask for the next band once there is room for it.
    __device__ __forceinline__ void bring(const Shape& shape, const Memory& memory, const uint4* laid) {
        const unsigned full = memory.band_full + turn.stage * BARRIER_BYTES;
        barrier_wait(memory.band_empty + turn.stage * BARRIER_BYTES, turn.parity);
        barrier_expect(full, shape.band_bytes());
        unsigned to = memory.bands + turn.stage * shape.band_bytes();
#pragma unroll 1
        for (int piece = 0; piece < SPLITS; ++piece)
#pragma unroll 1
            for (int unit = 0; unit < CHUNK_UNITS; ++unit, to += 16 * shape.band) {
                const int64 plane = (piece * shape.chunks + chunk) * CHUNK_UNITS + unit;
                copy_bulk(to, laid + plane * shape.plane + shape.first_place(tile), 16 * shape.band, full);
            }
        turn.next(BANDS);
        ++number;
        if (++chunk < shape.chunks) return;
        chunk = 0;
        ++tile;
    }
};

// One thread asks for everything, in the order in which it is needed; bands somewhat sooner.
__device__ __forceinline__ void bring_all(const Shape& shape, const Memory& memory, const uint4* laid,
                                          const uint4* filters) {
    const int last_rows = (shape.filters - 1) / ROWS, tiles = shape.own_tiles(), slabs = shape.slabs();
    Bands bands;
    Turn turn{0, 1};
    int coming = 0, due = bands.due(shape);  // slab
    for (int tile = 0; tile < tiles; ++tile) {
        const uint4* rows[WARPGROUPS_M];
#pragma unroll
        for (int group = 0; group < WARPGROUPS_M; ++group) {
            const int row = min(shape.first_filter(tile) / ROWS + group, last_rows);  // beyond the last, again those
            rows[group] = filters + static_cast<int64>(row) * slabs * SLAB_UNITS;
        }
#pragma unroll 1
        for (int slab = 0; slab < slabs; ++slab, ++coming, turn.next(STAGES)) {
            const unsigned full = memory.full + turn.stage * BARRIER_BYTES;
            barrier_wait(memory.empty + turn.stage * BARRIER_BYTES, turn.parity);
            while (bands.tile < tiles && coming >= due) {
                bands.bring(shape, memory, laid);
                due = bands.due(shape);
            }
            barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (int group = 0; group < WARPGROUPS_M; ++group) {
                copy_bulk(memory.stages + turn.stage * STAGE_BYTES + group * SLAB_BYTES, rows[group], SLAB_BYTES, full);
                rows[group] += SLAB_UNITS;
            }
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
    barrier_arrive_if(memory.empty + stage * BARRIER_BYTES, one && done);
    barrier_arrive_if(memory.band_empty + band * BARRIER_BYTES, one && done && last);
}

// Where a warp is: among the stages, the bands and, in its band, the places that its slab's first tap sees first.
struct Position {
    Turn stage{0, 0}, band{0, 0};
    int tap = 0, across = 0, row = 0, seen = 0;

    // To the next slab; whether that is another band's.
    __device__ __forceinline__ bool advance(const Shape& shape) {
        stage.next(STAGES);
        tap += TAPS;
        across += TAPS;
        const bool row_ends = across == shape.kernel_width, chunk_ends = tap == shape.taps();
        across = row_ends ? 0 : across;
        tap = chunk_ends ? 0 : tap;
        row = chunk_ends ? 0 : row_ends ? row + shape.apart_down * shape.pitch : row;
        seen = row_ends ? row : seen + TAPS * shape.apart_across;
        if (chunk_ends) band.next(BANDS);
        return chunk_ends;
    }
};

// The sums of the thread, over all chunks and taps of a tile. Nothing in the loop parts the threads of a warp, and nothing
// but products touches the sums: either would make the compiler wait for each product.
__device__ __forceinline__ void accumulate(const Shape& shape, const Memory& memory, unsigned left, unsigned right,
                                           Position& position, float (&sums)[SUMS]) {
    int stage = 0, band = 0;  // of the slab before
    bool begun = false, band_ends = false;
#pragma unroll 1
    for (int slab = shape.slabs(); slab > 0; --slab) {
        barrier_wait(memory.band_full + position.band.stage * BARRIER_BYTES, position.band.parity);
        barrier_wait(memory.full + position.stage.stage * BARRIER_BYTES, position.stage.parity);
        const unsigned own = left + position.stage.stage * (STAGE_BYTES / 16);
        const unsigned seen = right + position.band.stage * (shape.band_bytes() / 16) + position.seen;
        if constexpr (KIND == TENSOR_FLOAT32) {
            // The sums of a tap start anew: those of the instructions are cut off instead of rounded. The pieces that
            // matter least come first.
#pragma unroll 1
            for (int tap = 0; tap < TAPS; ++tap) {
                const unsigned filters = own + tap * TAP_UNITS, pixels = seen + tap * shape.apart_across;
                float parts[SUMS];
#pragma unroll
                for (int i = 0; i < SUMS; ++i) parts[i] = 0.0f;
                begin_products();
                multiply_steps(parts, filters + ROW_UNITS, pixels, shape.band, 0);
                multiply_steps(parts, filters, pixels + shape.piece_units(), shape.band, 1);
                multiply_steps(parts, filters, pixels, shape.band, 1);
                close_products();
                await_sums(parts);
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sums[i] += parts[i];
            }
        } else {
            begin_products();
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                multiply_steps(sums, own + tap * TAP_UNITS, seen + tap * shape.apart_across, shape.band, 1);
            close_products();
            await_products<1>();
            release(memory, stage, band, begun, band_ends);  // with that the slab before is done
        }
        begun = true;
        stage = position.stage.stage;
        band = position.band.stage;
        band_ends = position.advance(shape);
        if constexpr (KIND == TENSOR_FLOAT32) release(memory, stage, band, true, band_ends);
    }
    await_sums(sums);
    if constexpr (KIND != TENSOR_FLOAT32) release(memory, stage, band, true, true);
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

// Neighbouring lanes have two places in line of each eight. Of every two such eights the one takes the first and the other
// the second, four places each.
__device__ __forceinline__ void put_in_line(float (&sums)[SUMS], bool odd) {
#pragma unroll
    for (int i = 0; i < SUMS; i += i % 8 == 0 ? 2 : 6) {
        const float left = __shfl_xor_sync(ALL_LANES, odd ? sums[i] : sums[i + 4], 1);
        const float right = __shfl_xor_sync(ALL_LANES, odd ? sums[i + 1] : sums[i + 5], 1);
        (odd ? sums[i] : sums[i + 4]) = left;
        (odd ? sums[i + 1] : sums[i + 5]) = right;
    }
}

// Which of the sums of `put_in_line` are those of a filter's four places.
__device__ __forceinline__ constexpr int sum_of(int places, int half, int number) {
    return 8 * places + 2 * half + number % 2 + number / 2 * 4;
}

// Sums that the split has not stood up to, as float32 has them.
__device__ __forceinline__ void mend(const Shape& shape, const Number* images, const float* weights, int filter, int place,
                                     float (&sums)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS / 8; ++i)
#pragma unroll
        for (int half = 0; half < Finish::FILTERS; ++half)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float& sum = sums[sum_of(i, half, j)];
                const Output output(shape, place + 16 * i + j);
                if (!strange(sum) || filter + 8 * half >= shape.filters || !output.kept(shape)) continue;
                sum = plain_sum(shape, images, weights, filter + 8 * half, output);
            }
}

// The sums of a tile to the outputs. No branch parts one store from the next: stores read their registers late, and the
// compiler needs room to give others to what follows.
__device__ __forceinline__ void store(const Shape& shape, const Number* images, const float* weights, const Finish& finish,
                                      float clip, int tile, int group, float (&sums)[SUMS], Number* outputs) {
    constexpr int RUNS = 4 / RUN, PLACES = SUMS / 8 * RUNS;  // of a thread
    const int lane = threadIdx.x % WARP, odd = lane % 2;
    const int place = shape.first_place(tile) + group % WARPGROUPS_N * COLUMNS + 8 * odd + lane % 4 / 2 * 4;
    put_in_line(sums, odd);
    if constexpr (KIND == TENSOR_FLOAT32) {
        bool any = false;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) any |= strange(sums[i]);
        if (any) mend(shape, images, weights, finish.filter, place, sums);
    }
    Number* first = outputs + static_cast<int64>(finish.filter) * shape.out_plane();
#pragma unroll
    for (int i = 0; i < PLACES; ++i) {
        const Output output(shape, place + i / RUNS * 16 + i % RUNS * RUN);
        const bool kept = output.kept(shape);
        Number* to = first + output.offset(shape);
#pragma unroll
        for (int half = 0; half < Finish::FILTERS; ++half, to += 8 * static_cast<int64>(shape.out_plane())) {
            float values[RUN];
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const float sum = sums[sum_of(i / RUNS, half, i % RUNS * RUN + j)];
                values[j] = finished(sum + finish.bias[half], clip);
            }
            Packed(values).store_to(to, kept && finish.filter + 8 * half < shape.filters);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d(const uint4* __restrict__ laid, const uint4* __restrict__ filters, const Number* __restrict__ images,
           const float* __restrict__ weights, const float* __restrict__ bias, Number* __restrict__ outputs, float clip,
           int count, int channels, int height, int width, int filter_count, int out_height, int out_width,
           int kernel_height, int kernel_width, int pad_down, int pad_across, int apart_down, int apart_across,
           int pitch, int tall, int plane, int band, int chunks, int tiles_down, int tiles, unsigned pitch_factor,
           int pitch_shift, unsigned tall_factor, int tall_shift) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shape shape{count, channels, height, width, filter_count, out_height, out_width, kernel_height, kernel_width,
                      pad_down, pad_across, apart_down, apart_across, pitch, tall, plane, band, chunks,
                      tiles_down, tiles, {pitch_factor, pitch_shift}, {tall_factor, tall_shift}};
    const Memory memory(shared, shape);
    if (threadIdx.x == 0) {
        uint64* barriers = reinterpret_cast<uint64*>(shared + (memory.full - memory.stages));
        for (int i = 0; i < 2 * (STAGES + BANDS); ++i) {
            const bool full = i < STAGES || (i >= 2 * STAGES && i < 2 * STAGES + BANDS);
            barrier_init(barriers + i, full ? 1 : WORKERS / WARP);
        }
        show_to_engines();
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) bring_all(shape, memory, laid, filters);
        return;
    }
    const int group = of_warp(threadIdx.x / WARPGROUP), row = group / WARPGROUPS_N, column = group % WARPGROUPS_N;
    const unsigned left = matrix_at(memory.stages + row * SLAB_BYTES, 16 * ROWS);
    const unsigned right = matrix_at(memory.bands + column * COLUMNS * 16, 16 * shape.band);
    const int own_tiles = shape.own_tiles();
    Position position;
#pragma unroll 1
    for (int tile = 0; tile < own_tiles; ++tile) {
        const Finish finish(bias, shape.first_filter(tile) + group / WARPGROUPS_N * ROWS, shape.filters);
        float sums[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
        accumulate(shape, memory, left, right, position, sums);
        store(shape, images, weights, finish, clip, tile, group, sums, outputs);
    }
}
