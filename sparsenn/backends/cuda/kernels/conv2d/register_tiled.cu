// register_tiled: sums of several filters and several pixels in a thread's registers, pixels and filters in shared
// memory.
//
// Idea      A thread has the sums of EACH filters for PIXELS pixels, one below the other. For a column of the window it
//           reads PIXELS + KERNEL_HEIGHT - 1 pixels and KERNEL_HEIGHT * EACH weights, and has PIXELS * EACH *
//           KERNEL_HEIGHT multiply-adds to do with them: with 20 pixels and 4 filters of 7 x 7, nine of ten
//           instructions are multiply-adds. Neighbouring lanes have neighbouring columns, so that they read
//           neighbouring words, write whole lines, and ask for the same weights. The first products are added to the
//           bias; all sizes are known to the compiler.
// Layout    images and outputs (count, channels, height, width) float32, row-major. arranged: for each set of BUNDLES
//           bundles of EACH filters, for each slice of SLICE channels: its weights (bundle, channel, column of the
//           window, row of the window, filter), a column padded to 4 numbers. A block computes BAND tiles of PIXELS
//           rows and STRIP columns of IMAGES images and a set of filters, slice by slice. It brings the slice's weights
//           and pixels to shared memory: images that are taken whole as they lie in memory, else rows of PITCH pixels,
//           zeros outside the image.
// Needs     cp.async (compute capability 8.0); THREADS threads a block, one for each tile if there are several slices;
//           shared memory for weights, bias and pixels. Stride and dilation 1, one group. VECTOR divides the numbers of
//           an image that is taken whole, else WIDTH and, if there are several strips, STRIP. The images begin at a
//           multiple of 4 * VECTOR bytes, `arranged` at one of 16.
// Before    streamed, of studies/conv2d/direct, which ends here.
// Changes   a number from shared memory serves PIXELS or EACH multiply-adds, and more where rows overlap. 25.1 GFLOP of
//           10,000 images of 86 x 86 take 0.42 ms at 59 TFLOP/s, their 1.3 GB 0.31 ms at 4.2 TB/s: with both going on
//           side by side, arithmetic bounds it.
#include "conv2d/activated.cuh"
#include "ptx/copies.cuh"

constexpr int parts(int total, int size) { return (total + size - 1) / size; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int OUTPUT_HEIGHT = HEIGHT + 2 * PADDING_DOWN - KERNEL_HEIGHT + 1;
constexpr int OUTPUT_WIDTH = WIDTH + 2 * PADDING_ACROSS - KERNEL_WIDTH + 1;
constexpr int ROW_TILES = parts(OUTPUT_HEIGHT, PIXELS), BANDS = parts(ROW_TILES, BAND);
constexpr int STRIPS = parts(OUTPUT_WIDTH, STRIP), SETS = parts(FILTERS, BUNDLES * EACH), SLICES = CHANNELS / SLICE;
constexpr int TILES = STRIP * BAND * IMAGES * BUNDLES;
static_assert(OUTPUT_HEIGHT > 0 && OUTPUT_WIDTH > 0, "a filter fits on a padded image");
static_assert(BAND <= ROW_TILES && STRIP <= OUTPUT_WIDTH, "a block has rows and columns to compute");
static_assert(SLICES * SLICE == CHANNELS, "slices are equally large");
static_assert(SLICES == 1 || TILES <= THREADS, "a thread keeps its sums from slice to slice");
static_assert(EACH == 1 || EACH == 2 || EACH % 4 == 0, "the weights of a column are read 4 at a time");

constexpr int WINDOW_COLUMN = parts(KERNEL_HEIGHT * EACH, 4) * 4;  // weights for one column of the window,
constexpr int BUNDLE = SLICE * KERNEL_WIDTH * WINDOW_COLUMN;       // and for all channels of a slice
constexpr int WEIGHTS = BUNDLES * BUNDLE, BIASES = parts(BUNDLES * EACH, 4) * 4;

constexpr bool WHOLE = BANDS == 1 && STRIPS == 1 && SLICES == 1 && PADDING_DOWN == 0 && PADDING_ACROSS == 0;
constexpr int ROWS = WHOLE ? HEIGHT : BAND * PIXELS + KERNEL_HEIGHT - 1;
constexpr int MARGIN = WHOLE ? 0 : parts(PADDING_ACROSS, VECTOR) * VECTOR;  // columns before those of the strip
constexpr int UNUSED = MARGIN - PADDING_ACROSS;                             // of these
constexpr int PITCH = WHOLE ? WIDTH : parts(UNUSED + STRIP + KERNEL_WIDTH - 1, VECTOR) * VECTOR;
constexpr int AREA = ROWS * PITCH;  // of a channel
// rows of the last tile that are read, but not there
constexpr int BEYOND = WHOLE && ROW_TILES * PIXELS > OUTPUT_HEIGHT ? (ROW_TILES * PIXELS - OUTPUT_HEIGHT) * PITCH : 0;
static_assert(!WHOLE || CHANNELS * HEIGHT * WIDTH % VECTOR == 0, "an image is whole vectors");
static_assert(WHOLE || WIDTH % VECTOR == 0, "a row is whole vectors");
static_assert(STRIPS == 1 || STRIP % VECTOR == 0, "a strip begins with a whole vector");

// weights, biases and pixels, SHARED_FLOATS numbers
extern __shared__ float4 shared[];
constexpr int SHARED_FLOATS = WEIGHTS + BIASES + IMAGES * SLICE * AREA + BEYOND;
static_assert(4 * SHARED_FLOATS == SHARED_BYTES, "a block gets as much shared memory as it uses");

// ---- Staging -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void stage_weights(const float* __restrict__ arranged, float* weights) {
#pragma unroll 2
    for (int i = 4 * threadIdx.x; i < WEIGHTS; i += 4 * THREADS)
        copy_later<16>(shared_address(weights + i), arranged + i);
}

