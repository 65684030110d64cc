// count_inputs: a first layer of inputs that all have one value, by counting them.
//
// Idea      Where many edges of an output share a weight, the layer need not be multiplied out edge by edge: per
//           weight, count the active inputs, then multiply once. Counts of many rows are taken together, bit-sliced:
//           bit r of a word belongs to row r, and carry-save adders (Harley and Seal; W. Mula, N. Kurz, D. Lemire,
//           "Faster population counts using AVX2 instructions", 2018; D. E. Knuth, The Art of Computer Programming,
//           7.1.3) add words bit by bit into planes: plane p holds bit p of every row's count. Some three logical
//           instructions add an edge of all rows. An 8 x 8 bit-matrix transposition by exchanges then makes bytes of
//           planes. That changes the order of the sums, so it is done only where no sum is rounded in any order: where
//           all products are multiples of a power of two, and the sizes of an output's add up to less than 2^24 of it.
//           Elsewhere each edge adds its product, in order, to the rows that have its input.
// Layout    A tile is ROWS rows; shared memory holds one word of ROWS bits an input, and one more that is zero. A lane
//           has an output, and in registers its sums of all rows. An output's edges lie by weight: equal ones are a
//           run, four edges are a quad, and a run is whole quads, filled up with the word of zeros. Quads and runs of
//           32 neighbouring outputs, a slice, are interleaved: when a warp reads the k-th quad or the k-th run of its
//           outputs, it reads consecutive memory. Rows stay where they are: row r of the inputs is row r of `rows_out`,
//           and `list` holds those that are left. Where in `list` a row is depends on timing, what it holds does not.
// Needs     the words in dynamic shared memory; MOST_THREADS threads at most, a power of two, at least a warp;
//           `stage.list_count` cleared. Defines: ROWS (32, 16 or 8), INDEX (type of the inputs' indices), EDGE (type of
//           the indices in quads).
// Beside    `tile_inputs` of tile_layers, which does the first layer by testing a bit for each edge and row. This takes
//           its place as a stage of one layer; `tile_rows` goes on from there.
#include "resident.cuh"

#ifndef ROWS
#define ROWS 32
#define INDEX index16
#define EDGE index16
#endif
#include "input_bits.cuh"
static_assert(ROWS == 32 || ROWS == 16 || ROWS == 8, "a word has as many bits as a tile has rows");

constexpr int MOST_THREADS = ROWS == 32 ? 512 : 1024;
constexpr int LOG_ROWS = ROWS == 32 ? 5 : ROWS == 16 ? 4 : 3;
constexpr int PLANES = 8;
constexpr int MOST_QUADS = 63;  // 252 edges: a plane more would be needed for 256
constexpr bool PAIRS = sizeof(EDGE) == 2;  // two quads at a time; of longer indices, registers hold only one

template <int BITS>
struct WordOf;
template <>
struct WordOf<32> {
    typedef unsigned type;
};
template <>
struct WordOf<16> {
    typedef unsigned short type;
};
template <>
struct WordOf<8> {
    typedef unsigned char type;
};
typedef WordOf<ROWS>::type Word;

struct alignas(4 * sizeof(EDGE)) Quad {
    EDGE x, y, z, w;
};

struct Run {
    int last;  // quad of this output after the run's last; its complement where the run is a single edge
    float weight;
};

struct Counted {
    const int2* slices;     // x: first quad, y: first run, in units of 32
    const int* run_counts;  // of each output, 0 behind the last
    const Run* runs;
    const Quad* quads;
    float units;   // all weights are multiples of 2^exponent; the largest sum of sizes of an output's, in such units
    int exponent;
};

// Whether sums of products of the weights and `one` are exact, and no number in them is below the normal ones.
__device__ __forceinline__ bool sums_are_exact(const Counted& counted, float one) {
    const unsigned bits = __float_as_uint(one), power = bits >> 23 & 0xff;
    if (power == 0 || power == 255) return false;
    const unsigned digits = (bits & 0x7fffff) | 0x800000;
    const int zeros = __ffs(digits) - 1;
    const int unit = counted.exponent + static_cast<int>(power) - 150 + zeros;
    return counted.units * static_cast<float>(digits >> zeros) < 16777216.0f && unit >= -126 && unit <= 103;
}

// Adds two words to a plane; returns what is carried to the next.
__device__ __forceinline__ unsigned carry_save(unsigned& plane, unsigned one, unsigned other) {
    const unsigned carry = (plane & one) | (plane & other) | (one & other);
    plane ^= one ^ other;
    return carry;
}

