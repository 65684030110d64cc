"""The oracle: float64, SciPy, one layer at a time, nothing clever. Every test compares with it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.base import (
    HOST_WEIGHT_MEMORY,
    Features,
    ImageStack,
    LayerCounts,
    StepInput,
    StepOutput,
    Variant,
    register,
)
from sparsenn.backends.dense import forward as forward_dense
from sparsenn.backends.host_arrays import largest_number, rows_on_host
from sparsenn.backends.images import prepared_as_they_are
from sparsenn.backends.reference_images import forward_images
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import Conv2d, ImageLayer, Linear, SparseLinear
from sparsenn.memory import free_memory
from sparsenn.network import Layer, Network
from sparsenn.progress import Progress, silent

__all__ = ["ReferenceBackend", "categories", "forward", "run"]


def forward(layer: Layer, features: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Compute a layer in float64 on SciPy CSR features of shape (rows, inputs); returns SciPy CSR.

    Parameters
    ----------
    shape : of one input, which layers of images must be told: (channels, height, width) or (inputs,).
    """
    from scipy.sparse import csr_array

    if isinstance(layer, ImageLayer):
        rows, width = features.shape
        images = features.toarray().reshape(rows, *((width,) if shape is None else shape))
        outputs = forward_images(layer, images)
        return csr_array(outputs.reshape(rows, prod(outputs.shape[1:])))
    if isinstance(layer, Linear):
        return csr_array(forward_dense((layer,), features.toarray()))
    product = csr_array(features @ layer.weights.to_scipy().astype(np.float64).tocsr())
    bias = layer.bias_vector().astype(np.float64)
    if layer.keeps_zero_rows:  # act(b) = 0: only stored elements can become non-zero
        product.data = layer.activation(product.data + bias[product.indices])
    else:
        product = csr_array(layer.activation(product.toarray() + bias))
    product.eliminate_zeros()
    return product


def run(network: Network, inputs: CSR, progress: Progress = silent) -> Any:
    """Run the whole network in float64; returns the outputs as a SciPy CSR array of shape (rows, outputs)."""
    features = inputs.to_scipy().astype(np.float64)
    for number, (layer, shape) in enumerate(zip(network, network.shapes, strict=False), start=1):
        features = forward(layer, features, shape)
        progress("reference", number, len(network))
    return features


def categories(network: Network, inputs: CSR, progress: Progress = silent) -> Array:
    """Return the rows, counted from 0, whose float64 output has a non-zero, as sorted int64."""
    return np.flatnonzero(np.diff(run(network, inputs, progress).indptr)).astype(np.int64)


class ReferenceBackend:
    """The reference behind the backend protocol, so that it passes the same tests as the others."""

    device = "reference"
    description = "reference (float64, SciPy)"
    prepares_ahead = False

    def free_memory(self) -> int:
        """Return the host's free memory."""
        return free_memory() or 0

    def weight_memory(self) -> int:
        """Return what backends on the host take."""
        return HOST_WEIGHT_MEMORY

    def prepared_bytes(self, layer: Layer) -> int:
        """Return the bytes of the weights, which are used as they are."""
        return layer.weights.nbytes if isinstance(layer, SparseLinear | Linear | Conv2d) else 0

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

    def place(self, features: Features) -> Features:
        """Return the features as CSR."""
        return _as_csr(features)

    def fetch(self, features: Features) -> Features:
        """Return the features: they are on the host."""
        return features

    def take_rows(self, features: Features, rows: Array) -> Features:
        """Return the given rows."""
        return CSR.from_scipy(_as_csr(features).to_scipy()[rows], np.float64)

    def equal_rows(self, features: Features) -> tuple[Array, Array]:
        """Group equal rows by comparing each one whole, as bytes."""
        rows = _as_csr(features)
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

    def take_in(self, rows: Any, keep_half: bool) -> tuple[Array, bool]:
        """Return rows as a float64 matrix; `keep_half` is not looked at."""
        return rows_on_host(rows).astype(np.float64), True

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row."""
        counts: Array = np.count_nonzero(features, axis=1).astype(np.int64)
        return counts

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers piece by piece."""
        return largest_number(features.values if isinstance(features, CSR) else features)


def _as_csr(features: Features) -> CSR:
    return features if isinstance(features, CSR) else from_dense(features, np.float64)


def _launch(step: StepInput) -> StepOutput:
    features = _as_csr(step.features).to_scipy().astype(np.float64)
    kept = np.arange(features.shape[0])
    counts = []
    for number in range(step.first, step.last):
        layer, copies = step.stack[number]
        degrees = np.diff(layer.weights.to_scipy().tocsr().indptr)
        edges = int(degrees[features.indices].sum())
        rows = features.shape[0]
        features = forward(layer, features)
        alive = np.diff(features.indptr) > 0
        row_of_entry = np.repeat(np.arange(rows), np.diff(features.indptr))
        counts.append(
            LayerCounts(
                kernel="reference",
                rows=rows,
                active_inputs=int(step.multiplicity[kept][alive].sum()),
                nonzeros=int((copies[features.indices] * step.multiplicity[kept][row_of_entry]).sum()),
                performed_edges=edges,
            )
        )
        if number >= step.droppable_from:
            features, kept = features[alive], kept[alive]
    return StepOutput(CSR.from_scipy(features, np.float64), kept, tuple(counts))


register(
    Variant(
        operation="spmspm",
        name="reference",
        device="reference",
        summary="SciPy's product in float64, one layer at a time: the oracle",
        launch=_launch,
        fuses=True,
    )
)
