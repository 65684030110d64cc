"""The challenge's inputs in a form small enough to be carried to a machine that should not spend minutes making them.

One file a size: the images' bits in order, every pixel column combined by exclusive or with the one before it, which
leaves outlines only, compressed by xz. 60,000 images of 65536 pixels take 27 MB.

Usage: python bench/packed_images.py MNIST_FOLDER TARGET_FOLDER [NEURONS …]
"""

from __future__ import annotations

import lzma
import math
import sys
from pathlib import Path

import numpy as np

from sparsenn.datasets import NEURON_COUNTS, mnist_inputs
from sparsenn.formats import CSR

__all__ = ["pack_images", "packed_path", "unpack_images"]

IMAGES = 60_000
AT_ONCE = 1000


def packed_path(folder: Path, neurons: int) -> Path:
    return folder / f"inputs{neurons}.xz"


def pack_images(inputs: CSR, path: Path) -> None:
    """Write all images of one size."""
    neurons = inputs.shape[1]
    side = math.isqrt(neurons)
    with lzma.open(path, "wb", preset=1) as file:
        for start in range(0, inputs.shape[0], AT_ONCE):
            rows = inputs.slice_groups(start, min(start + AT_ONCE, inputs.shape[0]))
            pixels = np.zeros(rows.shape, np.uint8)
            pixels[np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.indices] = 1
            columns = pixels.reshape(-1, side, side)
            columns[:, 1:] ^= columns[:, :-1].copy()
            file.write(np.packbits(pixels, axis=1).tobytes())


def unpack_images(folder: Path, neurons: int) -> CSR:
    """Read all images of one size."""
    side = math.isqrt(neurons)
    lengths, indices = [], []
    with lzma.open(packed_path(folder, neurons)) as file:
        while block := file.read(AT_ONCE * neurons // 8):
            bits = np.frombuffer(block, np.uint8).reshape(-1, side, side // 8)
            pixels = np.unpackbits(np.bitwise_xor.accumulate(bits, axis=1)).reshape(-1, neurons).view(bool)
            lengths.append(np.count_nonzero(pixels, axis=1))
            indices.append((np.flatnonzero(pixels) % neurons).astype(np.uint16))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return CSR((indptr.size - 1, neurons), indptr, np.concatenate(indices), np.ones(1, np.float32)).validate()


def main() -> None:
    source, target, *sizes = sys.argv[1:]
    for neurons in map(int, sizes or NEURON_COUNTS):
        pack_images(mnist_inputs(neurons, folder=source), packed_path(Path(target), neurons))


if __name__ == "__main__":
    main()
