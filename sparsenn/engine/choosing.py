"""Choosing: the sequences of steps that can run a network, best prior first.

A network falls into *segments*: a chain of fully connected layers, or one convolution or other layer of images.
Consecutive fully connected layers are cut into *blocks* of like ones; an alternative of a chain is a sequence of steps,
each of which takes adjacent blocks through one kernel. Sparse layers may go to kernels for dense ones. Alternatives are
ordered by the priors of their kernels. Those close to the best are timed on rows (`measuring`), and the fastest runs;
without a measurement, the first does. Steps of layers of images become one where a kernel of convolutions runs them
together, branches included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress, groupby
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import ConvolutionKernel, Kernel, image_kernel
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, IMAGE_OPERATION, SPARSE_OPERATION
from sparsenn.backends.prior import LAUNCH_SECONDS
from sparsenn.backends.sizes import FLOAT_BYTES, HALF_BYTES
from sparsenn.engine.compiled_network import CompiledNetwork, able_kernels, multiplies_zeros
from sparsenn.engine.options import PRECISIONS
from sparsenn.engine.steps import WHOLE, Alternative, Choice, Measured, Step, bucket_of_choice, layers_text
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Add, Conv2d, FullyConnected, Identity, ImageLayer, PerPosition, SparseLinear, positions_of
from sparsenn.network import Layer, Network

MAX_BLOCKS = 12
"""Blocks of a chain up to which all sequences of steps are weighed; of more, neighbours of one family are one block."""

NARROW = 256  # the widest layer that fused kernels take: narrower and wider ones are different blocks
DENSE_ENOUGH = 1 / 64
"""Sparse layers with at least this share of stored weights are blocks of their own: multiplying their zeros may pay."""

CLOSE = 2.5  # alternatives up to this multiple of the best prior may be the fastest
MAX_CUT = 2
"""Alternatives of several steps, for a chain that one kernel may run whole. None of many rows begins with a kernel that
skips rows if one runs the whole chain: how many go on is not known before."""

MIN_SKIPPED_ROWS = 1024
"""Rows from which on a kernel that skips rows may be faster than its prior, which assumes that all are computed."""

CLOSE_SKIPPING = 8.0  # the multiple of the best prior up to which such a kernel may be the fastest
MAX_DENSE_BYTES = 1 << 30
"""Bytes of sparse layers with their zeros stored, at most: constant, so that results do not depend on free memory."""

LEAST_STACKED = 8
"""Convolutions that a kernel runs as one stack whatever each would take alone: their values stay in its layout."""

LEAST_STACKED_DENSITY = 1 / 32
"""Share of their weights that is not zero, below which kernels that leave zeros out may be faster."""


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


Segment: TypeAlias = tuple[Alternative, ...]
"""Alternatives for consecutive layers of one kind, best prior first."""


def close_alternatives(segment: Segment, rows: RowsShape) -> Segment:
    """Return the alternatives that may be the fastest for rows: of float16 rows, those for such if any is."""
    known = tuple(one for one in segment if one.takes_half or rows.form != "half") or segment
    many = rows.count >= MIN_SKIPPED_ROWS
    most = {skips: known[0].prior * (CLOSE_SKIPPING if many and skips else CLOSE) for skips in (True, False)}
    return tuple(one for one in known if one.prior <= most[one.skips_rows])


def choose_steps(compiled: CompiledNetwork, rows: RowsShape, choice: Choice | None = None) -> tuple[Step, ...]:
    """Return the steps that run a network in the least time: as measured, else by priors.

    A `choice` goes before the network's own. A `UsageError` says why no kernel can run some layers, kernel by kernel.
    """
    if choice is None:
        known = compiled.choices.get((bucket_of_choice(rows.count), rows.form)) if compiled.stores_zeros else None
        key = compiled.backend.device, compiled.backend.machine, rows, compiled.stores_zeros, known is None
        if key not in compiled.chosen:
            compiled.chosen[key] = choose_steps(compiled, rows, known or {})
        return compiled.chosen[key]
    measured, whole = choice.get(WHOLE), compiled.whole_step(rows.form)
    if measured is not None and whole is not None and measured.names == Alternative((whole,)).names:
        return _measured_steps(Alternative((whole,)), measured, rows)
    segments = segments_of(compiled, rows)
    steps = [step for segment in segments for step in _steps_of(compiled, segment, rows, choice)]
    return fused(compiled.merged.network, steps)


def segments_of(compiled: CompiledNetwork, rows: RowsShape) -> tuple[Segment, ...]:
    """Return the segments of a network; errors are those of `choose_steps`."""
    try:
        segments = _with_stacks(compiled.merged.network, _segments(compiled, rows))
    except UsageError as error:
        if not compiled.options.reproducible:
            raise
        remedy = "leave out reproducible, or use device cpu"
        raise UsageError(f"{error}; no other kernel is reproducible: {remedy}") from error
    if not compiled.in_order:
        return tuple(segments)
    # alternatives of one order of sums: that of sparse kernels, or else of the best prior
    equal = {kernel for kernel in compiled.kernels[SPARSE_OPERATION] if kernel.reproducible}
    known = [tuple(one for one in segment if all(step.kernel in equal for step in one)) for segment in segments]
    return tuple(some or segment[:1] for some, segment in zip(known, segments, strict=True))


def _steps_of(compiled: CompiledNetwork, segment: Segment, rows: RowsShape, choice: Choice) -> Alternative:
    measured = choice.get(segment[0].layers)
    if measured is not None:
        known = next((one for one in segment if one.names == measured.names), None)
        kernels = {kernel.name: kernel for permitted in compiled.kernels.values() for kernel in permitted}
        if known is None and all(name in kernels for *_, name in measured.names):
            # none of the best for these rows, such as another cut
            known = Alternative(Step(first, last, kernels[name]) for first, last, name in measured.names)
        if known is not None:
            return _measured_steps(known, measured, rows)
    return close_alternatives(segment, rows)[0]


def _measured_steps(alternative: Alternative, measured: Measured, rows: RowsShape) -> Alternative:
    """Return the steps with their times: of several, each has its prior's share of the measured time."""
    total = measured.seconds * max(1.0, rows.count / measured.rows)
    factor = total / alternative.prior if alternative.prior else 0.0
    return Alternative(
        replace(
            step,
            seconds=total if len(alternative) == 1 else factor * (step.seconds or 0.0),
            reason="; ".join(filter(None, (step.reason, measured.reason))),
            is_measured=True,
        )
        for step in alternative
    )


