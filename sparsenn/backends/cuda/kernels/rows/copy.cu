// copy_rows: a matrix of any real type and any layout, written in another type and layout.
//
// Idea      A warp takes a piece of a row at a time, its lanes neighbouring numbers. All types that are read share one
//           build, as choosing among them once costs nothing beside the copy.
// Layout    source (rows, width), of the type that `from` numbers; target, of TO. Steps from row to row and from column to
//           column are any, in numbers.
// Needs     blocks of whole warps, any number of them: they go on in strides.
#include "common.cuh"
#include "ptx/numbers.cuh"

constexpr int PIECE = 1024;

struct Half {
    half_bits bits;
};

template <typename Number>
__device__ __forceinline__ float as_float(Number number) {
    return static_cast<float>(number);
}
__device__ __forceinline__ float as_float(Half number) { return to_float(number.bits); }

template <typename Number>
__device__ __forceinline__ void store(float* place, Number number) {
    *place = as_float(number);
}
template <typename Number>
__device__ __forceinline__ void store(half_bits* place, Number number) {
    *place = to_half(as_float(number));
}
__device__ __forceinline__ void store(half_bits* place, Half number) { *place = number.bits; }
template <typename Number>
__device__ __forceinline__ void store(int64* place, Number number) {
    *place = static_cast<int64>(number);
}
__device__ __forceinline__ void store(int64* place, Half number) { *place = static_cast<int64>(as_float(number)); }

template <typename From>
__device__ void copy(int64 rows, int64 width, const void* source, int64 down, int64 across, TO* target, int64 target_down,
                     int64 target_across) {
    const From* from = static_cast<const From*>(source);
    const int64 warps = static_cast<int64>(gridDim.x) * (blockDim.x / WARP), pieces = (width + PIECE - 1) / PIECE;
    for (int64 unit = blockIdx.x * static_cast<int64>(blockDim.x / WARP) + threadIdx.x / WARP; unit < rows * pieces;
         unit += warps) {
        const int64 row = unit / pieces, first = unit % pieces * PIECE, last = min(width, first + PIECE);
        for (int64 column = first + threadIdx.x % WARP; column < last; column += WARP)
            store(target + row * target_down + column * target_across, from[row * down + column * across]);
    }
}

extern "C" __global__ void copy_rows(int from, int64 rows, int64 width, const void* __restrict__ source, int64 down,
                                     int64 across, TO* __restrict__ target, int64 target_down, int64 target_across) {
#define COPY(number, type) \
    case number: copy<type>(rows, width, source, down, across, target, target_down, target_across); break
    switch (from) {
        COPY(0, float);
        COPY(1, Half);
        COPY(2, double);
        COPY(3, bool);
        COPY(4, unsigned char);
        COPY(5, signed char);
        COPY(6, unsigned short);
        COPY(7, short);
        COPY(8, unsigned);
        COPY(9, int);
        COPY(10, uint64);
        COPY(11, int64);
    }
}
