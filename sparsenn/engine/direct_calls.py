"""Calls of a session whose arrays go straight to ONNX Runtime, to kernels in host memory, or to a graph on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import EXACT_INTEGER, rows_in_order
from sparsenn.engine.result import outputs_by_name
from sparsenn.errors import OutOfMemoryError
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import named_columns
from sparsenn.network import Network

__all__ = ["DirectCalls"]

MAX_CALLS = 256
"""Shapes and types of arrays for which a function of their own is cached."""

MAX_COPIED = 1 << 14
"""Numbers of inputs and outputs up to which copies take less time than ONNX Runtime's conversion of arrays."""

ALIGNED = 16
"""Numbers: arrays in memory that ONNX Runtime reads begin at multiples of this."""

_ONLY = object()
"""The name of the only array of a call without names."""

_Run: TypeAlias = ForeignNetwork | Callable[[Array], Any]

_Call: TypeAlias = Callable[[Any], Any]
"""A function of a call's inputs.

It returns the outputs, or None for inputs of other shapes or types, or with numbers to check.
"""


class DirectCalls:
    """Functions that compute calls, by the arrays' shapes and types."""

    def __init__(self, compiled: CompiledNetwork) -> None:
        self._network, self._checks = compiled.network, compiled.options.check_finite
        self.runs: dict[int, _Run] = {}
        """Functions that run all rows of a call at once, by the number of rows."""
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._last: _Call = _no_outputs
        self.is_used = self._is_on_device = False

    def add(self, count: int, run: _Run) -> None:
        """Have calls with a number of rows go straight to ONNX Runtime, or to a function of a matrix of rows."""
        if count not in self.runs:
            self.runs[count], self.is_used = run, True
            self._calls = {key: call for key, call in self._calls.items() if call is not _no_outputs}

    def put(self, inputs: Any, call: _Call) -> None:
        """Have calls with arrays like these inputs, of any library, go to a function, which looks at them."""
        if len(self._calls) >= MAX_CALLS:
            self._calls.clear()
        key = _key(inputs, True)
        if key is not None:
            self._calls[key], self.is_used, self._is_on_device = call, True, True

    def clear(self) -> None:
        """Drop all functions, with what they run."""
        self.runs.clear()
        self._calls.clear()
        self._last, self.is_used = _no_outputs, False

    def outputs(self, inputs: Any) -> Any:
        """Return what a session's call with the inputs returns, in memory that the caller owns.

        None where they are no arrays of numbers in the network's order, or hold numbers that may have to be refused.
        """
        try:
            outputs = self._last(inputs)
            if outputs is None and (call := self._call_for(inputs)) is not self._last:
                self._last = call
                outputs = call(inputs)
        except (OutOfMemoryError, MemoryError):  # fewer rows at a time may fit
            return None
        return outputs

    def _call_for(self, inputs: Any) -> _Call:
        key = _key(inputs, self._is_on_device)
        if key is None:
            return _no_outputs
        call = self._calls.get(key)
        if call is None:
            if self._is_on_device:
                return _no_outputs
            if len(self._calls) >= MAX_CALLS:
                self._calls.clear()
            call = self._calls[key] = self._new_call(inputs)
        return call

    def _new_call(self, inputs: Any) -> _Call:
        network, count = self._network, rows_in_order(self._network, inputs)
        run = self.runs.get(count)
        arrays = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs
        types = [array.dtype for array in arrays.values()]
        if run is None or any(each.kind not in "iub" and each.char not in "fd" for each in types):
            return _no_outputs
        is_converted, has_doubles = any(each != np.float32 for each in types), any(each.char == "d" for each in types)
        limit = math.inf if self._checks or has_doubles else None
        if len(types) > 1 and any(each.kind in "iu" for each in types):  # of larger ones, rows would be float64
            limit = float(EXACT_INTEGER) ** 2
        sources = (_ONLY,) if _ONLY in arrays else tuple(network.named_inputs or ())
        taken = [_Input(source, arrays[source].shape, arrays[source].dtype) for source in sources]
        numbers = count * (network.inputs + network.outputs)
        if not isinstance(run, ForeignNetwork):
            if is_converted and numbers > MAX_COPIED:  # which threads do
                return _no_outputs
            call = _matrix_call(run, network, count, taken, limit)
        else:
            is_bound = numbers <= MAX_COPIED and not (run.row_by_row and count > 1)
            new_call = _copying_call if is_bound else _feeding_call
            call = new_call(run, count, taken, limit, network.named_outputs)
        return _without_warnings(call) if has_doubles else call


class _Input(NamedTuple):
    """An array of a call: its name, shape and type."""

    source: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _no_outputs(inputs: Any) -> None:
    return None


