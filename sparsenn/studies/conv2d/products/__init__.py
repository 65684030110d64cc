"""The second story: a convolution as a product of filters and windows, and a library's product beside it.

In order: `conv_naive`, `conv_coalesced`, `conv_block_tiled`, `conv_shared_tiled`, `conv_vectorized`, and
`conv_library`, which the others are held against. The engine's kernels on tensor cores go on from there.
"""

__all__ = []
