// warpgroup_rows_half: rows of images go straight to warpgroups, past filters that stay.
//
// Idea      Where channels and filters are few, all taps of 64 filters fit into shared memory, and stay there. A row of
//           pixels is then all that comes, from the images as they are, and as many rows of outputs see it as the filters
//           are high. Nothing is laid out in advance.
// Layout    images (images, channels, height, width), outputs (images, filters, output height, output width), both float32
//           or both half (INPUT); filters as for warpgroup.cuh, all channels one chunk.
// Needs     stride 1, one group; filters and SLOTS lines in shared memory. Pixels beyond 65,504 become infinite.
// Before    warpgroup_half.
// Changes   four warps transpose rows on their way to shared memory; filters are read once a block.
//
// A *line* is a row of pixels as COLUMNS outputs next to each other see it, zeros of padding included. Lines of an image
// are followed by its lines of padding, which are those before the next image, too: `tall` lines lead to the next image,
// and all images are a segment of so many columns. Lines of outputs are counted in the same way, so that a line of outputs
// sees the line of its own number and `reach_down` more.
//
// In shared memory a line consists of units of eight channels, and those of 16 bytes a pixel. Eight pixels that are an
// eighth of the line apart lie side by side in 128 bytes, as instructions want eight rows of a matrix; the next 128 bytes
// are the pixels next to those. So what a tap sees is a matrix that begins some times 128 bytes further than another tap's;
// one that begins anywhere else would be read in two pieces. The last matrices have the first pixels of the next eighths,
// which are there twice.
//
// A block has a span of lines of outputs, 64 filters and a ring of SLOTS lines. WARPGROUPS warpgroups multiply, each for
// every WARPGROUPS-th line; four more warps bring lines. While the one stores what it has, the other multiplies.
//
// COLUMNS: a multiple of 8, 64 or more. TAPS: of a row of the filters, APART: pixels from one to the next. STEPS: of 16 channels.
// LOADED: pixels that are read at once, 8 or, where rows do not begin at multiples of so many, 1. OCTETS: eights of pixels,
// from a multiple of eight on, that a line reaches into. RUN: of outputs that are stored at once. ACTIVATION: of
// `enum Activation`.
#include "conv2d/divisor.cuh"
#include "conv2d/warpgroup_results.cuh"
#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"
#include "ptx/warpgroup_products.cuh"
#include "turn.cuh"

constexpr int WORKERS = WARPGROUP * WARPGROUPS, BRINGERS = WARPGROUP, THREADS = WORKERS + BRINGERS;
constexpr int BARRIER_BYTES = 8;
constexpr int UNIT = 8, UNITS = 2 * STEPS;  // channels of a unit, units of a line
constexpr int EIGHTH = COLUMNS / 8, REACH = (TAPS - 1) * APART;  // pixels
constexpr int MATRICES = EIGHTH + REACH, MATRIX_BYTES = 128;  // eight pixels each, of a unit
constexpr int UNIT_BYTES = MATRIX_BYTES * MATRICES, LINE_BYTES = UNITS * UNIT_BYTES;
constexpr int TAP_BYTES = 16 * UNITS * ROWS;

static_assert(EIGHTH >= UNIT && EIGHTH >= REACH, "pixels are in two eighths at most");

struct Shape {
    int count, channels, height, width, filters, out_height, out_width;
    int kernel_height, pad_down, pad_across, apart_down;
    int tall, lines;  // of an image, of a segment
    int all_lines;    // of outputs that are wanted
    int tiles_down;   // 64 filters each
    Divisor by_lines, by_tall;

    __device__ __forceinline__ int reach_down() const { return (kernel_height - 1) * apart_down; }
};

// The lines of outputs that a block has, and those of pixels, up to `end`.
struct Span {
    int first, last, end;

    __device__ __forceinline__ explicit Span(const Shape& shape) {
        const int spans = gridDim.x / shape.tiles_down, number = blockIdx.x / shape.tiles_down;
        const int each = shape.all_lines / spans, more = shape.all_lines % spans;
        first = number * each + min(number, more);
        last = first + each + (number < more);
        end = last + shape.reach_down();
    }
};

// Where the line of a number is.
struct Line {
    int segment, image, y;

    __device__ __forceinline__ Line(const Shape& shape, int number) {
        segment = shape.by_lines.divide(number);
        const int row = number - segment * shape.lines;
        image = shape.by_tall.divide(row);
        y = row - image * shape.tall;
    }
    __device__ __forceinline__ bool kept(const Shape& shape) const { return y < shape.out_height && image < shape.count; }
};

