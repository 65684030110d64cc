// few_rows: consecutive layers of few rows in one launch, bound by reading the weights.
//
// Idea      With few rows, a layer costs what reading its weights costs. So weights never stop coming: each warp copies
//           those of its next outputs, of this layer and of later ones, into a ring in shared memory, long before the
//           rows that they are multiplied by are known. Between two layers, the blocks of a group of rows wait for each
//           other: by a counter in global memory, for which all must run at once, or as a cluster. A thread has an
//           output, and adds its products in ascending order of the inputs.
// Layout    Rows come and go row by row. Between layers, the numbers of a group of ROWS rows lie side by side for each
//           input; each block holds all of the group in shared memory. A slice is 32 outputs of about as many weights. A
//           chunk is STEPS weights of each, in units of 16 bytes: weights, then 16-bit places of inputs. A thread reads
//           what it has copied itself, so it waits for no other. What fills a chunk up is a weight of -0 and the place
//           behind all inputs, which holds 1: that changes no bit of a sum.
// Needs     a group's rows in shared memory, at most 65,535 inputs; a cooperative launch, or clusters (compute capability
//           9.0). Defines: ROWS (1, 4), WARPS, DEPTH (chunks of a warp's ring), CLUSTER (blocks of a group; 1: any number).
// Beside    row_layers, where rows end early once they are all zero.
#include "common.cuh"
#include "ptx/clusters.cuh"
#include "ptx/copies.cuh"
#include "ptx/memory.cuh"

#ifndef ROWS
#define ROWS 1
#define WARPS 8
#define DEPTH 8
#define CLUSTER 1
#endif
static_assert(ROWS == 1 || ROWS == 4, "the numbers of a place are read at once");
static_assert(DEPTH >= 4 && (DEPTH & (DEPTH - 1)) == 0, "three chunks of the ring are being read");

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no clusters there, and none are launched
#undef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1
#define BLOCKS_OF_A_GROUP __cluster_dims__(CLUSTER, 1, 1)
#else
#define BLOCKS_OF_A_GROUP
#endif

constexpr int STEPS = 16;                          // weights of a thread in a chunk
constexpr int PLACES = STEPS / 8;                  // units of a thread in a chunk: of places
constexpr int WEIGHTS = STEPS / 4;                 // and of weights
constexpr int CHUNK = (PLACES + WEIGHTS) * WARP;   // units

struct alignas(16) RowLayer {
    const uint4* chunks;
    const int* starts;     // first chunk of each slice, and the end
    const int* outputs_of; // output of each thread of each slice, or -1
    const float* biases;   // likewise
    int inputs, outputs, slices, activation;
    float clip;
};

struct alignas(4 * ROWS) Numbers {
    float of[ROWS];
};

// A warp's slice: in every other round, warps take slices in reverse order, since the first ones have the most chunks.
__device__ __forceinline__ int slice_of(const RowLayer& layer, int round, int warp, int warps) {
    const int slice = round * warps + (round % 2 ? warps - 1 - warp : warp);
    return slice < layer.slices ? slice : -1;
}

// A thread's share of a slice.
struct Slice {
    bool there;
    int begin, end, output;  // chunks; output or -1
    float bias;

    // Asks for a slice, or sets that there is none.
    __device__ __forceinline__ void look_up(const RowLayer& layer, int slice, int lane) {
        there = slice >= 0;
        if (!there) return;
        const int thread = slice * WARP + lane;
        begin = __ldg(layer.starts + slice), end = __ldg(layer.starts + slice + 1);
        output = __ldg(layer.outputs_of + thread);
        bias = __ldg(layer.biases + thread);
    }
};

// The chunks that a warp copies next.
struct Ahead {
    int layer, round, chunk, end;

    // Steps to the warp's next slice that has chunks; behind the last one, `chunk` stays `end`.
    __device__ __forceinline__ void advance(const RowLayer* layers, int count, int warp, int warps) {
        while (chunk == end && layer < count) {
            const int slice = slice_of(layers[layer], round++, warp, warps);
            if (slice < 0)
                layer++, round = 0;
            else
                chunk = __ldg(layers[layer].starts + slice), end = __ldg(layers[layer].starts + slice + 1);
        }
    }
};

template <int UNITS>
struct Words {
    unsigned words[4 * UNITS];

    __device__ __forceinline__ void read(const uint4* own) {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const uint4 four = own[unit * WARP];
            words[4 * unit] = four.x, words[4 * unit + 1] = four.y;
            words[4 * unit + 2] = four.z, words[4 * unit + 3] = four.w;
        }
    }
};

// Operands of a chunk: its weights, and the rows' numbers at its places.
struct Operands {
    Words<WEIGHTS> weights;
    Numbers numbers[STEPS];

    __device__ __forceinline__ void gather(const Numbers* source, const Words<PLACES>& places) {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            numbers[step] = source[step % 2 ? places.words[step / 2] >> 16 : places.words[step / 2] & 0xffffu];
    }

    __device__ __forceinline__ void add_to(float (&sums)[ROWS]) const {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                sums[row] = fmaf(__uint_as_float(weights.words[step]), numbers[step].of[row], sums[row]);
    }
};

// Waits until the group's blocks have all come here for the `times`-th time; `before` is what the counter began at.
__device__ __forceinline__ void wait_for_group(unsigned long long* arrived, unsigned long long before, int times,
                                               int blocks) {
#if CLUSTER > 1
    cluster_wait();
#else
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1ull);
        while (read_acquire(arrived) < before + static_cast<unsigned long long>(times) * blocks) {
        }
    }
    __syncthreads();
#endif
}

