"""Choosing: which kernel runs which layers of a network, by estimates for the plan's machine.

Consecutive fully connected layers are cut into *blocks* of like ones. Of all ways to join blocks into steps, each with
a kernel that can run it, the one with the lowest total estimate is taken. Sparse layers may go to kernels for dense
ones: where they hold enough weights, multiplying zeros costs less than skipping them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np

from sparsenn.backends import Backend, ConvolutionKernel, Kernel, SparseKernel, image_kernel
from sparsenn.engine.kernels import PRECISIONS, Kernels, able_dense, able_sparse, choose_convolution
from sparsenn.engine.steps import DENSE_OPERATION, Step
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import Activation, Conv2d, FullyConnected, ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer, Network

__all__ = ["RowsShape", "choose_steps", "is_dense_enough"]

MOST_BLOCKS = 12
"""The most blocks of a chain for which all ways to join them are weighed; where there are more, neighbours of one
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
    """What is known of the rows that a plan is made for.

    Parameters
    ----------
    count : how many, at a time.
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

    @cached_property
    def sample(self) -> dict[int, CSR]:
        """Rows like these, by their width; for kernels that look at what they are given."""
        return {}

    def of_width(self, width: int) -> CSR:
        """Return rows like these, of a width."""
        if width not in self.sample:
            values = [[1]] if self.form == "iso" else [[1], [2]]
            self.sample[width] = from_dense(np.repeat(values, width, axis=1))
        return self.sample[width]


@dataclass(frozen=True)
class _Way:
    """One way to run some layers.

    Parameters
    ----------
    kernel : what runs them.
    seconds : what counts when ways are weighed: the estimate, divided by `gain`.
    gain : 1, or `LEAST_GAIN`.
    """

    kernel: Kernel
    seconds: float
    gain: float = 1.0


def choose_steps(
    network: Network,
    backend: Backend,
    kernels: Kernels,
    rows: RowsShape,
    dense_bytes: int,
    alive: Array | None = None,
    saves: bool = True,
) -> tuple[Step, ...]:
    """Return the steps that run a network in the least time, as estimated.

    Parameters
    ----------
    network : as it is computed.
    backend : of the device.
    kernels : those that may run layers.
    rows : what the network is given.
    dense_bytes : that sparse layers may take once their zeros are stored, too; more is not considered.
    alive : (layers,) the share of the rows that each layer still has to compute where dead rows leave and equal ones
        are computed once; None where unknown: then all.
    saves : whether dead rows may leave and equal ones become one. The choice between sparse kernels and dense ones,
        which may round differently, does not depend on it.

    Raises
    ------
    UsageError
        No kernel can run some layers; the message says why, kernel by kernel.
    """
    chooser = _Chooser(network, backend, kernels, rows, dense_bytes, alive, saves)
    steps: list[Step] = []
    for chain in network.chains:
        for connected, group in groupby(range(*chain), lambda number: isinstance(network[number], FullyConnected)):
            numbers = list(group)
            steps += chooser.connected(numbers[0], numbers[-1] + 1) if connected else chooser.images(numbers)
    return tuple(steps)


@dataclass(frozen=True, eq=False)
class _Chooser:
    """Weighs the ways to run layers; parameters as `choose_steps`."""

    network: Network
    backend: Backend
    kernels: Kernels
    rows: RowsShape
    dense_bytes: int
    alive: Array | None
    saves: bool

    def images(self, numbers: Sequence[int]) -> list[Step]:
        """Return the steps of layers of images: one each, but where a kernel fuses neighbours."""
        steps: list[Step] = []
        for step in map(self._image, numbers):
            joined = self._fused(steps[-1], step) if steps else None
            steps = [*steps, step] if joined is None else [*steps[:-1], joined]
        return steps

    def _fused(self, first: Step, second: Step) -> Step | None:
        """Return two steps of layers of images as one, if a kernel that fuses layers takes them."""
        kernels = [step.kernel for step in (first, second) if isinstance(step.kernel, ConvolutionKernel)]
        if not kernels or any(kernel is not kernels[0] for kernel in kernels) or kernels[0].run_stack is None:
            return None
        layers = self.network.layers[first.first : second.last]
        if not all(isinstance(layer, (Conv2d, *kernels[0].fuses)) for layer in layers):
            return None
        known = [step.seconds for step in (first, second) if step.kernel is kernels[0]]
        seconds = None if None in known else sum(filter(None, known))
        reason = first.reason or second.reason
        return Step(first.first, second.last, kernels[0], reason, seconds)

    def _image(self, number: int) -> Step:
        """Return the step of a layer of images."""
        layer = self.network[number]
        assert isinstance(layer, ImageLayer)
        if not isinstance(layer, Conv2d):
            return Step(number, number + 1, image_kernel(self.backend, layer))
        ((channels, height, width),) = self.network.input_shapes(number)
        shape, machine = (channels, height, width), self.backend.machine
        found = choose_convolution(self.kernels.convolutions, machine, layer, shape, number)
        estimate = found.kernel.seconds
        seconds = None if estimate is None else self.rows.count * estimate(machine, layer, shape)
        return Step(number, number + 1, found.kernel, found.reason, seconds)

    def connected(self, first: int, last: int) -> list[Step]:
        """Return the steps of fully connected layers: the cheapest way to put their blocks together."""
        bounds = self._blocks(first, last)
        best: list[tuple[float, int, list[tuple[int, int, _Way]]]] = [(0.0, 0, [])]
        refused: UsageError | None = None
        going_on = STEP_SECONDS.get(self.backend.device, 0.0)
        for end in range(1, len(bounds)):
            found: list[tuple[float, int, list[tuple[int, int, _Way]]]] = []
            for start in range(end):
                cost, steps, before = best[start]
                if steps < 0:
                    continue
                try:
                    ways = self._ways(bounds[start], bounds[end])
                except UsageError as error:
                    refused = refused or error
                    continue
                for way in ways:
                    taken = [*before, (bounds[start], bounds[end], way)]
                    entering = self._entering(bounds[start], way.kernel)
                    found.append((cost + entering + way.seconds + going_on, steps + 1, taken))
            best.append(min(found, key=lambda way: way[:2]) if found else (math.inf, -1, []))
        if best[-1][1] < 0:
            assert refused is not None
            raise refused
        return [self._step(*taken) for taken in best[-1][2]]

    def _reads_input(self, number: int) -> bool:
        """Whether a layer reads the network's rows, in the form in which they come."""
        return 0 in self.network.nodes[number].sources

    def _entering(self, first: int, kernel: Kernel) -> float:
        """Return the seconds to convert a network's rows to the type and form that a kernel takes."""
        if not self._reads_input(first):
            return 0.0
        seconds = HALF_ROWS_SECONDS if self.rows.form == "half" and not kernel.half_rows else 0.0
        filled = kernel.operation == DENSE_OPERATION and self.rows.sparse and kernel.sparse_row_seconds is None
        if self.backend.device == "cpu" and filled:
            seconds += self.rows.count * self.network.inputs * FILLED_SECONDS
        return seconds

    def _step(self, first: int, last: int, way: _Way) -> Step:
        known = math.isfinite(way.seconds) and way.seconds > 0
        seconds = way.seconds * way.gain if known else None
        converted = way.kernel.operation == DENSE_OPERATION and any(
            isinstance(self.network[number], SparseLinear) for number in range(first, last)
        )
        reason = "multiplied with their zeros, which should be faster" if converted else ""
        return Step(first, last, way.kernel, reason, seconds)

    def _blocks(self, first: int, last: int) -> list[int]:
        """Return where blocks begin, and the end."""

        def family(number: int) -> tuple[bool, ...]:
            return (isinstance(self.network[number], SparseLinear),)

        def kind(number: int) -> tuple[bool, ...]:
            layer = self.network[number]
            assert isinstance(layer, FullyConnected)
            narrow = max(layer.inputs, layer.outputs) <= NARROW
            return (*family(number), narrow, is_dense_enough(self.network[number]))

        for same in (kind, family):
            bounds = [first, *(number for number in range(first + 1, last) if same(number) != same(number - 1)), last]
            if len(bounds) <= MOST_BLOCKS + 1:
                break
        return bounds

    def _ways(self, first: int, last: int) -> list[_Way]:
        """Return the ways to run some layers together, if there are any: of each operation the quickest kernel.

        Raises
        ------
        UsageError
            No kernel of their operation can run them.
        """
        sparse = [isinstance(self.network[number], SparseLinear) for number in range(first, last)]
        ways: list[_Way] = []
        if all(sparse):
            ways.append(self._sparse_way(first, last))
        if not any(sparse) or self._may_be_dense(first, last):
            try:
                ways.append(self._dense_way(first, last, any(sparse)))
            except UsageError:
                if not ways:
                    raise
        return ways

    def _sparse_way(self, first: int, last: int) -> _Way:
        layers, machine = self.network.layers_of(SparseLinear, first, last), self.backend.machine
        given = self.rows if self._reads_input(first) else RowsShape(self.rows.count)
        able = able_sparse(self.kernels.sparse, machine, layers, given.of_width(layers[0].inputs), first)
        able = tuple(kernel for kernel in able if self._may_round(kernel, first, last)) or able
        if len(able) == 1:
            return _Way(able[0], self._sparse_seconds(able[0], layers, first, self.saves))

        def gain(kernel: SparseKernel) -> float:
            return _gain(kernel, in_order=kernel.reproducible)

        least = min(self._sparse_seconds(kernel, layers, first, True) / gain(kernel) for kernel in able)
        taken = min(able, key=lambda kernel: self._sparse_seconds(kernel, layers, first, self.saves) / gain(kernel))
        return _Way(taken, least, gain(taken))

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
        alive = self.alive[first : first + len(layers)] if self.alive is not None and saves else None
        if not kernel.groups_rows:
            if alive is not None and self.backend.in_host_memory:
                edges = [layer.edges for layer in layers]
                count = math.ceil(count * float(np.average(alive, weights=edges))) if any(edges) else count
            return estimate(machine, layers, count)
        form = self.rows.form if self._reads_input(first) else "dense"
        return estimate(machine, layers, count, alive=alive, form=form)

    def _estimate(self, kernel: Kernel, first: int) -> Callable[..., float] | None:
        """Return what estimates the time of a kernel that begins with layer `first`."""
        if self._reads_input(first) and self.rows.sparse and kernel.sparse_row_seconds is not None:
            return partial(kernel.sparse_row_seconds, density=self.rows.density)
        halves = self._reads_input(first) and self.rows.form == "half"
        return kernel.half_row_seconds if halves and kernel.half_row_seconds else kernel.seconds

    def _may_be_dense(self, first: int, last: int) -> bool:
        """Whether sparse layers among these may be multiplied as dense ones."""
        if not self.kernels.converts or self.backend.doubles:
            return False
        layers = [layer for layer in self.network.layers[first:last] if isinstance(layer, SparseLinear)]
        places = [layer.inputs * layer.outputs for layer in layers]
        return min(places, default=1) > 0 and 4 * sum(places) <= self.dense_bytes

    def _dense_way(self, first: int, last: int, converted: bool) -> _Way:
        machine = self.backend.machine
        layers = [_shape_of(self.network[number]) for number in range(first, last)]
        able = able_dense(self.kernels.dense, machine, layers, first)
        estimates = [self._estimate(kernel, first) for kernel in able]
        found = [
            _Way(kernel, estimate(machine, layers, self.rows.count) if estimate else 0.0)
            for kernel, estimate in zip(able, estimates, strict=True)
        ]
        best = (
            min(found, key=lambda way: way.seconds + self._entering(first, way.kernel)) if len(found) > 1 else found[0]
        )
        gain = _gain(best.kernel, in_order=not converted)
        return replace(best, seconds=best.seconds / gain, gain=gain)


def is_dense_enough(layer: Layer) -> bool:
    """Whether a layer holds so many weights that it may be multiplied as a dense one."""
    return not isinstance(layer, SparseLinear) or layer.edges >= DENSE_ENOUGH * layer.inputs * layer.outputs


def _gain(kernel: Kernel, in_order: bool) -> float:
    """Return what a kernel's estimate is divided by, if it adds up sparse layers in the order of all, or in its own."""
    return LEAST_GAIN if kernel.precision == PRECISIONS[0] and not in_order else 1.0


@dataclass(frozen=True)
class _DenseShape:
    """What estimates need to know of a dense layer: all but its weights."""

    inputs: int
    outputs: int
    activation: Activation

    @property
    def edges(self) -> int:
        """Weights, zero or not."""
        return self.inputs * self.outputs


def _shape_of(layer: Any) -> Any:
    return layer if isinstance(layer, Linear) else _DenseShape(layer.inputs, layer.outputs, layer.activation)
