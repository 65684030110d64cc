"""The first story: the direct convolution, from one thread per output to several pixels and filters a thread.

In order: `conv_baseline`, `conv_constant_filters`, then the engine's own `conv_unrolled`, `conv_tiled_shared`,
`conv_half`, `conv_per_shape`, `conv_implicit_gemm`, `conv_swept`, `conv_streamed`, and the engine's own
`conv_register_tiled`, where it ends. Sources are numbered by their places in it; the third, of `conv_unrolled`, is
`backends/cuda/kernels/conv2d/unrolled.cu`.
"""

__all__ = []
