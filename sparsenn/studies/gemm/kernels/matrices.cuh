// Two dense matrices as factors for product.cuh: a (rows x depth) times b (depth x columns), row-major.
#pragma once
#include "product.cuh"

struct Matrices {
    typedef const float* Row;
    typedef const float* Column;
    typedef int Term;

    int down, across, deep;
    const float* __restrict__ a;
    const float* __restrict__ b;
    float* __restrict__ c;

    __device__ __forceinline__ int64 rows() const { return down; }
    __device__ __forceinline__ int64 columns() const { return across; }
    __device__ __forceinline__ int depth() const { return deep; }
    __device__ __forceinline__ Row row(int number) const { return a + static_cast<int64>(number) * deep; }
    __device__ __forceinline__ Column column(int64 number) const { return b + number; }
    __device__ __forceinline__ Term term(int number) const { return number; }
    __device__ __forceinline__ float left(Row at, Term term) const { return at[term]; }
    __device__ __forceinline__ float right(Column at, Term term) const {
        return at[static_cast<int64>(term) * across];
    }
    __device__ __forceinline__ void store(int row, int64 column, float sum) const {
        c[static_cast<int64>(row) * across + column] = sum;
    }

    template <typename Body>
    __device__ __forceinline__ void each_term(const Body& body) const {
#pragma unroll 4
        for (int number = 0; number < deep; ++number) body(number);
    }
};
