"""The ladder of `spmspm`: a network's layers, one after the other, on all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparsenn.backends.chains import SAME_ROWS, Features
from sparsenn.backends.contract import Backend
from sparsenn.backends.cpu.panel import PANEL, SCATTER
from sparsenn.backends.cuda.sparse.chunks.chain import CHUNKS
from sparsenn.backends.kernel_records import StepInput, StepOutput
from sparsenn.backends.oracle import forward
from sparsenn.backends.oracle.sparse import REFERENCE
from sparsenn.formats import CSR, Array, from_dense, index_dtype
from sparsenn.layers import SparseLinear
from sparsenn.network import Network
from sparsenn.studies.ladder import Ladder, Settled, Work
from sparsenn.studies.spmspm import cuda
from sparsenn.studies.spmspm.scipy_product import SCIPY
from sparsenn.studies.spmspm.sequential import SEQUENTIAL

# Most difference between float32 and float64 results. Kernels carry their own rounding through all layers, the
# reference carries its own.
RELATIVE = 1e-4  # of the result itself
ABSOLUTE = 1e-5  # of the layer's largest result


class LayerStage:
    """One layer, all rows kept.

    `inputs` are the network's; `features` and `expected`, SciPy CSR in float64, what the reference has before and
    after the layer.
    """

    def __init__(self, backend: Backend, layer: SparseLinear, features: Any, expected: Any, inputs: CSR) -> None:
        self._backend = backend
        self._inputs = inputs
        self._expected = expected
        self._stack = backend.prepare([layer], [np.ones(layer.outputs, np.int64)])
        self._multiplicity = np.ones(features.shape[0], np.int64)
        degrees = np.bincount(layer.weights.indices, minlength=layer.inputs)
        self.work = Work(
            bytes=_bytes(features) + layer.weights.nbytes + _bytes(expected),
            multiply_adds=int(degrees[features.indices].sum()),
        )

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return the step: one layer, no row dropped."""
        rows: Features = self._inputs if carried is None else carried
        return (StepInput(self._stack, 0, 1, self._backend.place(rows), self._multiplicity, droppable_from=1),)

    def settle(self, output: StepOutput) -> Settled:
        """Compare every element; the rows go on in the inputs' order, in memory of their own."""
        rows = self._backend.fetch(output.features)
        found = output.row_map.scatter(_dense(rows))
        expected = self._expected.toarray()
        difference = np.abs(found - expected)
        allowed = RELATIVE * np.abs(expected) + ABSOLUTE * np.abs(expected).max(initial=1.0)
        carried = rows if output.row_map is SAME_ROWS else from_dense(found)
        return Settled(carried, float(difference.max(initial=0.0)), bool((difference <= allowed).all()))


def _dense(features: Features) -> Array:
    if not isinstance(features, CSR):
        return features
    return features.to_scipy().toarray()


def _bytes(matrix: Any) -> int:
    """Bytes of a SciPy matrix in this package's CSR: 64-bit offsets, narrow indices, float32 or one value for all."""
    entry = index_dtype(matrix.shape[1]).itemsize
    values = 4 if matrix.nnz and bool((matrix.data == matrix.data[0]).all()) else 4 * matrix.nnz
    return int(8 * (matrix.shape[0] + 1) + entry * matrix.nnz + values)


def _stages(backend: Backend, network: Network, inputs: CSR) -> Iterator[LayerStage]:
    features = inputs.to_scipy().astype(np.float64)
    for layer in network.layers_of(SparseLinear):
        expected = forward(layer, features)
        yield LayerStage(backend, layer, features, expected, inputs)
        features = expected


LADDER = Ladder(
    "spmspm",
    "layer",
    _stages,
    rungs={
        "cpu": (SEQUENTIAL, SCIPY, SCATTER, PANEL),
        "cuda": (*cuda.KERNELS, CHUNKS),  # resident takes all layers at once: there are none to be timed one by one
        "reference": (REFERENCE,),
    },
    sweeps=cuda.VARIANTS,
    stage_count=lambda network, inputs: len(network),
    note="Every row is computed in every layer. Errors are absolute, of outputs; the largest of all layers.",
)
