// epilogue: bias and activation after a matrix product of a library.
//
// Idea      Each sum of the product becomes act(sum + bias), four neighbours a thread at a time where rows consist of fours
//           (VECTOR), and rounded to half precision where the next product wants that (RESULT).
// Layout    sums dense, float32, row-major, of (rows, outputs), and results likewise, perhaps in the same place; bias a
//           vector. What is counted are units of 4 or of 1, in all and in a row.
// Needs     blocks of THREADS threads; sums, results and bias at multiples of 16 bytes if VECTOR.
#include "common.cuh"
#include "products/kinds.cuh"

constexpr int COUNT = VECTOR ? 4 : 1;

__device__ __forceinline__ void read(const float* from, float (&values)[4]) {
    const float4 found = *reinterpret_cast<const float4*>(from);
    values[0] = found.x;
    values[1] = found.y;
    values[2] = found.z;
    values[3] = found.w;
}
__device__ __forceinline__ void read(const float* from, float (&values)[1]) { values[0] = *from; }

__device__ __forceinline__ void store(RESULT* to, const float (&values)[4]) { store_four(to, values); }
__device__ __forceinline__ void store(RESULT* to, const float (&values)[1]) { store_one(to, values[0]); }

extern "C" __global__ void __launch_bounds__(THREADS)
    add_bias_and_activate(int64 units, int width, const float* sums, RESULT* results, const float* __restrict__ bias,
                          int activation, float clip) {
    const int64 step = static_cast<int64>(gridDim.x) * THREADS;
    int64 unit = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    const int forward = static_cast<int>(step % width);
    int column = static_cast<int>(unit % width);
    for (; unit < units; unit += step) {
        float values[COUNT], added[COUNT];
        read(sums + unit * COUNT, values);
        read(bias + column * COUNT, added);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = activate(values[i] + added[i], activation, clip);
        store(results + unit * COUNT, values);
        column += forward;
        if (column >= width) column -= width;
    }
}
