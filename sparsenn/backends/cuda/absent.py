"""A GPU that is not here: plans can be made for it and printed, not run; and the memory that layers take on any GPU."""

from __future__ import annotations

from typing import Any, NoReturn

from sparsenn.backends.contract import Backend, Queue
from sparsenn.backends.cuda import sparse
from sparsenn.backends.host_arrays import is_on_host
from sparsenn.backends.machine import Machine
from sparsenn.errors import DeviceError, UsageError
from sparsenn.layers import Conv2d, ImageLayer, LayerNorm, Linear, SparseLinear
from sparsenn.network import Layer

FORMS = 3  # copies of weights: as they are, and for tensor cores rounded and what rounding took away


def prepared_bytes(layer: Layer, with_zeros: bool) -> int:
    """Estimate the bytes that a layer takes; see `Backend.prepared_bytes`."""
    if isinstance(layer, SparseLinear):
        return (
            FORMS * 4 * layer.inputs * layer.outputs + 4 * layer.outputs if with_zeros else sparse.prepared_bytes(layer)
        )
    if isinstance(layer, Linear | Conv2d):
        return FORMS * layer.weight_bytes + layer.bias_vector().nbytes
    if isinstance(layer, LayerNorm):
        return layer.weight_bytes
    if isinstance(layer, ImageLayer):
        return 0
    raise UsageError(f"the CUDA backend does not know the layer {type(layer).__name__}")


class AbsentCUDABackend:
    """Answers what planning asks of a GPU, all of whose memory is taken to be free, without CuPy; computes nothing."""

    device = "cuda"
    doubles = False
    in_host_memory = False
    prepares_ahead = True
    queue = Queue()

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def description(self) -> str:
        """The device in words."""
        return f"{self.machine.name} (not here)"

    def free_memory(self) -> int:
        """Return the device's memory."""
        return self.machine.memory_bytes

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Estimate what the layer would take, as `CUDABackend` does."""
        return prepared_bytes(layer, with_zeros)

    def release(self) -> None:
        """Do nothing: no memory is kept."""

    def device_rows(self, inputs: Any) -> None:
        """Return None for rows in host memory; refuse others."""
        if not is_on_host(inputs):
            self.__getattr__("place")

    def __getattr__(self, name: str) -> NoReturn:
        if not hasattr(Backend, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise DeviceError(
            f"{self.machine.name} is not here: a plan for another machine can be printed, not run; leave out machine"
        )
