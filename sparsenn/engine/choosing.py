"""Choosing: which kernel runs which layers of a network, by estimates for the plan's machine.

Consecutive fully connected layers are cut into *blocks* of like ones. Of all sequences of steps, which are adjacent
blocks with a kernel that can run them, the one with the lowest total estimate is taken. Sparse layers may go to kernels
for dense ones: where they hold enough weights, multiplying zeros costs less than skipping them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np

from sparsenn.backends import Backend, ConvolutionKernel, Kernel, SparseKernel, image_kernel
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, SPARSE_OPERATION
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.kernels import PRECISIONS, able_kernels, able_sparse, choose_convolution, name_layers
from sparsenn.engine.steps import Step
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import Activation, Conv2d, FullyConnected, ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer, Network

__all__ = ["RowsShape", "choose_steps", "is_dense_enough"]

MOST_BLOCKS = 12
"""The most blocks of a chain for which all sequences of steps are weighed; where there are more, neighbours of one
family make up a block."""

NARROW = 256
"""The widest layer that fused kernels take: narrower and wider ones are different blocks."""

DENSE_ENOUGH = 1 / 64
"""Sparse layers with at least this share of stored weights are in blocks apart: multiplying their zeros may pay."""

STEP_SECONDS = {"cuda": 3e-6, "cpu": 5e-6}
"""Overhead of a step beyond its kernel's estimate, by device; none elsewhere."""

HALF_ROWS_SECONDS = 25e-6
"""Time to convert float16 rows to float32 for a first kernel that does not take them as they are."""

FILLED_SECONDS = 4e-10
"""Time to write a value of a sparse row of the host's, zero or not, for a kernel of dense rows."""

LEAST_GAIN = 0.9
"""In float32, sparse layers become dense ones, or go to kernels that add up in an order of their own, where that is
estimated to take less than this fraction of the time. In other precisions no bits are given up for it."""


@dataclass(frozen=True)
class RowsShape:
    """Number and form of the rows that a plan is made for.

    Parameters
    ----------
    count : rows at a time.
    form : `dense`, `half` for a matrix of float16, `csr`, or `iso` for CSR whose entries all have one value.
    density : share of CSR rows' places that is stored, as far as it is known.
    """

    count: int
    form: str = "dense"
    density: float = 1.0

    @property
    def sparse(self) -> bool:
        """Whether they are CSR."""
        return self.form in ("csr", "iso")

    def of_width(self, width: int) -> CSR:
        """Return a few rows like these, for kernels whose limits depend on the rows."""
        return _few_rows(width, self.form == "iso")


@lru_cache(maxsize=64)
def _few_rows(width: int, iso: bool) -> CSR:
    return from_dense(np.repeat([[1]] if iso else [[1], [2]], width, axis=1))


def choose_steps(
    compiled: CompiledNetwork, rows: RowsShape, dense_bytes: int, shares: Array | None = None
) -> tuple[Step, ...]:
    """Return the steps that run a network in the least time, as estimated; chosen once for devices of one kind.

    Parameters
    ----------
    rows : all of the run.
    dense_bytes : that sparse layers may take once their zeros are stored, too; more is not considered.
    shares : (layers,) the share of the rows that each layer still has to compute where dead rows leave and equal ones
        are computed once; None where unknown: then all.

    Raises
    ------
    UsageError
        No kernel can run some layers; the message says why, kernel by kernel.
    """
    backend = compiled.backend
    key = backend.device, backend.machine, rows, None if shares is None else shares.tobytes(), dense_bytes
    if key not in compiled.chosen:
        try:
            compiled.chosen[key] = _Chooser(compiled, rows, dense_bytes, shares).steps()
        except UsageError as error:
            if not compiled.options.reproducible:
                raise
            raise UsageError(
                f"{error}; no other kernel is reproducible: leave out reproducible, or use device cpu"
            ) from error
    return compiled.chosen[key]


