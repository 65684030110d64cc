// What the kernels share that stream a sparse layer's inputs and edges through shared memory: blocks' shapes,
// asynchronous copies, and the product of one chunk. The layout is told in gather_chunks.cu.
#pragma once

#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "ptx/memory.cuh"
#include "ptx/opaque.cuh"
#include "sparse/each_output.cuh"
#include "turn.cuh"

#ifndef HALVES
#define HALVES 0
#endif
#ifndef VECTOR
#define VECTOR 4
#define OUTPUTS 16
#define WARPS 16
#define BLOCKS 1
#define TEAMS 0
#endif

static_assert(VECTOR == 1 || VECTOR == 2 || VECTOR == 4 || VECTOR == 8, "a lane has 1, 2, 4 or 8 rows");
static_assert(OUTPUTS % 2 == 0 && OUTPUTS <= 2 * WARP, "a warp has an even number of outputs, a lane to hold the bias of two");
static_assert(!TEAMS || OUTPUTS % 4 == 0, "weights of a team are read four at a time");
static_assert(!HALVES || (VECTOR >= 4 && !TEAMS), "halves are multiplied by fours, and outputs one by one");
static_assert((WARPS + 1) * WARP <= 1024, "a block has no more than 1024 threads");

constexpr int ROWS = WARP * VECTOR;             // of a tile
constexpr int SLOTS = WARPS * OUTPUTS;          // outputs of a block
constexpr int NUMBER = HALVES ? 2 : 4;          // bytes of one
constexpr int LINE = ROWS * NUMBER;             // of one input of a tile
constexpr int PIECE = VECTOR < 16 / NUMBER ? VECTOR : 16 / NUMBER;  // neighbouring rows of a lane, read at once
constexpr int MOST_STAGES = 8;

#if HALVES
#include "ptx/half_edges.cuh"
#else
#include "ptx/edges.cuh"
#endif

// ---- Asynchronous copies ----------------------------------------------------------------------------------------
// Each stage has two barriers: `full` when its bytes have arrived, `empty` when every thread that reads it is done: each
// arrives for itself, which takes no longer than one for a warp. All lanes of the producing warp look a chunk up, before
// there is room for it, and call `fill`.

// Where a warp is in the ring of stages: a chunk's lines, and its record behind them. Addresses of shared memory.
struct Ring {
    unsigned memory, barriers;
    int stages, stage_bytes, line_bytes;  // bytes of all lines
    Turn turn;

    // `barriers`: of all full stages, then of all empty ones. Who produces waits for nobody in the first round.
    __device__ __forceinline__ Ring(const char* memory, const uint64 (&barriers)[2 * MOST_STAGES], int stages,
                                    int stage_bytes, int chunk, bool produces)
        : memory(computed_once(shared_address(memory))), barriers(computed_once(shared_address(barriers))),
          stages(stages), stage_bytes(stage_bytes), line_bytes(chunk * LINE), turn{0, produces} {}

    __device__ __forceinline__ unsigned lines() const { return memory + turn.stage * stage_bytes; }
    __device__ __forceinline__ unsigned record() const { return lines() + line_bytes; }
    __device__ __forceinline__ unsigned full() const { return barriers + turn.stage * 8; }
    __device__ __forceinline__ unsigned empty() const { return full() + MOST_STAGES * 8; }
    __device__ __forceinline__ void next() { turn.next(stages); }
};

// Neighbouring inputs of a chunk: from which on, where their lines go, how many; and all of the chunk.
struct __align__(16) Run {
    int input, place, count, all;
};

// What a layer has by chunks, those of one group after the other; `starts` and `run_starts` say where the last one ends, too.
struct Chunks {
    const char* records;
    const int* starts;  // of each record, in units of 16 bytes
    const Run* runs;    // of inputs that a group reads
    const int* run_starts;
};

struct Chunk {
    const char* record;
    unsigned record_bytes;
    const Run* runs;
    int count;  // of runs
    Run own;    // the lane's first

