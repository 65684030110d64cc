// coalesced: neighbouring threads have neighbouring pixels.
//
// Idea      As naive, but lanes follow the direction in which images lie in memory: a warp reads and writes pixels side
//           by side, and a weight that it reads serves all lanes.
// Layout    as naive.
// Needs     as naive.
// Before    naive.
// Changes   which thread has which output.
#include "patches.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    conv2d(int64 images, const float* __restrict__ inputs, const float* __restrict__ weights,
           const float* __restrict__ bias, float clip, float* __restrict__ outputs) {
    one_output_a_thread<false>(Patches{images, inputs, weights, {bias, clip}, outputs});
}
