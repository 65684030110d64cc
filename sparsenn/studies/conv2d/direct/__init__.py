"""The first story: the direct convolution, from one thread per output to several pixels and filters a thread.

In order: `baseline`, `constant_filters`, then the engine's own `unrolled`, `tiled_shared`, `half`, `per_shape`,
`implicit_gemm`, `swept`, `streamed`, and the engine's own `register_tiled`, where it ends. Sources are numbered by
their places in it; the third, of `unrolled`, is `backends/cuda/kernels/conv2d/unrolled.cu`.
"""

__all__ = []