// `images` begins with the first image of the block; `there` images are left.
__device__ __forceinline__ void stage_whole(const float* __restrict__ images, int there, float* pixels) {
    const int end = (there < IMAGES ? there : IMAGES) * CHANNELS * AREA;
#pragma unroll 4
    for (int i = VECTOR * threadIdx.x; i < end; i += VECTOR * THREADS)
        copy_later<4 * VECTOR>(shared_address(pixels + i), images + i);
}

// Rows and columns from (top, left) on, which may be outside the image, of a slice's channels.
__device__ __forceinline__ void stage_rows(const float* __restrict__ images, int there, int slice, int top, int left,
                                           float* pixels) {
    constexpr int VECTORS = PITCH / VECTOR;
#pragma unroll 2
    for (int i = threadIdx.x; i < IMAGES * SLICE * ROWS * VECTORS; i += THREADS) {
        const int line = i / VECTORS, channel = line / ROWS % SLICE, image = line / (ROWS * SLICE);
        const int row = top + line % ROWS, column = left + i % VECTORS * VECTOR;
        const bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH && image < there;
        const int from = ((image * CHANNELS + slice * SLICE + channel) * HEIGHT + row) * WIDTH + column;
        copy_later<4 * VECTOR>(shared_address(pixels + i * VECTOR), images + (inside ? from : 0),
                               inside ? 4 * VECTOR : 0);
    }
}

// ---- Computing ---------------------------------------------------------------------------------------------------

// What a thread works on: its first column and row of the block's part, and its bundle.
struct Tile {
    int column, row, image, bundle;

    __device__ __forceinline__ explicit Tile(int number)
        : column(number % STRIP),
          row(number / STRIP % BAND * PIXELS),
          image(number / (STRIP * BAND) % IMAGES),
          bundle(number / (STRIP * BAND * IMAGES)) {}

    __device__ __forceinline__ int place() const {
        return image * SLICE * AREA + row * PITCH + column + UNUSED;
    }
};

__device__ __forceinline__ void read_four(const float* from, float* to) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
}

// One channel and one column of the window: adds its products to the sums, or FIRST to the bias.
template <bool FIRST>
__device__ __forceinline__ void add_column(const float* pixels, const float* weights, const float* bias,
                                           float (&sums)[EACH][PIXELS]) {
    float pixel[PIXELS + KERNEL_HEIGHT - 1], weight[WINDOW_COLUMN];
#pragma unroll
    for (int i = 0; i < PIXELS + KERNEL_HEIGHT - 1; ++i) pixel[i] = pixels[i * PITCH];
#pragma unroll
    for (int i = 0; i < WINDOW_COLUMN; i += 4) read_four(weights + i, weight + i);
#pragma unroll
    for (int row = 0; row < KERNEL_HEIGHT; ++row) {
#pragma unroll
        for (int filter = 0; filter < EACH; ++filter) {
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) {
                const float before = FIRST && row == 0 ? bias[filter] : sums[filter][i];
                sums[filter][i] = fmaf(pixel[i + row], weight[row * EACH + filter], before);
            }
        }
    }
}

template <bool FIRST>
__device__ __forceinline__ void add_slice(const float* pixels, const float* weights, const float* bias,
                                          float (&sums)[EACH][PIXELS]) {
    int column = 0;
    if constexpr (FIRST) {
        add_column<true>(pixels, weights, bias, sums);
        weights += WINDOW_COLUMN;
        column = 1;
    }
#pragma unroll 1
    for (int channel = 0; channel < SLICE; ++channel) {
#pragma unroll 1
        for (; column < KERNEL_WIDTH; ++column) {
            add_column<false>(pixels + column, weights, bias, sums);
            weights += WINDOW_COLUMN;
        }
        column = 0;
        pixels += AREA;
    }
}

