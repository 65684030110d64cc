// sparse_direct: a convolution by the weights that pruning left, each multiplied by pixels in shared memory.
//
// Idea      A weight is stored with the distance, in shared memory, from an output's place to the pixel that the weight
//           multiplies. So a warp adds a filter's products for 32 * PIXELS neighbouring outputs with neither an index
//           nor a test: it reads two weights at once, the same for all lanes, then PIXELS pixels for each. Sums of
//           FILTERS filters stay in registers, while chunks of channels come to shared memory; where there are two
//           stages, the next chunk, if need be of the next tile, comes during the sums of this one. A sum starts at
//           zero, and its products are added by channel, row and column of the window, by fused multiply-adds, as in
//           unrolled: outputs have the same bits.
// Layout    images (image, channel, height, width) and outputs (image, filter, height, width) float32, as they come. In
//           shared memory, places of a channel follow each other image by image and row by row, with enough zeros after
//           each row and image for windows that reach over the edge. With strides, pixels whose row and column have the
//           same remainders form a phase, and a channel has several phases. A block goes from item to item: a set of
//           filters, FILTERS for each of warps_across warps, and a tile of places; its other warps have the same
//           filters and the tile's other places. stream: for each set of filters and chunk of channels, a segment in
//           units of 16 bytes: in bytes, where each warp's first filter begins; then, filter by filter, pairs of
//           (distance in bytes, weight), of which the last has bit 0 of its second distance set. A filter of an odd
//           number of weights, or of none, ends with weights of zero. segments: each one's first unit and their number.
//           order: the filter of each slot, -1 for none.
// Needs     cp.async (compute capability 8.0); one group; blocks of WARPS warps, any number. Places are counted in 32
//           bits. ADDS: 1 where the sum of results and others, laid out as outputs are, comes before the activation.
//           Pixels are copied four at a time where windows have one tap, strides are 1, there is no padding, a
//           channel is a multiple of 4 numbers, and images begin at a multiple of 16 bytes. FOURS: windows have one
//           tap, and a lane has PIXELS / 4 times four neighbouring places.
// Before    unrolled, which multiplies all weights, of global memory.
// Changes   time falls with the weights. A weight takes PIXELS + 2 reads of 128 bytes for 32 * PIXELS multiply-adds (a pair
//           of weights takes four, though all lanes get the same): shared memory bounds the kernel at about a fifth of the
//           peak of multiply-adds.
#include "conv2d/activated.cuh"
#include "conv2d/divisor.cuh"
#include "ptx/copies.cuh"

constexpr int THREADS = WARPS * WARP;
constexpr int SPAN = PIXELS * WARP;  // places of a warp
static_assert(!FOURS || PIXELS % 4 == 0, "a lane has whole fours");

struct Sizes {
    int places;                   // of all images
    int channels, height, width;  // of an image
    int filters, out_height, out_width;
    int stride_down, stride_across;
    int phase_down, phase_across;  // the first ones
    int phases_down, phases_across;
    int image_rows, row_places;  // places down and across an image, zeros included
    Divisor by_image, by_row;    // places of these
    int reach;                   // places before the first output's that windows see
    int pitch;                   // places of a phase that a block sees
    int chunk, chunks;           // channels of a chunk
    int sets, warps_across;      // sets of filters; warps that share a block's places
    int stages, weights_at, stage_bytes;
    bool copies_fours, stores_fours;

    __device__ __forceinline__ int image_places() const { return image_rows * row_places; }
    __device__ __forceinline__ int numbers() const { return phases_down * phases_across * pitch; }  // of a channel
    __device__ __forceinline__ int block_places() const { return WARPS / warps_across * SPAN; }
    __device__ __forceinline__ int out_plane() const { return out_height * out_width; }
};

struct Place {
    int image, row, column;

    __device__ __forceinline__ Place(const Sizes& size, int number) : image(size.by_image.divide(number)) {
        const int rest = number - image * size.image_places();
        row = size.by_row.divide(rest);
        column = rest - row * size.row_places;
    }
};