def _segments(compiled: CompiledNetwork, rows: RowsShape) -> list[Segment]:
    network, segments = compiled.merged.network, list[Segment]()
    for chain in network.chains:
        for (kind, positions), group in groupby(range(*chain), lambda number: _kind(network[number])):
            numbers = list(group)
            bounds = numbers[0], numbers[-1] + 1
            if kind is ImageLayer:
                segments += [_image_segment(compiled, rows, number) for number in numbers]
            elif kind is PerPosition:  # layers that positions share: those of as many rows as there are positions
                part = compiled.part(*bounds)
                (segment,) = _segments(part, RowsShape(positions * rows.count))
                segments.append(tuple(one.moved(bounds[0]) for one in segment))
            else:
                segments.append(_connected_segment(compiled, rows, *bounds))
    return segments


def _kind(layer: Layer) -> tuple[type, int]:
    kinds = FullyConnected, PerPosition, ImageLayer
    return next(kind for kind in kinds if isinstance(layer, kind)), positions_of(layer)


def _image_segment(compiled: CompiledNetwork, rows: RowsShape, number: int) -> Segment:
    network, machine = compiled.merged.network, compiled.backend.machine
    layer, layers = network[number], (number, number + 1)
    if not isinstance(layer, Conv2d):
        assert isinstance(layer, ImageLayer)
        return (Alternative((Step(*layers, image_kernel(compiled.backend.device, layer)),)),)
    ((channels, height, width),) = network.input_shapes(number)
    problem = machine, layer, (channels, height, width)
    able, refused = able_kernels(compiled.kernels[CONV_OPERATION], layers_text(*layers), *problem)
    reason = "; ".join(f"{name} cannot, because {why}" for name, why in refused.items())
    known = []
    for kernel in able:
        prior = None if kernel.seconds is None else LAUNCH_SECONDS + rows.count * kernel.seconds(*problem)
        known.append(Alternative((Step(*layers, kernel, reason, prior, prior=prior or 0.0),)))
    if all(kernel.seconds is not None for kernel in able):
        known.sort(key=lambda one: one.prior)
    return tuple(known)


