// two_of_four: a sparse layer on tensor cores that pass over two of each four neighbouring weights, where these are zero.
//
// Idea      Any weights are brought into that form when they are made ready: inputs are put in an order in which next to no
//           output has three weights in a group of four, and what is left over is multiplied as slabs of its own. A block
//           computes NEURONS outputs of ROWS rows: each of GROUPS warpgroups has TILES times 64 outputs of all rows; its
//           sums stay in registers. One warp copies weights and rows, slab by slab, into STAGES places ahead of what is
//           multiplied, also of the block's next tile while sums are finished. A slab is 64 inputs: eight units of 8,
//           wherever they are, so that inputs without weights are passed over. Numbers are halves. Those of a row are
//           scaled by a power of two, so that none is beyond half precision, and those of an output's weights likewise;
//           sums are scaled back. PLANES is 2 where each number is split into two halves, which keeps 22 bits: three
//           products, the sums of a slab added up in float32, because instructions cut theirs off instead of rounding.
// Layout    Rows: for each ROWS of them, for each plane, for each unit of inputs, 16 bytes a row. `exponents` of a row says
//           by what it was scaled, `largest` are the bits of its largest number: of these follows a bound of the outputs,
//           and of that how they are scaled. They are written where the next layer finds them, or, if LAST, row by row: as
//           float32, or as halves if LAST is AS_HALVES. Image: for each slab, for each 64 of its outputs: for each plane,
//           16-byte units of weights, those of 64 outputs side by side. `places_of`: likewise 128 words that say where
//           these belong, see ptx/warpgroup_products.cuh.
// Needs     compute capability 9.0. ACTIVATION is as in activation.cuh.
// Before    gather_chunks, which reads an input of shared memory for each weight; this one reads 64 times less, and
//           multiplies with zeros.
#include "activation.cuh"
#include "common.cuh"
#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "fours.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"
#include "ptx/warpgroup_products.cuh"
#include "sparse/row_scale.cuh"
#include "turn.cuh"

#define AS_HALVES 2

constexpr int WARPGROUP = 128, GROUP = 64, UNIT = 16, SLAB_UNITS = 8;  // bytes of a unit
constexpr int WORKERS = WARPGROUP * GROUPS, WARPS = WORKERS / WARP, THREADS = WORKERS + WARPGROUP;
constexpr int COPYING_REGISTERS = 24, MULTIPLYING_REGISTERS = GROUPS == 2 ? 240 : 160;
constexpr int SUMS = ROWS / 2, NEURONS = GROUP * TILES * GROUPS;
constexpr int PLANE_BYTES = 4 * UNIT * GROUP, GROUP_BYTES = PLANES * PLANE_BYTES;
constexpr int WEIGHT_BYTES = GROUP_BYTES * TILES * GROUPS, ROW_BYTES = SLAB_UNITS * UNIT * ROWS;
constexpr int STAGE_BYTES = WEIGHT_BYTES + PLANES * ROW_BYTES;
constexpr int TURNED_ROWS = 16, TURNED_BYTES = 2 * UNIT * TURNED_ROWS;  // of 16 outputs of a warp, on their way to memory
constexpr int TURNED_PLACES = 2;
constexpr int LISTS_AT_ONCE = 16;  // tiles of outputs
constexpr int ROWS_TOLD_BYTES = 8 * ROWS, OUTPUTS_TOLD_BYTES = 4 * 16 * TILES;  // exponents and largest numbers; scales or biases
constexpr int TOLD_BYTES = ROWS_TOLD_BYTES + 2 * OUTPUTS_TOLD_BYTES;

constexpr bool RELU_LATE = ACTIVATION == RELU && PLANES == 1 && LAST % AS_HALVES == 0;  // as numbers become halves

static_assert(ROWS % TURNED_ROWS == 0 && STAGES >= 2 && (PLANES == 1 || PLANES == 2), "what is chosen from");

// Where a block's things lie in shared memory.
struct Memory {
    unsigned stages, turned, told, full, empty;

    __device__ __forceinline__ explicit Memory(const void* memory) {
        stages = computed_once(shared_address(memory));
        turned = stages + STAGES * STAGE_BYTES;
        told = turned + WARPS * TURNED_PLACES * PLANES * TURNED_BYTES;
        full = told + WARPS * TOLD_BYTES;
        empty = full + 8 * STAGES;
    }
};

