// warpgroup_half: a convolution as a product by whole warpgroups in half precision.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and an instruction multiplies twice as many.
// Layout    as warpgroup_tf32, in units of eight halves; images and outputs both float32 or both half (INPUT).
// Needs     as warpgroup_tf32. Pixels beyond 65,504 become infinite.
// Before    warpgroup_tf32.
// Changes   half the bytes and half the instructions.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_HALF, "the precision that the rung is named for");