@dataclass(frozen=True, eq=False)
class _Chooser:
    """Weighs the candidates for layers; parameters as `choose_steps`."""

    compiled: CompiledNetwork
    rows: RowsShape
    dense_bytes: int
    shares: Array | None

    @property
    def network(self) -> Network:
        return self.compiled.merged.network

    @property
    def backend(self) -> Backend:
        return self.compiled.backend

    def steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for chain in self.network.chains:
            for connected, group in groupby(
                range(*chain), lambda number: isinstance(self.network[number], FullyConnected)
            ):
                numbers = list(group)
                steps += self.connected(numbers[0], numbers[-1] + 1) if connected else self.images(numbers)
        return tuple(steps)

    def images(self, numbers: Sequence[int]) -> list[Step]:
        """Return the steps of layers of images: one each, but where a kernel fuses neighbours."""
        steps: list[Step] = []
        for step in map(self._image, numbers):
            fused = self._fused(steps[-1], step) if steps else None
            steps = [*steps, step] if fused is None else [*steps[:-1], fused]
        return steps

    def _fused(self, first: Step, second: Step) -> Step | None:
        kernels = [step.kernel for step in (first, second) if isinstance(step.kernel, ConvolutionKernel)]
        if not kernels or any(kernel is not kernels[0] for kernel in kernels) or kernels[0].run_stack is None:
            return None
        layers = self.network.layers[first.first : second.last]
        if not all(isinstance(layer, (Conv2d, *kernels[0].fuses)) for layer in layers):
            return None
        known = [step.seconds for step in (first, second) if step.kernel is kernels[0]]
        seconds = None if None in known else sum(filter(None, known))
        return Step(first.first, second.last, kernels[0], first.reason or second.reason, seconds)

    def _image(self, number: int) -> Step:
        layer = self.network[number]
        assert isinstance(layer, ImageLayer)
        if not isinstance(layer, Conv2d):
            return Step(number, number + 1, image_kernel(self.backend, layer))
        ((channels, height, width),) = self.network.input_shapes(number)
        shape, machine = (channels, height, width), self.backend.machine
        step = choose_convolution(self.compiled.kernels[CONV_OPERATION], machine, layer, shape, number)
        estimate = step.kernel.seconds
        return step if estimate is None else replace(step, seconds=self.rows.count * estimate(machine, layer, shape))

    def connected(self, first: int, last: int) -> list[Step]:
        """Return the steps of fully connected layers: those with the least cost in all."""
        bounds = self._blocks(first, last)
        best: list[tuple[float, list[Step]] | None] = [(0.0, [])]  # cost and steps up to each bound; None: not runnable
        refused: UsageError | None = None
        overhead = STEP_SECONDS.get(self.backend.device, 0.0)
        for end in range(1, len(bounds)):
            paths: list[tuple[float, list[Step]]] = []
            for start, before in zip(bounds, best, strict=False):
                if before is None:
                    continue
                try:
                    candidates = self._candidates(start, bounds[end])
                except UsageError as error:
                    refused = refused or error
                    continue
                for cost, step in candidates:
                    entering = self._entering(start, step.kernel)
                    paths.append((before[0] + entering + cost + overhead, [*before[1], step]))
            best.append(min(paths, key=lambda path: (path[0], len(path[1])), default=None))
        if best[-1] is None:
            assert refused is not None
            raise refused
        return best[-1][1]

    def _reads_input(self, number: int) -> bool:
        """Whether a layer reads the network's rows, in the form in which they come."""
        return 0 in self.network.nodes[number].sources

    def _entering(self, first: int, kernel: Kernel) -> float:
        """Return the seconds to convert a network's rows to the type and form that a kernel takes."""
        if not self._reads_input(first):
            return 0.0
        seconds = HALF_ROWS_SECONDS if self.rows.form == "half" and not kernel.half_rows else 0.0
        filled = kernel.operation == DENSE_OPERATION and self.rows.sparse and not kernel.sparse_rows
        if self.backend.device == "cpu" and filled:
            seconds += self.rows.count * self.network.inputs * FILLED_SECONDS
        return seconds

    def _blocks(self, first: int, last: int) -> list[int]:
        """Return where blocks begin, and the end."""

        def family(layer: Any) -> tuple[bool, ...]:
            return (isinstance(layer, SparseLinear),)

        def kind(layer: Any) -> tuple[bool, ...]:
            return (*family(layer), max(layer.inputs, layer.outputs) <= NARROW, is_dense_enough(layer))

        layers = self.network.layers

        for same in (kind, family):
            inner = [number for number in range(first + 1, last) if same(layers[number]) != same(layers[number - 1])]
            bounds = [first, *inner, last]
            if len(bounds) <= MOST_BLOCKS + 1:
                break
        return bounds

    def _candidates(self, first: int, last: int) -> list[tuple[float, Step]]:
        """Return the candidates to run some layers together with their costs: of each operation the quickest kernel.

        Raises
        ------
        UsageError
            No kernel of their operation can run them.
        """
        sparse = [isinstance(self.network[number], SparseLinear) for number in range(first, last)]
        candidates = [self._sparse_step(first, last)] if all(sparse) else []
        if not any(sparse) or self._may_be_dense(first, last):
            try:
                candidates.append(self._dense_step(first, last, any(sparse)))
            except UsageError:
                if not candidates:
                    raise
        return candidates

    def _sparse_step(self, first: int, last: int) -> tuple[float, Step]:
        """Return the step of the quickest kernel of sparse layers, and its cost.

        The cost does not depend on whether dead rows may leave and equal ones become one, nor so does the choice
        between sparse kernels and dense ones, which may round differently.
        """
        layers, machine = self.network.layers_of(SparseLinear, first, last), self.backend.machine
        rows = self.rows if self._reads_input(first) else RowsShape(self.rows.count)
        able = able_sparse(
            self.compiled.kernels[SPARSE_OPERATION], machine, layers, rows.of_width(layers[0].inputs), first
        )
        able = tuple(kernel for kernel in able if self._may_round(kernel, first, last)) or able
        saves = self.compiled.options.compaction or self.compiled.options.deduplication
        gains = [_gain(kernel, in_order=kernel.reproducible) for kernel in able] if len(able) > 1 else [1.0]

        def costs(saves: bool) -> list[float]:
            seconds = (self._sparse_seconds(kernel, layers, first, saves) for kernel in able)
            return [each / gain for each, gain in zip(seconds, gains, strict=True)]

        chosen = int(np.argmin(costs(saves)))
        cost = min(costs(True)) if len(able) > 1 else costs(saves)[0]
        return cost, _estimated(Step(first, last, able[chosen]), cost * gains[chosen])

    def _may_round(self, kernel: SparseKernel, first: int, last: int) -> bool:
        """Whether a kernel may add up sparse layers as it does.

        Those that store zeros do so in an order of their own, too. Layers of few weights stay in order in float32.
        """
        if not kernel.stores_zeros:
            return True
        few = not all(map(is_dense_enough, self.network.layers[first:last]))
        return self._may_be_dense(first, last) and not (few and kernel.precision == PRECISIONS[0])

    def _sparse_seconds(self, kernel: SparseKernel, layers: Sequence[SparseLinear], first: int, saves: bool) -> float:
        estimate = self._estimate(kernel, first)
        if estimate is None:
            return 0.0
        machine, count = self.backend.machine, self.rows.count
        shares = self.shares[first : first + len(layers)] if self.shares is not None and saves else None
        if not kernel.groups_rows:
            if shares is not None and self.backend.in_host_memory:
                edges = [layer.edges for layer in layers]
                count = math.ceil(count * float(np.average(shares, weights=edges))) if any(edges) else count
            return estimate(machine, layers, count)
        form = self.rows.form if self._reads_input(first) else "dense"
        return estimate(machine, layers, count, alive=shares, form=form)

    def _estimate(self, kernel: Kernel, first: int) -> Callable[..., float] | None:
        """Return what estimates the time of a kernel that begins with layer `first`."""
        if self._reads_input(first) and self.rows.sparse and kernel.sparse_rows and kernel.seconds:
            return partial(kernel.seconds, density=self.rows.density)
        halves = self._reads_input(first) and self.rows.form == "half"
        return kernel.half_row_seconds if halves and kernel.half_row_seconds else kernel.seconds

    def _may_be_dense(self, first: int, last: int) -> bool:
        if not self.compiled.converts:
            return False
        layers = [layer for layer in self.network.layers[first:last] if isinstance(layer, SparseLinear)]
        places = [layer.inputs * layer.outputs for layer in layers]
        return min(places, default=1) > 0 and 4 * sum(places) <= self.dense_bytes

    def _dense_step(self, first: int, last: int, converted: bool) -> tuple[float, Step]:
        machine, layers = self.backend.machine, [_shape_of(layer) for layer in self.network.layers[first:last]]
        able = able_kernels(self.compiled.kernels[DENSE_OPERATION], name_layers(first, last), machine, layers)
        estimates = [self._estimate(kernel, first) for kernel in able]
        times = [estimate(machine, layers, self.rows.count) if estimate else 0.0 for estimate in estimates]
        entering = [self._entering(first, kernel) for kernel in able]
        best = int(np.argmin(np.add(times, entering)))
        reason = "multiplied with their zeros, which should be faster" if converted else ""
        step = _estimated(Step(first, last, able[best], reason), times[best])
        return times[best] / _gain(able[best], in_order=not converted), step


def is_dense_enough(layer: Layer) -> bool:
    """Whether a layer holds so many weights that it may be multiplied as a dense one."""
    return not isinstance(layer, SparseLinear) or layer.edges >= DENSE_ENOUGH * layer.inputs * layer.outputs


def _gain(kernel: Kernel, in_order: bool) -> float:
    """Return what a kernel's estimate is divided by, if it adds up sparse layers in the order of all, or in its own."""
    return LEAST_GAIN if kernel.precision == PRECISIONS[0] and not in_order else 1.0


def _estimated(step: Step, seconds: float) -> Step:
    return replace(step, seconds=seconds) if math.isfinite(seconds) and seconds > 0 else step


@dataclass(frozen=True)
class _DenseShape:
    """A sparse layer multiplied as a dense one, as estimates see it: all but its weights."""

    inputs: int
    outputs: int
    activation: Activation

    @property
    def edges(self) -> int:
        return self.inputs * self.outputs


def _shape_of(layer: Any) -> Any:
    return layer if isinstance(layer, Linear) else _DenseShape(layer.inputs, layer.outputs, layer.activation)
