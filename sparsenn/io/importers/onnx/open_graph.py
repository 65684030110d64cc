"""ONNX models with open sizes as ONNX Runtime computes them: in one session for inputs of any sizes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx

from sparsenn.backends.foreign import runtime_session
from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.formats.libraries import EXACT_INTEGER, largest, readable_tensor, to_input_type

_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16"
_TYPES = {f"tensor({name})": np.dtype(name) for name in _NAMES.split()}
_TYPES |= {"tensor(float)": np.dtype(np.float32), "tensor(double)": np.dtype(np.float64)}


class OpenGraph:
    """A model whose inputs have open sizes.

    Parameters
    ----------
    model : str, path-like, bytes or onnx.ModelProto
        As `from_onnx` takes it.
    names : collection of str, optional
        Of the outputs that are wanted; None for a matrix of the only one.
    is_one_sample : bool
        Whether the inputs of a call are one sample together.

    Raises
    ------
    InputError
        ONNX Runtime does not take the model, or its outputs or types of inputs are others.
    """

    def __init__(self, model: Any, names: Collection[str] | None, is_one_sample: bool) -> None:
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        try:
            self._session = runtime_session(os.fspath(source), spins=True)
        except Exception as error:  # of any kind
            raise InputError(f"ONNX Runtime does not take the model: {error}") from error
        known = [each.name for each in self._session.get_outputs()]
        self._names = known if names is None else list(names)
        self._types = {each.name: _TYPES.get(each.type) for each in self._session.get_inputs()}
        if not {*self._names} <= {*known} or (names is None and len(known) > 1) or None in self._types.values():
            raise InputError("ONNX Runtime does not compute the network's outputs of its inputs")
        self._is_matrix, self._is_one_sample = names is None, is_one_sample

    def outputs(self, inputs: Mapping[str, Any]) -> Any:
        """Return what a session of the network does, of arrays in host memory; None where it may refuse these."""
        try:
            arrays = {name: _numbers(array) for name, array in inputs.items()}
            tensors = {name: array.astype(self._types[name], copy=False) for name, array in arrays.items()}
            if not all(_is_held(array, tensors[name]) for name, array in arrays.items()):
                return None
            results = self._session.run(self._names, tensors)
            results = [np.float32(result[None] if self._is_one_sample else result) for result in results]
        except Exception:  # of any kind: libraries and ONNX Runtime raise it
            return None
        rows = 1 if self._is_one_sample else len(next(iter(arrays.values())))
        if any(not result.ndim or len(result) != rows for result in results):
            return None
        results[0] = results[0].reshape(rows, prod(results[0].shape[1:])) if self._is_matrix else results[0]
        outputs = [to_input_type(next(iter(inputs.values())), result) for result in results]
        return outputs[0] if self._is_matrix else dict(zip(self._names, outputs, strict=True))

    def gives(self, known: Any, inputs: Mapping[str, Any]) -> bool:
        """Return whether the outputs of inputs are what a session returned, but for rounding."""
        found = self.outputs(inputs)
        if found is None:
            return False
        pairs = [(known[name], found[name]) for name in known] if isinstance(found, dict) else [(known, found)]
        return all(_are_close(np.asarray(each), np.asarray(other)) for each, other in pairs)


def _are_close(known: Array, found: Array) -> bool:
    limit = 1e-3 * np.abs(known).max(initial=0)
    return known.shape == found.shape and bool((np.abs(known - found) <= limit).all())


def _numbers(array: Any) -> Array:
    """Return an array of real numbers; raises InputError for others."""
    numbers = np.asarray(readable_tensor(array))
    if isinstance(array, np.ma.MaskedArray) or numbers.dtype.kind not in "biuf":
        raise InputError("the input holds others than real numbers")
    return numbers


def _is_held(array: Array, tensor: Array) -> bool:
    """Return whether numbers became finite ones of a type, and integers where they are such."""
    if tensor.dtype.kind == "f":
        return bool(np.isfinite(tensor).all())
    return largest(tensor) < EXACT_INTEGER and bool((array == tensor).all())
