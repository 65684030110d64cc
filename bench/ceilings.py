"""What a machine can do at most, and the least that a problem must move: what physical floors are computed from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from timing import Timer, queued

from sparsenn.formats import CSR
from sparsenn.network import Network
from sparsenn.studies.measure.meter import HostMeter, Roofs

__all__ = ["Peaks", "bytes_moved", "ceilings", "cublas_precision", "gpu_peaks", "host_peaks"]

SIDE = 8192
"""Of the square matrices whose product tells how fast a precision is."""

PINNED_BYTES = 256 << 20


@dataclass(frozen=True)
class Peaks:
    """Measured: bytes a second copied, read plus written; multiply-adds a second in each precision.

    `link`: bytes a second from pinned memory to the device; None where it was not measured.
    """

    copied: float
    rates: dict[str, float]
    link: float | None = None

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {2 * rate / 1e12:.0f} TFLOP/s" for name, rate in self.rates.items())
        return f"copy {self.copied / 1e12:.2f} TB/s, {rates}"

    def floor(self, moved: int, multiply_adds: int, precision: str, from_host: int = 0) -> float:
        """Return the seconds that nothing can go below: bytes moved once, or multiply-adds at the precision's rate.

        float32's are those of a library, or a third of TF32's if that is more: three products of TF32 make one.

        Parameters
        ----------
        moved, from_host : bytes in the device's memory, and over the link from the host's.
        """
        seconds = multiply_adds / self.rates[precision]
        if precision == "float32" and "tf32" in self.rates:
            seconds = min(seconds, 3 * multiply_adds / self.rates["tf32"])
        return max(seconds, moved / self.copied, from_host / self.link if self.link else 0.0)


@cache
def ceilings() -> Roofs:
    """Measure the host, once per process."""
    return HostMeter().roofs()


def host_peaks() -> Peaks:
    """Return the peaks of the host."""
    return Peaks(ceilings().copy_bandwidth, ceilings().multiply_adds)


def bytes_moved(network: Network, inputs: CSR) -> int:
    """Return the least that must be read: the inputs and every weight, once."""
    return inputs.nbytes + sum(layer.weights.nbytes for layer in network)


def gpu_peaks(link: bool = False) -> Peaks:
    """Measure the current GPU: a copy of 2 GB, square products by cuBLAS, and a copy from pinned memory if asked."""
    import cupy as cp

    source = cp.ones(1 << 29, np.float32)
    target = cp.empty_like(source)
    copied = 2e3 * source.nbytes / queued(partial(cp.copyto, target, source)).median
    del source, target
    rates = {}
    for precision, kind in (("float32", np.float32), ("tf32", np.float32), ("float16", np.float16)):
        square = cp.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32).astype(kind)
        out = cp.empty_like(square)
        with cublas_precision(precision):
            rates[precision] = 1e3 * SIDE**3 / queued(partial(cp.matmul, square, square, out=out)).median
    del square, out
    cp.get_default_memory_pool().free_all_blocks()
    return Peaks(copied, rates, _link() if link else None)


def _link() -> float:
    import cupy as cp

    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(PINNED_BYTES), np.uint8, PINNED_BYTES)
    target, stream = cp.empty(pinned.size, np.uint8), cp.cuda.Stream(non_blocking=True)
    copy = Timer().time(lambda: target.set(pinned, stream), stream.synchronize, 20)
    return 1e3 * pinned.nbytes / copy.median


@contextmanager
def cublas_precision(precision: str) -> Iterator[None]:
    """Have CuPy multiply float32 in TF32 within the block if that is the precision."""
    from cupy._core import _routines_linalg as products

    before: Any = products.get_compute_type(np.dtype(np.float32))
    wanted = products.COMPUTE_TYPE_TF32 if precision == "tf32" else products.COMPUTE_TYPE_DEFAULT
    products.set_compute_type(np.dtype(np.float32), wanted)
    try:
        yield
    finally:
        products.set_compute_type(np.dtype(np.float32), before)
