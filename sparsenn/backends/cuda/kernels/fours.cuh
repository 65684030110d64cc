// Numbers in memory, float32 or halves, as float32: one by one, or four neighbours at a multiple of their bytes.
#pragma once
#include "ptx/numbers.cuh"

__device__ __forceinline__ float as_number(float number) { return number; }
__device__ __forceinline__ float as_number(half_bits number) { return to_float(number); }
template <class T>
__device__ __forceinline__ float number_at(const T* place) {
    return as_number(__ldg(place));
}

__device__ __forceinline__ float4 four_of(float4 four) { return four; }
__device__ __forceinline__ float4 four_of(uint2 pairs) {
    return make_float4(to_float(static_cast<half_bits>(pairs.x & 0xffffu)), to_float(static_cast<half_bits>(pairs.x >> 16)),
                       to_float(static_cast<half_bits>(pairs.y & 0xffffu)), to_float(static_cast<half_bits>(pairs.y >> 16)));
}
__device__ __forceinline__ float4 four_at(const float* place) { return __ldg(reinterpret_cast<const float4*>(place)); }
__device__ __forceinline__ float4 four_at(const half_bits* place) {
    return four_of(__ldg(reinterpret_cast<const uint2*>(place)));
}

// The same of numbers that the kernel writes over.
__device__ __forceinline__ float4 written_four(const float* place) { return *reinterpret_cast<const float4*>(place); }
__device__ __forceinline__ float4 written_four(const half_bits* place) {
    return four_of(*reinterpret_cast<const uint2*>(place));
}

__device__ __forceinline__ void store_one(float* place, float value) { *place = value; }
__device__ __forceinline__ void store_one(half_bits* place, float value) { *place = to_half(value); }

__device__ __forceinline__ void store_four(float* place, float4 four) { *reinterpret_cast<float4*>(place) = four; }
__device__ __forceinline__ void store_four(half_bits* place, float4 four) {
    *reinterpret_cast<uint2*>(place) = make_uint2(to_halves(four.x, four.y), to_halves(four.z, four.w));
}
template <class T>
__device__ __forceinline__ void store_four(T* place, const float (&four)[4]) {
    store_four(place, make_float4(four[0], four[1], four[2], four[3]));
}

// Whether rows of a matrix can be read and written by so many numbers at once; and by fours.
template <int COUNT, class T>
__device__ __forceinline__ bool reads_by(const T* matrix, int width) {
    return width % COUNT == 0 && reinterpret_cast<uint64>(matrix) % (COUNT * sizeof(T)) == 0;
}
template <class T>
__device__ __forceinline__ bool by_fours(const T* matrix, int width) {
    return reads_by<4>(matrix, width);
}
