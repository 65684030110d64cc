"""Fitting: steps whose prepared weights stay in memory where that holds them, and what it takes where they stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsenn.backends import Backend
from sparsenn.engine.steps import DENSE_OPERATION, Step, cut_for_memory
from sparsenn.layers import SparseLinear
from sparsenn.network import Network

__all__ = ["FittedSteps", "fit_steps", "prepared_bytes"]

PREPARED_BYTE_SECONDS = 2e-9
"""Time to prepare a byte of weights: on the host, measured on AMD EPYC (Zen 5), and for an H100, with its copy."""

MOST_DENSE_BYTES = 1 << 30
"""Bytes that sparse layers may take with their zeros stored: constant, so that results do not depend on free memory."""


class FittedSteps(NamedTuple):
    """Steps of a plan.

    Parameters
    ----------
    steps : cut into parts that fit into memory, where weights stream.
    streams : whether memory does not hold all prepared weights.
    preparing : seconds that preparing them is estimated to take for each batch, 0 where they do not stream.
    """

    steps: tuple[Step, ...]
    streams: bool
    preparing: float


def fit_steps(
    choose: Callable[[int], tuple[Step, ...]], network: Network, backend: Backend, weight_memory: int
) -> FittedSteps:
    """Choose the steps of a plan by what memory their weights take.

    On the host, where dense kernels add up as sparse ones do, layers stay sparse where storing their zeros takes more
    memory than there is, unless streaming those takes less time. On a GPU results must not depend on free memory.

    Parameters
    ----------
    choose : returns the steps where sparse layers may take so many bytes with their zeros stored.
    network : as it is computed.
    backend : of the device.
    weight_memory : bytes that prepared weights may take.
    """
    steps = choose(MOST_DENSE_BYTES)
    sizes = _sizes(network, backend, steps)
    if sum(sizes) <= weight_memory:
        return FittedSteps(steps, streams=False, preparing=0.0)
    if backend.in_host_memory:
        sparse = choose(0)
        sparse_sizes = _sizes(network, backend, sparse)
        if sum(sparse_sizes) <= weight_memory:
            return FittedSteps(sparse, streams=False, preparing=0.0)
        if _seconds(sparse, sparse_sizes) < _seconds(steps, sizes):
            steps, sizes = sparse, sparse_sizes
    room = weight_memory // 2 if backend.prepares_ahead else weight_memory
    return FittedSteps(tuple(cut_for_memory(steps, sizes, room)), True, PREPARED_BYTE_SECONDS * sum(sizes))


def prepared_bytes(network: Network, backend: Backend, number: int, step: Step) -> int:
    """Estimate what a layer's weights take once they are prepared for a step's kernel."""
    layer = network[number]
    with_zeros = step.kernel.operation == DENSE_OPERATION and isinstance(layer, SparseLinear)
    return backend.prepared_bytes(layer, with_zeros)


def _sizes(network: Network, backend: Backend, steps: Sequence[Step]) -> list[int]:
    return [prepared_bytes(network, backend, number, step) for step in steps for number in step.layers]


def _seconds(steps: Sequence[Step], sizes: Sequence[int]) -> float:
    """Estimate the seconds of a batch whose weights stream, as far as steps are estimated."""
    return PREPARED_BYTE_SECONDS * sum(sizes) + sum(step.seconds or 0.0 for step in steps)
