// What gemm and conv2d share on the tensor cores: a block's tile of sums, the pipeline that feeds it, and how sums of a
// tile that several warps or blocks have parts of come together.
//
// A block computes BM x BN sums of products, of BM rows of a left and BN columns of a right factor. Its depth is cut
// into slabs of 128 bytes of every row and column: 64 halves or 32 floats. STAGES slabs lie in shared memory; while the
// first is multiplied, the others are on their way. WARPS_M x WARPS_N warps share the tile, and SLICES such groups share
// the four steps of 32 bytes that a slab has. Where the factors come from is a policy, `Source`:
//
//   begin()                  what else is to be done before the first slab
//   copy(stage)              start the copies of the next slab
//   enter(stage)             the next slab is there: get ready to read it
//   read(fragments, step)    a step's share of the lane, in the order of the instructions
//   leave(), work(step)      what else is to be done before the last step of a slab, and in each step
//   needs(step)              whether there is anything to multiply in a step of the slab that is being read
//   ROUNDED                  whether numbers to be multiplied in TF32 have been rounded to it
//
// KIND: of `enum Kind`; of TENSOR_FLOAT32 see split_product.
// BLOCKS: blocks that share a multiprocessor.
#pragma once
#include "common.cuh"
#include "kinds.cuh"
#include "ptx/copies.cuh"
#include "ptx/matrix_products.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"

constexpr int THREADS = WARP * WARPS_M * WARPS_N * SLICES;
constexpr int LAYER_THREADS = THREADS / SLICES;  // of one slice
constexpr int WARP_ROWS = BM / WARPS_M, WARP_COLUMNS = BN / WARPS_N;
constexpr int MT = WARP_ROWS / 16, NT = WARP_COLUMNS / 8;  // tiles of an instruction
constexpr int LINE = 128;  // bytes of a row or column in a slab
constexpr int STEPS = 4 / SLICES;
constexpr int BYTES = KIND == TENSOR_HALF ? 2 : 4;  // of a factor
constexpr int TERMS = LINE / BYTES;  // of a slab

static_assert(BM % (16 * WARPS_M) == 0 && BN % (16 * WARPS_N) == 0, "warps take whole tiles, and pairs of columns");
static_assert(SLICES == 1 || SLICES == 2, "a slice has two steps of a slab or more");
static_assert(STAGES >= 2 && THREADS % 64 == 0 && THREADS <= 1024, "copies are shared evenly");

typedef float Sums[MT][NT][4];

struct Fragments {
    unsigned a[MT][4];
    unsigned b[NT][2];
};

__device__ __forceinline__ int lane_of_thread() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp_row() { return threadIdx.x / WARP / WARPS_N % WARPS_M; }
__device__ __forceinline__ int warp_column() { return threadIdx.x / WARP % WARPS_N; }
__device__ __forceinline__ int slice_of_thread() { return threadIdx.x / LAYER_THREADS; }

// ---- One step of a product --------------------------------------------------------------------------------------

// A number as one of TF32, and the rest, of which the instructions take as much as TF32 holds. An infinity leaves a rest
// that is no number; see `strange`.
__device__ __forceinline__ void split(unsigned number, unsigned& high, unsigned& low) {
    high = cut_to_tf32(number + 0x1000u);
    low = __float_as_uint(__uint_as_float(number) - __uint_as_float(high));
}

__device__ __forceinline__ void add_tf32(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_tf32(sums, a[0], a[1], a[2], a[3], b[0], b[1], sums[0], sums[1], sums[2], sums[3]);
}

__device__ __forceinline__ void add_half(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_half(sums, a[0], a[1], a[2], a[3], b[0], b[1]);
}

template <int ACROSS>
__device__ __forceinline__ void add_up(Sums& sums, const float (&products)[ACROSS][MT][4], int first) {
#pragma unroll
    for (int j = 0; j < ACROSS; ++j)
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][first + j][i] += products[j][m][i];
}

// A grid is one block deep, but the compiler does not know. A loop of so many turns keeps it from beginning all products
// of a step before it adds up the first: it would run out of registers.
#define TURNS gridDim.z

// Tensor cores cut off what they add instead of rounding it. So they sum the products of 8 terms only, from zero and the
// small ones first, and the sums of eights are added here, rounded to nearest, while the next ones are multiplied
// (H. Ootomo and R. Yokota, 2022, "Recovering single precision accuracy from Tensor Cores").
//
// Four tiles of an instruction are summed at a time, so that none has to wait long for its own sums.
__device__ __forceinline__ void split_product(Sums& sums, const Fragments& from) {
    constexpr int ACROSS = MT >= 4 || NT % 2 ? 1 : 2;
    unsigned high[MT][4], low[MT][4];
    float products[2][ACROSS][MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            split(from.a[m][i], high[m][i], low[m][i]);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) products[0][j][m][i] = products[1][j][m][i] = 0.0f;
        }
#pragma unroll
    for (int n = 0; n < NT; n += ACROSS)
#pragma unroll 1
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            float(&next)[ACROSS][MT][4] = products[n / ACROSS % 2];
            float(&last)[ACROSS][MT][4] = products[(n / ACROSS + 1) % 2];
            unsigned b_high[ACROSS][2], b_low[ACROSS][2];
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) split(from.b[n + j][i], b_high[j][i], b_low[j][i]);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int m = 0; m < MT; ++m)
                    multiply_tf32(next[j][m], low[m][0], low[m][1], low[m][2], low[m][3], b_high[j][0], b_high[j][1], 0.0f, 0.0f,
                                  0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int m = 0; m < MT; ++m) add_tf32(next[j][m], high[m], b_low[j]);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