// What the launch computes: `lists` tiles of outputs for each ROWS of the rows from `first` on. LISTS_AT_ONCE of all rows come
// first, so that blocks that run at the same time share weights as well as rows. Where a tile lies is computed anew whenever
// it is needed: there is no register to keep it in.
struct Work {
    const int* __restrict__ starts;
    int lists, first_tile, row_tiles, tiles;

    __device__ __forceinline__ Work(const int* starts, int lists, int first, int rows)
        : starts(starts), lists(lists), first_tile(first / ROWS) {
        row_tiles = (max(rows - first, 0) + ROWS - 1) / ROWS;
        tiles = row_tiles * lists;
    }
    __device__ __forceinline__ int first_list(int tile) const {
        return tile / (LISTS_AT_ONCE * row_tiles) * LISTS_AT_ONCE;
    }
    __device__ __forceinline__ int list(int tile) const {
        const int list = first_list(tile), among = tile - list * row_tiles;
        return list + among % min(LISTS_AT_ONCE, lists - list);
    }
    __device__ __forceinline__ int row_tile(int tile) const {
        const int list = first_list(tile), among = tile - list * row_tiles;
        return first_tile + among / min(LISTS_AT_ONCE, lists - list);
    }
    __device__ __forceinline__ int first_slab(int tile) const { return of_warp(__ldg(starts + list(tile))); }
    __device__ __forceinline__ int last_slab(int tile) const { return of_warp(__ldg(starts + list(tile) + 1)); }
};

// ---- The warp that copies -----------------------------------------------------------------------------------------

struct Copier {
    const Memory& memory;
    const unsigned char* __restrict__ rows;
    const unsigned char* __restrict__ image;
    const int* __restrict__ units;
    int row_units;  // that there is room for
    Turn turn{0, 1};

    // Which of the slab's units a lane brings; more lanes than units bring those of the next plane, or none.
    __device__ __forceinline__ static int number() { return threadIdx.x % SLAB_UNITS; }
    __device__ __forceinline__ int unit_of(int slab) const {
        return __ldg(units + static_cast<int64>(slab) * SLAB_UNITS + number());
    }

    // Lane 0 brings the weights; the rows' units come one by one, or, if they are neighbours, in one piece.
    __device__ __forceinline__ void bring(int slab, int unit, int row_tile) {
        const int lane = threadIdx.x % WARP, plane = lane / SLAB_UNITS;
        const bool neighbours = __all_sync(ALL_LANES, unit == __shfl_sync(ALL_LANES, unit, 0) + number());
        barrier_wait(memory.empty + 8 * turn.stage, turn.parity);
        const unsigned full = memory.full + 8 * turn.stage, stage = memory.stages + turn.stage * STAGE_BYTES;
        if (lane == 0) {
            barrier_expect(full, STAGE_BYTES);
            copy_bulk(stage, image + static_cast<int64>(slab) * WEIGHT_BYTES, WEIGHT_BYTES, full);
        }
        __syncwarp();
        const int64 at = (static_cast<int64>(row_tile) * PLANES + plane) * row_units + unit;
        const unsigned to = stage + WEIGHT_BYTES + plane * ROW_BYTES + number() * (UNIT * ROWS);
        if (plane < PLANES && (!neighbours || number() == 0))
            copy_bulk(to, rows + at * (UNIT * ROWS), (neighbours ? SLAB_UNITS : 1) * (UNIT * ROWS), full);
        __syncwarp();
        turn.next(STAGES);
    }

    __device__ __forceinline__ void run(const Work& work) {
#pragma unroll 1
        for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
            const int first = work.first_slab(tile), last = work.last_slab(tile);
            int next = first < last ? unit_of(first) : 0;
#pragma unroll 1
            for (int slab = first; slab < last; ++slab) {
                const int unit = next;
                if (slab + 1 < last) next = unit_of(slab + 1);  // it is there when the next slab is
                bring(slab, unit, work.row_tile(tile));
            }
        }
    }
};

// ---- The warpgroups that multiply ---------------------------------------------------------------------------------

