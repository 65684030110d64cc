"""The CUDA backend: CUDA C++ kernels, compiled on first use and launched through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsenn.backends.contract import Features, ImageStack
from sparsenn.backends.cuda import images, training
from sparsenn.backends.cuda.absent import AbsentCUDABackend
from sparsenn.backends.cuda.availability import check_device, describe_device
from sparsenn.backends.cuda.conv import upload_conv
from sparsenn.backends.cuda.dense import DenseStack, upload_dense
from sparsenn.backends.cuda.device import cupy, machine_of
from sparsenn.backends.cuda.footprint import prepared_bytes
from sparsenn.backends.cuda.interchange import rows_on_device
from sparsenn.backends.cuda.loader import compile_seconds
from sparsenn.backends.cuda.memory import free_bytes, release_unused, staging, within_memory
from sparsenn.backends.cuda.sparse import Stack, conversion, rows, upload
from sparsenn.backends.host_arrays import is_on_host
from sparsenn.backends.machine import Machine
from sparsenn.formats import COO, CSR, Array
from sparsenn.layers import Conv2d, ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = ["AbsentCUDABackend", "CUDABackend", "training"]


class CUDABackend:
    """Computes on one NVIDIA GPU. Features on the device are CSR over CuPy arrays, or dense CuPy matrices.

    Parameters
    ----------
    index : which GPU, counted from 0.

    Raises
    ------
    DeviceError
        The GPU, its driver or CuPy is missing or does not fit; the message says what to do.
    """

    device = "cuda"
    prepares_ahead = True

    def __init__(self, index: int = 0) -> None:
        check_device(index)
        self.index = index

    @property
    def description(self) -> str:
        """The device in words."""
        return describe_device(self.index)

    @property
    def machine(self) -> Machine:
        """What the device offers."""
        return machine_of(self.index)

    def free_memory(self) -> int:
        """Return the device's free memory."""
        with cupy().cuda.Device(self.index):
            return free_bytes()

    def weight_memory(self) -> int:
        """Return half of the device's free memory; the other half is left for rows."""
        return max(1, self.free_memory() // 2)

    def prepared_bytes(self, layer: Layer) -> int:
        """Estimate the device memory that a layer takes in all the forms that kernels read."""
        return prepared_bytes(layer)

    def prepare(self, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Stack:
        """Copy layers to the device, on a stream of their own; the copies have ended when this returns."""
        with self._copying(layers) as to_device:
            return upload(self.index, layers, copies, to_device)

    def prepare_dense(self, layers: Sequence[Linear]) -> DenseStack:
        """Copy dense layers to the device, as `prepare` does."""
        with self._copying(layers) as to_device:
            return upload_dense(self.index, layers, to_device)

    def prepare_images(self, layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
        """Copy the weights of convolutions to the device, as `prepare` does."""
        with self._copying(layers) as to_device:
            prepared = tuple(
                upload_conv(self.index, layer, (shape[0], shape[1], shape[2]), to_device)
                if isinstance(layer, Conv2d)
                else None
                for layer, shape in zip(layers, shapes, strict=False)
            )
        return ImageStack(tuple(layers), tuple(shapes), prepared)

    @contextmanager
    def _copying(self, layers: Sequence[Layer]) -> Iterator[Callable[[Array], Array]]:
        """Yield what copies arrays of some layers to the device; on leaving, the copies have ended."""
        size = sum(layer.weight_bytes for layer in layers)
        with (
            cupy().cuda.Device(self.index),
            within_memory(f"{size:,} bytes of weights", 0, 0),
            staging(self.index).copying() as to_device,
        ):
            yield to_device

    def run_image_layer(self, layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
        """Run a layer on the device."""
        with cupy().cuda.Device(self.index):
            return images.run_layer(layer, shape, features)

    def release(self) -> None:
        """Give the memory that CuPy keeps for later back to the device."""
        with cupy().cuda.Device(self.index):
            release_unused()

    def compile_seconds(self) -> float:
        """Return the seconds spent on making modules of kernels; CuPy's own kernels are part of what calls them."""
        return compile_seconds()

    def place(self, features: Features | COO) -> Features:
        """Copy features to the device, in float32; COO becomes CSR there, dense ones row-major."""
        cp = cupy()
        count, width = features.shape
        with cp.cuda.Device(self.index), within_memory("the inputs", count, 4 * width + 64):
            if isinstance(features, COO):
                entries = cp.asarray(features.rows), cp.asarray(features.columns)
                return conversion.coo_to_csr(COO(features.shape, *entries, _floats(features.values)))
            if isinstance(features, CSR):
                indptr, indices = cp.asarray(features.indptr), cp.asarray(features.indices)
                return CSR(features.shape, indptr, indices, _floats(features.values))
            dense: Array = cp.ascontiguousarray(cp.asarray(features, dtype=np.float32))
            return dense

    def fetch(self, features: Features) -> Features:
        """Copy features to the host."""
        cp = cupy()
        if isinstance(features, CSR):
            arrays = (cp.asnumpy(array) for array in (features.indptr, features.indices, features.values))
            return CSR(features.shape, *arrays)
        dense: Array = cp.asnumpy(features)
        return dense

    def take_rows(self, features: Features, selected: Array) -> Features:
        """Return the given rows (host int64), gathered on the device."""
        cp = cupy()
        with cp.cuda.Device(self.index), within_memory("taking rows", selected.size, 4 * features.shape[1] + 64):
            return rows.take_rows(features, cp.asarray(selected, dtype=np.int64))

    def equal_rows(self, features: Features) -> tuple[Array, Array]:
        """Group equal rows: found by hash on the device, compared whole. Returns host arrays."""
        cp = cupy()
        with cp.cuda.Device(self.index), within_memory("grouping equal rows", features.shape[0], 64):
            representatives, group = rows.group_rows(features)
            return cp.asnumpy(representatives), cp.asnumpy(group)

    def as_dense(self, features: Features) -> Array:
        """Return the features as a row-major float32 matrix on the device."""
        cp = cupy()
        with cp.cuda.Device(self.index), within_memory("dense rows", features.shape[0], 4 * features.shape[1]):
            dense: Array = cp.ascontiguousarray(rows.as_dense(features), dtype=np.float32)
            return dense

    def take_in(self, rows: Any, keep_half: bool) -> tuple[Array, bool]:
        """Return rows as a row-major matrix on the device: float32, or float16 if they are that and may stay it."""
        count, width = getattr(rows, "shape", (0, 0)) if len(getattr(rows, "shape", ())) == 2 else (0, 0)
        with cupy().cuda.Device(self.index), within_memory("the rows", count, 4 * width):
            return rows_on_device(rows, self.index, keep_half), is_on_host(rows)

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row on the device; returns a host array."""
        cp = cupy()
        with cp.cuda.Device(self.index), within_memory("counting", features.shape[0], 16):
            counts: Array = cp.asnumpy(images.count_nonzeros(features))
            return counts

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers on the device."""
        with cupy().cuda.Device(self.index):
            return images.largest_number(features.values if isinstance(features, CSR) else features)


def _floats(values: Array) -> Array:
    floats: Array = cupy().asarray(values, dtype=np.float32)
    return floats
