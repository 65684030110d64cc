// warpgroup_half: a chain of any depth by whole warpgroups in half precision.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and an instruction multiplies twice as many.
// Layout    as warpgroup_tf32, in units of eight halves; features and outputs both float32 or both half (INPUT).
// Needs     as warpgroup_tf32. Inputs and intermediates beyond 65,504 become infinite.
// Before    warpgroup_tf32, tensor_half.
// Changes   half the bytes of weights and half the instructions: a slab of 16 KiB and 320 clocks has 64 inputs.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_HALF, "the precision that the kernel is named for");