// Asks for the pixels that a block sees of channels from the `first` of a chunk on: places from `start` on.
template <int VECTOR>
__device__ __forceinline__ void copy_pixels(const Sizes& size, const float* __restrict__ images, int start, int first,
                                            unsigned to) {
    const int numbers = size.numbers(), plane = size.height * size.width;
    const int channels = min(size.chunk, size.channels - first), lines = (size.pitch / VECTOR + WARP - 1) / WARP;
    const int rounds = 2 * WARPS / lines + 1;  // channels that warps begin with side by side
    int line = threadIdx.x / WARP, across = 0, down = 0, round = 0;
    while (true) {
        for (; line >= lines; line -= lines) {
            if (++across < size.phases_across) continue;
            across = 0;
            if (++down < size.phases_down) continue;
            down = 0;
            ++round;
        }
        if (round >= rounds) return;
        const int number = (line * WARP + threadIdx.x % WARP) * VECTOR;
        line += WARPS;
        if (number >= size.pitch) continue;
        // Windows reach less than an image back. What they do not reach may stand in place of a zero.
        const Place place(size, start + number + size.image_places());
        const int y = place.row * size.stride_down + down + size.phase_down;
        const int x = place.column * size.stride_across + across + size.phase_across;
        const int image = place.image - 1;
        const bool there = y < size.height && x < size.width && image >= 0 && image * size.image_places() < size.places;
        const int64 pixel = static_cast<int64>(image) * size.channels * plane + y * size.width + x;
        const float* from = images + (there ? pixel : 0) + static_cast<int64>(first) * plane;
        const unsigned at = to + 4 * ((down * size.phases_across + across) * size.pitch + number);
#pragma unroll 4
        for (int channel = round; channel < channels; channel += rounds)
            copy_later<4 * VECTOR>(at + 4 * channel * numbers, from + static_cast<int64>(channel) * plane,
                                   there ? 4 * VECTOR : 0);
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

// Adds the products of two weights.
__device__ __forceinline__ void add_pair(const uint4& pair, const unsigned char* pixels, float (&sums)[PIXELS]) {
    float first[PIXELS], second[PIXELS];
    read_pixels(pixels + pair.x, first);
    read_pixels(pixels + (pair.z & ~1u), second);
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) sums[i] = fmaf(first[i], __uint_as_float(pair.y), sums[i]);
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) sums[i] = fmaf(second[i], __uint_as_float(pair.w), sums[i]);
}

// Adds the products of a warp's filters and a chunk's pixels; `pixels` are those of the thread's first output.
__device__ __forceinline__ void add_chunk(const unsigned char* weights, int warp, const unsigned char* pixels,
                                          float (&sums)[FILTERS][PIXELS]) {
    const uint4* read = reinterpret_cast<const uint4*>(weights + reinterpret_cast<const unsigned*>(weights)[warp]);
    uint4 pair = *read;
#pragma unroll
    for (int filter = 0; filter < FILTERS; ++filter) {
#pragma unroll 1
        while (true) {  // two at a time: no pair moves from register to register
            const uint4 next = *++read;
            add_pair(pair, pixels, sums[filter]);
            if (pair.z & 1) {
                pair = next;
                break;
            }
            pair = *++read;
            add_pair(next, pixels, sums[filter]);
            if (next.z & 1) break;
        }
    }
}

// The place that a thread's i-th output is at, from its first one's.
__device__ __forceinline__ constexpr int further(int i) { return FOURS ? i / 4 * (4 * WARP) + i % 4 : i * WARP; }

__device__ __forceinline__ float finished(const Finish& finish, float sum, int filter, float other) {
    if constexpr (ADDS) return finish(sum, filter, other);
    return finish(sum, filter);
}

__device__ __forceinline__ void store_sums(const Sizes& size, const int* __restrict__ filters, const Finish& finish,
                                           int first, const float (&sums)[FILTERS][PIXELS],
                                           const float* __restrict__ others, float* outputs) {
    int at[PIXELS];  // in filter 0; -1 where there is none
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int number = first + further(i);
        const Place place(size, number);
        const bool there = number < size.places && place.row < size.out_height && place.column < size.out_width;
        at[i] = there ? place.image * size.filters * size.out_plane() + place.row * size.out_width + place.column : -1;
    }
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        const int filter = filters[f];
        if (filter < 0) continue;
        const int64 plane = static_cast<int64>(filter) * size.out_plane();
        float* to = outputs + plane;
        const float* other = others + plane;
#if FOURS
        if (size.stores_fours) {
#pragma unroll
            for (int i = 0; i < PIXELS; i += 4) {
                if (at[i] < 0) continue;
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if constexpr (ADDS) four = __ldg(reinterpret_cast<const float4*>(other + at[i]));
                *reinterpret_cast<float4*>(to + at[i]) =
                    make_float4(finished(finish, sums[f][i], filter, four.x), finished(finish, sums[f][i + 1], filter, four.y),
                                finished(finish, sums[f][i + 2], filter, four.z),
                                finished(finish, sums[f][i + 3], filter, four.w));
            }
            continue;
        }
