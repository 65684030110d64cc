"""A GPU that is not here: plans can be made for it and printed, not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from sparsenn.backends.contract import Features, ImageStack
from sparsenn.backends.cuda.footprint import prepared_bytes
from sparsenn.backends.machine import Machine
from sparsenn.errors import DeviceError
from sparsenn.formats import Array
from sparsenn.layers import ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = ["AbsentCUDABackend"]


class AbsentCUDABackend:
    """Answers what planning asks of a GPU, all of whose memory is taken to be free; computes nothing.

    Neither CuPy nor a GPU is needed.

    Parameters
    ----------
    machine : the GPU.
    """

    device = "cuda"
    prepares_ahead = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def description(self) -> str:
        """The device in words."""
        return f"{self.machine.name} (not here)"

    def free_memory(self) -> int:
        """Return the device's memory."""
        return self.machine.memory_bytes

    def weight_memory(self) -> int:
        """Return half of the device's memory; the other half is left for rows."""
        return max(1, self.free_memory() // 2)

    def prepared_bytes(self, layer: Layer) -> int:
        """Estimate what the layer would take, as `CUDABackend` does."""
        return prepared_bytes(layer)

    def prepare(self, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Any:
        """Refuse."""
        self._refuse()

    def prepare_dense(self, layers: Sequence[Linear]) -> Any:
        """Refuse."""
        self._refuse()

    def prepare_images(self, layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
        """Refuse."""
        self._refuse()

    def run_image_layer(self, layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
        """Refuse."""
        self._refuse()

    def release(self) -> None:
        """Do nothing: no memory is kept."""

    def compile_seconds(self) -> float:
        """Return 0: nothing is compiled."""
        return 0.0

    def place(self, features: Features) -> Features:
        """Refuse."""
        self._refuse()

    def fetch(self, features: Features) -> Features:
        """Refuse."""
        self._refuse()

    def take_rows(self, features: Features, rows: Array) -> Features:
        """Refuse."""
        self._refuse()

    def equal_rows(self, features: Features) -> tuple[Array, Array]:
        """Refuse."""
        self._refuse()

    def as_dense(self, features: Features) -> Array:
        """Refuse."""
        self._refuse()

    def take_in(self, rows: Any, keep_half: bool) -> tuple[Array, bool]:
        """Refuse."""
        self._refuse()

    def count_nonzeros(self, features: Array) -> Array:
        """Refuse."""
        self._refuse()

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DeviceError(
            f"{self.machine.name} is not here: a plan for another machine can be printed, not run; leave out machine"
        )
