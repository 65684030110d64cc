// tensor_tf32: TF32 on the tensor cores.
//
// Idea      Numbers are rounded to TF32's 11 significant bits and multiplied once; sums are float32.
// Layout    a, b and c row-major float32; as tensor_float32.
// Needs     compute capability 8.0.
// Before    tensor_float32.
// Changes   one instruction in place of three, and sums stay with the tensor cores. Numbers are rounded as lanes read
//           them: each of a warp's 64 rows and 64 columns once for 8 terms and 32 instructions.
#include "tensor_matrices.cuh"

static_assert(KIND == TENSOR_TF32, "the precision that the rung is named for");
