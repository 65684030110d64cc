// fused_shared: what lies between the layers, and a layer's weights, in shared memory.
//
// Idea      Global memory is read for the features and written for the outputs, and nothing goes there in between. The
//           weights of a layer are copied to shared memory before they are used, so that ROWS rows share one reading.
// Layout    72 - 64 - 64 - 4; features (rows, 72) and outputs (rows, 4) float32, row-major; weights (inputs, outputs).
//           A block has ROWS rows, a thread for each hidden output. In the last layer, ROWS * 4 threads have an output.
// Needs     blocks of THREADS = 64 * ROWS threads; 21 KiB of shared memory at 4 rows.
// Before    fused_global.
// Changes   no scratch buffers in global memory; weights are read from there once for ROWS rows, a layer at a time.
#include "mlp.cuh"

constexpr int ROWS = THREADS / HIDDEN;
static_assert(THREADS == ROWS * HIDDEN, "a block is whole rows");

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(int64 rows, const float* __restrict__ features, const float* __restrict__ weights1,
        const float* __restrict__ bias1, const float* __restrict__ weights2, const float* __restrict__ bias2,
        const float* __restrict__ weights3, const float* __restrict__ bias3, float* __restrict__ outputs) {
    __shared__ float weights[INPUTS * HIDDEN];
    __shared__ float inputs[ROWS * INPUTS], hidden1[ROWS * HIDDEN], hidden2[ROWS * HIDDEN];
    const int64 first = static_cast<int64>(blockIdx.x) * ROWS;
    const int row = threadIdx.x / HIDDEN, unit = threadIdx.x % HIDDEN;

    load_rows<ROWS>(features, first, rows, inputs);
    copy<INPUTS * HIDDEN>(weights1, weights);
    __syncthreads();
    hidden1[threadIdx.x] = relu(dot<INPUTS, HIDDEN>(inputs + row * INPUTS, weights + unit, bias1[unit]));
    __syncthreads();

    copy<HIDDEN * HIDDEN>(weights2, weights);
    __syncthreads();
    hidden2[threadIdx.x] = relu(dot<HIDDEN, HIDDEN>(hidden1 + row * HIDDEN, weights + unit, bias2[unit]));
    __syncthreads();

    copy<HIDDEN * OUTPUTS>(weights3, weights);
    __syncthreads();
    const int out_row = threadIdx.x / OUTPUTS, column = threadIdx.x % OUTPUTS;
    if (out_row < ROWS && first + out_row < rows) {
        const float* given = hidden2 + out_row * HIDDEN;
        outputs[(first + out_row) * OUTPUTS + column] = dot<HIDDEN, OUTPUTS>(given, weights + column, bias3[column]);
    }
}
