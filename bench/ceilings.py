"""What this machine can do at most, and the least that a problem must move: what physical floors are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sparsenn.formats import CSR
from sparsenn.network import Network
from sparsenn.studies.measure.meter import HostMeter, Roofs

__all__ = ["Peaks", "bytes_moved", "ceilings"]


@dataclass(frozen=True)
class Peaks:
    """Measured: bytes a second copied, read plus written; multiply-adds a second in each precision.

    `link`: bytes a second from pinned memory to the device; None where the host computes, or nothing comes from there.
    """

    copied: float
    rates: dict[str, float]
    link: float | None = None

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {2 * rate / 1e12:.0f} TFLOP/s" for name, rate in self.rates.items())
        return f"copy {self.copied / 1e12:.2f} TB/s, {rates}"

    def floor(self, moved: int, multiply_adds: int, precision: str, from_host: int = 0) -> float:
        """Return the seconds that nothing can go below: bytes moved once, or multiply-adds at the precision's rate.

        float32's are those of a library, or a third of TF32's if that is more: three products of parts make one.

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


def bytes_moved(network: Network, inputs: CSR) -> int:
    """Return the least that must be read: the inputs and every weight, once."""
    return inputs.nbytes + sum(layer.weights.nbytes for layer in network)