def _connected_segment(compiled: CompiledNetwork, rows: RowsShape, first: int, last: int) -> Segment:
    """Return the alternatives of fully connected layers: the sequences of steps with the least priors in all."""
    bounds = _blocks(compiled.merged.network, first, last)
    paths: list[list[Alternative]] = [[Alternative()]]  # up to each bound, the best first
    refused: UsageError | None = None
    for end in range(1, len(bounds)):
        longer: list[Alternative] = []
        for start, before in zip(bounds, paths, strict=False):
            try:
                steps = _single_steps(compiled, rows, start, bounds[end]) if before else []
            except UsageError as error:
                refused = refused or error
                continue
            longer += [Alternative((*path, step)) for path in before for step in steps]
        longer.sort(key=_rank)
        whole = [path for path in longer if len(path) == 1]
        many = rows.count >= MIN_SKIPPED_ROWS and any(path.skips_rows for path in whole)
        best = {tuple(dict.fromkeys(step.kernel for step in path)): path for path in reversed(longer)}
        cut = [path for path in longer if len(path) > 1 and path in best.values() and not (many and path.skips_rows)]
        paths.append(sorted([*whole, *cut[:MAX_CUT]], key=_rank))
    if not paths[-1]:
        assert refused is not None
        raise refused
    return tuple(paths[-1])


def _rank(path: Alternative) -> tuple[float, int]:
    return path.weighed(path.prior), len(path)


def _blocks(network: Network, first: int, last: int) -> list[int]:
    layers: Sequence[Any] = network.layers[first:last]
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


def _single_steps(compiled: CompiledNetwork, rows: RowsShape, first: int, last: int) -> list[Step]:
    network, machine = compiled.merged.network, compiled.backend.machine
    layers: Sequence[Any] = network.layers[first:last]
    text, known = layers_text(first, last), list[Step]()
    sparse, may_be_dense = [isinstance(layer, SparseLinear) for layer in layers], _may_be_dense(compiled, layers)
    form = rows.form if 0 in network.nodes[first].sources else "dense"

    def step(kernel: Kernel, in_order: bool, reason: str = "") -> Step:
        keywords = dict[str, Any]()
        if form in ("csr", "iso") and kernel.sparse_rows:
            keywords["density"] = rows.density
        if form == "half" and kernel.half_rows:
            keywords["row_bytes"] = HALF_BYTES
        prior = 0.0 if kernel.seconds is None else kernel.seconds(machine, layers, rows.count, **keywords)
        seconds = prior if math.isfinite(prior) and prior > 0 else None
        in_order = in_order or kernel.precision != PRECISIONS[0]  # which gives up no bits
        return Step(first, last, kernel, reason, seconds, prior=prior + LAUNCH_SECONDS, in_order=in_order)

    if all(sparse):
        inputs = few_rows(layers[0].inputs, form == "iso")
        part = compiled.part(first, last).network
        able, _ = able_kernels(compiled.kernels[SPARSE_OPERATION], text, machine, part, inputs)
        # kernels that store zeros sum in an order of their own, too; layers of few weights stay in order in float32
        has_few = not all(map(_is_dense_enough, layers))
        rounding = {kernel for kernel in able if (has_few and kernel.precision == PRECISIONS[0]) or not may_be_dense}
        able = tuple(kernel for kernel in able if not kernel.stores_zeros or kernel not in rounding) or able
        known = [step(kernel, kernel.reproducible) for kernel in able]
    if any(sparse) and not may_be_dense:
        return known
    try:
        able, _ = able_kernels(compiled.kernels[DENSE_OPERATION], text, machine, layers)
    except UsageError:
        if not known:
            raise
        return known
    reason, in_order = "multiplied with their zeros" if any(sparse) else "", compiled.backend.in_host_memory
    return known + [step(kernel, in_order or not any(sparse), reason) for kernel in able]