#pragma unroll
                for (int m = 0; m < MT; ++m) add_tf32(next[j][m], high[m], b_high[j]);
            if (n > 0) add_up<ACROSS>(sums, last, n - ACROSS);
        }
    add_up<ACROSS>(sums, products[(NT / ACROSS + 1) % 2], NT - ACROSS);
}

// ROUNDED: numbers that are multiplied in TF32 have been rounded to it.
template <bool ROUNDED>
__device__ __forceinline__ void multiply(Sums& sums, Fragments& from) {
    if constexpr (KIND == TENSOR_TF32 && !ROUNDED) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) from.a[m][i] = to_tf32(from.a[m][i]);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            from.b[n][0] = to_tf32(from.b[n][0]);
            from.b[n][1] = to_tf32(from.b[n][1]);
        }
    }
    if constexpr (KIND == TENSOR_FLOAT32) {
        split_product(sums, from);
    } else {
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                float(&own)[4] = sums[m][n];
                if constexpr (KIND == TENSOR_HALF)
                    add_half(own, from.a[m], from.b[n]);
                else
                    add_tf32(own, from.a[m], from.b[n]);
            }
    }
}

// ---- The pipeline -----------------------------------------------------------------------------------------------

// sums += all products of `slabs` slabs.
//
// A step's fragments are read while the step before is multiplied. At the last step of a slab all warps have read what
// they need of it; the barrier there says that the next slab has arrived and that this one's place is free.
template <class Source>
__device__ __forceinline__ void accumulate(Source& source, Sums& sums, int slabs) {
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (ahead < slabs) source.copy(ahead);
        close_copies();
    }
    source.begin();
    await_copies<STAGES - 2>();
    __syncthreads();
    Fragments fragments[2];
    source.enter(0);
    source.read(fragments[0], 0);
    int stage = 0, vacant = STAGES - 1;
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool needed = source.needs(step);
            if (step == STEPS - 1) {
                source.leave();
                await_copies<STAGES - 2>();
                __syncthreads();
                stage = stage + 1 < STAGES ? stage + 1 : 0;
                if (slab + 1 < slabs) source.enter(stage);
            }
            if (step + 1 < STEPS || slab + 1 < slabs)
                source.read(fragments[(step + 1) % 2], (step + 1) % STEPS);
            if (step == 0) {
                if (slab + STAGES - 1 < slabs) source.copy(vacant);
                close_copies();
                vacant = vacant + 1 < STAGES ? vacant + 1 : 0;
            }
            source.work(step);
            if (needed) multiply<Source::ROUNDED>(sums, fragments[step % 2]);
        }
    }
}

// ---- Sums that are in several hands -----------------------------------------------------------------------------

// Add up the slices' sums. `shared` has room for a tile of float32. Returns whether the thread has the result.
__device__ __forceinline__ bool join_slices(Sums& sums, unsigned char* shared) {
    if constexpr (SLICES == 1) return true;
    float4* place = reinterpret_cast<float4*>(shared) + threadIdx.x % LAYER_THREADS;
    __syncthreads();  // what lies there is no longer needed
    if (slice_of_thread() == 1)
#pragma unroll
        for (int i = 0; i < MT * NT; ++i) {
            const float(&own)[4] = sums[i / NT][i % NT];
            place[i * LAYER_THREADS] = make_float4(own[0], own[1], own[2], own[3]);
        }
    __syncthreads();
    if (slice_of_thread() == 1) return false;
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
        const float4 other = place[i * LAYER_THREADS];
        float(&own)[4] = sums[i / NT][i % NT];
        own[0] += other.x;
        own[1] += other.y;
        own[2] += other.z;
        own[3] += other.w;
    }
    return true;
}

// `parts` blocks have summed a part of the depth each. All put their sums down; the one that is last adds them up in the
// order of the parts, so that the result does not depend on which one that is. All threads of a block must call.
//
// partial: the tile's, parts x MT * NT x LAYER_THREADS of four floats. counter: the tile's, zero, and zero again after.
// Returns whether the block has the result; `mine` says whether the thread has sums.
__device__ __forceinline__ bool join_parts(Sums& sums, bool mine, float4* partial, unsigned* counter, int part,
                                           int parts, unsigned char* shared) {
    constexpr int SIZE = MT * NT * LAYER_THREADS;
    float4* place = partial + threadIdx.x % LAYER_THREADS;
    if (mine)
#pragma unroll
        for (int i = 0; i < MT * NT; ++i) {
            const float(&own)[4] = sums[i / NT][i % NT];
            place[static_cast<int64>(part) * SIZE + i * LAYER_THREADS] = make_float4(own[0], own[1], own[2], own[3]);
        }
    __threadfence();
    __syncthreads();
    int* last = reinterpret_cast<int*>(shared);
    if (threadIdx.x == 0) {
        *last = atomicAdd(counter, 1u) + 1 == static_cast<unsigned>(parts);
        if (*last) *counter = 0;
    }
    __syncthreads();
    if (!*last) return false;
    __threadfence();
    if (!mine) return true;
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
        const float4 first = __ldcg(place + i * LAYER_THREADS);
        float(&own)[4] = sums[i / NT][i % NT];
        own[0] = first.x;
        own[1] = first.y;
        own[2] = first.z;
        own[3] = first.w;
    }
#pragma unroll 1
    for (int other = 1; other < parts; ++other)
#pragma unroll
        for (int i = 0; i < MT * NT; ++i) {
            const float4 next = __ldcg(place + static_cast<int64>(other) * SIZE + i * LAYER_THREADS);
            float(&own)[4] = sums[i / NT][i % NT];
            own[0] += next.x;
            own[1] += next.y;
            own[2] += next.z;
            own[3] += next.w;
        }
    return true;
}
