"""The oracle behind the backend protocol, so that it passes the same tests as the other backends."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.contract import Features, ImageStack, RowMap, SparseRows
from sparsenn.backends.host import HostMemory, checked_rows
from sparsenn.backends.host_arrays import largest_number
from sparsenn.backends.machine import Machine
from sparsenn.backends.oracle.images import forward_images
from sparsenn.backends.oracle.sparse import as_csr
from sparsenn.backends.steps import prepared_as_they_are
from sparsenn.formats import CSR, Array
from sparsenn.layers import ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = ["ReferenceBackend"]


class ReferenceBackend(HostMemory):
    """Computes in float64 on the host, by NumPy and SciPy."""

    device = "reference"
    doubles = True
    description = "reference (float64, SciPy)"
    prepares_ahead = False
    machine = Machine(name="float64 reference", device="reference", multiprocessors=1)

    def prepared_bytes(self, layer: Layer) -> int:
        """Return the bytes of the weights, which are used as they are."""
        return layer.weight_bytes

    def dense_bytes(self, layer: SparseLinear) -> int:
        """Return the bytes of the weights with their zeros."""
        return 4 * layer.inputs * layer.outputs

    def prepare(self, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Any:
        """Return the layers with the number of neurons that each output stands for."""
        return tuple(zip(layers, copies, strict=True))

    def prepare_dense(self, layers: Sequence[Linear]) -> tuple[Linear, ...]:
        """Return the layers, which are used as they are."""
        return tuple(layers)

    def prepare_images(self, layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
        """Return the layers, which are used as they are."""
        return prepared_as_they_are(layers, shapes)

    def run_image_layer(self, layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
        """Run a layer in float64."""
        rows = features.shape[0]
        outputs = forward_images(layer, features.reshape(rows, *shape))
        return outputs.reshape(rows, prod(outputs.shape[1:]))

    def release(self) -> None:
        """Do nothing: no memory is kept."""

    def compile_seconds(self) -> float:
        """Return 0: nothing is compiled."""
        return 0.0

    def reads_as_is(self, inputs: Any) -> bool:
        """Return False: rows become float64."""
        return False

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Return checked CSR, or a float64 matrix."""
        if isinstance(rows, SparseRows):
            rows = checked_rows(rows)
        return as_csr(rows.validate()) if isinstance(rows, CSR) else rows.astype(np.float64)

    def take_rows(self, features: Features, rows: Array) -> Features:
        """Return the given rows."""
        return RowMap(rows).gather(as_csr(features))

    def equal_rows(self, features: Features) -> tuple[Array, Array]:
        """Group equal rows by comparing each one whole, as bytes."""
        rows = as_csr(features)
        seen: dict[tuple[bytes, bytes], int] = {}
        representatives: list[int] = []
        group = np.empty(rows.shape[0], np.int64)
        values = rows.expanded_values()
        for row in range(rows.shape[0]):
            entries = slice(rows.indptr[row], rows.indptr[row + 1])
            key = rows.indices[entries].tobytes(), values[entries].tobytes()
            if key not in seen:
                seen[key] = len(representatives)
                representatives.append(row)
            group[row] = seen[key]
        return np.array(representatives, np.int64), group

    def as_dense(self, features: Features) -> Array:
        """Return the features as a float64 matrix."""
        dense: Array = np.asarray(features.to_scipy().toarray() if isinstance(features, CSR) else features, np.float64)
        return dense

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row."""
        counts: Array = np.count_nonzero(features, axis=1).astype(np.int64)
        return counts

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers piece by piece."""
        return largest_number(features.values if isinstance(features, CSR) else features)
