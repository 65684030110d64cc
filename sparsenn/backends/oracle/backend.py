"""The oracle behind the backend protocol, so that it passes the same tests as the other backends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, SparseRows
from sparsenn.backends.host import HostMemory, checked_rows, combine
from sparsenn.backends.kernel_records import ImageStack, Shapes, Sources
from sparsenn.backends.machine import Machine
from sparsenn.backends.oracle.images import forward_images
from sparsenn.backends.oracle.sparse import as_csr
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, Conv2d, ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer


class ReferenceBackend(HostMemory):
    """Computes in float64 on the host, by NumPy and SciPy."""

    device = "reference"
    doubles = True
    description = "reference (float64, SciPy)"
    prepares_ahead = False
    row_types = ()  # rows become float64
    machine = Machine(name="float64 reference", device="reference", multiprocessors=1)

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Return the bytes of the weights, which are used as they are, or of those with their zeros."""
        if with_zeros and isinstance(layer, SparseLinear):
            return 4 * layer.inputs * layer.outputs
        return layer.weight_bytes

    def prepare(
        self, layers: Sequence[Any], copies: Sequence[Array] = (), shapes: Shapes = (), sources: Sources = ()
    ) -> Any:
        """Return the layers, which are used as they are; sparse ones with the neurons that each output stands for."""
        if isinstance(layers[0], SparseLinear):
            return tuple(zip(layers, copies, strict=True))
        if isinstance(layers[0], Linear):
            return tuple(layers)
        (layer,) = layers
        prepared = layer if isinstance(layer, Conv2d) else partial(_run_layer, layer, shapes[0])
        return ImageStack((layer,), tuple(shapes), (prepared,))

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Return checked CSR, or a float64 matrix."""
        if isinstance(rows, SparseRows):
            rows = checked_rows(rows)
        return as_csr(rows.validate()) if isinstance(rows, CSR) else rows.astype(np.float64)

    def as_dense(self, features: Features) -> Array:
        """Return the features as a float64 matrix."""
        return np.asarray(features.to_scipy().toarray() if isinstance(features, CSR) else features, np.float64)

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row."""
        return np.count_nonzero(features, axis=1).astype(np.int64)


def _run_layer(layer: ImageLayer, shape: tuple[int, ...], *matrices: Array) -> Array:
    if isinstance(layer, CombiningLayer):
        return combine(layer, matrices)
    (features,), rows = matrices, matrices[0].shape[0]
    outputs = forward_images(layer, features.reshape(rows, *shape))
    return outputs.reshape(rows, prod(outputs.shape[1:]))
