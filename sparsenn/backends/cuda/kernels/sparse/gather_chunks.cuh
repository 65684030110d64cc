// What the kernels share that stream a sparse layer's inputs and edges through shared memory: blocks' shapes,
// asynchronous copies, and the product of one chunk. The layout is told in gather_chunks.cu.
#pragma once

#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "turn.cuh"

#ifndef VECTOR
#define VECTOR 4
#define OUTPUTS 16
#define WARPS 16
#define BLOCKS 1
#endif
static_assert(VECTOR == 1 || VECTOR == 2 || VECTOR == 4 || VECTOR == 8, "a lane has 1, 2, 4 or 8 rows");
static_assert(OUTPUTS % 2 == 0 && OUTPUTS <= WARP, "a warp has an even number of outputs, a lane to hold the bias of each");
static_assert(WARPS * OUTPUTS % 4 == 0, "edges of a record begin at a multiple of 16 bytes");
static_assert((WARPS + 1) * WARP <= 1024, "a block has no more than 1024 threads");

constexpr int ROWS = WARP * VECTOR;             // of a tile
constexpr int SLOTS = WARPS * OUTPUTS;          // outputs of a block
constexpr int LINE = ROWS * 4;                  // bytes of one input of a tile
constexpr int PIECE = VECTOR < 4 ? VECTOR : 4;  // neighbouring rows of a lane, read at once
constexpr int GROUP = OUTPUTS % 4 ? 2 : 4;      // ends of outputs' edges read at once
constexpr int MOST_STAGES = 8;

// ---- Asynchronous copies ----------------------------------------------------------------------------------------
// Each stage has two barriers: `full` when its bytes have arrived, `empty` when every lane is done with it.

#if __CUDA_ARCH__ >= 900
constexpr int FULL_ARRIVALS = 1;

// Makes the barriers known to the copy engine.
__device__ __forceinline__ void barriers_ready() { show_to_engines(); }

// Brings two pieces in. One lane of the producing warp calls.
__device__ __forceinline__ void fill(char* lines, const char* chunk, unsigned chunk_bytes, char* record,
                                     const char* edges, unsigned edge_bytes, uint64* full, int lane) {
    const unsigned barrier = shared_address(full);
    barrier_expect(barrier, chunk_bytes + edge_bytes);
    copy_bulk(shared_address(lines), chunk, chunk_bytes, barrier);
    copy_bulk(shared_address(record), edges, edge_bytes, barrier);
}
constexpr int PRODUCERS = 1;  // lanes that call `fill`
#else
constexpr int FULL_ARRIVALS = WARP;

__device__ __forceinline__ void barriers_ready() {}

__device__ __forceinline__ void lanes_copy(char* target, const char* source, unsigned bytes, int lane) {
    for (unsigned at = 16 * lane; at < bytes; at += 16 * WARP)
        copy_later<16>(shared_address(target + at), source + at);
}

// Brings two pieces in. All lanes of the producing warp call.
__device__ __forceinline__ void fill(char* lines, const char* chunk, unsigned chunk_bytes, char* record,
                                     const char* edges, unsigned edge_bytes, uint64* full, int lane) {
    lanes_copy(lines, chunk, chunk_bytes, lane);
    lanes_copy(record, edges, edge_bytes, lane);
    barrier_arrive_after_copies(full);
}
constexpr int PRODUCERS = WARP;
#endif

// ---- The product ------------------------------------------------------------------------------------------------

struct Slot {
    int output;
    float bias;
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

__device__ __forceinline__ void read_ends(int (&ends)[GROUP], const int* from) {
    if constexpr (GROUP == 4) {
        const int4 four = *reinterpret_cast<const int4*>(from);
        ends[0] = four.x, ends[1] = four.y, ends[2] = four.z, ends[3] = four.w;
    } else {
        const int2 two = *reinterpret_cast<const int2*>(from);
        ends[0] = two.x, ends[1] = two.y;
    }
}

// Adds one chunk's products to the sums of this warp's outputs. `lines` is where this lane's rows of the chunk begin.
// The next two edges are read while these two are multiplied, across the borders between outputs.
__device__ __forceinline__ void add_chunk(const char* lines, const char* record, int warp,
                                          float (&sums)[OUTPUTS][VECTOR]) {
    const int* ends = reinterpret_cast<const int*>(record) + 4 + warp * OUTPUTS;
    int at = ends[-1];
    int4 two = *reinterpret_cast<const int4*>(record + at);
#pragma unroll
    for (int first = 0; first < OUTPUTS; first += GROUP) {
        int end[GROUP];
        read_ends(end, ends + first);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            float(&sum)[VECTOR] = sums[first + k];
#pragma unroll 1
            while (at < end[k]) {
                float here[VECTOR], there[VECTOR];
                read_line(here, lines + two.x);
                read_line(there, lines + two.z);
                at += 16;
                const int4 next = *reinterpret_cast<const int4*>(record + at);
#pragma unroll
                for (int v = 0; v < VECTOR; v++) {
                    sum[v] = fmaf(__int_as_float(two.y), here[v], sum[v]);
                    sum[v] = fmaf(__int_as_float(two.w), there[v], sum[v]);
                }
                two = next;
            }
        }
    }
}