def _may_be_dense(compiled: CompiledNetwork, layers: Sequence[Any]) -> bool:
    if not (compiled.stores_zeros and multiplies_zeros(compiled.options, compiled.backend)):
        return False
    places = [layer.inputs * layer.outputs for layer in layers if isinstance(layer, SparseLinear)]
    return min(places, default=1) > 0 and FLOAT_BYTES * sum(places) <= MAX_DENSE_BYTES


def _is_dense_enough(layer: Layer) -> bool:
    return not isinstance(layer, SparseLinear) or layer.edges >= DENSE_ENOUGH * layer.inputs * layer.outputs


def fused(network: Network, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Make one step, from each on, of as many steps as the kernel of the next convolution runs together."""
    found: list[Step] = []
    number = 0
    while number < len(steps):
        end = number + 2 if _adds(network, steps[number : number + 2]) else _end(network, steps, number)
        found.append(_one_step(steps[number:end]))
        number = end
    return tuple(found)


def _with_stacks(network: Network, segments: Sequence[Segment]) -> list[Segment]:
    """Return segments; of many convolutions that one kernel can run as a stack, with its alternatives alone."""
    found, stacked = list(segments), list[Segment]()
    for segment in segments:
        kernels = [one[0].kernel for one in segment]  # a convolution is a step of its own
        runs_stacks = [isinstance(kernel, ConvolutionKernel) and bool(kernel.run_stack) for kernel in kernels]
        stacked.append(tuple(compress(segment, runs_stacks)) or segment)
    for step in fused(network, [each for segment in stacked for each in segment[0]]):
        layers = [layer for number in step.layers if isinstance(layer := network[number], Conv2d)]
        left, places = sum(layer.nonzeros for layer in layers), sum(layer.weights.size for layer in layers)
        if len(layers) >= LEAST_STACKED and left >= LEAST_STACKED_DENSITY * places:
            for at, segment in enumerate(stacked):
                if segment[0][0].first in step.layers:
                    found[at] = segment
    return found


def _adds(network: Network, steps: Sequence[Step]) -> bool:
    """Return whether the first of two steps is a convolution whose kernel takes a sum along that alone reads it."""
    kernel = steps[0].kernel
    if len(steps) < 2 or not isinstance(kernel, ConvolutionKernel) or kernel.with_sum is None:
        return False
    layer, value, number = network[steps[0].first], steps[0].last, steps[1].first
    sources = network.nodes[number].sources
    return (
        isinstance(network[number], Add)
        and isinstance(layer, Conv2d)
        and isinstance(layer.activation, Identity)
        and len(sources) == 2
        and sources.count(value) == 1
        and network.consumers[value] == (number + 1,)
        and _takes(kernel, network, number)
    )


def _end(network: Network, steps: Sequence[Step], first: int) -> int:
    """Return the end of the longest run of steps that reads one value, and whose last value alone is read later."""
    kernels = (step.kernel for step in steps[first:] if isinstance(step.kernel, ConvolutionKernel))
    kernel = next(kernels, None)
    end, before, outside, reach = first + 1, steps[first].first, set[int](), 0
    if kernel is None or kernel.run_stack is None:
        return end
    for number in range(first, len(steps)):
        step = steps[number]
        if step.kernel is not kernel and step.kernel.operation != IMAGE_OPERATION:
            break
        if number > first:
            reach = max((reach, *network.consumers[step.first]))
        outside.update(source for source in network.nodes[step.first].sources if source <= before)
        if len(outside) > 1 or not (step.kernel is kernel or _takes(kernel, network, step.first)):
            break
        if reach <= step.last and any(each.kernel is kernel for each in steps[first : number + 1]):
            end = number + 1
    return end


def _takes(kernel: ConvolutionKernel, network: Network, number: int) -> bool:
    layer = network[number]
    return isinstance(layer, ImageLayer) and kernel.fuses(layer, network.input_shapes(number))


def _one_step(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    kernel = next(step.kernel for step in steps if isinstance(step.kernel, ConvolutionKernel))
    known = [step.seconds for step in steps if step.kernel is kernel]
    seconds = None if None in known else sum(filter(None, known))
    reason = next((step.reason for step in steps if step.reason), "")
    return Step(steps[0].first, steps[-1].last, kernel, reason, seconds, any(step.is_measured for step in steps))
