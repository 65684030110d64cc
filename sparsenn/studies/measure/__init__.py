"""Measuring a device: how long work takes on it, what it occupies, and what the device can do at most."""

from sparsenn.backends.contract import Backend
from sparsenn.backends.cuda import CUDABackend
from sparsenn.studies.measure.cuda_meter import CUDAMeter
from sparsenn.studies.measure.meter import HostMeter, Identity, MeasuredRoofs, Measurement, Meter, Roofs, roofs_of

__all__ = [
    "Identity",
    "MeasuredRoofs",
    "Measurement",
    "Meter",
    "Roofs",
    "meter_for",
    "roofs_of",
]


def meter_for(backend: Backend) -> Meter:
    """Return what measures on a backend's device."""
    return CUDAMeter(backend.index) if isinstance(backend, CUDABackend) else HostMeter()