def _key(inputs: Any, is_on_device: bool) -> tuple[Any, ...] | None:
    """Return the names, shapes and types of arrays; None for other inputs, for those of a device for no arrays."""
    if type(inputs) is np.ndarray:
        return inputs.shape, inputs.dtype
    if is_on_device:
        shape, dtype = getattr(inputs, "shape", None), getattr(inputs, "dtype", None)
        return (type(inputs), shape, dtype) if isinstance(shape, tuple) and isinstance(dtype, Hashable) else None
    if type(inputs) is not dict or not all(type(array) is np.ndarray for array in inputs.values()):
        return None
    return tuple((name, array.shape, array.dtype) for name, array in inputs.items())


def _without_warnings(call: _Call) -> _Call:
    def quiet(inputs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(inputs)

    return quiet


def _copying_call(
    foreign: ForeignNetwork, count: int, inputs: Sequence[_Input], limit: float | None, names: Collection[str] | None
) -> _Call:
    """Return the function that copies few numbers to memory that ONNX Runtime reads, and results from where it writes.

    It has as few steps as possible: a call with one row may take some microseconds.
    """
    sizes = [-(-prod(each.shape) // ALIGNED) * ALIGNED for each in inputs]
    numbers, bound, places = np.zeros(sum(sizes), np.float32), dict[str, Array](), list[tuple[Any, ...]]()
    for each, (name, shape), size, end in zip(inputs, foreign.inputs.items(), sizes, np.cumsum(sizes), strict=True):
        place = numbers[end - size :][: prod(each.shape)]
        bound[name] = place.reshape(count, *shape)
        places.append((*each, place.reshape(each.shape)))
    results = {name: np.zeros((count, *shape), np.float32) for name, shape in foreign.outputs.items()}
    compute, vdot = foreign.bind(bound, results), np.vdot
    named_results = tuple(zip(names or (), results.values(), strict=False))
    matrix = None if names else next(iter(results.values())).reshape(count, -1)

    def call(inputs: Any) -> Any:
        arrays = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs
        if type(arrays) is not dict or len(arrays) != len(places):
            return None
        for source, shape, dtype, place in places:
            array = arrays.get(source)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            place[...] = array
        if limit is not None and not vdot(numbers, numbers) < limit:
            return None
        compute()
        if matrix is not None:
            return matrix.copy()
        outputs = {}
        for name, result in named_results:
            outputs[name] = result.copy()
        return outputs

    return call


def _feeding_call(
    foreign: ForeignNetwork, count: int, inputs: Sequence[_Input], limit: float | None, names: Collection[str] | None
) -> _Call:
    """Return the function that has ONNX Runtime read arrays where they are."""
    read = _reader(inputs, limit)
    shapes = [(name, (count, *shape)) for name, shape in foreign.inputs.items()]

    def call(inputs: Any) -> Any:
        arrays = read(inputs)
        if arrays is None:
            return None
        feeds = {name: array.reshape(shape) for (name, shape), array in zip(shapes, arrays, strict=True)}
        results = foreign.results(feeds)
        return dict(zip(names, results, strict=True)) if names else results[0].reshape(count, -1)

    return call


def _matrix_call(
    run: Callable[[Array], Any], network: Network, count: int, inputs: Sequence[_Input], limit: float | None
) -> _Call:
    """Return the function that puts arrays side by side, if there are several, for a function of a matrix."""
    read, width, is_named = _reader(inputs, limit), network.inputs, network.named_outputs is not None
    columns = [(first, last) for *_, first, last in named_columns(network.named_inputs or {})]

    def call(inputs: Any) -> Any:
        arrays = read(inputs)
        if arrays is None:
            return None
        if len(arrays) == 1:
            rows = arrays[0].reshape(count, width)
        else:
            rows = np.empty((count, width), np.float32)
            for (first, last), array in zip(columns, arrays, strict=True):
                rows[:, first:last] = array.reshape(count, -1)
        outputs = run(rows)
        return outputs_by_name(network, outputs) if is_named else outputs

    return call


def _reader(inputs: Sequence[_Input], limit: float | None) -> Callable[[Any], list[Array] | None]:
    """Return the function that reads arrays as float32, in the order of the inputs; it returns None for others."""

    def read(inputs_of_call: Any) -> list[Array] | None:
        arrays = {_ONLY: inputs_of_call} if type(inputs_of_call) is np.ndarray else inputs_of_call
        numbers: list[Array] = []
        if type(arrays) is not dict or len(arrays) != len(inputs):
            return None
        for source, shape, dtype in inputs:
            array = arrays.get(source)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            array = np.ascontiguousarray(array, np.float32)
            if limit is not None and not np.vdot(array, array) < limit:
                return None
            numbers.append(array)
        return numbers

    return read