// The block's part of the outputs: of its images, filters, rows and columns, and how many of these there are.
struct Part {
    float* first;
    int images, filters, rows, columns;

    __device__ __forceinline__ bool has(const Tile& tile) const {
        return tile.image < images && tile.bundle * EACH < filters && tile.row < rows && tile.column < columns;
    }
};

__device__ __forceinline__ void store(const Tile& tile, const Part& part, float clip,
                                      const float (&sums)[EACH][PIXELS]) {
    constexpr bool ALL_ROWS = OUTPUT_HEIGHT % PIXELS == 0, ALL_FILTERS = FILTERS % EACH == 0;
    const int first = tile.bundle * EACH;
    float* to = part.first + (static_cast<int64>(tile.image) * FILTERS + first) * OUTPUT_HEIGHT * OUTPUT_WIDTH +
                tile.row * OUTPUT_WIDTH + tile.column;
#pragma unroll
    for (int filter = 0; filter < EACH; ++filter) {
        if (!ALL_FILTERS && first + filter >= part.filters) break;
#pragma unroll
        for (int i = 0; i < PIXELS; ++i) {
            if (ALL_ROWS || tile.row + i < part.rows)
                to[(filter * OUTPUT_HEIGHT + i) * OUTPUT_WIDTH] = activated<ACTIVATION>(sums[filter][i], clip);
        }
    }
}

// ---- The kernel --------------------------------------------------------------------------------------------------

// The grid is one line of blocks: sets of filters, strips, bands, then images.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(int count, const float* __restrict__ images, const float* __restrict__ arranged,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    float* weights = reinterpret_cast<float*>(shared);
    float *biases = weights + WEIGHTS, *pixels = biases + BIASES;
    const int set = blockIdx.x % SETS, left = blockIdx.x / SETS % STRIPS * STRIP;
    const int top = blockIdx.x / (SETS * STRIPS) % BANDS * BAND * PIXELS;
    const int first = blockIdx.x / (SETS * STRIPS * BANDS) * IMAGES, first_filter = set * BUNDLES * EACH;
    const int64 plane = static_cast<int64>(first) * FILTERS + first_filter;
    const Part part{outputs + (plane * OUTPUT_HEIGHT + top) * OUTPUT_WIDTH + left, count - first,
                    FILTERS - first_filter, OUTPUT_HEIGHT - top, OUTPUT_WIDTH - left};
    images += static_cast<int64>(first) * CHANNELS * HEIGHT * WIDTH;
    arranged += static_cast<int64>(set) * SLICES * WEIGHTS;

    const auto stage = [&](int slice) {
        stage_weights(arranged + static_cast<int64>(slice) * WEIGHTS, weights);
        if constexpr (WHOLE) {
            stage_whole(images, part.images, pixels);
        } else {
            stage_rows(images, part.images, slice, top - PADDING_DOWN, left - MARGIN, pixels);
        }
    };
    stage(0);
#pragma unroll 1
    for (int i = threadIdx.x; i < BUNDLES * EACH; i += THREADS)
        biases[i] = i < part.filters ? bias[first_filter + i] : 0.0f;
    await_all_copies();
    __syncthreads();

    float sums[EACH][PIXELS];
    if constexpr (SLICES == 1) {
#pragma unroll 1
        for (int number = threadIdx.x; number < TILES; number += THREADS) {
            const Tile tile(number);
            if (!part.has(tile)) continue;
            add_slice<true>(pixels + tile.place(), weights + tile.bundle * BUNDLE, biases + tile.bundle * EACH, sums);
            store(tile, part, clip, sums);
        }
    } else {
        const bool has = threadIdx.x < TILES;
        const Tile tile(has ? threadIdx.x : 0);
        const bool mine = has && part.has(tile);
        const float *read = pixels + tile.place(), *weight = weights + tile.bundle * BUNDLE;
#pragma unroll
        for (int filter = 0; filter < EACH; ++filter) {
            const float before = biases[tile.bundle * EACH + filter];
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sums[filter][i] = before;
        }
#pragma unroll 1
        for (int slice = 0; slice < SLICES; ++slice) {
            if (mine) add_slice<false>(read, weight, biases, sums);
            if (slice == SLICES - 1) break;
            __syncthreads();  // all have read what is overwritten now
            stage(slice + 1);
            await_all_copies();
            __syncthreads();
        }
        if (mine) store(tile, part, clip, sums);
    }
}
