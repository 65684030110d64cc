"""The CUDA backend: CUDA C++ kernels, compiled on first use and launched through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

from sparsenn.backends.chains import Features, NumberCheck, RowsLeft, RowsWatch, SparseRows
from sparsenn.backends.cuda import images, training
from sparsenn.backends.cuda.absent import AbsentCUDABackend, prepared_bytes
from sparsenn.backends.cuda.conv import upload_conv
from sparsenn.backends.cuda.dense import upload_dense
from sparsenn.backends.cuda.runtime.availability import check_device
from sparsenn.backends.cuda.runtime.device import as_current, cupy, machine_of
from sparsenn.backends.cuda.runtime.memory import arriving, free_bytes, release_unused, staging, within_memory
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.spans import note_use
from sparsenn.backends.cuda.sparse import rows as rows_module
from sparsenn.backends.cuda.sparse import upload
from sparsenn.backends.cuda.transfer import incoming
from sparsenn.backends.cuda.transfer.copies import Transfer
from sparsenn.backends.cuda.transfer.queue import CallQueue, check_process
from sparsenn.backends.kernel_records import ImageStack, Shapes, Sources
from sparsenn.backends.machine import Machine
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.layers import Conv2d, ImageLayer, LayerNorm, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = ["AbsentCUDABackend", "CUDABackend", "training"]


class CUDABackend:
    """Computes on one NVIDIA GPU. Features on the device are CSR over CuPy arrays, or dense CuPy matrices."""

    device = "cuda"
    doubles = False
    in_host_memory = False
    prepares_ahead = True
    row_types: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float16))

    def __init__(self, index: int = 0) -> None:
        check_process()
        check_device(index)
        note_use()
        self.index, self.queue = index, CallQueue(index)
        self._copies: Transfer | None = None
        self._expanded: tuple[Array, Any] | None = None

    @property
    def description(self) -> str:
        """The device in words."""
        return f"cuda:{self.index} ({self.machine.name})"

    @property
    def machine(self) -> Machine:
        """Peaks and sizes of the device, as plans take them."""
        return machine_of(self.index)

    def free_memory(self) -> int:
        """Return the device's free memory."""
        with as_current(self.index):
            return free_bytes()

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Estimate the device memory that a layer takes in all the forms that kernels read."""
        return prepared_bytes(layer, with_zeros)

    def prepare(
        self, layers: Sequence[Any], copies: Sequence[Array] = (), shapes: Shapes = (), sources: Sources = ()
    ) -> Any:
        """Copy layers to the device, on a stream of their own; the copies have ended when this returns."""
        with self._copying(layers) as to_device:
            if isinstance(layers[0], SparseLinear):
                return upload(self.index, layers, copies, to_device)
            if isinstance(layers[0], Linear):
                return upload_dense(self.index, layers, to_device)
            read = tuple(sources) or tuple((number,) for number in range(len(layers)))
            prepared = [
                self._prepared(layer, shapes[each[0]], to_device) for layer, each in zip(layers, read, strict=True)
            ]
        return ImageStack(tuple(layers), tuple(shapes), tuple(prepared), read)

    def _prepared(
        self, layer: ImageLayer, shape: tuple[int, ...], to_device: Callable[[Sequence[Array]], list[Array]]
    ) -> Any:
        if isinstance(layer, Conv2d):
            return upload_conv(self.index, layer, (shape[0], shape[1], shape[2]), to_device)
        parameters = images.NormParameters.of(layer, to_device) if isinstance(layer, LayerNorm) else layer
        return partial(self._run_layer, parameters, shape)

    @contextmanager
    def _copying(self, layers: Sequence[Layer]) -> Iterator[Callable[[Sequence[Array]], list[Array]]]:
        size = sum(layer.weight_bytes for layer in layers)
        with (
            as_current(self.index),
            within_memory(f"{size:,} bytes of weights", 0, 0),
            staging(self.index).copying() as to_device,
        ):
            yield to_device

    def _run_layer(self, layer: ImageLayer | images.NormParameters, shape: tuple[int, ...], *matrices: Array) -> Array:
        with as_current(self.index):
            return images.run_layer(layer, shape, *matrices)

    def release(self) -> None:
        """Give the memory that CuPy keeps for later back to the device."""
        with as_current(self.index):
            if self._copies is not None:
                self._copies.release()
            release_unused()

    def device_rows(self, inputs: Any) -> CSR | SparseRows | Array | None:
        """Return rows that are on this GPU, as CuPy's arrays."""
        return incoming.device_rows(inputs, self.index)

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Bring rows to the device: those from the host in pieces through pinned memory."""
        if incoming.is_ready(rows, keep_half):
            return cast(Array, rows)
        count, width = rows.shape
        if isinstance(rows, CSR):
            size = 16 + rows.nbytes // max(1, count)
            rows = SparseRows(rows.shape, rows.indptr, rows.indices, rows.values)
        elif isinstance(rows, SparseRows):
            size = 16 + 16 * rows.indices.size // max(1, count)
        else:
            size = 4 * width
        with as_current(self.index), within_memory("the inputs", count, size):
            if isinstance(rows, SparseRows):
                if _is_here(rows.indptr):
                    return incoming.check_rows(rows)
                return incoming.check_rows(self._transfer.place_sparse(rows), rows)
            return incoming.matrix(rows, keep_half) if _is_here(rows) else self._transfer.place_dense(rows, keep_half)

    @property
    def _transfer(self) -> Transfer:
        if self._copies is None:
            self._copies = Transfer()
        return self._copies

    def fetch(self, features: Features | SparseRows) -> Any:
        """Copy rows to the host."""
        if isinstance(features, SparseRows):
            return incoming.fetch_rows(features)
        cp = cupy()
        with as_current(self.index):
            if isinstance(features, CSR):
                return CSR(features.shape, *map(cp.asnumpy, features.arrays))
            return cp.asnumpy(features)

    def fetch_later(self, matrix: Array, target: Array) -> Callable[[], None]:
        """Copy a matrix to the host, through pinned memory and on a stream of its own."""
        with as_current(self.index):
            return self._transfer.fetch_later(matrix, target)

    def spread(self, left: RowsLeft, expansion: Array | None) -> Array:
        """Give each input its row, and each output its column, by one kernel."""
        width = left.features.shape[1] if expansion is None else expansion.size
        with as_current(self.index), within_memory("the outputs", left.inputs, 4 * width):
            return rows_module.spread(left, self._expansion(expansion))

    def _expansion(self, expansion: Array | None) -> Any:
        if expansion is None:
            return None
        if self._expanded is None or self._expanded[0] is not expansion:
            self._expanded = expansion, cupy().asarray(expansion, np.int32)
        return self._expanded[1]

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Look at rows and their map on the device, and copy what is found to pinned memory."""
        width, size = left.features.shape[1], 4 if isinstance(left.features, CSR) else left.features.dtype.itemsize
        row_bytes = size * width + 4
        with as_current(self.index), within_memory("keeping rows", left.inputs, row_bytes):
            left = rows_module.on_device(left)
            same = left.row_map.rows is None
            features = _own(left.features, left.inputs, own) if same else left.features
            active = None if left.dropped else arriving(rows_module.active_rows(left))
            mapped = None if same else rows_module.mapped_inputs(left.row_map)

        def taken() -> tuple[Array, RowsLeft]:
            living = None if active is None else np.flatnonzero(active())
            if mapped is None:
                assert living is not None, "rows without a map were all scanned"
                return living, RowsLeft(features)
            row_map, wait = mapped
            with_rows, used = wait()
            with as_current(self.index), within_memory("keeping rows", left.inputs, row_bytes):
                return with_rows if living is None else living, RowsLeft(_own(features, used, own), row_map)

        return taken

    def as_csr(self, matrix: Array) -> Any:
        """Return a matrix as CuPy's CSR matrix, or as CSR where it is on the host."""
        if not _is_here(matrix):
            return from_dense(matrix, matrix.dtype.type)
        with as_current(self.index), within_memory("sparse outputs", matrix.shape[0], 16 * matrix.shape[1]):
            return incoming.to_cupy_csr(matrix)

    def number_check(self, results: int = 1) -> NumberCheck:
        """Return a check that waits only for its result."""
        return images.NumberCheck(results)

    def rows_watch(self) -> RowsWatch:
        """Return a check of rows on the device that never waits."""
        with as_current(self.index):
            return images.RowsWatch()

    def as_dense(self, features: Features) -> Array:
        """Return the features as a row-major float32 matrix on the device."""
        with as_current(self.index), within_memory("dense rows", features.shape[0], 4 * features.shape[1]):
            return as_rows(rows_module.as_dense(features), np.float32)

    def count_nonzeros(self, features: Array) -> Array:
        """Count the non-zeros of each row on the device; returns a host array."""
        cp = cupy()
        with as_current(self.index), within_memory("counting", features.shape[0], 16):
            return cp.asnumpy(incoming.count_nonzeros(features))

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Look at the numbers on the device."""
        with as_current(self.index):
            return images.largest_number(features.values if isinstance(features, CSR) else features)


def _own(features: Any, count: int, own: bool) -> Any:
    """Return the first rows in memory that nothing else uses: copied, but not by the kernel that CuPy would take."""
    if isinstance(features, CSR) or (own and count == features.shape[0]):
        return features
    cuda = cupy().cuda
    copy: Any = cupy().ndarray((count, *features.shape[1:]), features.dtype)
    if copy.size:
        kind, stream = cuda.runtime.memcpyDeviceToDevice, cuda.get_current_stream()
        cuda.runtime.memcpyAsync(copy.data.ptr, features.data.ptr, copy.nbytes, kind, stream.ptr)
    return copy


def _is_here(array: Any) -> bool:
    return not isinstance(array, np.ndarray)