// Where a block's things lie in shared memory.
struct Memory {
    unsigned filters, lines;
    unsigned full, empty, filters_full;  // barriers, the first two one a slot

    __device__ __forceinline__ Memory(unsigned char* shared, const Shape& shape) {
        filters = computed_once(shared_address(shared));
        lines = filters + shape.kernel_height * TAPS * TAP_BYTES;
        full = lines + SLOTS * LINE_BYTES;
        empty = full + SLOTS * BARRIER_BYTES;
        filters_full = empty + SLOTS * BARRIER_BYTES;
    }
};

// ---- The warps that bring lines ---------------------------------------------------------------------------------

__device__ __forceinline__ unsigned word_of(float left, float right) { return to_halves(left, right); }
__device__ __forceinline__ unsigned word_of(half_bits left, half_bits right) {
    return left | static_cast<unsigned>(right) << 16;
}

// Eight pixels of each of a unit's channels, as halves. The first is pixel x of the `columns` in a row, and lies at `from`;
// the next channel's are `apart` numbers further. Pixels and channels beyond what there is are zeros.
struct Patch {
    unsigned words[UNIT][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int channel = 0; channel < UNIT; ++channel)
#pragma unroll
            for (int i = 0; i < 4; ++i) words[channel][i] = 0;
    }
    __device__ __forceinline__ void load(const Number* from, int64 apart, int channels, int x, int columns, bool there) {
        clear();
        if (!there || x < 0 || x >= columns) return;
        if (channels >= UNIT) {
#pragma unroll
            for (int channel = 0; channel < UNIT; ++channel, from += apart) load_row(words[channel], from, x, columns);
        } else {
#pragma unroll
            for (int channel = 0; channel < UNIT; ++channel, from += apart)
                if (channel < channels) load_row(words[channel], from, x, columns);
        }
    }

    __device__ __forceinline__ static void load_row(unsigned (&words)[4], const Number* from, int x, int columns) {
        if constexpr (LOADED == UNIT && sizeof(Number) == 2) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
            words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
        } else if constexpr (LOADED == UNIT) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float4 four = __ldg(reinterpret_cast<const float4*>(from) + i);
                words[2 * i] = to_halves(four.x, four.y);
                words[2 * i + 1] = to_halves(four.z, four.w);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                Number pair[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) pair[j] = x + 2 * i + j < columns ? __ldg(from + 2 * i + j) : Number(0);
                words[i] = word_of(pair[0], pair[1]);
            }
        }
    }

    // The eight channels of pixel `pixel`.
    __device__ __forceinline__ void gather(unsigned (&channels)[4], int pixel) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned left = words[2 * i][pixel / 2], right = words[2 * i + 1][pixel / 2];
            channels[i] = pixel % 2 ? upper_halves(left, right) : lower_halves(left, right);
        }
    }
};

// Which patches of a line a thread brings: neighbouring threads, neighbouring pixels.
struct Place {
    static constexpr int ALL = UNITS * OCTETS;
    int unit, x;
    bool wanted;

    __device__ __forceinline__ Place(int number, int column)
        : unit(number / OCTETS), x(((column >> 3) + number % OCTETS) * UNIT), wanted(number < ALL) {}
};

// Write a patch to the slot that begins at `to`: each pixel to its eighth, which may be the next one after that of the
// patch's first pixel, and a second time to the eighth before if it is one of its eighth's first. Without branches, so that
// one pixel need not wait for another.
__device__ __forceinline__ void write(const Patch& patch, const Place& place, int column, unsigned to) {
    const int at = place.x - column, eighth = place.wanted ? min(max(at, 0) / EIGHTH, 7) : 7;
    const int first = place.wanted ? at - eighth * EIGHTH : MATRICES;  // of the last eighth, the line's last pixels, too
    to += place.unit * UNIT_BYTES + first * MATRIX_BYTES + eighth * 16;
#pragma unroll
    for (int pixel = 0; pixel < UNIT; ++pixel, to += MATRIX_BYTES) {
        const int matrix = first + pixel;
        unsigned channels[4];
        patch.gather(channels, pixel);
        write_four_if(to, channels, static_cast<unsigned>(matrix) < MATRICES);
        write_four_if(to - EIGHTH * MATRIX_BYTES + 16, channels, matrix >= EIGHTH && eighth < 7);
        write_four_if(to + EIGHTH * MATRIX_BYTES - 16, channels, matrix < REACH && eighth > 0);
    }
}

