// tensor_float32: float32 on the tensor cores, every number split into two of TF32.
//
// Idea      x = hi + lo, each of TF32's 11 significant bits, loses at most the last bit of x, so that x w = lo_x hi_w +
//           hi_x lo_w + hi_x hi_w to float32's own precision. A warp computes 64 x 32 outputs: what it reads and splits
//           serves 48 instructions for each 8 terms.
// Layout    a, b and c row-major float32. Slabs of 32 terms of a block's rows and columns in shared memory, several of
//           them on their way (products/tensor.cuh, tensor_matrices.cuh).
// Needs     compute capability 8.0.
// Before    vectorized.
// Changes   multiplications on the tensor cores. 16 x 8 outputs take three instructions for 8 terms, about 5 clocks of a
//           multiprocessor for 1,024 multiply-adds, which plain multiply-adds take 8 for. Small products are cut along
//           their depth, too, so that all multiprocessors have work.
//
// Outputs that come out infinite or as no number are computed again by plain multiply-adds: they are what float32 gives.
#include "tensor_matrices.cuh"

static_assert(KIND == TENSOR_FLOAT32, "the precision that the rung is named for");
