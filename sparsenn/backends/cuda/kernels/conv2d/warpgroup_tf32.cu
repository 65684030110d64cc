// warpgroup_tf32: a convolution as a product by whole warpgroups in TF32.
//
// Idea      Where 11 significant bits suffice, one of the three products of split numbers does.
// Layout    as warpgroup_float32, with one piece.
// Needs     as warpgroup_float32. Pixels and weights are rounded to TF32, sums are float32.
// Before    warpgroup_float32.
// Changes   the pieces; sums stay in the instructions from the first slab to the last, two slabs of which are multiplied at
//           a time.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_TF32, "the precision that the rung is named for");