// Bring all lines of a span, one after the other. The first pixels of each are read before there is room for them.
__device__ __forceinline__ void bring_lines(const Shape& shape, const Memory& memory, const Span& span,
                                            const Number* images) {
    constexpr int AT_ONCE = Place::ALL > BRINGERS ? 2 : 1;  // patches
    const int thread = threadIdx.x - WORKERS;
    const int64 apart = static_cast<int64>(shape.height) * shape.width;
    Turn turn{0, 1};
#pragma unroll 1
    for (int number = span.first; number < span.end; ++number, turn.next(SLOTS)) {
        const Line line(shape, number);
        const int y = line.y - shape.pad_down, column = line.segment * COLUMNS - shape.pad_across;  // of the first pixel
        const bool there = y >= 0 && y < shape.height && line.image < shape.count;
        const int64 first_row = static_cast<int64>(line.image) * shape.channels * shape.height + y;
        const Number* row = images + first_row * shape.width;
        const unsigned slot = memory.lines + turn.stage * LINE_BYTES;
#pragma unroll 1
        for (int first = 0; first < Place::ALL; first += AT_ONCE * BRINGERS) {
            const int own = first + thread;
            Patch patches[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const Place place(own + i * BRINGERS, column);
                const int channel = place.unit * UNIT;
                const Number* from = row + channel * apart + place.x;
                patches[i].load(from, apart, shape.channels - channel, place.x, shape.width, there && place.wanted);
            }
            if (first == 0) barrier_wait(memory.empty + turn.stage * BARRIER_BYTES, turn.parity);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) write(patches[i], Place(own + i * BRINGERS, column), column, slot);
        }
        show_to_engines();
        __syncwarp();
        barrier_arrive_if(memory.full + turn.stage * BARRIER_BYTES, thread % WARP == 0);
    }
}

// ---- The warps that multiply ------------------------------------------------------------------------------------

// What a warp knows of the ring: which lines have come, and which it has given back. What it keeps in the end nobody waits
// for: the slots have room for the lines that its last one sees and for those that other groups see besides.
struct Ring {
    int come, back;  // numbers of the lines that are next
    Turn coming{0, 0};
    int giving = 0;  // slot

    __device__ __forceinline__ void await(const Memory& memory, int end) {
        for (; come < end; ++come, coming.next(SLOTS))
            barrier_wait(memory.full + coming.stage * BARRIER_BYTES, coming.parity);
    }
    // The lines before `end` are done with.
    __device__ __forceinline__ void give_back(const Memory& memory, int end) {
        for (; back < end; ++back, giving = giving + 1 == SLOTS ? 0 : giving + 1)
            barrier_arrive_if(memory.empty + giving * BARRIER_BYTES, threadIdx.x % WARP == 0);
    }
};

// The sums of a line of outputs: over the filters' rows, of which `slot` has the first one's pixels.
__device__ __forceinline__ void accumulate(const Shape& shape, unsigned left, unsigned right, int slot,
                                           float (&sums)[SUMS]) {
#pragma unroll 1
    for (int row = shape.kernel_height; row > 0; --row) {
        begin_products();
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const int pixels = slot * LINE_BYTES + step * 2 * UNIT_BYTES + tap * APART * MATRIX_BYTES;
                const int filters = tap * TAP_BYTES + step * 32 * ROWS;
                warpgroup_half(sums, left + filters / 16, right + pixels / 16, 1);
            }
        close_products();
        await_products<1>();
        left += TAPS * (TAP_BYTES / 16);
        slot += shape.apart_down;
        slot = slot < SLOTS ? slot : slot - SLOTS;
    }
    await_sums(sums);
}

// What a thread has of a line of one filter's outputs: a quarter, in pieces of RUN.
struct Quarter {
    static constexpr int OUTPUTS = 2 * EIGHTH, PIECES = OUTPUTS / RUN;
    static_assert(OUTPUTS % RUN == 0, "whole pieces");
    Packed pieces[PIECES];

    // The sums of one eighth, then those of the next.
    __device__ __forceinline__ Quarter(const float (&sums)[SUMS], int half, float bias, float clip) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            float values[RUN];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                const int output = piece * RUN + i;
                values[i] = finished(sums[output % EIGHTH * 4 + 2 * half + output / EIGHTH] + bias, clip);
            }
            pieces[piece] = Packed(values);
        }
    }
    // Of its own pieces and those that follow them, which the lane at `distance` has, a lane gets every second one: the
    // `upper` one of the two the odd ones.
    __device__ __forceinline__ void share(int distance, bool upper) {
        constexpr int EVEN = (PIECES + 1) / 2, ODD = PIECES / 2;
        Packed got[ODD + 1], own[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; ++i) own[i] = pieces[i];
#pragma unroll
        for (int i = 0; i < ODD; ++i)
            got[i] = either(upper, own[2 * i + PIECES % 2], own[2 * i + 1]).from_lane_at(distance);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const Packed& odd = i < ODD ? got[i] : own[2 * i + 1 - PIECES];
            pieces[i] = either(upper, odd, i < EVEN ? own[2 * i] : got[i - EVEN]);
        }
    }
};

