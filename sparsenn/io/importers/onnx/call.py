"""A node with the values that it takes, as operators see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csc_array, issparse

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.onnx.folding import ROWS_UNKNOWN, names_rows
from sparsenn.io.importers.onnx.tensors import Constant, dense
from sparsenn.io.importers.signal import Signal
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW

Value: TypeAlias = Any
"""A `Signal`, `Classes`, a constant, or None where an optional input is left out."""


@dataclass(frozen=True)
class Classes:
    """The number of the class of each row, or its label: the largest of a signal's numbers."""

    scores: Signal


@dataclass(frozen=True)
class Call:
    """A node whose first input, or whichever is one, is a signal.

    version : of the operators of its domain.
    results : how many outputs it has.
    """

    operator: str
    version: int
    attributes: Mapping[str, Any]
    inputs: Sequence[Value]
    results: int = 1

    @property
    def signal(self) -> Signal:
        """The first input, which must depend on the network's input as the only one."""
        first, *others = self.inputs
        if not isinstance(first, Signal) or any(isinstance(other, Signal) for other in others):
            raise InputError("an input other than its first depends on the network's input; it must be a constant")
        return check_floats(first)

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def constant(self, number: int) -> Array | None:
        """Return an input as an array; None where it is left out."""
        value = self.inputs[number] if number < len(self.inputs) else None
        _check_no_rows(value)
        if isinstance(value, Signal):
            raise InputError(f"its input {number + 1} depends on the network's input; a constant is needed")
        return None if value is None else dense(value)

    def required(self, number: int) -> Array:
        """Return an input that must be there as an array."""
        value = self.constant(number)
        if value is None:
            raise InputError(f"its input {number + 1} is not there")
        return value

    def number(self, number: int, default: float) -> float:
        """Return an input of one number, or a default where it is left out."""
        value = self.constant(number)
        if value is None:
            return default
        if value.size != 1:
            raise InputError(f"its input {number + 1} has the shape {value.shape}; one number is needed")
        return float(value.reshape(-1)[0])

    def axes(self, number: int = 1) -> list[int] | None:
        """Return axes, which newer versions take as an input and older ones as an attribute; None for none."""
        value = self.constant(number)
        found = self.attribute("axes", None) if value is None else value.reshape(-1)
        return None if found is None else [int(axis) for axis in found]


def check_floats(signal: Signal) -> Signal:
    """Return a signal that does not hold integers."""
    if signal.integers:
        raise InputError("it computes with integers from the network's input; put a Cast to float32 before it")
    return signal


def _check_no_rows(value: Value) -> None:
    if names_rows(value):
        raise InputError(ROWS_UNKNOWN)


def floats(constant: Constant) -> Array:
    """Return a constant as an array of finite float64."""
    _check_no_rows(constant)
    array = dense(constant)
    if array.dtype.kind in "bOUS":
        raise InputError(f"it computes with a constant of {array.dtype}; numbers are needed")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("it computes with a constant that holds NaN or infinity")
    return numbers


def aligned(signal: Signal, constant: Constant) -> tuple[Signal, Array]:
    """Return a signal and numbers to compute with, of a shape that is broadcast to that of the signal's rows."""
    numbers = floats(constant)
    signal = deeper(signal, numbers.ndim - signal.rank)
    numbers = numbers.reshape((1,) * (signal.rank - numbers.ndim) + numbers.shape)
    if signal.axis is not None:
        if numbers.shape[signal.axis] != 1:
            raise InputError(
                f"its constant of shape {numbers.shape} differs from row to row; all rows must be treated alike"
            )
        numbers = numbers.squeeze(signal.axis)
    if any(size not in (1, there) for size, there in zip(numbers.shape, signal.shape, strict=True)):
        raise InputError(f"its constant gives each row the shape {numbers.shape}, and it takes {signal}")
    return signal, numbers


def weights_of(constant: Constant) -> Any:
    """Return a matrix of weights, float32 or float64, one of SciPy's where few are not zero."""
    _check_no_rows(constant)
    if not issparse(constant):
        shape = constant.shape
        if len(shape) < 2 or prod(shape[:-2]) != 1:
            raise InputError(f"its weights have the shape {shape}; a matrix is needed")
        constant = constant.reshape(shape[-2:])
    if constant.dtype.kind in "bOUS":
        raise InputError(f"its weights are {constant.dtype}; numbers are needed")
    if constant.dtype not in (np.float32, np.float64):
        constant = constant.astype(np.float32 if constant.dtype.itemsize <= 2 else np.float64)
    if not issparse(constant) and np.count_nonzero(constant) >= SPARSE_BELOW * constant.size:
        return constant
    return csc_array(constant)


def deeper(signal: Signal, axes: int) -> Signal:
    """Return a signal with axes of length 1 before its others; with none more where the number is not above 0."""
    if axes <= 0:
        return signal
    axis = None if signal.axis is None else signal.axis + axes
    return replace(signal, shape=(1,) * axes + signal.shape, axis=axis)
