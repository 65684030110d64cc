// layer_norm: the numbers of each position become (y - mean) / sqrt(variance + epsilon) * scale + shift.
//
// Idea      A team of threads takes a position in two passes that sum, numbers for their mean and squares of differences
//           from it for their variance, and one that writes. A position stays in the caches from pass to pass. Sums and
//           differences are of float64: numbers far from zero keep their digits.
// Layout    given and outputs (positions, width) by positions; float32, or float16 where HALF is 1. scale and shift
//           (width,) float32.
// Needs     blocks of THREADS threads, in teams of TEAM: a warp, or the whole block.
#include "images/teams.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(int64 positions, int64 width, double epsilon, const Number* __restrict__ given,
               const float* __restrict__ scale, const float* __restrict__ shift, Number* __restrict__ outputs) {
    const int64 position = (static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x) / TEAM;
    if (position >= positions) return;  // whole teams
    const int member = threadIdx.x % TEAM;
    const Number* numbers = given + position * width;
    double sum = 0.0, squares = 0.0;
    for (int64 at = member; at < width; at += TEAM) sum += loaded(numbers[at]);
    const double mean = over_team(sum, Sum()) / width;
    for (int64 at = member; at < width; at += TEAM) {
        const double difference = loaded(numbers[at]) - mean;
        squares += difference * difference;
    }
    const double factor = 1.0 / sqrt(over_team(squares, Sum()) / width + epsilon);
    for (int64 at = member; at < width; at += TEAM) {
        const double normalised = (loaded(numbers[at]) - mean) * factor;
        store(&outputs[position * width + at], static_cast<float>(normalised * scale[at] + shift[at]));
    }
}
