"""Choosing: the sequences of steps that can run a network, best prior first.

A network falls into *segments*: a chain of fully connected layers, or one convolution or other layer of images.
Consecutive fully connected layers are cut into *blocks* of like ones; an alternative of a chain is a sequence of steps,
each of which takes adjacent blocks through one kernel. Sparse layers may go to kernels for dense ones. Alternatives are
ordered by the priors of their kernels. Those close to the best are timed on rows (`measuring`), and the fastest runs;
without a measurement, the first does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from sparsenn.backends import Backend, ConvolutionKernel, Kernel, SparseKernel, image_kernel
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, SPARSE_OPERATION
from sparsenn.backends.prior import LAUNCH_SECONDS
from sparsenn.engine.choices import Choice, Measured
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.kernels import able_kernels, multiplies_zeros
from sparsenn.engine.options import PRECISIONS
from sparsenn.engine.steps import Step, layers_text
from sparsenn.engine.whole import may_run_whole, whole_step
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import (
    Activation,
    Conv2d,
    FullyConnected,
    ImageLayer,
    Linear,
    PerPosition,
    SparseLinear,
    positions_of,
)
from sparsenn.network import Layer, Network

__all__ = ["Alternative", "RowsShape", "Segment", "choose_steps", "few_rows", "segments_of"]

MAX_BLOCKS = 12
"""Blocks of a chain up to which all sequences of steps are weighed; of more, neighbours of one family are one block."""

NARROW = 256
"""The widest layer that fused kernels take: narrower and wider ones are different blocks."""

DENSE_ENOUGH = 1 / 64
"""Sparse layers with at least this share of stored weights are blocks of their own: multiplying their zeros may pay."""

ORDER_GAIN = 0.95
"""In float32, sparse layers are summed in an order of a kernel's own only where that takes less than this fraction of
the time. In other precisions no bits are given up for it."""

CLOSE = 2.5
"""Alternatives up to this multiple of the best prior may be the fastest."""

MAX_CUT = 2
"""Alternatives of several steps, for a chain that one kernel may run whole. None of many rows begins with a kernel that
skips rows if one runs the whole chain: how many go on is not known before."""

MIN_SKIPPED_ROWS = 1024
"""Rows from which on a kernel that skips rows may be faster than its prior, which assumes that all are computed."""

CLOSE_SKIPPING = 8.0
"""The multiple of the best prior up to which such a kernel may be the fastest."""

HALF_BYTES = 2  # of a number of float16 rows


@dataclass(frozen=True)
class RowsShape:
    """Number and form of the rows that a plan is made for."""

    count: int  # at a time
    form: str = "dense"  # or `half`, a matrix of float16; `csr`; `iso`, CSR whose entries all have one value
    density: float = 1.0  # share of CSR rows' places that is stored, as far as it is known


@lru_cache(maxsize=64)
def few_rows(width: int, iso: bool) -> CSR:
    """Return a few rows, of one value if `iso`, for kernels whose limits depend on the rows."""
    return from_dense(np.repeat([[1]] if iso else [[1], [2]], width, axis=1))


@dataclass(frozen=True, eq=False)
class Alternative:
    """Steps that can run the layers of a segment, in the order in which they run."""

    steps: tuple[Step, ...]
    prior: float  # seconds
    in_order: bool  # whether sparse layers are summed in the order of all sparse kernels

    def followed_by(self, other: Alternative) -> Alternative:
        """Return the steps of both, one after the other."""
        seconds = self.prior + other.prior + LAUNCH_SECONDS
        return Alternative((*self.steps, *other.steps), seconds, self.in_order and other.in_order)

    @property
    def rank(self) -> float:
        """The prior, increased where another order of sums has to pay."""
        return self.prior if self.in_order else self.prior / ORDER_GAIN

    @cached_property
    def names(self) -> tuple[tuple[int, int, str], ...]:
        """Layers and kernel of each step: first layer, counted from 0, the one after the last, the kernel's name."""
        return tuple((step.first, step.last, step.kernel.name) for step in self.steps)

    def moved(self, by: int) -> Alternative:
        """Return the same steps for layers that stand further back by a number."""
        steps = tuple(replace(step, first=step.first + by, last=step.last + by) for step in self.steps)
        return replace(self, steps=steps)

    @property
    def takes_half(self) -> bool:
        """Whether rows of float16 stay so."""
        return all(step.kernel.half_rows for step in self.steps)

    @property
    def skips_rows(self) -> bool:
        """Whether rows that die, or are equal to others, take no time."""
        kernels = [step.kernel for step in self.steps if isinstance(step.kernel, SparseKernel)]
        return any(kernel.groups_rows or (kernel.drops_rows and kernel.fuses) for kernel in kernels)


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive layers of one kind, and what can run them."""

    first: int  # layer, counted from 0
    last: int  # excluded
    alternatives: tuple[Alternative, ...]  # best prior first

    def close(self, rows: RowsShape) -> tuple[Alternative, ...]:
        """Return the alternatives that may be the fastest for rows: of float16 rows, those for such if any is."""
        known = self.alternatives
        if rows.form == "half":
            known = tuple(one for one in known if one.takes_half) or known
        least, many = known[0].prior, rows.count >= MIN_SKIPPED_ROWS
        return tuple(
            one for one in known if one.prior <= least * (CLOSE_SKIPPING if many and one.skips_rows else CLOSE)
        )


def choose_steps(
    compiled: CompiledNetwork, rows: RowsShape, dense_bytes: int, choice: Choice | None = None
) -> tuple[Step, ...]:
    """Return the steps that run a network in the least time: as measured, else by priors.

    Sparse layers whose zeros are stored, too, take at most `dense_bytes`. A `choice` goes before the network's own. A
    `UsageError` says why no kernel can run some layers, kernel by kernel.
    """
    choice = choice or (compiled.choices.get(rows.count, rows.form) if dense_bytes else None)
    key = compiled.backend.device, compiled.backend.machine, rows, dense_bytes, choice
    if key not in compiled.chosen and choice is not None and choice.whole is not None:
        whole = whole_step(compiled.merged.network)
        if choice.whole.names == Alternative((whole,), 0.0, False).names and may_run_whole(compiled, rows.form):
            compiled.chosen[key] = _measured_steps(Alternative((whole,), 0.0, False), choice.whole, rows)
    if key not in compiled.chosen:
        steps = [
            step
            for segment in segments_of(compiled, rows, dense_bytes)
            for step in _steps_of(compiled, segment, rows, choice)
        ]
        compiled.chosen[key] = _fused(compiled.merged.network, steps)
    return compiled.chosen[key]


def segments_of(compiled: CompiledNetwork, rows: RowsShape, dense_bytes: int) -> tuple[Segment, ...]:
    """Return the segments of a network; parameters and errors are those of `choose_steps`."""
    try:
        segments = _Chooser(compiled, rows, dense_bytes).segments()
        return tuple(map(_with_equal_bits, segments)) if compiled.in_order else tuple(segments)
    except UsageError as error:
        if not compiled.options.reproducible:
            raise
        remedy = "leave out reproducible, or use device cpu"
        raise UsageError(f"{error}; no other kernel is reproducible: {remedy}") from error


def _with_equal_bits(segment: Segment) -> Segment:
    """Return a segment with alternatives of one order of sums: that of sparse kernels, or else of the best prior."""
    known = tuple(
        one
        for one in segment.alternatives
        if all(step.kernel.operation == SPARSE_OPERATION and step.kernel.reproducible for step in one.steps)
    )
    return replace(segment, alternatives=known or segment.alternatives[:1])


def _steps_of(compiled: CompiledNetwork, segment: Segment, rows: RowsShape, choice: Choice | None) -> tuple[Step, ...]:
    measured = None if choice is None else choice.segments.get((segment.first, segment.last))
    if measured is not None:
        known = next((one for one in segment.alternatives if one.names == measured.names), None)
        known = known or _alternative_named(compiled, measured)
        if known is not None:
            return _measured_steps(known, measured, rows)
    return segment.close(rows)[0].steps


def _alternative_named(compiled: CompiledNetwork, measured: Measured) -> Alternative | None:
    """Return an alternative that is none of the best for these rows, such as another cut; None without the kernels."""
    kernels = {kernel.name: kernel for permitted in compiled.kernels.values() for kernel in permitted}
    if not all(name in kernels for *_, name in measured.names):
        return None
    steps = tuple(Step(first, last, kernels[name]) for first, last, name in measured.names)
    return Alternative(steps, 0.0, in_order=True)


def _measured_steps(alternative: Alternative, measured: Measured, rows: RowsShape) -> tuple[Step, ...]:
    """Return the steps with their times: of several, each has its prior's share of the measured time."""
    total = measured.seconds * max(1.0, rows.count / measured.rows)
    factor = total / alternative.prior if alternative.prior else 0.0
    only = len(alternative.steps) == 1
    return tuple(
        replace(
            step,
            seconds=total if only else factor * (step.seconds or 0.0),
            reason="; ".join(filter(None, (step.reason, measured.reason))),
            is_measured=True,
        )
        for step in alternative.steps
    )