// The sums of a line to the outputs: four lanes at a time store four pieces side by side.
__device__ __forceinline__ void store(const Shape& shape, const Line& line, const Finish& finish, float clip,
                                      const float (&sums)[SUMS], Number* outputs) {
    const int plane = shape.out_height * shape.out_width, lane = threadIdx.x % 4;
    const int column = line.segment * COLUMNS + lane * RUN;
    const int64 first = static_cast<int64>(line.image) * shape.filters + finish.filter;
    Number* to = outputs + first * plane + line.y * shape.out_width + column;
#pragma unroll
    for (int half = 0; half < Finish::FILTERS; ++half, to += 8 * static_cast<int64>(plane)) {
        Quarter quarter(sums, half, finish.bias[half], clip);
        quarter.share(1, lane % 2);
        quarter.share(2, lane / 2);
#pragma unroll
        for (int i = 0; i < Quarter::PIECES; ++i) {
            const bool kept = column + 4 * i * RUN < shape.out_width && finish.filter + 8 * half < shape.filters;
            quarter.pieces[i].store_to(to + 4 * i * RUN, kept);
        }
    }
}

// Every WARPGROUPS-th line of a span.
__device__ __forceinline__ void multiply_lines(const Shape& shape, const Memory& memory, const Span& span,
                                               const Finish& finish, float clip, Number* outputs) {
    const int group = of_warp(threadIdx.x / WARPGROUP);
    const unsigned left = matrix_at(memory.filters, 16 * ROWS), right = matrix_at(memory.lines, UNIT_BYTES);
    Ring ring{span.first, span.first};
    int slot = group % SLOTS;
    barrier_wait(memory.filters_full, 0);
#pragma unroll 1
    for (int number = span.first + group; number < span.last; number += WARPGROUPS) {
        const Line line(shape, number);
        ring.await(memory, number + shape.reach_down() + 1);
        ring.give_back(memory, number);
        const int next = min(number + WARPGROUPS, ring.come);
        if (line.kept(shape)) {
            float sums[SUMS];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
            accumulate(shape, left, right, slot, sums);
            ring.give_back(memory, next);
            store(shape, line, finish, clip, sums, outputs);
        } else {
            ring.give_back(memory, next);
        }
        slot += WARPGROUPS;
        slot = slot < SLOTS ? slot : slot - SLOTS;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d(const Number* __restrict__ images, const uint4* __restrict__ filters, const float* __restrict__ bias,
           Number* __restrict__ outputs, float clip, int count, int channels, int height, int width, int filter_count,
           int out_height, int out_width, int kernel_height, int pad_down, int pad_across, int apart_down, int tall,
           int lines, int all_lines, int tiles_down, unsigned lines_factor, int lines_shift, unsigned tall_factor,
           int tall_shift) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shape shape{count, channels, height, width, filter_count, out_height, out_width, kernel_height,
                      pad_down, pad_across, apart_down, tall, lines, all_lines, tiles_down,
                      {lines_factor, lines_shift}, {tall_factor, tall_shift}};
    const Memory memory(shared, shape);
    const Span span(shape);
    const int tile = blockIdx.x % shape.tiles_down;
    if (threadIdx.x == 0) {
        uint64* barriers = reinterpret_cast<uint64*>(shared + (memory.full - memory.filters));
        for (int i = 0; i < 2 * SLOTS; ++i) barrier_init(barriers + i, i < SLOTS ? BRINGERS / WARP : WORKERS / WARP);
        barrier_init(barriers + 2 * SLOTS, 1);
        show_to_engines();
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) {
            const unsigned row_bytes = TAPS * TAP_BYTES;
            const uint4* from = filters + static_cast<int64>(tile) * kernel_height * (row_bytes / 16);
            barrier_expect(memory.filters_full, kernel_height * row_bytes);
            for (int row = 0; row < kernel_height; ++row)
                copy_bulk(memory.filters + row * row_bytes, from + row * (row_bytes / 16), row_bytes, memory.filters_full);
        }
        bring_lines(shape, memory, span, images);
        return;
    }
    multiply_lines(shape, memory, span, Finish(bias, tile * ROWS, shape.filters), clip, outputs);
}
