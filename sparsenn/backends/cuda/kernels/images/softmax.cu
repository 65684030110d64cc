// softmax: each row's numbers become exp(y) / sum of exp(y), or the logarithms of that where LOGARITHM is 1.
//
// Idea      A team of threads takes a row in three passes: the largest number, which is subtracted so that nothing
//           overflows; the sum of the powers; the shares. A row stays in the caches from pass to pass.
// Layout    rows and outputs (rows, width) by rows; float32, or float16 where HALF is 1.
// Needs     blocks of THREADS threads, in teams of TEAM: a warp, or the whole block.
#include "images/teams.cuh"

struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const { return larger_or_nan(a, b); }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax(int64 rows, int64 width, const Number* __restrict__ given, Number* __restrict__ outputs) {
    const int64 row = (static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x) / TEAM;
    if (row >= rows) return;  // whole teams
    const int member = threadIdx.x % TEAM;
    const Number* numbers = given + row * width;
    float largest = -infinity();
    double sum = 0.0;
    for (int64 at = member; at < width; at += TEAM) largest = larger_or_nan(largest, loaded(numbers[at]));
    largest = over_team(largest, Largest());
    for (int64 at = member; at < width; at += TEAM) sum += expf(loaded(numbers[at]) - largest);
    sum = over_team(sum, Sum());
    const double logarithm = LOGARITHM ? log(sum) : 0.0;
    for (int64 at = member; at < width; at += TEAM) {
        const float shifted = loaded(numbers[at]) - largest;
        store(&outputs[row * width + at], static_cast<float>(LOGARITHM ? shifted - logarithm : expf(shifted) / sum));
    }
}
