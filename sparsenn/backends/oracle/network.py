"""Whole networks in float64, layer by layer, whatever the layers are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.launching import combine_rows
from sparsenn.backends.oracle.dense import forward as forward_dense
from sparsenn.backends.oracle.images import forward_images
from sparsenn.backends.oracle.sparse import forward_sparse
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, ImageLayer, Linear, PerPosition, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, silent


@singledispatch
def forward(layer: Any, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Compute a layer in float64 on SciPy CSR features (rows, inputs), images of `shape`; returns SciPy CSR."""
    raise UsageError(f"the reference does not know the layer {type(layer).__name__}")


@forward.register
def _(layer: SparseLinear, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    return forward_sparse(layer, features)


@forward.register
def _(layer: Linear, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    from scipy.sparse import csr_array

    return csr_array(forward_dense((layer,), features.toarray()))


@forward.register
def _(layer: ImageLayer, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    from scipy.sparse import csr_array

    rows, width = features.shape
    images = features.toarray().reshape(rows, *((width,) if shape is None else shape))
    outputs = forward_images(layer, images)
    return csr_array(outputs.reshape(rows, prod(outputs.shape[1:])))


@forward.register
def _(layer: PerPosition, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    rows = features.shape[0]
    found = forward(layer.layer, features.reshape((rows * layer.positions, layer.layer.inputs)).tocsr())
    return found.reshape((rows, layer.outputs)).tocsr()


def run(network: Network, inputs: CSR, progress: Progress = silent) -> Any:
    """Run the whole network in float64; returns the outputs as a SciPy CSR array of shape (rows, outputs)."""
    values = {0: inputs.to_scipy().astype(np.float64)}
    for number, node in enumerate(network.nodes, start=1):
        features = [values[source] for source in node.sources]
        if isinstance(node.layer, CombiningLayer):
            values[number] = _combined(node.layer, features)
        else:
            values[number] = forward(node.layer, features[0], network.shapes[node.sources[0]])
        values = {value: values[value] for value in network.live[number]}
        progress("reference", number, len(network))
    return values[len(network)]


def _combined(layer: CombiningLayer, features: Sequence[Any]) -> Any:
    from scipy.sparse import csr_array

    return csr_array(combine_rows(layer, [each.toarray() for each in features]))


def categories(network: Network, inputs: CSR, progress: Progress = silent) -> Array:
    """Return the rows, counted from 0, whose float64 output has a non-zero, as sorted int64."""
    return np.flatnonzero(np.diff(run(network, inputs, progress).indptr)).astype(np.int64)