def _fused(network: Network, steps: Sequence[Step]) -> tuple[Step, ...]:
    fused: list[Step] = []
    for step in steps:
        both = _fused_pair(network, fused[-1], step) if fused else None
        fused = [*fused, step] if both is None else [*fused[:-1], both]
    return tuple(fused)


def _fused_pair(network: Network, first: Step, second: Step) -> Step | None:
    kernels = [step.kernel for step in (first, second) if isinstance(step.kernel, ConvolutionKernel)]
    if not kernels or any(kernel is not kernels[0] for kernel in kernels) or kernels[0].run_stack is None:
        return None
    if not any(start <= first.first and second.last <= end for start, end in network.chains):
        return None
    if not all(isinstance(layer, (Conv2d, *kernels[0].fuses)) for layer in network.layers[first.first : second.last]):
        return None
    known = [step.seconds for step in (first, second) if step.kernel is kernels[0]]
    seconds = None if None in known else sum(filter(None, known))
    measured = first.is_measured or second.is_measured
    return Step(first.first, second.last, kernels[0], first.reason or second.reason, seconds, measured)


@dataclass(frozen=True, eq=False)
class _Chooser:
    """Lists the alternatives of layers; parameters as `choose_steps`."""

    compiled: CompiledNetwork
    rows: RowsShape
    dense_bytes: int

    @property
    def network(self) -> Network:
        return self.compiled.merged.network

    @property
    def backend(self) -> Backend:
        return self.compiled.backend

    def segments(self) -> list[Segment]:
        segments: list[Segment] = []
        for chain in self.network.chains:
            for (kind, positions), group in groupby(range(*chain), self._kind):
                numbers = list(group)
                if kind is ImageLayer:
                    segments += map(self._image, numbers)
                elif kind is PerPosition:
                    segments.append(self._per_position(numbers[0], numbers[-1] + 1, positions))
                else:
                    segments.append(self._connected(numbers[0], numbers[-1] + 1))
        return segments

    def _kind(self, number: int) -> tuple[type, int]:
        layer = self.network[number]
        kinds = FullyConnected, PerPosition, ImageLayer
        return next(kind for kind in kinds if isinstance(layer, kind)), positions_of(layer)

    def _per_position(self, first: int, last: int, positions: int) -> Segment:
        """Return the alternatives of layers that positions share: those of as many rows as there are positions."""
        rows = RowsShape(positions * self.rows.count)
        (segment,) = _Chooser(self.compiled.part(first, last), rows, self.dense_bytes).segments()
        return Segment(first, last, tuple(one.moved(first) for one in segment.alternatives))

    def _image(self, number: int) -> Segment:
        layer = self.network[number]
        assert isinstance(layer, ImageLayer)
        if not isinstance(layer, Conv2d):
            step = Step(number, number + 1, image_kernel(self.backend, layer))
            return Segment(number, number + 1, (Alternative((step,), 0.0, True),))
        ((channels, height, width),) = self.network.input_shapes(number)
        image, machine = (channels, height, width), self.backend.machine
        able, refused = able_kernels(
            self.compiled.kernels[CONV_OPERATION], layers_text(number, number + 1), machine, layer, image
        )
        reason = "; ".join(f"{name} cannot, because {why}" for name, why in refused.items())
        known = []
        for kernel in able:
            prior = (
                None
                if kernel.seconds is None
                else LAUNCH_SECONDS + self.rows.count * kernel.seconds(machine, layer, image)
            )
            known.append(Alternative((Step(number, number + 1, kernel, reason, prior),), prior or 0.0, True))
        if all(kernel.seconds is not None for kernel in able):
            known.sort(key=lambda one: one.prior)
        return Segment(number, number + 1, tuple(known))

    def _connected(self, first: int, last: int) -> Segment:
        """Return the alternatives of fully connected layers: the sequences of steps with the least priors in all."""
        bounds = self._blocks(first, last)
        paths: list[list[Alternative]] = [[Alternative((), 0.0, True)]]  # up to each bound, the best first
        refused: UsageError | None = None
        for end in range(1, len(bounds)):
            longer: list[Alternative] = []
            for start, before in zip(bounds, paths, strict=False):
                try:
                    ways = self._one_step(start, bounds[end]) if before else []
                except UsageError as error:
                    refused = refused or error
                    continue
                longer += [path.followed_by(one) for path in before for one in ways]
            longer.sort(key=lambda path: (path.rank, len(path.steps)))
            whole = [path for path in longer if len(path.steps) == 1]
            many = self.rows.count >= MIN_SKIPPED_ROWS and any(path.skips_rows for path in whole)
            cut = [path for path in longer if len(path.steps) > 1 and not (many and path.skips_rows)]
            fewest = {tuple(dict.fromkeys(step.kernel for step in path.steps)): path for path in reversed(longer)}
            cut = [path for path in cut if path in fewest.values()]
            paths.append(sorted([*whole, *cut[:MAX_CUT]], key=lambda path: (path.rank, len(path.steps))))
        if not paths[-1]:
            assert refused is not None
            raise refused
        return Segment(first, last, tuple(paths[-1]))

    def _reads_input(self, number: int) -> bool:
        return 0 in self.network.nodes[number].sources

    def _blocks(self, first: int, last: int) -> list[int]:
        layers: Sequence[Any] = self.network.layers[first:last]
        kinds = [
            (isinstance(layer, SparseLinear), max(layer.inputs, layer.outputs) <= NARROW, _is_dense_enough(layer))
            for layer in layers
        ]
        for length in (3, 1):
            inner = [first + at for at in range(1, len(kinds)) if kinds[at][:length] != kinds[at - 1][:length]]
            bounds = [first, *inner, last]
            if len(bounds) <= MAX_BLOCKS + 1:
                break
        return bounds

    def _one_step(self, first: int, last: int) -> list[Alternative]:
        sparse = [isinstance(self.network[number], SparseLinear) for number in range(first, last)]
        known = self._sparse_steps(first, last) if all(sparse) else []
        if not any(sparse) or self._may_be_dense(first, last):
            try:
                known += self._dense_steps(first, last, any(sparse))
            except UsageError:
                if not known:
                    raise
        return known

    def _sparse_steps(self, first: int, last: int) -> list[Alternative]:
        layers = self.network.layers_of(SparseLinear, first, last)
        rows = few_rows(layers[0].inputs, self.rows.form == "iso" and self._reads_input(first))
        problem = self.backend.machine, Network(tuple(layers)), rows
        able, _ = able_kernels(self.compiled.kernels[SPARSE_OPERATION], layers_text(first, last), *problem)
        able = tuple(kernel for kernel in able if self._may_round(kernel, first, last)) or able
        return [self._alternative(kernel, layers, first, kernel.reproducible) for kernel in able]

    def _may_round(self, kernel: SparseKernel, first: int, last: int) -> bool:
        """Whether a kernel may add up sparse layers as it does.

        Those that store zeros do so in an order of their own, too. Layers of few weights stay in order in float32.
        """
        if not kernel.stores_zeros:
            return True
        few = not all(map(_is_dense_enough, self.network.layers[first:last]))
        return self._may_be_dense(first, last) and not (few and kernel.precision == PRECISIONS[0])

    def _alternative(
        self, kernel: Kernel, layers: Sequence[Any], first: int, in_order: bool, reason: str = ""
    ) -> Alternative:
        prior = self._prior(kernel, layers, first)
        seconds = prior if math.isfinite(prior) and prior > 0 else None
        step = Step(first, first + len(layers), kernel, reason, seconds)
        return Alternative((step,), prior, in_order or kernel.precision != PRECISIONS[0])

    def _prior(self, kernel: Kernel, layers: Sequence[Any], first: int) -> float:
        """Return the prior of a kernel for layers from number `first` on; 0 where it has none."""
        if kernel.seconds is None:
            return 0.0
        form, keywords = self.rows.form if self._reads_input(first) else "dense", dict[str, Any]()
        if isinstance(kernel, SparseKernel) and kernel.groups_rows:
            keywords["form"] = form
        if form in ("csr", "iso") and kernel.sparse_rows:
            keywords["density"] = self.rows.density
        if form == "half" and kernel.half_rows:
            keywords["row_bytes"] = HALF_BYTES
        return kernel.seconds(self.backend.machine, layers, self.rows.count, **keywords)

    def _may_be_dense(self, first: int, last: int) -> bool:
        if not multiplies_zeros(self.compiled.options, self.backend):
            return False
        layers = [layer for layer in self.network.layers[first:last] if isinstance(layer, SparseLinear)]
        places = [layer.inputs * layer.outputs for layer in layers]
        return min(places, default=1) > 0 and 4 * sum(places) <= self.dense_bytes

    def _dense_steps(self, first: int, last: int, converted: bool) -> list[Alternative]:
        members: Sequence[Any] = self.network.layers[first:last]
        layers = [
            layer if isinstance(layer, Linear) else _DenseShape(layer.inputs, layer.outputs, layer.activation)
            for layer in members
        ]
        kernels, machine = self.compiled.kernels[DENSE_OPERATION], self.backend.machine
        able, _ = able_kernels(kernels, layers_text(first, last), machine, layers)
        reason = "multiplied with their zeros" if converted else ""
        in_order = not converted or self.backend.in_host_memory
        return [self._alternative(kernel, layers, first, in_order, reason) for kernel in able]


def _is_dense_enough(layer: Layer) -> bool:
    return not isinstance(layer, SparseLinear) or layer.edges >= DENSE_ENOUGH * layer.inputs * layer.outputs


@dataclass(frozen=True)
class _DenseShape:
    """A sparse layer multiplied as a dense one, as estimates see it: all but its weights."""

    inputs: int
    outputs: int
    activation: Activation

    @property
    def edges(self) -> int:
        return self.inputs * self.outputs
