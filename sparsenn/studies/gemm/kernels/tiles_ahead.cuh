// The fastest of the plain rungs, of gemm and of conv2d: a product of matrices in tiles, the next ones of which are on
// their way into shared memory while one is multiplied.
//
// A block computes ROWS x COLUMNS sums, a thread EACH x EACH of them. Both factors come in tiles of TERMS terms, STAGES
// of which find room in shared memory, each with rows, or columns, side by side: a thread reads four numbers at a time.
// Its outputs are four squares of 4 x 4, so that the lanes of a warp read neighbours. The bits of a lane's number go to
// rows and columns in turn: two lanes that read the same quad are one or two apart, which the hardware then reads once.
//
// A source that includes this has a feed, which is made from the shared address of the first stage and what else it
// takes. Its copy(unsigned) starts the copies of the next tile to the stage that begins so many bytes behind the first.
//
// WARPS_DOWN, WARPS_ACROSS: of a block. LANES_DOWN, LANES_ACROSS: of a warp, 4 and 8, or 16 and 2.
#pragma once
#include "common.cuh"
#include "ptx/copies.cuh"

constexpr int EACH = 8, QUAD = 4, TERMS = 8, STAGES = 4;
constexpr int ROWS = WARPS_DOWN * LANES_DOWN * EACH;
constexpr int COLUMNS = WARPS_ACROSS * LANES_ACROSS * EACH;
constexpr int THREADS = WARPS_DOWN * WARPS_ACROSS * WARP;
static_assert((LANES_DOWN == 4 && LANES_ACROSS == 8) || (LANES_DOWN == 16 && LANES_ACROSS == 2), "32 lanes");
static_assert(THREADS % COLUMNS == 0 && THREADS / COLUMNS <= TERMS && THREADS % TERMS == 0, "threads share columns");
static_assert(ROWS % (THREADS / TERMS) == 0, "threads share rows");

constexpr int BLOCKS = THREADS == 64 ? 6 : 512 / THREADS;  // on a multiprocessor, which leaves a thread 128 registers or more

struct Stage {
    float left[TERMS][ROWS + QUAD];  // + QUAD: lanes that write terms of a row write to banks of their own
    float right[TERMS][COLUMNS];
};

constexpr unsigned STAGE_BYTES = sizeof(Stage), RIGHT_BYTES = sizeof(Stage::left);  // the latter before `right`

// ---- Compute ----------------------------------------------------------------------------------------------------

// Where in the block's tile a thread's outputs are: rows row + 4 * LANES_DOWN * i + (0 to 3), columns likewise.
struct Place {
    int row, column;

    __device__ __forceinline__ Place() {
        const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        int down = lane / 2, across = lane % 2;
        if constexpr (LANES_ACROSS == 8) {
            down = (lane >> 1 & 1) + (lane >> 2 & 2);
            across = (lane & 1) + (lane >> 1 & 2) + (lane >> 2 & 4);
        }
        row = warp / WARPS_ACROSS * (LANES_DOWN * EACH) + down * QUAD;
        column = warp % WARPS_ACROSS * (LANES_ACROSS * EACH) + across * QUAD;
    }

    __device__ __forceinline__ static int row_of(int number) {
        return number / QUAD * (LANES_DOWN * QUAD) + number % QUAD;
    }

    __device__ __forceinline__ static int column_of(int number) {
        return number / QUAD * (LANES_ACROSS * QUAD) + number % QUAD;
    }
};

// What a thread multiplies of a term.
struct Factors {
    float left[EACH], right[EACH];

    __device__ __forceinline__ void read(const Stage& stage, int term, const Place& place) {
#pragma unroll
        for (int first = 0; first < EACH; first += QUAD) {
            read_quad(left + first, &stage.left[term][place.row + Place::row_of(first)]);
            read_quad(right + first, &stage.right[term][place.column + Place::column_of(first)]);
        }
    }

    __device__ __forceinline__ static void read_quad(float* to, const float* from) {
        const float4 quad = *reinterpret_cast<const float4*>(from);
        to[0] = quad.x;
        to[1] = quad.y;
        to[2] = quad.z;
        to[3] = quad.w;
    }

    __device__ __forceinline__ void add_products(float (&sums)[EACH][EACH]) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
};

// Adds up a number of tiles, at least one. A feed is made from the address of the first stage.
template <typename Feed, typename... Parameters>
__device__ __forceinline__ void add_tiles(float (&sums)[EACH][EACH], const Place& place, int tiles,
                                          Parameters... parameters) {
    __shared__ __align__(16) Stage stages[STAGES];
    Feed feed(shared_address(stages), parameters...);
#pragma unroll
    for (unsigned ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (static_cast<int>(ahead) < tiles) feed.copy(ahead * STAGE_BYTES);
        close_copies();
    }
    unsigned reading = 0, filling = (STAGES - 1) * STAGE_BYTES;
    for (int left = tiles; left > 0; --left) {
        await_copies<STAGES - 2>();
        __syncthreads();  // what all threads copied is there, and the stage before this one has been read
        const Stage& stage = *reinterpret_cast<const Stage*>(reinterpret_cast<const char*>(stages) + reading);
        Factors factors[2];
        factors[0].read(stage, 0, place);
        if (left >= STAGES) feed.copy(filling);
        close_copies();
        filling = reading;
        reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
#pragma unroll
        for (int term = 0; term < TERMS; ++term) {
            if (term + 1 < TERMS) factors[(term + 1) % 2].read(stage, term + 1, place);
            factors[term % 2].add_products(sums);
        }
    }
}