struct Worker {
    const Memory& memory;
    const unsigned* __restrict__ places_of;  // the warpgroup's, of the first slab
    int group;                               // of the block's warpgroups
    Turn turn{0, 0};
    float sums[TILES][SUMS], parts[SUMS];  // parts: of one slab, where numbers are split

    __device__ __forceinline__ void release(int stage) const {
        barrier_arrive_if(memory.empty + 8 * stage, threadIdx.x % WARP == 0);
    }

    // Where weights of a slab belong, on its way to registers that no products under way read.
    __device__ __forceinline__ void ask(unsigned (&places)[TILES], int slab) const {
        const unsigned* from = places_of + static_cast<int64>(slab) * (TILES * GROUPS * WARPGROUP);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) places[tile] = read_early(from + tile * WARPGROUP);
    }

    // sum += a slab's products, of a plane of the weights and one of the rows; or = where `keep` is 0.
    __device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned weights, unsigned rows, unsigned places,
                                             int keep) const {
        warpgroup_half_sparse<0>(sum, weights, rows, places, keep);
        warpgroup_half_sparse<1>(sum, weights + 2 * GROUP, rows + 4 * ROWS, places, 1);
    }

    __device__ __forceinline__ void run(int first, int last) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[tile][i] = 0.0f;
        if constexpr (PLANES == 2)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) parts[i] = 0.0f;
        unsigned even[TILES] = {}, odd[TILES] = {};
        if (first < last) ask(even, first);
#pragma unroll 1
        for (int slab = first; slab < last; slab += 2) {
            add_slab(even, odd, slab > first, slab + 1, last);
            if (slab + 1 < last) add_slab(odd, even, true, slab + 2, last);
        }
        if constexpr (PLANES == 1) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) await_sums(sums[tile]);
            if (first < last) release((turn.stage + STAGES - 1) % STAGES);
        }
    }

    // The products of a slab, whose `places` are there; those of the `next` one are asked for.
    __device__ __forceinline__ void add_slab(unsigned (&places)[TILES], unsigned (&others)[TILES], bool begun, int next,
                                             int last) {
        barrier_wait(memory.full + 8 * turn.stage, turn.parity);
        const unsigned stage = memory.stages + turn.stage * STAGE_BYTES;
        const unsigned weights = matrix_at(stage + group * (TILES * GROUP_BYTES), UNIT * GROUP);
        const unsigned rows = matrix_at(stage + WEIGHT_BYTES, UNIT * ROWS);
        if constexpr (PLANES == 2) {
            if (next < last) ask(others, next);
            add_split(weights, rows, places);
        } else {
            add(weights, rows, places, others, begun);
            if (next < last) ask(others, next);
        }
        turn.next(STAGES);
    }

    // The slab before is done when this one's products are under way, `begun`: there was one; it read `before`.
    __device__ __forceinline__ void add(unsigned weights, unsigned rows, const unsigned (&places)[TILES],
                                        unsigned (&before)[TILES], bool begun) {
        begin_products();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            multiply(sums[tile], weights + tile * (GROUP_BYTES / UNIT), rows, places[tile], 1);
        close_products();
        await_products<1>();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) before[tile] = computed_once(before[tile]);  // its register was taken
        if (begun) release((turn.stage + STAGES - 1) % STAGES);
    }

    // What is small first: low by high, high by low, high by high.
    __device__ __forceinline__ void add_split(unsigned weights, unsigned rows, const unsigned (&places)[TILES]) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const unsigned high = weights + tile * (GROUP_BYTES / UNIT);
            begin_products();
            multiply(parts, high + PLANE_BYTES / UNIT, rows, places[tile], 0);
            multiply(parts, high, rows + ROW_BYTES / UNIT, places[tile], 1);
            multiply(parts, high, rows, places[tile], 1);
            close_products();
            await_sums(parts);
            if (tile + 1 == TILES) release(turn.stage);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[tile][i] += parts[i];
        }
    }
};

// ---- What becomes of sums -----------------------------------------------------------------------------------------

// What a warp needs to know of a tile's rows and of its 16 outputs of each TILES comes to shared memory while it multiplies.
struct Told {
    unsigned place;  // the warp's own

