// warpgroup_float32: a chain of any depth by whole warpgroups, of numbers split in two.
//
// Idea      Four warps together multiply 64 neurons' weights by all rows of a block with one instruction that reads both
//           from shared memory by itself (compute capability 9.0, "wgmma"). The rows are what such an instruction has any
//           multiple of 16 of: a block has as many as there is work for a multiprocessor, 80 where 10,000 rows are shared
//           by 132. A float is a number of TF32 and a rest; three of their four products count.
// Layout    features and outputs row-major float32; the image and the rows as in warpgroup.cuh, in two pieces.
// Needs     compute capability 9.0, built for sm_90a; layers of up to 256 outputs, inputs of the first of any number.
//           Denormal numbers are zero.
// Before    tensor_float32.
// Changes   weights need not find room in shared memory, and are read there once for all rows of a block instead of once
//           for every 16. A slab of 32 inputs and 128 neurons takes 80 rows 960 clocks at best, three times 320; its 32 KiB
//           come from the cache that all share in about as many.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_FLOAT32, "the precision that the kernel is named for");
