// rows_to_units: rows as the first layer of `two_of_four` reads them, halves in units of eight inputs.
//
// Idea      A block has TAKEN rows. They come to shared memory as they are, 16 bytes a load where rows begin at a multiple
//           of that, and their largest numbers are found: all warps share the rows, so that enough loads are under way.
//           Then each thread takes eight inputs of a row, in the layer's order, RUN neighbours a load, and stores them as
//           16 bytes: TAKEN rows of a unit lie side by side. Numbers of float32 are scaled; halves stay as they are.
//           A row's largest number also shows whether one is infinite or NaN: the bits of these are larger.
// Layout    `order` has the first input of each RUN places, a multiple of RUN; where there is none, the first such multiple
//           that is not below `inputs`. Units and scales are as in sparse/two_of_four.cu; a row has room for `row_units`.
// Needs     shared memory for TAKEN whole rows, of the type INPUT.
#include "common.cuh"
#include "fours.cuh"
#include "sparse/row_scale.cuh"

#ifndef INPUT
#define INPUT float
#endif

constexpr int THREADS = 512, WARPS = THREADS / WARP, UNIT = 8, UNIT_BYTES = 16;
constexpr int RUNS = UNIT / RUN, RUNS_AT_ONCE = RUNS < 4 ? RUNS : 4;  // runs of a unit
constexpr int PARTS = TAKEN < WARPS ? WARPS / TAKEN : 1;  // warps of a row
constexpr int PIECE = sizeof(uint4) / sizeof(INPUT);      // numbers that are loaded at once
static_assert(ROWS % TAKEN == 0, "a block's rows are of one tile");
static_assert(TAKEN % WARPS == 0 || WARPS % TAKEN == 0, "warps share the rows evenly");

// So many bytes, to be moved at once.
template <int BYTES> struct Bytes { using Type = uint4; };
template <> struct Bytes<2> { using Type = half_bits; };
template <> struct Bytes<4> { using Type = unsigned; };
template <> struct Bytes<8> { using Type = uint2; };

template <int BYTES, class T>
__device__ __forceinline__ void move(T* to, const T* from) {
    using Type = typename Bytes<BYTES>::Type;
    *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(from);
}

// The bits of the largest number of a piece.
__device__ __forceinline__ int largest_bits(uint4 piece, float) {
    return largest_bits(make_float4(__uint_as_float(piece.x), __uint_as_float(piece.y), __uint_as_float(piece.z),
                                    __uint_as_float(piece.w)));
}
__device__ __forceinline__ int largest_bits(uint4 piece, half_bits) {
    const auto sizes = [](unsigned bits) { return bits & 0x7fff7fffu; };
    const unsigned pair = __vmaxu2(__vmaxu2(sizes(piece.x), sizes(piece.y)), __vmaxu2(sizes(piece.z), sizes(piece.w)));
    return __float_as_int(to_float(static_cast<half_bits>(max(pair & 0xffffu, pair >> 16))));
}

// Brings a part of a row to shared memory, zeros where there is none; returns the bits of its largest number. A warp
// calls it.
__device__ __forceinline__ int bring(INPUT* own, const INPUT* __restrict__ row, bool present, int inputs, int part,
                                     bool by_pieces) {
    const int lane = part * WARP + threadIdx.x % WARP;
    int most = 0;
    if (by_pieces) {
#pragma unroll 4
        for (int column = PIECE * lane; column < inputs; column += PIECE * PARTS * WARP) {
            const uint4 found = present ? __ldg(reinterpret_cast<const uint4*>(row + column)) : make_uint4(0, 0, 0, 0);
            *reinterpret_cast<uint4*>(own + column) = found;
            most = max(most, largest_bits(found, INPUT()));
        }
    } else {
#pragma unroll 8
        for (int column = lane; column < inputs; column += PARTS * WARP) {
            const INPUT found = present ? __ldg(row + column) : INPUT();
            own[column] = found;
            most = max(most, bits_of_size(as_number(found)));
        }
    }
    return warp_max(most);
}

