"""A plan in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sparsenn.backends import Backend, Kernel
from sparsenn.backends.steps import IMAGE_OPERATION
from sparsenn.engine.kernels import OPERATION, Chosen
from sparsenn.engine.merging import Merged
from sparsenn.network import Network

__all__ = ["describe"]


class _Plan(Protocol):
    """What `Plan` has that is told in words; it says there what each is."""

    @property
    def network(self) -> Network: ...
    @property
    def merged(self) -> Merged: ...
    @property
    def inputs(self) -> int: ...
    @property
    def density(self) -> float: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def device(self) -> str: ...
    @property
    def kernels(self) -> Sequence[Kernel]: ...
    @property
    def chosen(self) -> Mapping[int, Chosen]: ...
    @property
    def convolutions(self) -> Mapping[int, Chosen]: ...
    @property
    def dense_segments(self) -> Mapping[Kernel, Sequence[tuple[int, int]]]: ...
    @property
    def segments(self) -> Sequence[tuple[int, int]]: ...
    @property
    def batches(self) -> Sequence[tuple[int, int]]: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def adaptive(self) -> bool: ...
    @property
    def rechosen_from(self) -> int | None: ...
    @property
    def is_mixed(self) -> bool: ...
    @property
    def has_image_layers(self) -> bool: ...
    @property
    def streams(self) -> bool: ...
    @property
    def compaction(self) -> bool: ...
    @property
    def deduplication(self) -> bool: ...
    @property
    def merging(self) -> bool: ...
    @property
    def droppable_from(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def precisions(self) -> Sequence[str | None]: ...


def describe(plan: _Plan) -> str:
    """Return a plan as a few sentences."""
    parts = (_problem(plan), _kernels(plan), _merging(plan), _weights(plan), _rows(plan), _precisions(plan))
    return " ".join(part for part in parts if part)


def _problem(plan: _Plan) -> str:
    count = len(plan.batches)
    batches = "in one batch" if count == 1 else f"in {count} batches of up to {plan.batch_size:,}"
    network = plan.network
    layers = f"{len(network)} layer{'s' if len(network) > 1 else ''}"
    size = f"{network.edges:,} edges"
    if plan.has_image_layers:
        size = f"{network.edges:,} weights and {network.multiply_adds:,} multiply-adds an input"
    return (
        f"{plan.inputs:,} inputs ({100 * plan.density:.1f} % dense) through {layers} with {size} on {plan.device}, "
        f"{batches}."
    )


def _kernels(plan: _Plan) -> str:
    if not plan.is_mixed:
        return f"Kernel {_sparse_kernels(plan)}."
    sparse = [run for run in plan.network.runs() if plan.chosen[run[0]].kernel.operation == OPERATION]
    dense = (
        f"Dense layers ({_spans(segments)}): kernel {kernel.name}: {kernel.summary}{_rounding(kernel.precision)}."
        for kernel, segments in plan.dense_segments.items()
    )
    parts = (
        *([f"Sparse layers ({_spans(sparse)}): kernel {_sparse_kernels(plan)}."] if sparse else ()),
        *_convolutions(plan),
        *dense,
        *_other_image_layers(plan),
    )
    return " ".join(parts)


def _convolutions(plan: _Plan) -> list[str]:
    """Say which kernel each convolution gets, and why; those that share both are told of together."""
    shared: dict[tuple[str, str], list[int]] = {}
    for number, chosen in plan.convolutions.items():
        text = f"kernel {chosen.kernel.name}: {chosen.kernel.summary}{_rounding(chosen.kernel.precision)}"
        shared.setdefault((text, chosen.reason), []).append(number)
    return [
        f"Convolutions ({_numbers(numbers)}): {text}{f'; {reason}' if reason else ''}."
        for (text, reason), numbers in shared.items()
    ]


def _other_image_layers(plan: _Plan) -> list[str]:
    """Say which layers of images have but one way to be run."""
    named: dict[str, list[int]] = {}
    for number, chosen in plan.chosen.items():
        if chosen.kernel.operation == IMAGE_OPERATION:
            named.setdefault(chosen.kernel.name, []).append(number)
    if not named:
        return []
    told = ", ".join(f"{name} ({_numbers(numbers)})" for name, numbers in named.items())
    return [f"The device's own functions: {told}."]


def _rounding(precision: str) -> str:
    return "" if precision == "float32" else f"; factors are rounded to {precision}"


def _sparse_kernels(plan: _Plan) -> str:
    first = f"{plan.kernels[0].name}: {plan.kernels[0].summary}"
    if plan.adaptive:
        return (
            f"{first}; each launch's first layer multiplies only non-zeros (scatter) where its rows are sparse enough"
        )
    if plan.rechosen_from is None:
        return first
    others = ", ".join(f"{kernel.name} ({kernel.summary})" for kernel in plan.kernels[1:])
    start = f"from layer {plan.rechosen_from + 1} on"
    return f"{first}; {start} that or {others}, whichever is faster for the rows left"


def _merging(plan: _Plan) -> str:
    if not plan.kernels:
        return ""
    if not plan.merging:
        return "Equal outputs are not merged."
    neurons = sum(plan.network.sizes[1:])
    computed = sum(plan.merged.network.sizes[1:])
    if computed == neurons:
        kind = "layer"
        if plan.is_mixed:
            reader = "layer of another kind" if plan.has_image_layers else "dense one"
            kind = f"sparse layer, of those that no {reader} reads,"
        return f"No two outputs of a {kind} are equal: nothing to merge."
    return (
        f"Equal outputs merged: {computed:,} of {neurons:,} neurons and {plan.merged.network.edges:,} of "
        f"{plan.network.edges:,} edges are left to compute."
    )


def _weights(plan: _Plan) -> str:
    if not plan.streams or len(plan.segments) == 1:
        return ""
    how = "the next while one is computed" if plan.backend.prepares_ahead else "one after the other"
    return f"Weights are prepared in {len(plan.segments):,} parts, {how}."


def _rows(plan: _Plan) -> str:
    if not plan.compaction:
        dead = "Rows of zeros are kept"
    elif not plan.network[-1].keeps_zero_rows:
        dead = "Rows of zeros are kept, as the last layer may revive them"
    elif plan.droppable_from == 0:
        dead = "Rows of zeros are dropped from the first layer on"
    else:
        dead = f"Rows of zeros are dropped only after layer {plan.droppable_from + 1}, the last that revives them"
    if not (plan.deduplication and plan.kernels):
        return f"{dead}; equal rows are not looked for."
    where = ", looked for before and after sparse layers" if plan.is_mixed else ""
    return f"{dead}; equal rows are computed once{where}."


def _precisions(plan: _Plan) -> str:
    """Say which layers are multiplied in what, unless float32 is what was asked for."""
    if plan.precision == "float32":
        return ""
    told = []
    for precision in (plan.precision, "float32"):
        layers = [number for number, found in enumerate(plan.precisions) if found == precision]
        if layers or precision == plan.precision:
            told.append(f"in {precision}: {_spans(_runs(layers)) or 'none'}")
    return f"Layers multiplied {'; '.join(told)}."


def _runs(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges with their ends excluded."""
    ranges: list[tuple[int, int]] = []
    for number in layers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return ranges


def _spans(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of layers, counted from 0 with their ends excluded, as a reader counts them."""
    return ", ".join(f"{first + 1}" if last == first + 1 else f"{first + 1}–{last}" for first, last in ranges)


def _numbers(layers: Sequence[int]) -> str:
    """Return layers, counted from 0, as a reader counts them."""
    return ", ".join(str(number + 1) for number in layers)
