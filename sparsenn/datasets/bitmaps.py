"""Black-and-white images, eight pixel rows to the byte, on their way to a sparse matrix of inputs.

60,000 images of 256 × 256 take 0.5 GB so. A *stack* of bitmaps has the shape (octets, images, side), uint8, octets
being side / 8 rounded up: bit k of byte [o, i, x] is the pixel of image i in column x and pixel row 8·o + k. Thus
one pixel row of all images, which is what the enlargement makes at a time, is one bit of one contiguous plane.
"""

from __future__ import annotations

import numpy as np

from sparsenn.formats import CSR, Array, index_dtype
from sparsenn.formats.arrays import frozen
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.progress import Progress, silent

CHUNK = 1000
"""Images turned into indices between two reports of progress."""


def bitmap_stack(images: int, side: int) -> Array:
    """Return a stack of white images: zeros of shape (octets, images, side), uint8."""
    return np.zeros((-(-side // 8), images, side), np.uint8)


def stack_to_csr(stack: Array, progress: Progress = silent) -> CSR:
    """Turn bitmaps into inputs: one row per image, a one for each black pixel.

    Pixel (x, y), y counting pixel rows, becomes column x · side + y: images are stored column by column. Memory
    beyond the stack is that of the result.

    stack : (octets, images, side) uint8.

    Returns
    -------
    CSR of shape (images, side²), one stored value of 1, float32.
    """
    _, images, side = stack.shape
    indptr = np.zeros(images + 1, np.int64)
    for octet in stack:
        indptr[1:] += np.bitwise_count(octet).sum(axis=1, dtype=np.int64)
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], index_dtype(side * side))
    for start in range(0, images, CHUNK):
        stop = min(start + CHUNK, images)
        _write_indices(stack, indptr, indices, start, stop)
        progress("collect pixels", stop, images)
    return CSR((images, side * side), frozen(indptr), frozen(indices), frozen(np.ones(1, np.float32))).validate()


@compiled
def _write_indices(stack: Array, indptr: Array, indices: Array, start: int, stop: int) -> None:
    """Write the columns of images start to stop, rising within each image, to where `indptr` says."""
    octets, _, side = stack.shape
    for image in range(start, stop):
        entry = indptr[image]
        for x in range(side):
            for octet in range(octets):
                byte = stack[octet, image, x]
                pixel = x * side + octet * 8
                while byte:
                    if byte & 1:
                        indices[entry] = pixel
                        entry += 1
                    byte >>= 1
                    pixel += 1
