// warpgroup_float32: a convolution as a product by whole warpgroups, of numbers split in two.
//
// Idea      Four warps together multiply 64 filters by up to 128 pixels with one instruction that reads both from shared
//           memory by itself (compute capability 9.0, "wgmma"). With pixels in one row, padding included, and planes of 16
//           bytes a pixel, a tap's pixels are a matrix that lies there already, at a distance: no pixel is copied for a
//           tap, and no register holds one. A float is a number of TF32 and a rest; three of their four products count.
// Layout    laid: as conv2d/unit_planes.cu leaves images, in two pieces. filters: (64 filters, chunk, tap, piece, unit,
//           filter) of 16 bytes, zeros past the last filter or channel. images, weights and bias as they come; outputs
//           (images, filters, height, width) float32.
// Needs     compute capability 9.0, built for sm_90a; stride 1 and one group; room for a band. Denormal numbers are zero.
// Before    implicit_float32, whose warps wait for shared memory and copies more than they multiply.
// Changes   who reads shared memory, and who asks for copies: a warp that does nothing else.
#include "warpgroup.cuh"

static_assert(KIND == TENSOR_FLOAT32, "the precision that the rung is named for");