    __device__ __forceinline__ void ask(const RowFacts& facts, const float* scales, const float* biases, int64 first_row,
                                        int first) const {
        const int lane = threadIdx.x % WARP;
        __syncwarp();  // all have read what is there
#pragma unroll
        for (int i = lane; i < ROWS / 4; i += WARP) {
            copy_later<16>(place + 16 * i, facts.exponents_in + first_row + 4 * i);
            if constexpr (!LAST) copy_later<16>(place + 4 * ROWS + 16 * i, facts.largest_in + first_row + 4 * i);
        }
        const int number = lane % (4 * TILES), output = first + number / 4 * GROUP + number % 4 * 4;
        if (lane < 8 * TILES)
            copy_later<16>(place + ROWS_TOLD_BYTES + 16 * lane, (lane < 4 * TILES ? scales : biases) + output);
        close_copies();
    }
    __device__ __forceinline__ void await() const {
        await_copies<0>();
        __syncwarp();
    }
    __device__ __forceinline__ int2 exponents(int row) const { return read_pair(place + 4 * row); }
    __device__ __forceinline__ int2 largest(int row) const { return read_pair(place + 4 * (ROWS + row)); }
    __device__ __forceinline__ float scale(int output) const {
        return __int_as_float(read_word(place + ROWS_TOLD_BYTES + 4 * output));
    }
    __device__ __forceinline__ float bias(int output) const {
        return __int_as_float(read_word(place + ROWS_TOLD_BYTES + OUTPUTS_TOLD_BYTES + 4 * output));
    }
};

// What becomes of a thread's sums of a tile. `in` scales sums back, `out` scales what is stored.
struct Finisher {
    const RowFacts& facts;
    Told told;
    Bound bound;
    float clip;
    bool tells;  // whether this warp says how rows are scaled
    float scales[TILES][2], biases[TILES][2];

    // The outputs of TURNED_ROWS rows from `row` on; sums from number 8 * PAIR on.
    template <int PAIR, class Store>
    __device__ __forceinline__ void rows(const float (&sums)[TILES][SUMS], int64 first_row, Store store) const {
        const int t = threadIdx.x % 4, g = threadIdx.x % WARP / 4, in_tile = PAIR * TURNED_ROWS + 2 * t;
        const int64 row = first_row + in_tile;
        float in[2][2], out[2][2], largest[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int2 exponent = told.exponents(in_tile + 8 * half);
            in[half][0] = back_from(exponent.x);
            in[half][1] = back_from(exponent.y);
            if constexpr (!LAST) {
                const int2 found = told.largest(in_tile + 8 * half);
                const int2 next = make_int2(bound.exponent(found.x), bound.exponent(found.y));
                out[half][0] = scale_to(next.x);
                out[half][1] = scale_to(next.y);
                largest[half][0] = largest[half][1] = 0.0f;
                const unsigned words[2] = {static_cast<unsigned>(next.x), static_cast<unsigned>(next.y)};
                store_if(facts.exponents_out + row + 8 * half, words, tells && g == 0);
            }
        }
        float z[TILES][2][4];  // by half; of each output both rows
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float sum = sums[tile][8 * PAIR + 4 * half + i] * in[half][i % 2];
                    float found = fmaf(sum, scales[tile][i / 2], biases[tile][i / 2]);
                    if constexpr (!RELU_LATE) found = activated<ACTIVATION>(found, clip);
                    z[tile][half][i] = found;
                    if constexpr (!LAST) {
                        largest[half][i % 2] = fmaxf(largest[half][i % 2], RELU_LATE ? found : fabsf(found));  // not NaN
                        z[tile][half][i] = found * out[half][i % 2];
                    }
                }
        store(PAIR, z);
        if constexpr (!LAST) raise_largest(largest, row);
    }

    // The largest numbers of four rows, 0, 1, 8 and 9 from `row` on: lanes that have the same rows halve among themselves those
    // that each goes on with.
    __device__ __forceinline__ void raise_largest(const float (&largest)[2][2], int64 row) const {
        const int g = threadIdx.x % WARP / 4, half = g / 4, e = g / 2 % 2;
        float two[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            two[i] = fmaxf(half ? largest[1][i] : largest[0][i], from_lane(half ? largest[0][i] : largest[1][i], 16));
        float one = fmaxf(e ? two[1] : two[0], from_lane(e ? two[0] : two[1], 8));
        one = fmaxf(one, from_lane(one, 4));
        raise_in_global(facts.largest_out + row + 8 * half + e, __float_as_int(one), g % 2 == 0);
    }
    static __device__ __forceinline__ float from_lane(float number, int distance) {
        return __shfl_xor_sync(ALL_LANES, number, distance);
    }

    template <int PAIR, class Store>
    __device__ __forceinline__ void all(const float (&sums)[TILES][SUMS], int64 first_row, Store store) const {
        if constexpr (PAIR < ROWS / TURNED_ROWS) {
            rows<PAIR>(sums, first_row, store);
            all<PAIR + 1>(sums, first_row, store);
        }
    }
};

