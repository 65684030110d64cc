// implicit_half: a convolution as a product of filters and pixels on the tensor cores, in half precision.
//
// Idea      Half precision has TF32's 11 significant bits in half the space, and an instruction multiplies twice as many.
// Layout    as implicit_float32, in chunks of 64 channels; images and outputs both float32 or both half (INPUT).
// Needs     as implicit_float32. Pixels beyond 65,504 become infinite.
// Before    implicit_tf32.
// Changes   half the instructions and half the bytes. Halves are read two pixels at a time (PAIRED) from eight channels,
//           and turned round in registers. For 3 x 3 taps, 64 channels and 64 filters a block of 256 pixels takes 4,608
//           instructions, 7,400 clocks, 4,600 of reading and 1,000 of writing shared memory, and moves 76 KB of images and
//           outputs, 3,200 clocks at 4.2 TB/s for all multiprocessors: the tensor cores would bound it, if warps did not wait
//           for pixels on their way through registers.
#include "implicit.cuh"

static_assert(KIND == TENSOR_HALF, "the precision that the rung is named for");
