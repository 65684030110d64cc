// sparse_direct: a convolution by the weights that pruning left, each multiplied by pixels in shared memory.
//
// Idea      A weight is stored with the distance, in shared memory, from an output's place to the pixel that the weight
//           multiplies. So a warp adds a filter's products for 32 * PIXELS neighbouring outputs with neither an index nor
//           a test: it reads two weights at once, the same for all lanes, then PIXELS pixels for each. Sums of FILTERS
//           filters stay in registers, while chunks of channels come to shared memory, the next one during the sums of
//           this one where there are two stages. A sum starts at zero, and its products are added by channel, row and
//           column of the window, by fused multiply-adds, as in unrolled: outputs have the same bits.
// Layout    images (image, channel, height, width) and outputs (image, filter, height, width) float32, as they come. In
//           shared memory, places of a channel follow each other image by image and row by row, with enough zeros after
//           each row and image for windows that reach over the edge. With strides, pixels whose row and column have the
//           same remainders form a phase, and a channel has several phases. A block has WARPS / shares warps' worth of
//           filters, and shares * 32 * PIXELS places. stream: for each set of filters and chunk of channels, a segment in
//           units of 16 bytes: in bytes, where each warp's first filter begins; then, filter by filter, pairs of
//           (distance in bytes, weight), of which the last has bit 0 of its second distance set. A filter of an odd
//           number of weights, or of none, ends with weights of zero. segments: each one's first unit and their number.
//           order: the filter of each slot, -1 for none.
// Needs     cp.async (compute capability 8.0); one group; blocks of WARPS warps. Places are counted in 32 bits. VECTOR
//           numbers are copied at a time: 4 where windows have one tap, strides are 1, there is no padding, a channel is
//           a multiple of 4 numbers, and images begin at a multiple of 16 bytes; else 1. FOURS: windows have one tap, and
//           a lane has PIXELS / 4 times four neighbouring places.
// Before    unrolled, which multiplies all weights, of global memory.
// Changes   time falls with the weights. A weight takes PIXELS + 1/2 reads of 128 bytes for 32 * PIXELS multiply-adds:
//           shared memory bounds the kernel at about a quarter of the peak of multiply-adds.
#include "conv2d/activated.cuh"
#include "ptx/copies.cuh"

constexpr int THREADS = WARPS * WARP;
constexpr int SPAN = PIXELS * WARP;  // places of a warp
static_assert(!FOURS || PIXELS % 4 == 0, "a lane has whole fours");

struct Sizes {
    int places;                     // of all images
    int channels, height, width;    // of an image
    int filters, out_height, out_width;
    int stride_down, stride_across;
    int phase_down, phase_across;   // the first ones
    int phases, phases_across;      // in all, and of a row
    int image_rows, row_places;     // places down and across an image, zeros included
    int reach;                      // places before the first output's that windows see
    int pitch;                      // places of a phase that a block sees
    int chunk, chunks;              // channels of a chunk
    int sets, warps_across;         // sets of filters; warps that share a block's places
    int stages, weights_at, stage_bytes;
    bool copies_fours, stores_fours;

    __device__ __forceinline__ int image_places() const { return image_rows * row_places; }
    __device__ __forceinline__ int numbers() const { return phases * pitch; }  // of a channel, in shared memory
    __device__ __forceinline__ int block_places() const { return WARPS / warps_across * SPAN; }
};

// Where a place's pixel is among the images' numbers, in channel 0; -1 where a zero is.
__device__ __forceinline__ int source_of(const Sizes& size, int phase, int place) {
    const int shifted = place + size.image_places();  // windows reach less than an image back
    const int image = shifted / size.image_places() - 1, rest = shifted % size.image_places();
    const int row = rest / size.row_places, column = rest % size.row_places;
    const int y = row * size.stride_down + phase / size.phases_across + size.phase_down;
    const int x = column * size.stride_across + phase % size.phases_across + size.phase_across;
    const bool inside = y < size.height && x < size.width;  // what no window reaches may stand in place of a zero
    if (!inside || image < 0 || image >= size.places / size.image_places()) return -1;
    return image * size.channels * (size.height * size.width) + y * size.width + x;
}