__device__ __forceinline__ unsigned rounded(float left, float right) {
    return RELU_LATE ? to_positive_halves(left, right) : to_halves(left, right);
}

// As halves, to where the next layer finds them: two units of TURNED_ROWS rows at a time go through shared memory.
struct NextRows {
    unsigned turned;  // the warp's own
    unsigned char* __restrict__ rows;
    int64 first_unit, units;  // of the first tile, and of all: before them, those of the rows before, all planes

    __device__ __forceinline__ void operator()(int pair, const float (&z)[TILES][2][4]) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) put(pair, tile, z[tile]);
    }

    __device__ __forceinline__ void put(int pair, int tile, const float (&z)[2][4]) const {
        const int lane = threadIdx.x % WARP;
        const unsigned own = turned + (pair * TILES + tile) % TURNED_PLACES * (PLANES * TURNED_BYTES);
        const int line = lane % 8 + lane / 16 * 8, unit = lane / 8 % 2;  // of the tile that the lane gives the place of
        unsigned tiles[PLANES][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float left = z[i / 2][i % 2 * 2], right = z[i / 2][i % 2 * 2 + 1];
            tiles[0][i] = rounded(left, right);
            if constexpr (PLANES == 2)
                tiles[1][i] = to_halves(left - to_float(static_cast<half_bits>(tiles[0][i] & 0xffffu)),
                                        right - to_float(static_cast<half_bits>(tiles[0][i] >> 16)));
        }
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
            write_tiles_transposed(own + plane * TURNED_BYTES + (unit * TURNED_ROWS + line) * UNIT, tiles[plane]);
        __syncwarp();
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            unsigned words[4];
            read_four(words, own + plane * TURNED_BYTES + lane * UNIT);
            const int64 at = first_unit + plane * units + tile * (GROUP / 8) + lane / TURNED_ROWS;
            unsigned char* to = rows + at * (UNIT * ROWS) + (pair * TURNED_ROWS + lane % TURNED_ROWS) * UNIT;
            *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
};

#if LAST == AS_HALVES
using Output = half_bits;
#else
using Output = float;
#endif

// Four outputs in the words that they are stored as.
__device__ __forceinline__ void to_words(unsigned (&words)[4], float4 four) {
    words[0] = __float_as_uint(four.x), words[1] = __float_as_uint(four.y);
    words[2] = __float_as_uint(four.z), words[3] = __float_as_uint(four.w);
}
__device__ __forceinline__ void to_words(unsigned (&words)[2], float4 four) {
    words[0] = rounded(four.x, four.y), words[1] = rounded(four.z, four.w);
}

// Row by row. A thread's outputs of a row are neighbours: they are packed in that order. FOURS: they are stored at once.
template <bool FOURS>
struct LastRows {
    Output* __restrict__ to;  // the thread's first output of its first row
    int rows, outputs;        // from there on, those that are there, below one if none is
    int width;

    __device__ __forceinline__ LastRows(void* all, int64 first_row, int64 rows_there, int first_output, int width)
        : outputs(width - first_output), width(width) {
        const int line = threadIdx.x % 4 * 2;
        to = static_cast<Output*>(all) + (first_row + line) * width + first_output;
        rows = static_cast<int>(rows_there - first_row) - line;
    }

