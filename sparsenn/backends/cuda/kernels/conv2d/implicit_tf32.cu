// implicit_tf32: a convolution as a product of filters and pixels on the tensor cores, in TF32.
//
// Idea      Numbers are rounded to TF32's 11 significant bits and multiplied once; sums are float32.
// Layout    as implicit_float32. Filters are rounded when they are laid out, pixels on their way to shared memory.
// Needs     as implicit_float32.
// Before    implicit_float32.
// Changes   one instruction in place of three, sums that stay with the tensor cores, and larger tiles, because shared
//           memory is now as busy as those: a warp of 64 filters and 64 pixels reads 4 KB for 32 instructions of 8 terms,
//           32 clocks for 51.
#include "implicit.cuh"

static_assert(KIND == TENSOR_TF32, "the precision that the rung is named for");