// Asks for a chunk's pixels and a set's weights for them; `sources` are those of the block's places.
template <int VECTOR>
__device__ __forceinline__ void copy_pixels(const Sizes& size, const float* __restrict__ images, const int* sources,
                                            int first, unsigned to) {
    constexpr int ROUNDS = 8;  // channels that warps begin with side by side
    const int numbers = size.numbers(), plane = size.height * size.width;
    const int channels = min(size.chunk, size.channels - first), lines = (numbers / VECTOR + WARP - 1) / WARP;
    for (int i = threadIdx.x / WARP; i < lines * ROUNDS; i += WARPS) {
        const int place = (i % lines * WARP + threadIdx.x % WARP) * VECTOR;
        if (place >= numbers) continue;
        const int source = sources[place], present = source < 0 ? 0 : 4 * VECTOR;
        const float* from = images + max(source, 0) + static_cast<int64>(first) * plane;
#pragma unroll 4
        for (int channel = i / lines; channel < channels; channel += ROUNDS)
            copy_later<4 * VECTOR>(to + 4 * (channel * numbers + place), from + static_cast<int64>(channel) * plane,
                                   present);
    }
}

__device__ __forceinline__ void read_pixels(const unsigned char* from, float (&pixels)[PIXELS]) {
#if FOURS
#pragma unroll
    for (int i = 0; i < PIXELS; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + 4 * WARP * i);
        pixels[i] = four.x, pixels[i + 1] = four.y, pixels[i + 2] = four.z, pixels[i + 3] = four.w;
    }
#else
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) pixels[i] = *reinterpret_cast<const float*>(from + 4 * WARP * i);
#endif
}

// Adds the products of a warp's filters and a chunk's pixels; `pixels` are those of the thread's first output.
__device__ __forceinline__ void add_chunk(const unsigned char* weights, int warp, const unsigned char* pixels,
                                          float (&sums)[FILTERS][PIXELS]) {
    const uint4* read = reinterpret_cast<const uint4*>(weights + reinterpret_cast<const unsigned*>(weights)[warp]);
    uint4 pair = *read;
#pragma unroll
    for (int filter = 0; filter < FILTERS; ++filter) {
        bool more;
#pragma unroll 1
        do {
            const uint4 next = *++read;
            more = !(pair.z & 1);
            float first[PIXELS], second[PIXELS];
            read_pixels(pixels + pair.x, first);
            read_pixels(pixels + (pair.z & ~1u), second);
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sums[filter][i] = fmaf(first[i], __uint_as_float(pair.y), sums[filter][i]);
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sums[filter][i] = fmaf(second[i], __uint_as_float(pair.w), sums[filter][i]);
            pair = next;
        } while (more);
    }
}

// The place that a thread's i-th output is at, from its first one's.
__device__ __forceinline__ constexpr int further(int i) { return FOURS ? i / 4 * (4 * WARP) + i % 4 : i * WARP; }

__device__ __forceinline__ void store_sums(const Sizes& size, const int* __restrict__ filters, const Finish& finish,
                                           int first, const float (&sums)[FILTERS][PIXELS], float* outputs) {
    const int out_plane = size.out_height * size.out_width;
    int at[PIXELS];  // in filter 0; -1 where there is none
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int place = first + further(i), image = place / size.image_places(), rest = place % size.image_places();
        const int row = rest / size.row_places, column = rest % size.row_places;
        const bool there = place < size.places && row < size.out_height && column < size.out_width;
        at[i] = there ? image * size.filters * out_plane + row * size.out_width + column : -1;
    }
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        const int filter = filters[f];
        if (filter < 0) continue;
        float* to = outputs + static_cast<int64>(filter) * out_plane;
