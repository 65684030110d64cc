// The tensor-core convolutions of few channels: images into shared memory, outputs, and the loop of a warp.
//
// A block takes one image, or one BAND of its output rows, after the other, as often as it gets one; copies fill a ring
// of STAGES of them ahead. Its warps take 16 items in turn, across the ends of images. What an item is, and how it is
// multiplied, is told in tensor_products.cuh.
//
// A source that includes this defines `struct Precision`. Besides what the products need: STAGES, SLOT (bytes of a
// stage), WARPS (of a block), COPY (bytes that may be copied at a time).
#pragma once
#include "conv2d/tensor_products.cuh"
#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "ptx/numbers.cuh"

constexpr int THREADS = WARPS * WARP;
constexpr int TILES = parts(parts(BAND, DOWN) * BESIDE, 16);  // of 16 items, of a band
constexpr int SHIFT = WARPS - TILES % WARPS;                  // of whose turn it is, from one band to the next
constexpr bool EXACT = BANDS == 1 && parts(BAND, DOWN) * BESIDE % 16 == 0;  // no tile lacks items
constexpr bool WIDER = PANELS * PANEL * SHARES > FILTERS;                   // there are columns without a filter
constexpr float LARGEST = 3.3e38f;  // of sums; products may stop short of infinity
constexpr int BARRIER_BYTES = 128;
constexpr int BIAS_BYTES = parts(4 * PANELS * PANEL * SHARES, 16) * 16;

static_assert(2 * 8 * STAGES <= BARRIER_BYTES && STAGES >= 2, "each stage has two barriers");

// ---- Images into shared memory ----------------------------------------------------------------------------------

template <typename Number>
__device__ __forceinline__ void copy_piece(Number* target, const Number* source, bool there) {
    if constexpr (COPY > 2)
        copy_later<COPY>(shared_address(target), source, there ? COPY : 0);
    else
        *target = there ? *source : Number(0);
}

template <typename Number>
__device__ __forceinline__ void copy_run(Number* target, const Number* source, int length) {
    constexpr int STEP = COPY / sizeof(Number);
    for (int at = STEP * threadIdx.x; at < length; at += STEP * THREADS) copy_piece(target + at, source + at, true);
}

// The calling thread's share of a band's rows. Padding stays as it is, but for rows that are padding in some bands
// only.
template <typename Number>
__device__ __forceinline__ void copy_band(const Number* image, int band, Number* slot) {
    // Rows of a channel lie as in global memory.
    constexpr bool CLOSE = PITCH == WIDTH && PADDING_ACROSS == 0 && PADDING_DOWN == 0;
    const int top = band * BAND - PADDING_DOWN;
    if constexpr (CLOSE && BANDS == 1) {
        copy_run(slot, image, CHANNELS * AREA);
    } else if constexpr (CLOSE) {
        const int rows = smaller(ROWS, HEIGHT - top);
        for (int c = 0; c < CHANNELS; ++c)
            copy_run(slot + c * PLANE, image + (c * HEIGHT + top) * WIDTH, rows * WIDTH);
    } else {
        constexpr int STEP = COPY / sizeof(Number), PIECES = WIDTH / STEP;
        for (int i = threadIdx.x; i < CHANNELS * ROWS * PIECES; i += THREADS) {
            const int line = i / PIECES, at = i % PIECES * STEP, c = line / ROWS, y = top + line % ROWS;
            const bool there = y >= 0 && y < HEIGHT;
            if (there || BANDS > 1)
                copy_piece(slot + line * PITCH + PADDING_ACROSS + at,
                           image + (there ? (c * HEIGHT + y) * WIDTH + at : 0), there);
        }
    }
}

// ---- Outputs ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store(float* target, float value) { *target = value; }
__device__ __forceinline__ void store(half_bits* target, float value) { *target = to_half(value); }
__device__ __forceinline__ void store_pair(float* target, float left, float right) {
    *reinterpret_cast<uint64*>(target) = bits_of_two(left, right);  // the compiler would store one after the other
}
__device__ __forceinline__ void store_pair(half_bits* target, float left, float right) {
    *reinterpret_cast<unsigned*>(target) = to_halves(left, right);
}

template <typename Number>
struct Item {
    bool there;
    int y;           // first output row
    int x;           // first output pixel of the lane's columns
    Number* target;  // there, of the first filter of the lane's columns
};

