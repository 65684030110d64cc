"""Predictor: a network of dense layers, kept ready on a device and called with rows, wherever they are."""

from __future__ import annotations

from typing import Any

from sparsenn.backends import Variant
from sparsenn.engine.plan import DENSE_OPERATION, choices, those_that_can
from sparsenn.errors import ShapeError
from sparsenn.network import Network

__all__ = ["Predictor"]


class Predictor:
    """Runs a network of dense layers on rows of features, one call a batch.

    Weights are brought to the device once. Rows may be NumPy or CuPy arrays, lists of lists, or anything that speaks
    DLPack or CUDA's array interface; those already on the device, in float32 and row-major, are not copied. A call with
    rows on a GPU waits for nothing: it is queued on CuPy's current stream, as CuPy's own functions are.

    Parameters
    ----------
    network : dense layers only.
    device : `auto`, `cpu`, `cuda`, `cuda:i` or `reference`.
    kernel : `auto`, or a variant of `mlp` by name.
    precision : `float32`, `tf32` or `fp16`: what is multiplied; sums are float32.

    Raises
    ------
    UsageError
        A layer is sparse; the device, the kernel or the precision does not exist; or the kernel does not take the
        network.
    DeviceError
        The device is not there.
    OutOfMemoryError
        The weights do not fit on the device.
    """

    def __init__(
        self, network: Network, *, device: str = "auto", kernel: str = "auto", precision: str = "float32"
    ) -> None:
        layers = network.dense_layers()
        self.network = network
        self.backend, candidates = choices(device, kernel, DENSE_OPERATION, precision)
        self.kernel: Variant = those_that_can(candidates, layers, None, 0)[0]
        self._stack = self.backend.prepare_dense(layers)

    def __call__(self, rows: Any) -> Any:
        """Return the network's outputs for rows of shape (rows, inputs), as an array of shape (rows, outputs).

        It is where the rows were: a NumPy array for rows on the host, a CuPy array for rows on a GPU. Its type is
        float32; float16 where the rows are that and the kernel takes them, as those of precision `fp16` on a GPU do;
        float64 on the device `reference`.

        Raises
        ------
        ShapeError
            The rows are no matrix, or not as wide as the network's inputs.
        InputError
            They are not of real numbers.
        UsageError
            They are on a GPU that the network is not on.
        OutOfMemoryError
            Rows or outputs do not fit on the device.
        """
        placed, on_host = self.backend.take_in(rows, self.kernel.half_rows)
        if placed.shape[1] != self.network.inputs:
            raise ShapeError(f"the rows have {placed.shape[1]} columns; the network takes {self.network.inputs}")
        outputs = self.kernel.launch(self._stack, placed)
        return self.backend.fetch(outputs) if on_host else outputs

    def __str__(self) -> str:
        widths = " - ".join(str(width) for width in (self.network.inputs, *(layer.outputs for layer in self.network)))
        return f"{widths} on {self.backend.description}, kernel {self.kernel.name}: {self.kernel.summary}"
