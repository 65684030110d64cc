"""Weights of a stack of dense layers in the order in which the fused kernels read them.

The tensor-core kernels (`kernels/mlp/fused.cuh`) multiply tiles of 8 inputs and 8 outputs, of which each lane of a warp
holds two weights; where those lie follows from the instructions m16n8k8 and m16n8k16 (PTX ISA, "Matrix Fragments for
mma"). An image starts with biases and clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.dense.stack import DenseLayer
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.machine import WARP
from sparsenn.formats import Array

TILE, TILE_ROWS = 8, 16  # columns and rows of a tile of a layer's inputs, as the instructions take it


@dataclass(frozen=True)
class Kind:
    """Differences between the tensor-core kernels."""

    source: str
    weight_bytes: int  # of a tile of 8 x 8 weights
    warps: int  # most warps of a block
    scratch: int = 0  # bytes of a warp for each of the widest layer's numbers
    row_tiles: int = 2  # most times 16 rows that a warp takes at a time


FLOAT32 = Kind("mlp/tensor_float32.cu", 512, 8, scratch=8, row_tiles=1)
TF32 = Kind("mlp/tensor_tf32.cu", 256, 8)
HALF = Kind("mlp/tensor_half.cu", 128, 8)
HALF_ROWS = Kind("mlp/tensor_half.cu", 128, 12)
"""HALF with features of half precision: rows that wait for their turn take half the registers."""


def tiles_of(width: int) -> int:
    """Return the tiles of 8 columns that a width takes."""
    return -(-width // TILE)


def tile_places(inputs: int, outputs: int, first: bool) -> Array:
    """Return which weight each lane holds, in the order of the kernels' tiles.

    Lane 4 g + t of a tile of 8 inputs and 8 outputs has the weights of output g from inputs c and c + 1, those of which
    it also has the features: c = 2 t, or in the first layer 4 t and 4 t + 2 of two neighbouring tiles' 16. The result
    is (tiles of inputs, tiles of outputs, 32, 2) int64: places in the row-major weights, -1 beyond their edge.
    """
    tiles = tiles_of(inputs)
    t, pair = np.arange(4)[:, None], np.arange(2)
    columns = 8 * np.arange(tiles)[:, None, None] + 2 * t + pair
    if first:
        even = tiles // 2 * 2
        starts = 16 * (np.arange(even) // 2) + 2 * (np.arange(even) % 2)
        columns[:even] = starts[:, None, None] + 4 * t + pair
    rows = columns[:, None, None]  # tile of inputs, tile of outputs, g, t, pair
    out = (8 * np.arange(tiles_of(outputs))[:, None] + np.arange(8))[None, :, :, None, None]
    places = np.where((rows < inputs) & (out < outputs), rows * outputs + out, -1)
    return places.reshape(tiles, tiles_of(outputs), WARP, 2)


def image(kind: Kind, layers: tuple[DenseLayer, ...]) -> Array:
    """Return biases, clips and weights in the order in which a tensor-core kernel reads them, as bytes."""
    parts = [_vectors(layers, 8)]
    for number, layer in enumerate(layers):
        places = tile_places(layer.inputs, layer.outputs, number == 0)
        weights = np.where(places < 0, np.float32(0), layer.weights.ravel()[np.maximum(places, 0)])
        high, low = split_tf32(weights)
        if kind is FLOAT32:
            parts.append(np.concatenate((high, low), axis=3))
        elif kind is TF32:
            parts.append(high)
        else:
            even = len(places) // 2 * 2
            pairs = weights[:even].reshape(even // 2, 2, *weights.shape[1:]).transpose(0, 2, 3, 1, 4)
            parts += [pairs.astype(np.float16), weights[even:].astype(np.float16)]
    found: Array = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
    return found


def _vectors(layers: tuple[DenseLayer, ...], multiple: int) -> Array:
    """Return biases, each padded to a multiple, then clips, then zeros up to 16 bytes; float32."""
    sizes = [-(-layer.outputs // multiple) * multiple for layer in layers]
    vectors: Array = np.zeros(-(-(sum(sizes) + len(layers)) // 4) * 4, np.float32)
    start = 0
    for layer, size in zip(layers, sizes, strict=True):
        vectors[start : start + layer.outputs] = layer.bias
        start += size
    vectors[start : start + len(layers)] = np.array([layer.clip for layer in layers], np.float32)
    return vectors


def fma_floats(widths: tuple[int, ...]) -> int:
    """Return the length of `fma_image` for a network of given widths."""
    padded = [-(-width // 4) * 4 for width in widths[1:]]
    weights = sum(width * size for width, size in zip(widths, padded, strict=False))
    return weights + -(-(sum(padded) + len(padded)) // 4) * 4


def fma_image(layers: tuple[DenseLayer, ...]) -> Array:
    """Return weights, each row padded to a multiple of 4, then biases and clips; float32."""
    parts = []
    for layer in layers:
        padded = np.zeros((layer.inputs, -(-layer.outputs // 4) * 4), np.float32)
        padded[:, : layer.outputs] = layer.weights
        parts.append(padded.ravel())
    found: Array = np.concatenate([*parts, _vectors(layers, 4)])
    return found