// The sums of a panel: bias, activation, and to global memory. `strange` gets a bit for each item of the lane's with a
// sum that is infinite, about to be, or not a number.
template <class Precision>
__device__ __forceinline__ void write_panel(const float (&sums)[DOWN][PANEL][4],
                                            const Item<typename Precision::Input> (&items)[2], const float* bias,
                                            float clip, int panel, int lane, unsigned& strange) {
    const int first = 2 * (lane % 4) / ACROSS;
#pragma unroll
    for (int n = 0; n < PANEL; ++n) {
        const int filter = (panel * PANEL + n) * SHARES + first;
        const float left_bias = bias[filter], right_bias = ACROSS == 1 ? bias[filter + 1] : left_bias;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const Item<typename Precision::Input>& item = items[which];
            float size = 0.0f;
#pragma unroll
            for (int v = 0; v < DOWN; ++v) {
                const float a = sums[v][n][2 * which], b = sums[v][n][2 * which + 1];
                const float left = activated<ACTIVATION>(a + left_bias, clip);
                const float right = activated<ACTIVATION>(b + right_bias, clip);
                size = larger_or_nan(larger_or_nan(size, fabsf(a)), fabsf(b));
                if (!item.there || (OUTPUT_HEIGHT % DOWN && item.y + v >= OUTPUT_HEIGHT)) continue;
                if (WIDER && filter >= FILTERS) continue;
                typename Precision::Input* target =
                    item.target + (panel * PANEL + n) * SHARES * OUTPUT_AREA + v * OUTPUT_WIDTH;
                if constexpr (ACROSS == 1) {
                    store(target, left);
                    if (!WIDER || filter + 1 < FILTERS) store(target + OUTPUT_AREA, right);
                } else if constexpr (OUTPUT_WIDTH % 2 == 0) {
                    if (OUTPUT_WIDTH % ACROSS == 0 || item.x < OUTPUT_WIDTH) store_pair(target, left, right);
                } else {
                    if (item.x < OUTPUT_WIDTH) store(target, left);
                    if (item.x + 1 < OUTPUT_WIDTH) store(target + 1, right);
                }
            }
            if (!(size < LARGEST)) strange |= 1u << which;
        }
    }
}

// All outputs of an item by plain multiply-adds, a lane an output: an infinity times a weight of zero that only fills a
// column up is not a number, nor is what is left when one is split, so that such sums are not what they should be.
template <class Precision>
__device__ __forceinline__ void plain_item(const typename Precision::Input* corner, int y, int x,
                                           typename Precision::Input* outputs, const float* __restrict__ plain,
                                           const float* bias, float clip, int lane) {
#pragma unroll 1
    for (int i = lane; i < DOWN * ACROSS * FILTERS; i += WARP) {
        const int m = i / (DOWN * ACROSS), v = i / ACROSS % DOWN, p = i % ACROSS;
        if (y + v >= OUTPUT_HEIGHT || x + p >= OUTPUT_WIDTH) continue;
        float sum = 0.0f;
#pragma unroll 1
        for (int c = 0; c < CHANNELS; ++c)
#pragma unroll 1
            for (int k = 0; k < KERNEL_HEIGHT * KERNEL_WIDTH; ++k) {
                const int at = c * PLANE + (v + k / KERNEL_WIDTH) * PITCH + p + k % KERNEL_WIDTH;
                const float weight = plain[(m * CHANNELS + c) * KERNEL_HEIGHT * KERNEL_WIDTH + k];
                sum = fmaf(Precision::value(corner[at]), Precision::rounded(weight), sum);
            }
        store(outputs + m * OUTPUT_AREA + (y + v) * OUTPUT_WIDTH + x + p, activated<ACTIVATION>(sum + bias[m], clip));
    }
}

// ---- The loop of a warp -----------------------------------------------------------------------------------------

template <class Precision>
struct Warp {
    typedef typename Precision::Input Input;

    Weights<Precision> weights;
    const float* plain;
    const float* bias;
    float clip;
    int lane;

    // 16 items of a band, which begin at `first`.
    __device__ __forceinline__ void take(const Input* slot, int first, int count, int top, Input* outputs) const {
        const int g = lane / 4, t = lane % 4;
        Place<Input> places[2];
        Item<Input> items[2];
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int item = first + 8 * which + g, real = EXACT ? item : smaller(item, count - 1);
            const int y = real / BESIDE * DOWN, x = real % BESIDE * ACROSS;
            const Input* corner = slot + y * PITCH + x;
            places[which] = {corner + 2 * t, corner + t};
            items[which].there = EXACT || item < count;
            items[which].y = top + y;
            items[which].x = x + 2 * t % ACROSS;
            items[which].target = outputs + 2 * t / ACROSS * OUTPUT_AREA + (top + y) * OUTPUT_WIDTH + items[which].x;
        }
        unsigned strange = 0;
#pragma unroll 1
        for (int panel = 0; panel < PANELS; ++panel) {
            float sums[DOWN][PANEL][4] = {};
            if constexpr (TURNS == 1 && PANELS == 1) {
                multiply_turn(places, weights, sums);
            } else {
                Weights<Precision> now = weights;
                Place<Input> from[2] = {places[0], places[1]};
                now.from += panel * (Sizes<Precision>::WEIGHT_BYTES / 4 / PANELS);
#pragma unroll 1
                for (int turn = 0; turn < TURNS; ++turn) {
                    multiply_turn(from, now, sums);
                    now.from += Sizes<Precision>::WEIGHT_BYTES / 4 / PANELS / TURNS;
#pragma unroll
                    for (int which = 0; which < 2; ++which) {
                        from[which].pairs += AT_ONCE * PLANE;
                        from[which].singles += AT_ONCE * PLANE;
                    }
                }
            }
            write_panel<Precision>(sums, items, bias, clip, panel, lane, strange);
        }
        if (!__any_sync(ALL_LANES, strange)) return;
        __syncwarp();  // outputs of one lane's are written again by another one
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            unsigned lanes = __ballot_sync(ALL_LANES, strange & 1u << which);
            while (lanes) {
                const int g = (__ffs(lanes) - 1) / 4, item = first + 8 * which + g;
                lanes &= ~(15u << (4 * g));
                if (item >= count) continue;
                const int y = item / BESIDE * DOWN, x = item % BESIDE * ACROSS;
                plain_item<Precision>(slot + y * PITCH + x, top + y, x, outputs, plain, bias, clip, lane);
            }
        }
    }
};

