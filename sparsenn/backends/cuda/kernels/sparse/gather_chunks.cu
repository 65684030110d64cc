// gather_chunks: one layer of any sparse weights on dense rows, the inputs streamed through shared memory.
//
// Idea      Rows lie along the lanes: an edge is read once for a tile of 32 to 256 rows, its input is a run of
//           neighbouring words in shared memory, its weight the same for all lanes. A warp keeps the sums of OUTPUTS
//           outputs in registers. Inputs pass through shared memory in chunks, each with the edges that read it,
//           brought in by a warp of its own and the bulk copy engine, several chunks ahead. What bounds the product
//           is reading shared memory: 4 bytes a multiply-add, or 32 multiply-adds a clock and multiprocessor. What
//           bounds it at 1 % density is bringing chunks in, hence as many outputs to a block as registers hold, and
//           inputs that none of them reads are left out where those that are read lie in runs.
// Layout    Features: (tiles, lines, ROWS), a line for each input, so that neighbouring inputs of a tile are one contiguous
//           piece; a tile may have room for more lines. A chunk is a few such runs of inputs, one if all are read. A
//           *record* holds the edges of SLOTS outputs in one chunk. It begins with an int for each warp, filled up to a
//           multiple of 4: at which byte of the record its edges begin. These lie output by output, in pairs as
//           ptx/edges.cuh says. Slots say which output they hold (-1 for none) and its bias; outputs are dealt so that
//           warps have alike work.
//           With TEAMS, a warp's outputs read the same inputs, each of which is read once for all. The header has ints:
//           three of nothing, at which byte units begin, and at which those of each warp end, up to a multiple of 4. A
//           unit is where an input lies, three ints of nothing, and its weights of all OUTPUTS.
//           A block takes one (tile, SLOTS outputs) after the other, those of one tile next to each other, so that chunks
//           are shared in the L2 cache.
// Needs     2 to 8 stages of `stage_bytes`, a multiple of 128, in dynamic shared memory, each holding a chunk
//           and the longest record. VECTOR (rows a lane: 1, 2, 4, 8), OUTPUTS (of a warp, even), WARPS (that compute;
//           one more brings chunks in), BLOCKS (on a multiprocessor), TEAMS (0 or 1; OUTPUTS then is a multiple of 4).
// Beside    tile_layers, which keeps whole rows in shared memory: narrow networks only, and every weight is read from
//           global memory once for 32 rows. Here rows have any width, up to 8 of them a lane; sums of many outputs are
//           in registers, and edges in shared memory, too. Sums run by increasing input, the same for every shape of
//           block.
#include "chunk_items.cuh"

// What becomes of sums. Rows are written as they are.
struct Finish {
    char* target;
    int room;              // of a tile, for lines
    int activation;
    float least, most;  // that ReLU lets through; infinities for other activations
    float parameter;

    // Writes a warp's outputs of a tile.
    __device__ __forceinline__ void operator()(const float (&sums)[OUTPUTS][VECTOR], const Slots& slots, int tile, bool,
                                               int lane) const {
        char* lines = target + static_cast<int64>(tile) * room * LINE + lane * PIECE * NUMBER;
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            const float bias = slots.bias(j);
            if (output < 0) continue;
            float rows[VECTOR];
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                const float z = sums[j][v] + bias;
                rows[v] = z < least ? least : (z > most ? most : z);  // NaN stays
            }
            write_line(lines + static_cast<int64>(output) * LINE, rows);
        }
        if (is_curved(activation)) activate_written(slots, lines);
    }

    // Applies a costly activation to outputs that this lane has just written, one after the other: inlined for every sum
    // it would be most of the kernel's code.
    __device__ __forceinline__ void activate_written(const Slots& slots, char* lines) const {
#pragma unroll 1
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = slots.output(j);
            if (output < 0) continue;
            char* line = lines + static_cast<int64>(output) * LINE;
            float rows[VECTOR];
            read_line(rows, line);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) rows[v] = activate(rows[v], activation, parameter);
            write_line(line, rows);
        }
    }
};

// room_in, room_out: of a tile of the inputs and of the outputs, for lines.
extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP, BLOCKS)
    gather_chunks(const char* __restrict__ features, const char* __restrict__ records, const int* __restrict__ starts,
                  const Run* __restrict__ runs, const int* __restrict__ run_starts, const Slot* __restrict__ slots,
                  char* __restrict__ target,
                  int tiles, int room_in, int room_out, int groups, int chunks, int chunk, int stages,
                  int stage_bytes, int activation, float least, float most, float parameter) {
    const Layer layer = {{records, starts, runs, run_starts}, slots, room_in, groups, chunks};
    compute(layer, features, tiles, chunk, stages, stage_bytes,
            Finish{target, room_out, activation, least, most, parameter});
}
