"""Predictor: a network of dense layers and layers of images, kept ready on a device and called with rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparsenn.backends import Kernel
from sparsenn.backends.steps import IMAGE_OPERATION
from sparsenn.engine.finite import HalfRange
from sparsenn.engine.inputs import check_network
from sparsenn.engine.kernels import Kernels, choose_kernels
from sparsenn.engine.sections import Call, DenseSection, ImageSection, section_of
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import ImageLayer, SparseLinear
from sparsenn.network import Network

__all__ = ["Predictor"]


class Predictor:
    """Runs a network of dense layers and layers of images on rows of features, one call a batch.

    Weights are brought to the device once. Rows may be NumPy or CuPy arrays, lists of lists, or anything that speaks
    DLPack or CUDA's array interface; those already on the device, in float32 and row-major, are not copied. A call with
    rows on a GPU waits for nothing: it is queued on CuPy's current stream, as CuPy's own functions are.

    Parameters
    ----------
    network : without sparse layers.
    device : `auto`, `cpu`, `cuda`, `cuda:i` or `reference`.
    kernel : `auto`, or a kernel by name: of `conv2d` where there are convolutions, else of `mlp`.
    precision : `float32`, `tf32` or `fp16`, as `plan` takes it.

    Raises
    ------
    UsageError
        It is no `Network`, or a layer is sparse; the device, the kernel or the precision does not exist; or the kernel
        does not take the network.
    DeviceError
        The device is not there.
    OutOfMemoryError
        The weights do not fit on the device.
    """

    def __init__(
        self, network: Network, *, device: str = "auto", kernel: str = "auto", precision: str = "float32"
    ) -> None:
        check_network(network)
        for number, layer in enumerate(network, start=1):
            if layer.family is SparseLinear:
                raise UsageError(
                    f"layer {number} is sparse; a Predictor runs dense layers and layers of images: use infer"
                )
        self.network = network
        self.backend, kernels = choose_kernels(network, device, kernel, precision)
        self._steps = tuple(self._calls(kernels))
        self._images = any(layer.family is ImageLayer for layer in network)
        self._half_range = HalfRange(network, self.backend)
        self._parts: dict[tuple[int, int], Any] = {}

    def _calls(self, kernels: Kernels) -> Iterator[Call]:
        """Yield the steps, their weights on the device; consecutive dense layers are one."""
        for first, last in self.network.runs():
            section = section_of(self.backend, self.network, (), kernels, first, last)
            assert isinstance(section, DenseSection | ImageSection), "sparse layers were refused"
            yield from section.calls()

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs the first layers."""
        return self._steps[0].kernel

    def __call__(self, rows: Any) -> Any:
        """Return the network's outputs for rows of shape (rows, inputs), as an array of shape (rows, outputs).

        Images may come as an array of shape (images, channels, height, width), too. The outputs are where the rows
        were: a NumPy array for rows on the host, a CuPy array for rows on a GPU. Their type is float32; float16 where
        the rows are that and the kernels take them, as those of precision `fp16` on a GPU do; float64 on the device
        `reference`.

        Where the rows are on the host, it is looked whether images are finite numbers, and whether numbers stay within
        the precision `fp16`. There, dense layers whose hidden values could leave it are run in parts, and what lies
        between is looked at. For rows on a GPU that would mean to wait: nothing is looked at, and numbers beyond
        65,504 count as infinite, of which an activation may make finite ones again.

        Raises
        ------
        ShapeError
            The rows are no matrix, or not as wide as the network's inputs.
        InputError
            They are not of real numbers; or they are images with a number that is infinite or NaN.
        NumericError
            They are on the host, and inputs, outputs or hidden values of layers in precision `fp16` went beyond what
            it holds, or a kernel that adds in it may have left it.
        UsageError
            They are on a GPU that the network is not on.
        OutOfMemoryError
            Rows or outputs do not fit on the device.
        """
        placed, on_host = self.backend.take_in(self._as_rows(rows), all(step.kernel.half_rows for step in self._steps))
        if placed.shape[1] != self.network.inputs:
            raise ShapeError(f"the rows have {placed.shape[1]} columns; the network takes {self.network.inputs}")
        if on_host:
            largest, finite = self.backend.largest_number(placed) if self._images else (None, True)
            if not finite:
                raise InputError("a number of the rows is infinite or NaN; check where they come from")
            return self.backend.fetch(self._run_watched(placed, largest))
        values = placed
        for step in self._steps:
            values = step.run(values)
        return values

    def _run_watched(self, values: Array, largest: float | None) -> Array:
        """Run all steps, and look whether numbers stay within half precision; `largest` is known of the first."""
        watch = self._half_range.watch(largest)
        for step in self._steps:
            first = step.first
            while first < step.last:
                stop = watch.before(step.kernel, values, first, step.last)
                whole = (first, stop) == (step.first, step.last)
                values = step.run(values) if whole else step.kernel.launch(self._part(first, stop), values)
                watch.after(step.kernel, values, first, stop)
                first = stop
        return values

    def _part(self, first: int, last: int) -> Any:
        """Return a stack of some dense layers of a step; prepared on first use."""
        if (first, last) not in self._parts:
            self._parts[first, last] = self.backend.prepare_dense(self.network.dense_layers(first, last))
        return self._parts[first, last]

    def _as_rows(self, rows: Any) -> Any:
        """Return images as rows; anything else as it is."""
        shape = tuple(getattr(rows, "shape", ()))
        if len(shape) != 4 or shape[1:] != self.network.image or not hasattr(rows, "reshape"):
            return rows
        return rows.reshape(shape[0], self.network.inputs)

    def __str__(self) -> str:
        sizes = " - ".join(" × ".join(map(str, shape)) for shape in self.network.shapes)
        kernels = {step.kernel.name: step.kernel for step in self._steps if step.kernel.operation != IMAGE_OPERATION}
        told = ", ".join(f"kernel {name}: {kernel.summary}" for name, kernel in kernels.items())
        return f"{sizes} on {self.backend.description}{f', {told}' if told else ''}"
