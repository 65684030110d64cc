// begin_run: what a run is given, written where the launches of the run read it.
//
// Idea      A graph of launches is captured once and replayed for any rows. So that no run disturbs the one before it,
//           the pointers and the number of rows travel as arguments of this launch, which is queued like the graph.
//           While the first layers read inputs, weights are on their way to the level 2 cache: those of many small
//           layers, one after the other, would each be waited for. Rows whose check is queued before this launch, and
//           found a fault, are none: nothing is computed from them.
// Layout    `Call` and `Stage` of resident.cuh. `stages` is the first of a run's stages. `weights`: the bytes that are
//           brought into the cache. `tallies`: the numbers that become 0. `faults`: numbers of the check, all 0 where there is
//           no fault; null where the rows have been checked.
// Needs     any number of threads; the first writes.
#include "resident.cuh"

constexpr int64 CACHE_LINE = 128;

extern "C" __global__ void __launch_bounds__(256)
    begin_run(Call* call, Stage* stages, int rows, const int64* indptr, const void* indices, const float* one,
              const float* rows_in, const int* weights_in, const char* weights, int64 bytes, uint64* tallies,
              int tallied, const uint64* faults, int checks) {
    const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64 step = static_cast<int64>(gridDim.x) * blockDim.x * CACHE_LINE;
    for (int64 at = thread * CACHE_LINE; at < bytes; at += step) bring_to_l2(weights + at);
    for (int64 at = thread; at < tallied; at += step / CACHE_LINE) tallies[at] = 0;
    if (thread != 0) return;
    for (int check = 0; faults && check < checks; check++)
        if (faults[check]) rows = 0;
    *call = {rows, indptr, indices, one};
    stages->rows_in = rows_in;
    stages->weights_in = weights_in;
}