    __device__ __forceinline__ Chunk(const Chunks& chunks, int64 number, int lane) {
        const int start = chunks.starts[number], first = chunks.run_starts[number];
        record = chunks.records + static_cast<int64>(start) * 16;
        record_bytes = (chunks.starts[number + 1] - start) * 16;
        runs = chunks.runs + first;
        count = chunks.run_starts[number + 1] - first;
        own = lane < count ? runs[lane] : Run{0, 0, 0, 0};
    }
};

#if __CUDA_ARCH__ >= 900
constexpr int FULL_ARRIVALS = 1;

__device__ __forceinline__ void fill(const Ring& ring, const char* tile, const Chunk& chunk, int lane) {
    const unsigned barrier = ring.full(), to = ring.lines();
    if (lane == 0) {  // bytes that others ask for may arrive before they are expected: the phase waits for this lane
        barrier_expect(barrier, chunk.own.all * LINE + chunk.record_bytes);
        copy_bulk(ring.record(), chunk.record, chunk.record_bytes, barrier);
    }
    Run run = chunk.own;
    for (int at = lane; at < chunk.count; at += WARP) {
        if (at > lane) run = chunk.runs[at];
        copy_bulk(to + run.place * LINE, tile + static_cast<int64>(run.input) * LINE, run.count * LINE, barrier);
    }
}
#else
constexpr int FULL_ARRIVALS = WARP;

__device__ __forceinline__ void lanes_copy(unsigned target, const char* source, unsigned bytes, int lane) {
    for (unsigned at = 16 * lane; at < bytes; at += 16 * WARP) copy_later<16>(target + at, source + at);
}

__device__ __forceinline__ void fill(const Ring& ring, const char* tile, const Chunk& chunk, int lane) {
    lanes_copy(ring.record(), chunk.record, chunk.record_bytes, lane);
    for (int at = 0; at < chunk.count; at++) {
        const Run run = chunk.runs[at];
        lanes_copy(ring.lines() + run.place * LINE, tile + static_cast<int64>(run.input) * LINE, run.count * LINE, lane);
    }
    barrier_arrive_after_copies(ring.full());
}
#endif

// Makes the barriers of all stages. All threads call.
__device__ __forceinline__ void make_barriers(uint64 (&barriers)[2 * MOST_STAGES], int stages) {
    if (threadIdx.x < stages) {
        barrier_init(&barriers[threadIdx.x], FULL_ARRIVALS);
        barrier_init(&barriers[MOST_STAGES + threadIdx.x], WARPS * WARP);
    }
#if __CUDA_ARCH__ >= 900
    show_to_engines();
#endif
    __syncthreads();
}

// ---- The product ------------------------------------------------------------------------------------------------

struct Slot {
    int output;
    float bias;
#if HALVES
    float scale;  // of sums
#endif
};

// A warp's slots, one or two in each lane.
struct Slots {
    Slot low, high;

    __device__ __forceinline__ Slots(const Slot* slots, int group, int warp, int lane)
        : low{-1}, high{-1} {
        const int first = group * SLOTS + warp * OUTPUTS;
        if (lane < OUTPUTS) low = slots[first + lane];
        if (lane + WARP < OUTPUTS) high = slots[first + lane + WARP];
    }

    // Of slot j. All lanes call.
    __device__ __forceinline__ int output(int j) const {
        return __shfl_sync(ALL_LANES, j < WARP ? low.output : high.output, j % WARP);
    }
    __device__ __forceinline__ float bias(int j) const {
        return __shfl_sync(ALL_LANES, j < WARP ? low.bias : high.bias, j % WARP);
    }
#if HALVES
    __device__ __forceinline__ float scale(int j) const {
        return __shfl_sync(ALL_LANES, j < WARP ? low.scale : high.scale, j % WARP);
    }
#endif
};

