"""Float64 on a GPU: products by cuSPARSE and cuBLAS through CuPy, all rows dense, nothing dropped or grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, NumberCheck, RowsLeft, SparseRows
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.transfer.queue import CallQueue
from sparsenn.backends.host import checked_rows
from sparsenn.backends.kernel_records import DenseKernel, ImageStack, Shapes, Sources, SparseKernel
from sparsenn.backends.launching import combine_rows
from sparsenn.backends.registry import register
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, Flatten, ImageLayer, Linear, LogSoftmax, Slice, SoftmaxLayer, SparseLinear
from sparsenn.layers.activation_names import row_of, table_row
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.formulas import evaluate
from sparsenn.network import Layer

DEVICE = "cuda_float64"  # what the kernels of this backend are registered for

_SPARSE = "cupyx.scipy.sparse"
_SPECIAL = "cupyx.scipy.special"
_MOST_INDEX = np.iinfo(np.int32).max


class DoubleCUDABackend(CUDABackend):
    """Computes in float64 on one NVIDIA GPU. Features on the device are row-major CuPy matrices of float64."""

    device = DEVICE
    doubles = True
    prepares_ahead = False
    row_types = ()  # rows become float64

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.queue = _Queue(index)

    @property
    def description(self) -> str:
        """The device in words."""
        return f"{super().description}, in float64"

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Return the device memory that a layer takes."""
        if with_zeros:
            return super().prepared_bytes(layer, with_zeros)
        if isinstance(layer, SparseLinear):
            return 12 * layer.weights.nnz + 12 * layer.outputs
        return 2 * layer.weight_bytes + (8 * layer.outputs if isinstance(layer, Linear) else 0)

    def prepare(
        self, layers: Sequence[Any], copies: Sequence[Array] = (), shapes: Shapes = (), sources: Sources = ()
    ) -> Any:
        """Copy weights to the device; sparse ones transposed, as cuSPARSE takes a sparse matrix on the left."""
        if isinstance(layers[0], ImageLayer):
            return ImageStack(tuple(layers), tuple(shapes), (partial(self._run_double, layers[0], shapes[0]),))
        with self._here("weights", 0, 0):
            if isinstance(layers[0], SparseLinear):
                return tuple(
                    _on_device(layer, _transposed(layer), each) for layer, each in zip(layers, copies, strict=True)
                )
            return tuple(_on_device(layer, cupy().asarray(layer.weights, np.float64)) for layer in layers)

    def _run_double(self, layer: ImageLayer, shape: tuple[int, ...], *matrices: Array) -> Array:
        """Run a combining layer, a `Flatten`, a `Slice`, a `Softmax` or a `LogSoftmax`."""
        if isinstance(layer, CombiningLayer):
            width = sum(matrix.shape[1] for matrix in matrices)
            with self._here(f"the outputs of {layer.name}", matrices[0].shape[0], width):
                return combine_rows(layer, matrices, _activated)
        (features,) = matrices
        if isinstance(layer, Flatten):
            return features
        if isinstance(layer, Slice):
            first, last = layer.columns(shape)
            blocks = features.reshape(-1, layer.block(shape))
            with self._here("the outputs of a slice", blocks.shape[0], last - first):
                return blocks[:, first:last].copy().reshape(features.shape[0], -1)
        if not isinstance(layer, SoftmaxLayer):
            raise UsageError(f"GPUs do not compute {layer.name} in float64; use device cpu")
        if not features.size:
            return features
        cp = cupy()
        with self._here("the outputs of softmax", *features.shape):
            shifted: Array = features - features.max(axis=1, keepdims=True)
            powers = cp.exp(shifted)
            sums = powers.sum(axis=1, keepdims=True)
            return shifted - cp.log(sums) if isinstance(layer, LogSoftmax) else powers / sums

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Bring rows to the device, as a matrix; sparse ones are checked on the host."""
        cp, (count, width) = cupy(), rows.shape
        with self._here("the inputs", count, width):
            if not isinstance(rows, CSR | SparseRows):
                return cp.ascontiguousarray(cp.asarray(rows), dtype=np.float64)
            if not isinstance(rows.indptr, np.ndarray):
                rows = self.fetch(SparseRows((count, width), rows.indptr, rows.indices, rows.values))
            checked = checked_rows(rows) if isinstance(rows, SparseRows) else rows.validate()
            owners = np.repeat(np.arange(count), np.diff(checked.indptr))
            values = checked.expanded_values().astype(np.float64)
            dense = cp.zeros((count, width), np.float64)
            dense[cp.asarray(owners), cp.asarray(checked.indices.astype(np.int64))] = cp.asarray(values)
            return dense

    def spread(self, left: RowsLeft, expansion: Array | None) -> Array:
        """Give each output its column; each input has its own row."""
        features: Any = left.features
        with self._here("the outputs", left.inputs, features.shape[1] if expansion is None else expansion.size):
            return features.copy() if expansion is None else features[:, cupy().asarray(expansion)]

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Look which rows have a number that is not zero, and copy all that may be written over."""
        cp, features = cupy(), left.features
        with self._here("keeping rows", *features.shape):
            active = (features != 0).any(axis=1)  # type: ignore[union-attr]
            stored = RowsLeft(features if own else features.copy())  # type: ignore[union-attr]
        return lambda: (np.flatnonzero(cp.asnumpy(active)), stored)

    def as_csr(self, matrix: Array) -> Any:
        """Return a matrix as CuPy's CSR matrix, or as CSR where it is on the host."""
        if isinstance(matrix, np.ndarray):
            return super().as_csr(matrix)
        with self._here("sparse outputs", *matrix.shape):
            return import_module(_SPARSE).csr_matrix(matrix)

    def as_dense(self, features: Features) -> Array:
        """Return the features, which are dense."""
        assert not isinstance(features, CSR)
        return features

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row; returns a host array."""
        cp = cupy()
        with self._here("counting", *features.shape):
            return cp.asnumpy((features != 0).sum(axis=1)).astype(np.int64)

    def number_check(self, results: int = 1) -> NumberCheck:
        """Return a check that scans at once."""
        return _CheckAtOnce(self)

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers on the device."""
        cp, numbers = cupy(), features
        assert not isinstance(numbers, CSR)
        if not numbers.size:
            return 0.0, True
        with self._here("looking at numbers", *numbers.shape):
            finite = cp.isfinite(numbers)
            return float(cp.where(finite, cp.abs(numbers), 0.0).max()), bool(finite.all())

    @contextmanager
    def _here(self, what: str, rows: int, width: int) -> Iterator[None]:
        with as_current(self.index), within_memory(what, rows, 8 * width):
            yield


