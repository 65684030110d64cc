// gather_chunks_half: gather_chunks on halves, with float32 sums.
//
// Idea      A number takes half of the bytes: of shared memory, the port of which is what bounds gather_chunks, and on its
//           way there. Converting it would take an instruction a number, more time than reading it saves; so tensor cores
//           multiply: by a weight, that is by a diagonal matrix, of which an instruction does 128 rows. Numbers are scaled
//           row by row by a power of two, and weights output by output, so that none is beyond half precision.
// Layout    As of gather_chunks, but that a line has halves, and edges are as ptx/half_edges.cuh says. A slot says, too, by
//           what its sums are multiplied. `exponents` of a row says by what it was scaled, `largest` are the bits of its
//           largest number: of these follows a bound of the outputs, and of that how they are scaled. What is infinite or
//           no number is a zero among halves, and told by `largest`: all outputs of its row become NaN. The outputs of the
//           last layer are not scaled: they are float32, or halves if LAST is AS_HALVES.
//           `largest` of the outputs is found in shared memory, and raised once for a block: where weights are few, warps
//           that all raise the same words of global memory would wait for these longer than they compute.
// Needs     compute capability 8.0, and what gather_chunks does; VECTOR of 4 or 8, no TEAMS. ACTIVATION is as in
//           activation.cuh.
// Beside    two_of_four, on tensor cores, too, which shares a weight among rows and an input among outputs, but multiplies
//           with zeros: where weights are few, it has more to do.
#include "activation.cuh"

#define HALVES 1
#include "chunk_items.cuh"
#include "row_scale.cuh"

#define AS_HALVES 2

// The bits of the largest numbers of a tile's rows, of what a block computes of them: zeros between two tiles.
struct Largest {
    int of_rows[ROWS];
    uint64 barrier;  // for all threads that compute; two phases a tile

    // All threads call, before they are synchronized.
    __device__ __forceinline__ void make() {
        for (int row = threadIdx.x; row < ROWS; row += (WARPS + 1) * WARP) of_rows[row] = 0;
        if (threadIdx.x == 0) barrier_init(&barrier, WARPS * WARP);
    }

    // Raises those of a lane's rows, and `global`, of all rows of the tile, once all warps that compute have.
    __device__ __forceinline__ void raise(const int (&own)[VECTOR], int* global) {
        const int warp = of_warp(threadIdx.x / WARP), lane = computed_once(threadIdx.x % WARP);  // no register is left for it
#pragma unroll
        for (int v = 0; v < VECTOR; v++) raise_in_shared(of_rows + v * WARP + lane, own[v]);
        barrier_arrive(&barrier);
        barrier_wait(&barrier, 0);
#pragma unroll
        for (int part = 0; part < VECTOR; part += WARPS) {
            if (part + warp >= VECTOR) break;
            const int row = (part + warp) * WARP + lane;
            int& found = of_rows[row % VECTOR * WARP + row / VECTOR];
            raise_in_global(global + row, found);
            found = 0;
        }
        barrier_arrive(&barrier);
        barrier_wait(&barrier, 1);
    }
};

// What becomes of sums.
struct Finish {
    char* target;
    RowFacts facts;
    Bound bound;
    int room;  // of a tile, for lines
    float clip;
    Largest& largest_of_block;

    // Writes a warp's outputs of a tile. `tells`: whether this warp says how rows are scaled.
    __device__ __forceinline__ void operator()(const float (&sums)[OUTPUTS][VECTOR], const Slots& slots, int tile,
                                               bool tells, int lane) const {
        constexpr int BYTES = LAST == 1 ? 4 : 2;  // of a number that is written
        const int64 row = static_cast<int64>(tile) * ROWS + lane * VECTOR;
        char* lines = target + (static_cast<int64>(tile) * room * ROWS + lane * VECTOR) * BYTES;
        float in[VECTOR], out[VECTOR];
        int largest[VECTOR] = {};
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const int found = facts.largest_in[row + v];
            in[v] = is_finite(found) ? back_from(facts.exponents_in[row + v]) : __int_as_float(NO_NUMBER);
            if constexpr (!LAST) {
                const int exponent = bound.exponent(found);
                out[v] = scale_to(exponent);
                if (tells) facts.exponents_out[row + v] = exponent;
            }
        }
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            const float scale = slots.scale(j), bias = slots.bias(j);
            float rows[VECTOR];
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                rows[v] = activated<ACTIVATION>(fmaf(sums[j][v] * in[v], scale, bias), clip);
                if constexpr (!LAST) {
                    if (output >= 0) largest[v] = max(largest[v], bits_of_size(rows[v]));
                    rows[v] = scaled(rows[v], out[v]);
                }
            }
            write(lines + static_cast<int64>(output) * (ROWS * BYTES), rows, output >= 0);
        }
        if constexpr (!LAST)
            largest_of_block.raise(largest, facts.largest_out + static_cast<int64>(tile) * ROWS);
    }

    __device__ __forceinline__ static void write(char* to, const float (&rows)[VECTOR], bool wanted) {
        if constexpr (LAST == 1) {
#pragma unroll
            for (int first = 0; first < VECTOR; first += 4) {
                unsigned words[4];
#pragma unroll
                for (int k = 0; k < 4; k++) words[k] = __float_as_uint(rows[first + k]);
                store_if(to + 4 * first, words, wanted);
            }
        } else {
            unsigned words[VECTOR / 2];
#pragma unroll
            for (int k = 0; k < VECTOR / 2; k++) words[k] = to_halves(rows[2 * k], rows[2 * k + 1]);
            store_if(to, words, wanted);
        }
    }
};

// room_in, room_out: of a tile of the inputs and of the outputs, for lines.
extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP, BLOCKS)
    gather_chunks_half(const char* __restrict__ features, const char* __restrict__ records, const int* __restrict__ starts,
                       const Run* __restrict__ runs, const int* __restrict__ run_starts, const Slot* __restrict__ slots,
                       char* __restrict__ target, const int* __restrict__ exponents_in, const int* __restrict__ largest_in,
                       int* __restrict__ exponents_out, int* __restrict__ largest_out,
                       int tiles, int room_in, int room_out, int groups, int chunks, int chunk,
                       int stages, int stage_bytes, float reach, float offset, float most, float clip) {
    __shared__ Largest largest;
    if constexpr (!LAST) largest.make();
    const Layer layer = {{records, starts, runs, run_starts}, slots, room_in, groups, chunks};
    const RowFacts facts = {exponents_in, largest_in, exponents_out, largest_out};
    compute(layer, features, tiles, chunk, stages, stage_bytes,
            Finish{target, facts, {reach, offset, most}, room_out, clip, largest});
}
