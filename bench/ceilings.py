"""What this machine can do at most: the figures that physical floors are computed from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from sparsenn.formats import CSR
from sparsenn.network import Network
from sparsenn.workers import map_threads, thread_count

__all__ = ["Ceilings", "bytes_moved", "ceilings"]

RUNS = 20


@dataclass(frozen=True)
class Ceilings:
    """Measured on all threads.

    Parameters
    ----------
    copy_bandwidth : bytes per second, read plus written, of a copy far larger than the caches.
    multiply_adds : float32 multiply-adds per second of a large matrix product in the BLAS library.
    """

    copy_bandwidth: float
    multiply_adds: float

    def floor(self, bytes_moved: int, multiply_adds: int) -> float:
        """Return the seconds that no implementation can go below: memory or arithmetic, whichever takes longer."""
        return max(bytes_moved / self.copy_bandwidth, multiply_adds / self.multiply_adds)


@cache
def ceilings() -> Ceilings:
    """Measure once per process; medians of 20 runs."""
    source = np.ones((thread_count(), 32 << 20), np.float32)
    target = np.zeros_like(source)

    def copy() -> None:
        map_threads(lambda part: np.copyto(target[part], source[part]), range(thread_count()))

    size = 2048
    matrix = np.random.default_rng(0).random((size, size), dtype=np.float32)
    product = np.empty_like(matrix)
    return Ceilings(
        copy_bandwidth=2 * source.nbytes / _median(copy),
        multiply_adds=size**3 / _median(lambda: np.matmul(matrix, matrix, out=product)),
    )


def bytes_moved(network: Network, inputs: CSR) -> int:
    """Return the least that must be read: the inputs and every weight, once."""
    return inputs.nbytes + sum(layer.weights.nbytes for layer in network)


def _median(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
