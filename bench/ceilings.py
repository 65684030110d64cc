"""What this machine can do at most, and the least that a problem must move: what physical floors are computed from."""

from __future__ import annotations

from functools import cache

from sparsenn.formats import CSR
from sparsenn.network import Network
from sparsenn.studies.measure.meter import HostMeter, Roofs

__all__ = ["bytes_moved", "ceilings"]


@cache
def ceilings() -> Roofs:
    """Measure the host, once per process."""
    return HostMeter().roofs()


def bytes_moved(network: Network, inputs: CSR) -> int:
    """Return the least that must be read: the inputs and every weight, once."""
    return inputs.nbytes + sum(layer.weights.nbytes for layer in network)
