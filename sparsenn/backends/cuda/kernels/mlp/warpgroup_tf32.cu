// warpgroup_tf32: a chain of any depth by whole warpgroups in TF32.
//
// Idea      Where 11 significant bits suffice, one of the three products of split numbers does.
// Layout    as warpgroup_float32, with one piece.
// Needs     as warpgroup_float32. What is multiplied is rounded to TF32, sums are float32.
// Before    warpgroup_float32, tensor_tf32.
// Changes   the pieces; sums stay in the instructions from a layer's first slab to its last, two slabs of which are
//           multiplied at a time. A slab of 32 inputs and 128 neurons takes 80 rows 320 clocks at best; its 16 KiB come from
//           the cache that all share in about 500.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_TF32, "the precision that the kernel is named for");
