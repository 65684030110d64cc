"""The arrays that an ONNX file holds, or that lie beside it: sizes are checked before anything is made of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from scipy.sparse import coo_array, issparse

from sparsenn.errors import InputError
from sparsenn.formats import INDEX32_LIMIT, Array
from sparsenn.io.bounded import open_plain, reading
from sparsenn.runtime.memory import check_memory

SMALL_BYTES = 1 << 20
"""Bytes up to which nobody asks the system whether an array fits into memory: graphs have thousands, and it takes
milliseconds."""

Constant: TypeAlias = Any
"""A NumPy array, or one of SciPy's sparse arrays of two dimensions."""


@dataclass(frozen=True)
class Tensors:
    """Makes arrays of tensors; external data lie in `folder`, None where the model is from no file."""

    folder: Path | None

    def with_all(self, model: Any) -> Any:
        """Return a model that holds all of its data itself; errors are those of `array`."""
        outside = [tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        if not outside:
            return model
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        for tensor in whole.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(onnx.numpy_helper.from_array(self.array(tensor), tensor.name))
        return whole

    def array(self, tensor: Any) -> Array:
        """Return a dense tensor as an array."""
        name, shape = tensor.name, tuple(tensor.dims)
        if any(size < 0 for size in shape):
            raise InputError(f"the tensor {name!r} has the shape {shape}")
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except Exception as error:
            raise InputError(f"the tensor {name!r} has the unknown type {tensor.data_type}") from error
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        size = prod(shape) * dtype.itemsize if external else tensor.ByteSize()
        if size > SMALL_BYTES:
            check_memory(size, f"the tensor {name!r}")
        if external:
            whole = onnx.TensorProto(name=name, dims=shape, data_type=tensor.data_type)
            whole.raw_data = self._external(tensor, prod(shape), dtype)
            tensor = whole
        try:
            array: Array = onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # the library raises whatever its parts raise
            raise InputError(f"the tensor {name!r} does not hold what its shape {shape} and type say") from error
        if array.shape != shape:
            raise InputError(f"the tensor {name!r} has numbers for the shape {array.shape}, not {shape}")
        return array

    def sparse(self, tensor: Any) -> Constant:
        """Return a sparse tensor, whose positions are linear or one for each axis: SciPy's if it has two axes."""
        name, shape = tensor.values.name, tuple(tensor.dims)
        values, positions = self.array(tensor.values), self.array(tensor.indices)
        total = prod(shape)
        if not shape or min(shape) < 1 or max(shape) > INDEX32_LIMIT or total > np.iinfo(np.int64).max:
            raise InputError(f"the sparse tensor {name!r} has the shape {shape}")
        shapes = values.shape, (values.size, len(shape))
        if values.ndim != 1 or positions.dtype != np.int64 or positions.shape not in shapes:
            raise InputError(
                f"the sparse tensor {name!r} has values of shape {values.shape} and {positions.dtype} positions of "
                f"shape {positions.shape}; a position for each value is needed, or one for each and each axis"
            )
        inside = positions < (total if positions.ndim == 1 else np.array(shape))
        if not ((positions >= 0) & inside).all():
            raise InputError(f"the sparse tensor {name!r} has a position outside its shape {shape}")
        linear = positions if positions.ndim == 1 else np.ravel_multi_index(tuple(positions.T), shape)
        if np.unique(linear).size != linear.size:
            raise InputError(f"the sparse tensor {name!r} has a position twice")
        if len(shape) == 2:
            return coo_array((values, np.unravel_index(linear, shape)), shape=shape)
        check_memory(total * values.dtype.itemsize, f"the tensor {name!r}")
        array = np.zeros(total, values.dtype)
        array[linear] = values
        return array.reshape(shape)

    def _external(self, tensor: Any, count: int, dtype: np.dtype[Any]) -> bytes:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = self._beside(tensor.name, entries.get("location", ""))
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", count * dtype.itemsize))
        except ValueError as error:
            raise InputError(
                f"the tensor {tensor.name!r} has external data without a valid location: {entries}"
            ) from error
        with open_plain(path) as file, reading(path):
            size = os.fstat(file.fileno()).st_size
            if not (offset >= 0 and length >= 0 and offset + length <= size):
                raise InputError(
                    f"the tensor {tensor.name!r} has {length:,} bytes at {offset:,} in {path}, which has {size:,}"
                )
            file.seek(offset)
            return file.read(length)

    def _beside(self, name: str, location: str) -> Path:
        """Return where external data are: in the model's folder or below, and not through a link."""
        if self.folder is None:
            raise InputError(
                f"the tensor {name!r} has external data; give the path of the model, next to which they lie"
            )
        relative = Path(location)
        outside = (
            not location or relative.is_absolute() or ".." in relative.parts or "\\" in location or "\0" in location
        )
        path = self.folder / relative
        if outside or Path(os.path.realpath(path)) != Path(os.path.realpath(self.folder)) / relative:
            raise InputError(
                f"the tensor {name!r} has external data at {location!r}; only files in the model's folder are read, "
                "and no links"
            )
        return path


def dense(constant: Constant) -> Array:
    """Return a constant as a NumPy array."""
    if not issparse(constant):
        return np.asarray(constant)
    check_memory(prod(constant.shape) * constant.dtype.itemsize, "a sparse tensor that is computed with")
    array: Array = constant.toarray()
    return array