// Eight numbers as halves, plane by plane: those of float32 scaled, and, in the next plane, what that leaves of each.
template <class T> struct Planes;
template <> struct Planes<float> {
    float numbers[UNIT];

    __device__ __forceinline__ Planes(const float (&given)[UNIT], float scale) {
#pragma unroll
        for (int k = 0; k < UNIT; ++k) numbers[k] = given[k] * scale;
    }
    __device__ __forceinline__ uint4 next() {
        unsigned pairs[UNIT / 2];
#pragma unroll
        for (int k = 0; k < UNIT / 2; ++k) {
            pairs[k] = to_halves(numbers[2 * k], numbers[2 * k + 1]);
            numbers[2 * k] -= to_float(static_cast<half_bits>(pairs[k] & 0xffffu));
            numbers[2 * k + 1] -= to_float(static_cast<half_bits>(pairs[k] >> 16));
        }
        return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
};
template <> struct Planes<half_bits> {
    uint4 halves;

    __device__ __forceinline__ Planes(const half_bits (&given)[UNIT], float)
        : halves(*reinterpret_cast<const uint4*>(given)) {}
    __device__ __forceinline__ uint4 next() const { return halves; }
};

// Shared memory has TAKEN times `stride` numbers, a multiple of 16 bytes, at least 2 * RUN more than `inputs`, with rows
// in different banks. largest: for each of `layers`, of `room` rows: of the first the
// row's, of the others 0. exponents: of the first. not_finite: set to 1 if a number is infinite or NaN; may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows_to_units(const INPUT* __restrict__ features, unsigned char* __restrict__ units, const int* __restrict__ order,
                  int* __restrict__ exponents, int* __restrict__ largest, unsigned* __restrict__ not_finite,
                  int64 rows, int64 room,
                  int inputs, int stride, int all_units, int row_units, int layers) {
    extern __shared__ __align__(16) INPUT memory[];
    __shared__ int found[TAKEN * PARTS];
    __shared__ float scales[TAKEN];
    const int64 first = static_cast<int64>(blockIdx.x) * TAKEN;
    const bool by_pieces = reads_by<PIECE>(features, inputs);
    for (int share = threadIdx.x / WARP; share < TAKEN * PARTS; share += WARPS) {
        const int number = share / PARTS;
        const int64 row = first + number;
        const int most =
            bring(memory + number * stride, features + row * inputs, row < rows, inputs, share % PARTS, by_pieces);
        if (threadIdx.x % WARP == 0) found[share] = most;
    }
    __syncthreads();
    if (threadIdx.x < TAKEN) {
        const int64 row = first + threadIdx.x;
        int most = 0;
        for (int part = 0; part < PARTS; ++part) most = max(most, found[threadIdx.x * PARTS + part]);
        const int exponent = sizeof(INPUT) == sizeof(half_bits) ? SCALED_EXPONENT : exponent_above(__int_as_float(most));
        scales[threadIdx.x] = scale_to(exponent);
        exponents[row] = exponent;
        if (not_finite != nullptr && !is_finite(most)) *not_finite = 1;
        for (int layer = 0; layer < layers; ++layer) largest[layer * room + row] = layer == 0 ? most : 0;
        for (int k = 0; k < 2 * RUN; ++k) memory[threadIdx.x * stride + inputs + k] = INPUT();
    }
    __syncthreads();
    const int number = threadIdx.x % TAKEN;
    const int64 row = first + number;
    const INPUT* own = memory + number * stride;
    unsigned char* to = units + (row / ROWS * PLANES * row_units * ROWS + row % ROWS) * UNIT_BYTES;
#if TAKEN == 1  // all threads have the row: more at a time take more registers than there are
#pragma unroll 2
#endif
    for (int unit = threadIdx.x / TAKEN; unit < all_units; unit += THREADS / TAKEN) {
        int runs[RUNS];
#pragma unroll
        for (int k = 0; k < RUNS; k += RUNS_AT_ONCE) move<4 * RUNS_AT_ONCE>(runs + k, order + unit * RUNS + k);
        __align__(16) INPUT numbers[UNIT];
#pragma unroll
        for (int k = 0; k < RUNS; ++k) move<RUN * sizeof(INPUT)>(numbers + k * RUN, own + runs[k]);
        Planes<INPUT> planes(numbers, scales[number]);
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            const int64 at = static_cast<int64>(plane) * row_units + unit;
            *reinterpret_cast<uint4*>(to + at * (ROWS * UNIT_BYTES)) = planes.next();
        }
    }
}
