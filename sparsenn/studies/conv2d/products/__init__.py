"""The second story: a convolution as a product of filters and windows, and a library's product beside it.

In order: `naive`, `coalesced`, `block_tiled`, `shared_tiled`, `vectorized`, and `library`, which the others are held
against. The engine's kernels on tensor cores go on from there.
"""

__all__ = []