// `between` is two buffers of all groups, with room for `room` inputs each; `arrived` has a counter for each group.
extern "C" __global__ void BLOCKS_OF_A_GROUP __launch_bounds__(WARPS * WARP, 1)
    few_rows(const RowLayer* all_layers, int count, const float* in, float* out, int rows, float* between, int room,
             unsigned long long* arrived, int group_blocks) {
    extern __shared__ uint4 memory[];
    const int lane = threadIdx.x % WARP;
    const int group = blockIdx.x / group_blocks, groups = gridDim.x / group_blocks, warps = WARPS * group_blocks;
    const int warp = threadIdx.x / WARP * group_blocks + blockIdx.x % group_blocks;  // of the group's
    const int first_row = group * ROWS;
    if (first_row >= rows) return;
    uint4* ring = memory + threadIdx.x / WARP * (DEPTH * CHUNK) + lane;
    RowLayer* layers = reinterpret_cast<RowLayer*>(memory + WARPS * DEPTH * CHUNK);
    Numbers* source = reinterpret_cast<Numbers*>(layers + count);
    for (int word = threadIdx.x; word < count * static_cast<int>(sizeof(RowLayer) / 4); word += WARPS * WARP)
        reinterpret_cast<int*>(layers)[word] = reinterpret_cast<const int*>(all_layers)[word];
    unsigned long long before = 0;
    if (CLUSTER == 1 && threadIdx.x == 0) before = read_acquire(arrived + group) / group_blocks * group_blocks;
    __syncthreads();

    Ahead ahead = {0, 0, 0, 0};
    unsigned filled = 0, read = 0;  // chunks that were asked for, and chunks that were added
    const auto fetch = [&]() {
        if (ahead.chunk == ahead.end) ahead.advance(layers, count, warp, warps);
        uint4* to = ring + filled++ % DEPTH * CHUNK;
        if (ahead.chunk < ahead.end) {
            const uint4* from = layers[ahead.layer].chunks + static_cast<size_t>(ahead.chunk++) * CHUNK + lane;
#pragma unroll
            for (int unit = 0; unit < PLACES + WEIGHTS; unit++)
                copy_later<16>(shared_address(to + unit * WARP), from + unit * WARP);
        } else {
#pragma unroll
            for (int unit = 0; unit < PLACES; unit++) to[(WEIGHTS + unit) * WARP] = {0, 0, 0, 0};  // read, but not added
        }
        close_copies();
    };
#pragma unroll 1
    for (int slot = 0; slot < DEPTH - 1; slot++) fetch();
    const auto behind = [&](int chunks_on) { return ring + (read + chunks_on) % DEPTH * CHUNK; };

    Operands operands[2];
    Words<PLACES> places;  // of the chunk behind the one that is added
    for (int number = 0; number < count; number++) {
        const RowLayer layer = layers[number];
        Slice next = {};
        next.look_up(layer, slice_of(layer, 0, warp, warps), lane);
        if (number == 0) {
            for (int place = threadIdx.x; place < layer.inputs; place += WARPS * WARP) {
                Numbers found;
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    const size_t at = static_cast<size_t>(first_row + row) * layer.inputs + place;
                    found.of[row] = first_row + row < rows ? in[at] : 0.0f;
                }
                source[place] = found;
            }
        } else {
            wait_for_group(arrived + group, before, number, group_blocks);
            const uint4* from = reinterpret_cast<const uint4*>(
                between + static_cast<size_t>((number % 2) * groups + group) * room * ROWS);
            for (int unit = threadIdx.x; unit < (layer.inputs * ROWS + 3) / 4; unit += WARPS * WARP)
                reinterpret_cast<uint4*>(source)[unit] = __ldcg(from + unit);
            __syncthreads();  // the place behind all inputs may be in the last unit
        }
        if (threadIdx.x < ROWS) source[layer.inputs].of[threadIdx.x] = 1.0f;
        __syncthreads();
        await_copies<DEPTH - 3>();
        places.read(behind(0) + WEIGHTS * WARP);
        operands[0].weights.read(behind(0));
        operands[0].gather(source, places);
        places.read(behind(1) + WEIGHTS * WARP);
        for (int round = 1; next.there; round++) {
            const Slice slice = next;
            next.look_up(layer, slice_of(layer, round, warp, warps), lane);  // long before it is needed
            float sums[ROWS] = {};
            // Adds a chunk whose operands are there, and asks for those of the next one.
            const auto add = [&](Operands& now, Operands& next) {
                await_copies<DEPTH - 4>();
                next.gather(source, places);
                next.weights.read(behind(1));
                places.read(behind(2) + WEIGHTS * WARP);
                read++;
                fetch();
                now.add_to(sums);
            };
            for (int chunk = slice.begin; chunk < slice.end; chunk += 2) {
                add(operands[0], operands[1]);
                if (chunk + 1 == slice.end) {
                    operands[0] = operands[1];
                    break;
                }
                add(operands[1], operands[0]);
            }
            if (slice.output >= 0) {
                Numbers found;
#pragma unroll
                for (int row = 0; row < ROWS; row++)
                    found.of[row] = activate(sums[row] + slice.bias, layer.activation, layer.clip);
                if (number + 1 < count)
                    reinterpret_cast<Numbers*>(between)[static_cast<size_t>(((number + 1) % 2) * groups + group) * room +
                                                        slice.output] = found;
                else
#pragma unroll
                    for (int row = 0; row < ROWS; row++) {
                        const size_t at = static_cast<size_t>(first_row + row) * layer.outputs + slice.output;
                        if (first_row + row < rows) out[at] = found.of[row];
                    }
            }
        }
    }
    await_all_copies();
}
