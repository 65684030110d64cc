"""Fitting: the steps whose prepared weights fit into memory, or stream, and the time that streaming takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparsenn.backends.kernel_records import DENSE_OPERATION, WHOLE_OPERATION
from sparsenn.engine.choosing import RowsShape, choose_steps
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.steps import Step
from sparsenn.layers import SparseLinear, connected_layer

__all__ = ["fit_steps", "prepared_bytes"]

PREPARED_BYTE_SECONDS = 2e-9
"""Time to prepare a byte of weights: on the host, measured on AMD EPYC (Zen 5), and for an H100, with its copy."""


def fit_steps(compiled: CompiledNetwork, rows: RowsShape) -> tuple[tuple[Step, ...], bool, float]:
    """Choose the steps of a plan by the memory that their weights take.

    On the host, where dense kernels add up as sparse ones do, layers stay sparse where storing their zeros takes more
    memory than there is, unless streaming those takes less time. On a GPU results must not depend on free memory.
    Returned are the steps, cut for memory where their weights stream; whether they do; and the seconds that preparing
    them is estimated to take for each batch, 0 where they do not stream.
    """
    backend, free = compiled.backend, compiled.weight_memory
    steps = choose_steps(compiled, rows)
    sizes = prepared_bytes(compiled, *steps)
    if sum(sizes) <= free:
        return steps, False, 0.0
    if backend.in_host_memory:
        sparse = choose_steps(replace(compiled, stores_zeros=False, parts={}), rows)
        sparse_sizes = prepared_bytes(compiled, *sparse)
        if sum(sparse_sizes) <= free:
            return sparse, False, 0.0
        if _seconds(sparse, sparse_sizes) < _seconds(steps, sizes):
            steps, sizes = sparse, sparse_sizes
    limit = free // 2 if backend.prepares_ahead else free
    return tuple(_cut(steps, sizes, limit)), True, PREPARED_BYTE_SECONDS * sum(sizes)


def prepared_bytes(compiled: CompiledNetwork, *steps: Step) -> list[int]:
    """Estimate the bytes of each layer's weights, prepared for the kernels of steps."""
    return [
        compiled.backend.prepared_bytes(
            layer, step.kernel.operation in (DENSE_OPERATION, WHOLE_OPERATION) and isinstance(layer, SparseLinear)
        )
        for step in steps
        for layer in map(connected_layer, compiled.merged.network.layers[step.first : step.last])
    ]


def _cut(steps: Sequence[Step], sizes: Sequence[int], limit: int) -> Iterator[Step]:
    """Cut steps so that the prepared weights of each, of `sizes` by layer, are within a limit, or a single layer."""
    for step in steps:
        first, held = step.first, 0
        for number in step.layers:
            if number > first and held + sizes[number] > limit:
                yield step.of_layers(first, number)
                first, held = number, 0
            held += sizes[number]
        yield step.of_layers(first, step.last)


def _seconds(steps: Sequence[Step], sizes: Sequence[int]) -> float:
    return PREPARED_BYTE_SECONDS * sum(sizes) + sum(step.seconds or 0.0 for step in steps)