template <int FROM>
__device__ __forceinline__ void ripple(unsigned (&planes)[PLANES], unsigned carry) {
#pragma unroll
    for (int p = FROM; p < PLANES; p++) {
        const unsigned next = planes[p] & carry;
        planes[p] ^= carry;
        carry = next;
    }
}

// Adds four words to planes 0 and 1; returns what is carried to plane 2.
__device__ __forceinline__ unsigned add_quad(unsigned (&planes)[PLANES], const Word* words, const Quad& quad) {
    const unsigned x = words[quad.x], y = words[quad.y], z = words[quad.z], w = words[quad.w];
    const unsigned first = carry_save(planes[0], x, y), second = carry_save(planes[0], z, w);
    return carry_save(planes[1], first, second);
}

// Bit b of byte g of planes[p] and bit p of byte g of planes[b] change places.
__device__ __forceinline__ void transpose_bytes(unsigned (&planes)[PLANES]) {
#pragma unroll
    for (int shift = PLANES / 2; shift > 0; shift /= 2) {
        const unsigned low = shift == 4 ? 0x0f0f0f0fu : shift == 2 ? 0x33333333u : 0x55555555u;
#pragma unroll
        for (int p = 0; p < PLANES; p++) {
            if (p & shift) continue;
            const unsigned one = planes[p], other = planes[p + shift];
            planes[p] = (one & low) | ((other << shift) & ~low);
            planes[p + shift] = ((one >> shift) & low) | (other & ~low);
        }
    }
}

// A byte as a float: 2^23 with it as the last byte, less 2^23.
__device__ __forceinline__ float byte_of(unsigned word, int byte) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | byte)) - 8388608.0f;
}

// Adds what one output's edges bring to its sums. `quads` and `runs` are this lane's first.
__device__ __forceinline__ void add_runs(float (&sums)[ROWS], const Word* words, const Quad* __restrict__ quads,
                                         const Run* __restrict__ runs, int run_count, float one) {
    int done = 0;
#pragma unroll 1
    for (; run_count > 0; run_count--, runs += WARP) {
        const Run run = *runs;
        const float weight = run.weight * one;
        if (run.last < 0) {
            const unsigned word = words[quads->x];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (word >> r & 1) sums[r] += weight;
            done = ~run.last;
            quads += WARP;
            continue;
        }
#pragma unroll 1
        while (done < run.last) {
            int left = min(run.last - done, MOST_QUADS);
            done += left;
            unsigned planes[PLANES] = {};
#pragma unroll 1
            for (; PAIRS && left >= 2; left -= 2, quads += 2 * WARP) {
                const Quad first = quads[0], second = quads[WARP];
                const unsigned low = add_quad(planes, words, first), high = add_quad(planes, words, second);
                ripple<3>(planes, carry_save(planes[2], low, high));
            }
#pragma unroll 1
            for (; left > 0; left--, quads += WARP) ripple<2>(planes, add_quad(planes, words, *quads));
            transpose_bytes(planes);
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] = fmaf(byte_of(planes[r % 8], r / 8), weight, sums[r]);
        }
    }
}

// Adds one output's edges to its sums, one after the other.
__device__ __forceinline__ void add_edges(float (&sums)[ROWS], const Word* words, const int4* __restrict__ pairs,
                                          int2 run, float one) {
#pragma unroll 1
    for (int pair = 0; pair < run.y; pair++) {
        const int4 two = pairs[run.x + pair * SLICE];
        const unsigned first = words[two.x], second = words[two.z];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first >> r & 1) sums[r] = fmaf(__int_as_float(two.y), one, sums[r]);
            if (second >> r & 1) sums[r] = fmaf(__int_as_float(two.w), one, sums[r]);
        }
    }
}

// Counts one tile, whose rows' non-zeros are in `nonzeros`, and lists the rows that are left. One warp calls it.
__device__ void close_tile(const Stage& stage, const Layer& layer, int base, int present, int nonzeros) {
    const int lane = threadIdx.x % WARP, row = base + lane;
    const bool there = lane < present;
    const int weight = !there ? 0 : stage.weights_in ? stage.weights_in[row] : 1;
    const uint64 active = warp_sum(there && nonzeros > 0 ? static_cast<uint64>(weight) : 0ull);
    const uint64 total = warp_sum(static_cast<uint64>(weight) * static_cast<uint64>(nonzeros));
    if (lane == 0)
        add_to_counters(stage.counters + 4 * stage.first, present, active, total,
                        static_cast<uint64>(layer.edges) * present);
    const bool drop = stage.last - 1 >= stage.droppable_from;
    const bool keep = there && (!drop || nonzeros > 0);
    const unsigned kept = __ballot_sync(ALL_LANES, keep);
    int start = 0;
    if (lane == 0 && kept) start = atomicAdd(stage.list_count, __popc(kept));
    start = __shfl_sync(ALL_LANES, start, 0);
    if (!there) return;
    const int place = keep ? start + __popc(kept & lanes_below(lane)) : -1;
    stage.next[row] = place;
    if (keep) {
        stage.list[place] = row;
        stage.weights_out[row] = weight;
    }
}