template <class Precision>
__device__ __forceinline__ void convolve(const typename Precision::Input* __restrict__ images,
                                         typename Precision::Input* outputs, const unsigned* __restrict__ image,
                                         const float* __restrict__ plain, const float* __restrict__ given_bias,
                                         float clip, int units) {
    typedef typename Precision::Input Input;
    extern __shared__ __align__(16) unsigned char shared[];
    static_assert(SLOT % 16 == 0 && SLOT >= Sizes<Precision>::SLOT_NUMBERS * static_cast<int>(sizeof(Input)),
                  "a stage has room for what is read");
    constexpr int WEIGHT_BYTES = HELD ? 0 : Sizes<Precision>::WEIGHT_BYTES;
    uint64* full = reinterpret_cast<uint64*>(shared);
    uint64* empty = full + STAGES;
    unsigned* staged = reinterpret_cast<unsigned*>(shared + BARRIER_BYTES);
    float* bias = reinterpret_cast<float*>(shared + BARRIER_BYTES + WEIGHT_BYTES);
    unsigned char* ring = shared + BARRIER_BYTES + WEIGHT_BYTES + BIAS_BYTES;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage, THREADS);
            barrier_init(empty + stage, WARPS);
        }
    for (int i = 4 * threadIdx.x; i < WEIGHT_BYTES / 4; i += 4 * THREADS)
        *reinterpret_cast<uint4*>(staged + i) = *reinterpret_cast<const uint4*>(image + i);
    for (int i = threadIdx.x; i < BIAS_BYTES / 4; i += THREADS) bias[i] = i < FILTERS ? given_bias[i] : 0.0f;
    for (int i = 16 * threadIdx.x; i < STAGES * SLOT; i += 16 * THREADS)
        *reinterpret_cast<uint4*>(ring + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();

    // The block's n-th unit goes to the ring's next stage.
    const auto fetch = [&](int n) {
        const int unit = blockIdx.x + n * gridDim.x, stage = n % STAGES;
        if (unit >= units) return;
        if (n >= STAGES) barrier_wait(empty + stage, (n / STAGES + 1) % 2);
        copy_band(images + static_cast<int64>(unit / BANDS) * (CHANNELS * AREA), unit % BANDS,
                  reinterpret_cast<Input*>(ring + stage * SLOT));
        if constexpr (COPY > 2)
            barrier_arrive_after_copies(full + stage);
        else
            barrier_arrive(full + stage);
    };
#pragma unroll 1
    for (int n = 0; n < STAGES - 1; ++n) fetch(n);

    Warp<Precision> mine;
    mine.weights.from = (HELD ? image : staged) + Precision::WORDS * lane;
    mine.weights.hold();
    mine.plain = plain, mine.bias = bias, mine.clip = clip, mine.lane = lane;
#pragma unroll 1
    for (int n = 0; blockIdx.x + n * gridDim.x < units; ++n) {
        // The unit to fetch goes where the last one was, once all warps are done with that. With more than two stages
        // there is time to wait for this until the warp has done its part of the present one.
        if constexpr (STAGES == 2) fetch(n + STAGES - 1);
        const int unit = blockIdx.x + n * gridDim.x, stage = n % STAGES;
        const int top = unit % BANDS * BAND;
        const int count = parts(smaller(BAND, OUTPUT_HEIGHT - top), DOWN) * BESIDE;
        const Input* slot = reinterpret_cast<const Input*>(ring + stage * SLOT);
        Input* there = outputs + static_cast<int64>(unit / BANDS) * (FILTERS * OUTPUT_AREA);
        barrier_wait(full + stage, n / STAGES % 2);
        // Who begins changes, so that no warp has more to do than the others in the long run.
#pragma unroll 1
        for (int first = (warp + n * SHIFT) % WARPS * 16; first < count; first += 16 * WARPS)
            mine.take(slot, first, count, top, there);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + stage);
        if constexpr (STAGES > 2) fetch(n + STAGES - 1);
    }
}
