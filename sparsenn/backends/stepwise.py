"""Stepwise: chains of sparse layers for kernels that run some layers per launch.

After a launch, rows that are all zero are dropped, and rows that are equal bit for bit are merged into one. A search
for such rows takes time, so searches become rarer, the fewer rows they remove.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.chains import SAME_ROWS, Features, LayerCounts, RowMap, RowsLeft, SparseChain, SparseProblem
from sparsenn.backends.contract import Backend
from sparsenn.backends.kernel_records import SparseKernel, StepInput
from sparsenn.formats import CSR, Array
from sparsenn.layers import SparseLinear

DEPTH = 6
"""Layers between two searches for dead and equal rows. In the challenge's networks each of the first layers removes a
tenth to a half of the rows; a search after every layer costs more than it saves."""

FEW = 1 / 8  # a search that removes no more than this share of the rows doubles the layers until the next one

VECTOR_VALUE = 1 / 16
"""Time of a multiply-add along vectors, or of an element that is cleared, in that of one that is scattered, as
measured with AVX-512; a value that is brought into a panel costs as much as one."""


@dataclass
class _Rows:
    features: Features
    multiplicity: Array
    row_map: RowMap = SAME_ROWS

    @property
    def count(self) -> int:
        return int(self.features.shape[0])

    def replace(self, features: Features, row_map: RowMap) -> None:
        self.features = features
        multiplicity = row_map.multiplicity(features.shape[0], self.multiplicity)
        assert multiplicity is not None
        self.multiplicity = multiplicity
        self.row_map = self.row_map.then(row_map)


class Stepwise:
    """A `SparseChain` of launches.

    The first search for dead and equal rows comes after `DEPTH` layers, or after one where the kernel runs no more in a
    launch. Where more than `FEW` of the rows have gone since the previous search, the next comes as many layers later;
    else after twice as many layers as the last time. A search after `DEPTH` layers or more that finds none is the last
    of the run. The next run begins anew, as its rows may differ. A kernel that groups equal rows by itself takes all
    layers in one launch; so does one that runs several layers per launch where rows are neither dropped nor merged.
    """

    def __init__(
        self,
        backend: Backend,
        kernel: SparseKernel,
        stack: Any,
        layers: Sequence[SparseLinear],
        problem: SparseProblem,
        adaptive: bool = True,
    ) -> None:
        self._backend, self._kernel, self._stack = backend, kernel, stack
        self._layers, self._problem, self._adaptive = tuple(layers), problem, adaptive
        self._distinct_rows = kernel.distinct_rows if problem.deduplicate else None
        self._uncounted = None if kernel.uncounted is None else kernel.uncounted(stack, problem)
        self._ones = np.ones(problem.rows, np.int64)
        self._counts: tuple[LayerCounts, ...] = ()

    @property
    def nbytes(self) -> int:
        """Memory for rows before and after a launch, in bytes."""
        return 2 * 4 * self._problem.rows * max(max(layer.inputs, layer.outputs) for layer in self._layers)

    def run(
        self,
        features: Features,
        counting: bool = True,
        multiplicity: Array | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> RowsLeft:
        """Take rows through all layers; see `SparseChain`. `progress` is called after each launch with the layers done.

        Other runs of the same backend write over the rows that are returned.
        """
        if self._uncounted is not None and not counting:
            left = self._uncounted(features)
            if progress is not None:
                progress(len(self._layers))
            return left
        count = features.shape[0]
        if self._ones.size < count:
            self._ones = np.ones(count, np.int64)
        rows = _Rows(features, self._ones[:count] if multiplicity is None else multiplicity)
        self._counts = ()
        layer, last, depth = 0, len(self._layers), self._unit
        before, search = rows.count, depth  # after which layer the next search comes
        while layer < last:
            if not rows.count and layer >= self._problem.droppable_from:
                self._finish(rows, layer)
                break
            stop = min(search if self._kernel.fuses else layer + 1, last)
            self._launch(rows, layer, stop, stop >= search, counting)
            layer = stop
            if layer >= search:
                depth = self._next_depth(depth, layer, before - rows.count, before)
                before, search = rows.count, layer + depth
            if progress is not None:
                progress(layer)
        if layer < last and progress is not None:
            progress(last)
        return RowsLeft(rows.features, rows.row_map)

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; `distinct` where equal rows were searched for."""
        return self._counts

    @property
    def _unit(self) -> int:
        """Layers before the first search, and between two while many rows go."""
        searches = self._distinct_rows is not None or self._problem.droppable_from < len(self._layers)
        if self._kernel.groups_rows or not searches:
            return len(self._layers)
        return DEPTH if self._kernel.fuses else 1

    def _next_depth(self, depth: int, layer: int, gone: int, before: int) -> int:
        """Return the layers until the next search; the last one came `depth` layers after the one before."""
        if gone > FEW * before:
            return self._unit
        return 2 * depth if gone or layer < DEPTH else len(self._layers)

    def _launch(self, rows: _Rows, first: int, last: int, searches: bool, counting: bool) -> None:
        """Run some layers, and drop dead rows; where it `searches` for equal rows, merge them."""
        step = StepInput(
            stack=self._stack,
            first=first,
            last=last,
            features=rows.features,
            multiplicity=rows.multiplicity,
            droppable_from=self._problem.droppable_from,
            scatter=self._adaptive and scatters(self._layers[first], rows.features),
            deduplicate=self._problem.deduplicate,
            counting=counting,
        )
        output = self._kernel.launch(step)
        rows.replace(output.features, output.row_map)
        counts = list(output.counts)
        if searches and self._distinct_rows is not None:
            rows.replace(*self._distinct_rows(rows.features))
            if counting:
                counts[-1] = counts[-1]._replace(distinct=rows.count)
        self._counts += tuple(counts)

    def _finish(self, rows: _Rows, layer: int) -> None:
        """Count the layers from `layer` on for no rows: none is left, and none will be revived."""
        left = len(self._layers) - layer
        distinct = None if self._distinct_rows is None else 0
        self._counts += (LayerCounts(self._kernel.name, 0, 0, 0, 0, distinct),) * left
        rows.features = self._backend.place(np.zeros((0, self._layers[-1].outputs), np.float32))


def chain_of(
    backend: Backend,
    kernel: SparseKernel,
    stack: Any,
    layers: Sequence[SparseLinear],
    problem: SparseProblem,
    adaptive: bool = True,
) -> SparseChain:
    """Return the chain of a kernel: its own, or one of launches; parameters are those of `Stepwise`."""
    if kernel.prepare is not None:
        return kernel.prepare(stack, problem)
    return Stepwise(backend, kernel, stack, layers, problem, adaptive)


def scatters(layer: SparseLinear, features: Features) -> bool:
    """Return whether multiplying only the non-zeros of features in a layer should beat gathering from whole rows.

    Dense rows are gathered: where so few numbers are not zero that scattering would pay, CSR is the form for them.
    """
    if not isinstance(features, CSR):
        return False
    rows, width = features.shape
    weights = layer.weights
    gather = rows * weights.nnz * VECTOR_VALUE + features.nnz + rows * width * VECTOR_VALUE
    scatter = features.nnz * weights.nnz / max(1, width) + rows * weights.shape[1] * VECTOR_VALUE
    return bool(scatter < gather)