// Writes one output's values; all lanes of a warp call it. Returns for lane r how many neurons are not zero in row r.
// Curved activations are taken of what was written, row by row: unrolled, they would need too many registers.
__device__ __forceinline__ int write_values(const float (&sums)[ROWS], float bias, const Layer& layer, float* target,
                                            bool exists, int copies, int present) {
    const int lane = threadIdx.x % WARP, activation = layer.activation, outputs = layer.outputs;
    const float clip = layer.clip;
    unsigned mine = 0;  // outputs of the warp that are not zero in row `lane`
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float z = sums[r] + bias;
        const float value = activation == RELU ? activate(z, RELU, clip) : z;
        if (exists && r < present) target[static_cast<size_t>(r) * outputs] = value;
        const unsigned found = __ballot_sync(ALL_LANES, exists && value != 0.0f);
        if (lane == r) mine = found;
    }
    if (is_curved(activation)) {
#pragma unroll 1
        for (int r = 0; r < present; r++) {
            float* place = target + static_cast<size_t>(r) * outputs;
            const float value = exists ? activate(*place, activation, clip) : 0.0f;
            if (exists) *place = value;
            const unsigned found = __ballot_sync(ALL_LANES, value != 0.0f);
            if (lane == r) mine = found;
        }
    }
    const int first = __shfl_sync(ALL_LANES, copies, 0);
    if (__all_sync(ALL_LANES, copies == first || !exists)) return __popc(mine) * first;
    int neurons = 0;
#pragma unroll 1
    for (int from = 0; from < WARP; from++) {
        const int each = __shfl_sync(ALL_LANES, copies, from);
        neurons += mine >> from & 1 ? each : 0;
    }
    return neurons;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    count_inputs(const Network* network, const Stage* stages, const Counted* counted, const Call* call) {
    extern __shared__ __align__(16) unsigned memory[];
    __shared__ int nonzeros[WARP];
    const Network& net = *network;
    const Stage& stage = *stages;
    const Layer& layer = net.layers[stage.first];
    const Word* words = reinterpret_cast<const Word*>(memory);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int parts = max(1, warps / ROWS);  // warps for a row
    const int length = (layer.inputs << LOG_ROWS >> 5) + 1;
    const int64* indptr = call->indptr;
    const INDEX* indices = static_cast<const INDEX*>(call->indices);
    const float one = call->value();
    const bool exact = sums_are_exact(*counted, one);
    const int count = *stage.count_in;
    for (int base = blockIdx.x * ROWS; base < count; base += gridDim.x * ROWS) {
        const int present = min(ROWS, count - base);
        for (int at = threadIdx.x; at < length; at += blockDim.x) memory[at] = 0;
        if (threadIdx.x < WARP) nonzeros[lane] = 0;
        const int64 begin = indptr[base + min(lane, present)], end = indptr[base + min(lane + 1, present)];
        __syncthreads();
        for (int unit = warp; unit < present * parts; unit += warps) {
            const int row = unit / parts;
            const int64 first = __shfl_sync(ALL_LANES, begin, row), last = __shfl_sync(ALL_LANES, end, row);
            set_bits(memory, indices, first, last, row, LOG_ROWS, unit % parts, parts);
        }
        __syncthreads();
        for (int slice = warp; slice * WARP < layer.outputs; slice += warps) {
            const int output = slice * WARP + lane;
            const bool exists = output < layer.outputs;
            float sums[ROWS] = {};
            if (exact) {
                const int2 start = counted->slices[slice];
                add_runs(sums, words, counted->quads + static_cast<size_t>(start.x) * WARP + lane,
                         counted->runs + static_cast<size_t>(start.y) * WARP + lane, counted->run_counts[output], one);
            } else if (exists) {
                add_edges(sums, words, net.pairs, net.runs[layer.output + output], one);
            }
            __syncwarp();
            const float bias = exists ? net.bias[layer.output + output] : 0.0f;
            const int copies = exists ? net.copies[layer.output + output] : 0;
            float* target = stage.rows_out + static_cast<size_t>(base) * layer.outputs + output;
            const int found = write_values(sums, bias, layer, target, exists, copies, present);
            if (found && lane < present) atomicAdd(&nonzeros[lane], found);
        }
        __syncthreads();
        if (warp == 0) close_tile(stage, layer, base, present, lane < present ? nonzeros[lane] : 0);
        __syncwarp();
    }
}