    __device__ __forceinline__ void operator()(int pair, const float (&z)[TILES][2][4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int row = pair * TURNED_ROWS + 8 * half + e;
                Output* own = to + static_cast<int64>(row) * width;
                if constexpr (FOURS) {
                    unsigned words[sizeof(Output)];
                    const float(&left)[4] = z[0][half], (&right)[4] = z[TILES - 1][half];
                    to_words(words, make_float4(left[e], left[2 + e], right[e], right[2 + e]));
                    store_if(own, words, row < rows && outputs > 0);
                } else {
#pragma unroll
                    for (int i = 0; i < 2 * TILES; ++i)
                        if (row < rows && i < outputs)
                            store_one(own + i, activated<RELU_LATE ? RELU : IDENTITY>(z[i / 2][half][i % 2 * 2 + e], 0.0f));
                }
            }
    }
};

// row_units, width: units that a row of inputs has room for; and a row of outputs, or, if LAST, outputs. Rows from `first`
// up to `rows` are computed, `first` being a multiple of ROWS. `scales` and `biases` are of all places of outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    two_of_four(const unsigned char* __restrict__ inputs, void* __restrict__ outputs, const unsigned char* __restrict__ image,
                const unsigned* __restrict__ places_of, const int* __restrict__ starts, const int* __restrict__ units,
                const float* __restrict__ scales, const float* __restrict__ biases, const int* exponents_in, const int* largest_in, int* exponents_out,
                int* largest_out, int first, int rows, int row_units, int width, int lists, float reach,
                float offset, float most, float clip) {
    extern __shared__ __align__(128) uint4 memory[];
    const Memory places(memory);
    if (threadIdx.x == 0) {
        uint64* barriers = reinterpret_cast<uint64*>(reinterpret_cast<unsigned char*>(memory) + (places.full - places.stages));
        for (int i = 0; i < 2 * STAGES; ++i) barrier_init(barriers + i, i < STAGES ? 1 : WARPS);
        show_to_engines();
    }
    __syncthreads();
    const Work work(starts, lists, first, rows);
    const int warp = of_warp(threadIdx.x / WARP);
    if (warp >= WARPS) {  // a whole warpgroup, so that it can give registers to the others
        give_registers<COPYING_REGISTERS>();
        if (warp == WARPS) Copier{places, inputs, image, units, row_units}.run(work);
    } else {
        take_registers<MULTIPLYING_REGISTERS>();
        const int group = warp / 4, line = threadIdx.x % WARP / 4;
        Worker worker{places, places_of + group * (TILES * WARPGROUP) + threadIdx.x % WARPGROUP, group};
        const RowFacts facts{exponents_in, largest_in, exponents_out, largest_out};
        const int in_block = group * (TILES * GROUP) + warp % 4 * 16;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
            const int neuron = work.list(tile) * NEURONS + in_block;
            const int64 row_tile = work.row_tile(tile), first_row = row_tile * ROWS;
            const Told told{places.told + warp * TOLD_BYTES};
            told.ask(facts, scales, biases, first_row, neuron);
            worker.run(work.first_slab(tile), work.last_slab(tile));
            told.await();
            Finisher finisher{facts, told, Bound{reach, offset, most}, clip, neuron == 0};
#pragma unroll
            for (int number = 0; number < TILES; ++number)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int output = number * 16 + half * 8 + line;
                    finisher.scales[number][half] = told.scale(output);
                    finisher.biases[number][half] = told.bias(output);
                }
            if constexpr (LAST) {
                const int first_output = neuron - warp % 4 * 16 + (warp % 4 * 8 + line) * 2 * TILES;
                if (TILES == 2 && width % 4 == 0)
                    finisher.all<0>(worker.sums, first_row, LastRows<true>(outputs, first_row, rows, first_output, width));
                else
                    finisher.all<0>(worker.sums, first_row, LastRows<false>(outputs, first_row, rows, first_output, width));
            } else {
                const unsigned turned = places.turned + warp * (TURNED_PLACES * PLANES * TURNED_BYTES);
                const int64 first_unit = row_tile * PLANES * width + neuron / 8;
                finisher.all<0>(worker.sums, first_row,
                                NextRows{turned, static_cast<unsigned char*>(outputs), first_unit, width});
            }
        }
    }
}