// Row of a tile that element k of a lane's vector is.
__device__ __forceinline__ int row_of(int lane, int k) { return k / PIECE * PIECE * WARP + lane * PIECE + k % PIECE; }

__device__ __forceinline__ void read_line(float (&rows)[VECTOR], const char* line) {
    if constexpr (PIECE == 1) rows[0] = *reinterpret_cast<const float*>(line);
    if constexpr (PIECE == 2) {
        const float2 two = *reinterpret_cast<const float2*>(line);
        rows[0] = two.x, rows[1] = two.y;
    }
    if constexpr (PIECE == 4) {
#pragma unroll
        for (int k = 0; k < VECTOR; k += 4) {
            const float4 four = *reinterpret_cast<const float4*>(line + k * WARP * 4);
            rows[k] = four.x, rows[k + 1] = four.y, rows[k + 2] = four.z, rows[k + 3] = four.w;
        }
    }
}

__device__ __forceinline__ void write_line(char* line, const float (&rows)[VECTOR]) {
    if constexpr (PIECE == 1) *reinterpret_cast<float*>(line) = rows[0];
    if constexpr (PIECE == 2) *reinterpret_cast<float2*>(line) = make_float2(rows[0], rows[1]);
    if constexpr (PIECE == 4) {
#pragma unroll
        for (int k = 0; k < VECTOR; k += 4)
            *reinterpret_cast<float4*>(line + k * WARP * 4) =
                make_float4(rows[k], rows[k + 1], rows[k + 2], rows[k + 3]);
    }
}

// A lane's rows of one input, from shared memory.
__device__ __forceinline__ void read_rows(float (&rows)[VECTOR], unsigned from) {
    if constexpr (PIECE == 1) rows[0] = __int_as_float(read_word(from));
    if constexpr (PIECE == 2) {
        const int2 two = read_pair(from);
        rows[0] = __int_as_float(two.x), rows[1] = __int_as_float(two.y);
    }
    if constexpr (PIECE == 4) {
#pragma unroll
        for (int k = 0; k < VECTOR; k += 4) {
            unsigned four[4];
            read_four(four, from + k * WARP * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) rows[k + i] = __uint_as_float(four[i]);
        }
    }
}

// The products of a team, unit by unit: an input, and its weights of all outputs.
__device__ __forceinline__ void add_team(unsigned record, unsigned rows, int warp, float (&sums)[OUTPUTS][VECTOR]) {
    constexpr unsigned UNIT = 16 + 4 * OUTPUTS;  // bytes
    const unsigned first = read_word(record + 12 + warp * 4), last = read_word(record + 16 + warp * 4);
    for (unsigned unit = record + first; unit < record + last; unit += UNIT) {
        float own[VECTOR];
        unsigned weights[OUTPUTS];
        read_rows(own, rows + read_word(unit));
#pragma unroll
        for (int output = 0; output < OUTPUTS; output += 4) {
            unsigned four[4];
            read_four(four, unit + 16 + 4 * output);
#pragma unroll
            for (int k = 0; k < 4; k++) weights[output + k] = four[k];
        }
#pragma unroll
        for (int output = 0; output < OUTPUTS; output++)
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                sums[output][v] = fmaf(__uint_as_float(weights[output]), own[v], sums[output][v]);
    }
}

// Waits for the stage's chunk, adds its products to the sums of this warp's outputs, and gives the stage back.
__device__ __forceinline__ void add_chunk(const Ring& ring, int warp, int lane, float (&sums)[OUTPUTS][VECTOR]) {
    barrier_wait(ring.full(), ring.turn.parity);
    const unsigned record = ring.record(), rows = ring.lines() + lane * PIECE * NUMBER;
#if TEAMS
    add_team(record, rows, warp, sums);
#elif HALVES
    add_edges(sums, record + read_word(record + 4 * warp), ring.lines(), lane);
#else
    add_edges(sums, record + read_word(record + 4 * warp), rows);
#endif
    barrier_arrive(ring.empty());
}
