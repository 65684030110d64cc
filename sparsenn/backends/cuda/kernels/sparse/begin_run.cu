// begin_run: what a run is given, written where the launches of the run read it.
//
// Idea      A graph of launches is captured once and replayed for any rows. So that no run disturbs the one before it,
//           the pointers and the number of rows travel as arguments of this launch, which is queued like the graph.
// Layout    `Call` and `Stage` of resident.cuh. `stages` is the first of a run's stages, null where it has none.
// Needs     a single thread.
#include "resident.cuh"

extern "C" __global__ void __launch_bounds__(1)
    begin_run(Call* call, Stage* stages, int rows, const int64* indptr, const void* indices, const float* one,
              const float* rows_in, const int* weights_in) {
    *call = {rows, indptr, indices, one};
    if (!stages) return;
    stages->rows_in = rows_in;
    stages->weights_in = weights_in;
}
