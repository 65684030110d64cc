// channels_last_half: a convolution as a product on the tensor cores, of images whose channels were put side by side.
//
// Idea      Whoever multiplies 64 channels of a pixel wants them next to each other. A kernel of its own lays images out
//           so first (conv2d/channels_last.cu). Bands are then copied to shared memory 16 bytes at a time, with no detour
//           through registers.
// Layout    images, as laid out: (images, chunks, height, width, 64 channels) half; outputs (images, filters, height,
//           width) float32 or half (INPUT); filters and bands as implicit_half.
// Needs     as implicit_half, and room for the images that are laid out at a time.
// Before    implicit_half, which turns pixels round in registers, once for every block that sees them; on an H200 its
//           schedulers have no warp to issue from in three quarters of their clocks.
// Changes   the layout, and with it the band's way: a copy that nobody waits for takes the place of eight reads, four
//           instructions of turning and a write. A chunk's band comes while the one before is multiplied. The registers
//           that this saves are those of more warps. Images are read and written once more.
#include "implicit_channels_last.cuh"

static_assert(KIND == TENSOR_HALF, "the precision that the rung is named for");
