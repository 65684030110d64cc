// implicit_float32: a convolution as a product of filters and pixels on the tensor cores, in float32.
//
// Idea      Every output is a row of the filters times the pixels that its window meets. Those are never written down as
//           a matrix: a block copies the part of the images that its outputs see to shared memory, once for each chunk of
//           32 channels, and finds all taps there, at addresses shifted by the tap. Numbers are split into two of TF32.
// Layout    images and outputs (images, channels, height, width) float32, as they come; the part of them in shared
//           memory with the channels of a pixel side by side; filters in the order in which lanes read them
//           (conv2d/implicit.cuh, products/tensor.cuh).
// Needs     compute capability 8.0; one group; shared memory for a block's part of the images. A layer's filters, in the
//           kernel's order, besides the plain ones.
// Before    tensor_float32, which is made for few channels.
// Changes   depth is cut by channels, then taps, so that any number of channels will do, and few pixels are shared out
//           along the depth, too. For 3 x 3 taps a block reads about 1.5 times its pixels for each chunk instead of 9
//           times, with no kernel before that rearranges them. 64 x 128 outputs take 192 instructions for 8 terms, about
//           310 clocks of a multiprocessor, and 32 clocks of reading shared memory: the tensor cores would bound it, if
//           warps waited for nothing.
//
// Outputs that come out infinite or as no number are computed again by plain multiply-adds: they are what float32 gives.
#include "implicit_kernel.cuh"
