"""The CPU backend: numba kernels on plain threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, SparseRows
from sparsenn.backends.cpu import convolution, dense, images, incoming, panel, row_by_row, training
from sparsenn.backends.cpu.image_graph import graph_of
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.backends.cpu.stack import Stack, Workspace
from sparsenn.backends.cpu.tiles import TILE
from sparsenn.backends.host import HostMemory
from sparsenn.backends.kernel_records import ImageStack, Shapes, Sources
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.formats import CSR, Array
from sparsenn.layers import Conv2d, FullyConnected, Linear, SparseLinear
from sparsenn.network import Layer
from sparsenn.runtime.workers import thread_count

__all__ = ["CPUBackend", "convolution", "dense", "panel", "row_by_row", "training"]


class CPUBackend(HostMemory):
    """Computes on all cores this process may use; several threads may launch, each with buffers of its own."""

    device = "cpu"
    doubles = False
    prepares_ahead = False  # preparing takes the cores that compute

    def __init__(self) -> None:
        self._workspace = Workspace()

    @property
    def description(self) -> str:
        """The device in words."""
        threads = thread_count()
        return f"cpu ({threads} thread{'s' if threads > 1 else ''})"

    @property
    def machine(self) -> Machine:
        """The processor with the threads in use."""
        return host_machine()

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Return the bytes of a packed layer, 12 an output for bias and copies; sparse weights by rows come on top."""
        if not isinstance(layer, FullyConnected):
            return layer.weight_bytes
        if with_zeros:
            return FLOAT_BYTES * layer.inputs * (layer.outputs + parts_of(layer.outputs, TILE) * TILE)
        by_rows = 2 * layer.weights.nnz * FLOAT_BYTES if isinstance(layer, SparseLinear) else 0
        return layer.weight_bytes + 12 * layer.outputs + by_rows

    def prepare(
        self, layers: Sequence[Any], copies: Sequence[Array] = (), shapes: Shapes = (), sources: Sources = ()
    ) -> Any:
        """Pack sparse layers end to end, and lay dense weights out in panels; those of images are packed later."""
        if isinstance(layers[0], SparseLinear):
            return Stack(layers, copies, self._workspace)
        if isinstance(layers[0], Linear):
            return dense.prepare(layers)
        if len(layers) > 1 or isinstance(layers[0], Conv2d):
            return graph_of(layers, shapes, sources)
        return ImageStack(tuple(layers), tuple(shapes), (partial(images.run_layer, layers[0], shapes[0]),))

    def release(self) -> None:
        """Drop the buffers for rows; threads of a failed launch may still write to them."""
        self._workspace.release()

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Return rows in float32, dense ones in row-major order, sparse ones checked; `keep_half` is ignored."""
        if isinstance(rows, CSR):
            if rows.values.dtype == np.float32:
                return rows.validate()
            rows = SparseRows(rows.shape, rows.indptr, rows.indices, rows.values)
        return incoming.check_rows(rows) if isinstance(rows, SparseRows) else np.ascontiguousarray(rows, np.float32)

    def as_dense(self, features: Features) -> Array:
        """Return the features as a float32 matrix."""
        if isinstance(features, CSR):
            return incoming.sparse_to_dense(features)
        return np.asarray(features, np.float32)

    def as_csr(self, matrix: Array) -> CSR:
        """Return a matrix as CSR: counted and gathered on all cores."""
        return incoming.dense_to_sparse(matrix)

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row."""
        return images.count_nonzeros(features)
