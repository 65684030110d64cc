// tensor_half: half precision on the tensor cores, sums in float32.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and an instruction multiplies twice as many.
// Layout    a, b row-major in half precision, c row-major in half precision or float32 (OUTPUT). Slabs of 64 terms of a
//           block's rows and columns in shared memory; the columns are transposed as they are read.
// Needs     compute capability 8.0. Inputs, and outputs in half precision, become infinite beyond 65,504.
// Before    tensor_tf32.
// Changes   half the bytes and half the instructions. A warp of 64 x 64 outputs reads 4 KB for 32 instructions of 16
//           terms: 32 clocks of shared memory for 51 of the tensor cores, and a block of 128 x 256 writes 12 KB for 256 of
//           them, so that both are busy more than four fifths of the time.
#include "tensor_matrices.cuh"

static_assert(KIND == TENSOR_HALF, "the precision that the rung is named for");