#if FOURS
        if (size.stores_fours) {
#pragma unroll
            for (int i = 0; i < PIXELS; i += 4)
                if (at[i] >= 0)
                    *reinterpret_cast<float4*>(to + at[i]) =
                        make_float4(finish(sums[f][i], filter), finish(sums[f][i + 1], filter),
                                    finish(sums[f][i + 2], filter), finish(sums[f][i + 3], filter));
            continue;
        }
#endif
#pragma unroll
        for (int i = 0; i < PIXELS; ++i)
            if (at[i] >= 0) to[at[i]] = finish(sums[f][i], filter);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(const float* __restrict__ images, const uint4* __restrict__ stream, const int2* __restrict__ segments,
           const int* __restrict__ order, const float* __restrict__ bias, float clip, float* __restrict__ outputs,
           int places, int channels, int height, int width, int filters, int out_height, int out_width, int stride_down,
           int stride_across, int phase_down, int phase_across, int phases, int phases_across, int image_rows,
           int row_places, int reach, int pitch, int chunk, int chunks, int sets, int warps_across, int stages, int weights_at, int stage_bytes, int copies_fours, int stores_fours) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Sizes size{places,        channels,   height,       width,      filters,       out_height,
                     out_width,     stride_down, stride_across, phase_down, phase_across, phases,
                     phases_across, image_rows, row_places,   reach,      pitch,         chunk,
                     chunks,        sets,       warps_across, stages,     weights_at,    stage_bytes,
                     copies_fours != 0, stores_fours != 0};
    const int set = blockIdx.x % size.sets, start = blockIdx.x / size.sets * size.block_places();
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int own = warp % size.warps_across, share = warp / size.warps_across;
    const int numbers = size.numbers();
    int* sources = reinterpret_cast<int*>(shared);
    const int stages_at = (4 * numbers + 15) / 16 * 16;
    for (int i = threadIdx.x; i < numbers; i += THREADS)
        sources[i] = source_of(size, i / size.pitch, start - size.reach + i % size.pitch);
    for (int stage = 0; stage < size.stages; ++stage) {  // zeros, which weights of zero are multiplied by
        float* zeros = reinterpret_cast<float*>(shared + stages_at + stage * size.stage_bytes) + size.chunk * numbers;
        for (int i = threadIdx.x; i < size.block_places(); i += THREADS) zeros[i] = 0.0f;
    }
    __syncthreads();

    const auto bring = [&](int number) {
        const unsigned to = shared_address(shared) + stages_at + number % size.stages * size.stage_bytes;
        const int2 segment = segments[set * size.chunks + number];
        for (int i = threadIdx.x; i < segment.y; i += THREADS)
            copy_later<16>(to + size.weights_at + 16 * i, stream + segment.x + i);
        if (size.copies_fours)
            copy_pixels<4>(size, images, sources, number * size.chunk, to);
        else
            copy_pixels<1>(size, images, sources, number * size.chunk, to);
        close_copies();
    };

    float sums[FILTERS][PIXELS];
#pragma unroll
    for (int filter = 0; filter < FILTERS; ++filter)
#pragma unroll
        for (int i = 0; i < PIXELS; ++i) sums[filter][i] = 0.0f;

    const int first = share * SPAN + (FOURS ? 4 * lane : lane);
    bring(0);
#pragma unroll 1
    for (int number = 0; number < size.chunks; ++number) {
        if (size.stages > 1 && number + 1 < size.chunks) {
            bring(number + 1);
            await_copies<1>();
        } else {
            await_copies<0>();
        }
        __syncthreads();
        const unsigned char* stage = shared + stages_at + number % size.stages * size.stage_bytes;
        add_chunk(stage + size.weights_at, own, stage + 4 * first, sums);
        __syncthreads();  // all have read what is overwritten now
        if (size.stages == 1 && number + 1 < size.chunks) bring(number + 1);
    }
    store_sums(size, order + (set * size.warps_across + own) * FILTERS, Finish{bias, clip}, start + first, sums, outputs);
}
