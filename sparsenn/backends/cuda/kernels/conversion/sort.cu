// sort: a block marks a group's indices in a bitmap and counts the marks below each.
//
// Idea      Indices of a group differ, and are less than the matrix is wide. Set one bit for each; then an entry's
//           place is the number of bits below its own: the bits of all earlier words, summed by a scan, and those below
//           it in its word. Nothing is compared: the time grows with the length of a group, whose entries are read and
//           written side by side.
// Layout    offsets (groups + 1,) int64; from indices of INDEX and values float32 (not touched where `iso`) to
//           sorted_indices and sorted_values. The bitmap covers WINDOW indices; groups that reach further go through
//           several windows, those without an entry being left out.
// Needs     blocks of THREADS threads, one a group at a time; indices differ within each group.
#include "common.cuh"

constexpr int WORDS = WINDOW / 32;
static_assert(WINDOW % 32 == 0 && WORDS % THREADS == 0, "each thread scans the same number of words");

// Count the marks before each word; returns the number of all marks.
__device__ __forceinline__ int count_before(const unsigned* bitmap, int* before, int words) {
    int carried = 0;
    for (int start = 0; start < words; start += THREADS) {
        const int word = start + threadIdx.x;
        int total;
        const int rank = block_exclusive_scan<THREADS>(word < words ? __popc(bitmap[word]) : 0, &total);
        if (word < words) before[word] = carried + rank;
        carried += total;
    }
    return carried;
}

extern "C" __global__ void __launch_bounds__(THREADS, 8)
    sort(int groups, int width, const int64* __restrict__ offsets, const INDEX* __restrict__ indices,
         const float* __restrict__ values, int iso, INDEX* __restrict__ sorted_indices,
         float* __restrict__ sorted_values) {
    __shared__ unsigned bitmap[WORDS];
    __shared__ int before[WORDS];
    __shared__ int beyond;  // the smallest index behind this window
    for (int group = blockIdx.x; group < groups; group += gridDim.x) {
        const int64 begin = offsets[group], end = offsets[group + 1];
        int64 placed = begin;
        int base = 0;
        while (placed < end) {
            const int words = min(WORDS, (width - base - 1) / 32 + 1);
            for (int word = threadIdx.x; word < words; word += THREADS) bitmap[word] = 0;
            if (threadIdx.x == 0) beyond = width;
            __syncthreads();
            for (int64 at = begin + threadIdx.x; at < end; at += THREADS) {
                const int local = static_cast<int>(indices[at]) - base;
                if (local >= WINDOW) atomicMin(&beyond, base + local);
                else if (local >= 0) atomicOr(&bitmap[local / 32], 1u << (local % 32));
            }
            __syncthreads();
            const int marks = count_before(bitmap, before, words);
            __syncthreads();
            for (int64 at = begin + threadIdx.x; at < end; at += THREADS) {
                const int local = static_cast<int>(indices[at]) - base;
                if (local < 0 || local >= WINDOW) continue;
                const int64 slot = placed + before[local / 32] + __popc(bitmap[local / 32] & lanes_below(local % 32));
                sorted_indices[slot] = indices[at];
                if (!iso) sorted_values[slot] = values[at];
            }
            if (beyond == width) placed = end;  // no entry is left; repeated indices end here too
            else placed += marks;
            base = beyond;
            __syncthreads();  // the bitmap has been read
        }
    }
}