#endif
#pragma unroll
        for (int i = 0; i < PIXELS; ++i)
            if (at[i] >= 0) to[at[i]] = finished(finish, sums[f][i], filter, ADDS ? __ldg(other + at[i]) : 0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d(const float* __restrict__ images, const uint4* __restrict__ stream, const int2* __restrict__ segments,
           const int* __restrict__ order, const float* __restrict__ bias, float clip, const float* __restrict__ others,
           float* __restrict__ outputs,
           int places, int channels, int height, int width, int filters, int out_height, int out_width, int stride_down,
           int stride_across, int phase_down, int phase_across, int phases_down, int phases_across, int image_rows,
           int row_places, unsigned image_factor, int image_shift, unsigned row_factor, int row_shift, int reach,
           int pitch, int chunk, int chunks, int sets, int warps_across, int stages, int weights_at, int stage_bytes,
           int copies_fours, int stores_fours) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Sizes size{places,
                     channels,
                     height,
                     width,
                     filters,
                     out_height,
                     out_width,
                     stride_down,
                     stride_across,
                     phase_down,
                     phase_across,
                     phases_down,
                     phases_across,
                     image_rows,
                     row_places,
                     Divisor{image_factor, image_shift},
                     Divisor{row_factor, row_shift},
                     reach,
                     pitch,
                     chunk,
                     chunks,
                     sets,
                     warps_across,
                     stages,
                     weights_at,
                     stage_bytes,
                     copies_fours != 0,
                     stores_fours != 0};
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int own = warp % size.warps_across, share = warp / size.warps_across;
    for (int stage = 0; stage < size.stages; ++stage) {  // zeros, which weights of zero are multiplied by
        float* zeros = reinterpret_cast<float*>(shared + stage * size.stage_bytes) + size.chunk * size.numbers();
        for (int i = threadIdx.x; i < size.block_places(); i += THREADS) zeros[i] = 0.0f;
    }

    // Stages that always hold the same chunk and set get their weights once.
    const bool same = size.stages % size.chunks == 0 && gridDim.x % size.sets == 0;
    const auto bring = [&](int item, int number, int turn) {
        const unsigned to = shared_address(shared) + turn % size.stages * size.stage_bytes;
        if (!same || turn < size.stages) {
            const int2 segment = segments[item % size.sets * size.chunks + number];
            for (int i = threadIdx.x; i < segment.y; i += THREADS)
                copy_later<16>(to + size.weights_at + 16 * i, stream + segment.x + i);
        }
        const int seen = item / size.sets * size.block_places() - size.reach;
        if (size.copies_fours)
            copy_pixels<4>(size, images, seen, number * size.chunk, to);
        else
            copy_pixels<1>(size, images, seen, number * size.chunk, to);
    };

    const int items = size.sets * ((size.places + size.block_places() - 1) / size.block_places());
    const int within = share * SPAN + (FOURS ? 4 * lane : lane);
    int turn = 0;
    bring(blockIdx.x, 0, turn);
    close_copies();
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        float sums[FILTERS][PIXELS];
#pragma unroll
        for (int filter = 0; filter < FILTERS; ++filter)
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sums[filter][i] = 0.0f;
#pragma unroll 1
        for (int number = 0; number < size.chunks; ++number, ++turn) {
            const bool ends = number + 1 == size.chunks;
            const int next = ends ? item + gridDim.x : item;
            if (size.stages > 1) {
                if (next < items) bring(next, ends ? 0 : number + 1, turn + 1);
                close_copies();
                await_copies<1>();
            } else {
                await_copies<0>();
            }
            __syncthreads();
            const unsigned char* stage = shared + turn % size.stages * size.stage_bytes;
            add_chunk(stage + size.weights_at, own, stage + 4 * within, sums);
            __syncthreads();  // all have read what is overwritten now
            if (size.stages == 1) {
                if (next < items) bring(next, ends ? 0 : number + 1, turn + 1);
                close_copies();
            }
        }
        const int* filters_of_warp = order + (item % size.sets * size.warps_across + own) * FILTERS;
        const int first = item / size.sets * size.block_places() + within;
        store_sums(size, filters_of_warp, Finish{bias, clip}, first, sums, others, outputs);
    }
}