class _Queue(CallQueue):
    """The queue of a GPU whose launches are CuPy's own."""

    rehearses = False

    def replay(self, shape: tuple[int, int], on_host: bool) -> None:
        """Return None: cuSPARSE's products are not captured."""


class _CheckAtOnce:
    def __init__(self, backend: DoubleCUDABackend) -> None:
        self._backend, self._passed = backend, True

    def scan(self, features: Features) -> None:
        self._passed = self._passed and self._backend.largest_number(features)[1]

    def passed(self) -> bool:
        return self._passed


# ---- Layers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Layer:
    weights: Any  # float64; (inputs, outputs), or sparse and transposed
    bias: Any  # (outputs,) float64
    activation: Any  # one of this package's
    sparse: bool  # whether the weights are
    edges: int  # weights that are multiplied with each row
    copies: Array | None  # (outputs,) int64 on the host, how many neurons each output stands for; None for one

    def __call__(self, features: Any) -> Any:
        """Return act(Y·W + b) for (rows, inputs), a row-major matrix of float64."""
        cp = cupy()
        if not features.shape[0] or not self.edges:
            sums = cp.zeros((features.shape[0], self.bias.size), np.float64)
        elif self.sparse:
            sums = cp.ascontiguousarray((self.weights @ features.T).T)
        else:
            sums = cp.matmul(features, self.weights)
        sums += self.bias
        return _activated(self.activation, sums)


def _activated(activation: Activation, sums: Array) -> Array:
    row = row_of(activation)
    return evaluate(row.formula, _function, z=sums, p=row.parameter)


def _on_device(layer: SparseLinear | Linear, weights: Any, copies: Array | None = None) -> _Layer:
    if table_row(layer.activation) is None:
        raise UsageError(f"float64 on a GPU does not know the activation {layer.activation}")
    bias, sparse = cupy().asarray(layer.bias_vector().astype(np.float64)), isinstance(layer, SparseLinear)
    edges = layer.weights.nnz if isinstance(layer, SparseLinear) else layer.weights.size
    return _Layer(weights, bias, layer.activation, sparse, edges, copies)


def _transposed(layer: SparseLinear) -> Any:
    if layer.weights.nnz > _MOST_INDEX:
        raise UsageError(f"a layer of {layer.weights.nnz:,} weights is too large for float64 on a GPU; use device cpu")
    cp = cupy()
    found = layer.weights.to_scipy().T.tocsr()
    found.sort_indices()
    parts = (found.data.astype(np.float64), found.indices.astype(np.int32), found.indptr.astype(np.int32))
    return import_module(_SPARSE).csr_matrix(tuple(cp.asarray(part) for part in parts), shape=found.shape)


def _function(name: str) -> Callable[..., Any]:
    return getattr(import_module(_SPECIAL) if name == "erfc" else cupy(), name)


class _Chain:
    nbytes = 0

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self._layers = layers
        self._counts: tuple[LayerCounts, ...] = ()

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        values: Any = features
        counts = []
        for layer in self._layers:
            with within_memory("the outputs of a layer", values.shape[0], 24 * layer.bias.size):
                values = layer(values)
                counts += [_counted(layer, values)] if counting else []
        self._counts = tuple(counts)
        return RowsLeft(values)

    def counts(self) -> tuple[LayerCounts, ...]:
        return self._counts


def _counted(layer: _Layer, values: Any) -> LayerCounts:
    cp, there, rows = cupy(), values != 0, int(values.shape[0])
    by_output = cp.asnumpy(there.sum(axis=0)).astype(np.int64)
    nonzeros = int(by_output.sum() if layer.copies is None else by_output @ layer.copies)
    return LayerCounts(SPARSE.name, rows, int(there.any(axis=1).sum()), nonzeros, rows * layer.edges)


SPARSE = register(
    SparseKernel(
        name="cusparse",
        device=DEVICE,
        summary="cuSPARSE's products in float64, one layer at a time",
        needs=("a GPU",),
        auto=True,
        fuses=True,
        drops_rows=False,
        prepare=lambda stack, problem: _Chain(stack),
        precision="float64",
    )
)
DENSE = register(
    DenseKernel(
        name="cublas",
        device=DEVICE,
        summary="cuBLAS's products in float64, one layer at a time",
        launch=lambda stack, features: cast(Array, _Chain(stack).run(features, False).features),
        needs=("a GPU",),
        auto=True,
        precision="float64",
    )
)
