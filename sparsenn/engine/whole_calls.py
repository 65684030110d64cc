"""Calls of a session that take a caller's arrays straight to ONNX Runtime, which runs the whole network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import EXACT_INTEGER, rows_in_order
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import NamedShapes

__all__ = ["WholeCalls"]

MAX_CALLS = 256
"""Shapes and types of arrays for which a function of their own is cached."""

MAX_COPIED = 1 << 14
"""Numbers of inputs and outputs up to which copies take less time than ONNX Runtime's conversion of arrays."""

ALIGNED = 16
"""Numbers: arrays in memory that ONNX Runtime reads begin at multiples of this."""

_ONLY = object()
"""The name of the only array of a call without names."""

_Call: TypeAlias = Callable[[Any], Any]
"""A function of a call's inputs, which returns the call's outputs; None unless it is made for such inputs."""


class WholeCalls:
    """The functions of inputs in arrays, by shapes and types of these."""

    def __init__(self, compiled: CompiledNetwork) -> None:
        self._network, self._checks = compiled.network, compiled.options.check_finite
        self.networks: dict[int, ForeignNetwork] = {}
        """The networks that run all rows of a call at once, by the number of rows."""
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._last: _Call = _no_outputs

    def add(self, count: int, network: ForeignNetwork) -> None:
        """Have a network run all calls with a number of rows."""
        if any(each is not network for each in self.networks.values()):
            self.clear()
        if count not in self.networks:
            self.networks[count] = network
            self._calls = {key: call for key, call in self._calls.items() if call is not _no_outputs}

    def clear(self) -> None:
        """Drop all networks."""
        self.networks.clear()
        self._calls.clear()
        self._last = _no_outputs

    def outputs(self, inputs: Any) -> Any:
        """Return what a session's call with the inputs returns, in memory that the caller owns.

        None where they are no arrays that ONNX Runtime takes as they lie, or hold numbers that may have to be refused.
        """
        try:
            outputs = self._last(inputs)
            if outputs is None and (call := self._call_for(inputs)) is not self._last:
                self._last = call
                outputs = call(inputs)
        except MemoryError:  # fewer rows at a time may fit
            return None
        return outputs

    def _call_for(self, inputs: Any) -> _Call:
        key = _key(inputs)
        if key is None:
            return _no_outputs
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                self._calls.clear()
            call = self._calls[key] = self._new_call(inputs)
        return call

    def _new_call(self, inputs: Any) -> _Call:
        count = rows_in_order(self._network, inputs)
        foreign = self.networks.get(count)
        arrays = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs
        types = [array.dtype for array in arrays.values()]
        if foreign is None or any(each.kind not in "iub" and each.char not in "fd" for each in types):
            return _no_outputs
        has_doubles = any(each.char == "d" for each in types)
        limit = math.inf if self._checks or has_doubles else None
        if len(types) > 1 and any(each.kind in "iu" for each in types):  # of larger ones, rows would be float64
            limit = float(EXACT_INTEGER) ** 2
        sources = (_ONLY,) if _ONLY in arrays else tuple(self._network.named_inputs or ())
        places = [
            _Input(source, arrays[source].shape, arrays[source].dtype, name, (count, *shape))
            for source, (name, shape) in zip(sources, foreign.inputs.items(), strict=True)
        ]
        outputs = {name: (count, *shape) for name, shape in foreign.outputs.items()}
        numbers = sum(map(prod, (*(each.target for each in places), *outputs.values())))
        new_call = _copying_call if numbers <= MAX_COPIED else _feeding_call
        call = new_call(foreign, places, outputs, limit, self._network.named_outputs is not None)
        return _without_warnings(call) if has_doubles else call


class _Input(NamedTuple):
    """An array of a call: what it is called there, its shape and type, and its name and shape in ONNX Runtime."""

    source: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    name: str
    target: tuple[int, ...]


def _no_outputs(inputs: Any) -> None:
    return None


def _key(inputs: Any) -> tuple[Any, ...] | None:
    """Return the names, shapes and types of arrays; None for other inputs."""
    if type(inputs) is np.ndarray:
        return inputs.shape, inputs.dtype
    if type(inputs) is not dict or not all(type(array) is np.ndarray for array in inputs.values()):
        return None
    return tuple((name, array.shape, array.dtype) for name, array in inputs.items())


def _without_warnings(call: _Call) -> _Call:
    def quiet(inputs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(inputs)

    return quiet


def _copying_call(
    foreign: ForeignNetwork, inputs: Sequence[_Input], outputs: NamedShapes, limit: float | None, is_named: bool
) -> _Call:
    """Return the function that copies few numbers to memory that ONNX Runtime reads, and results from where it writes.

    It has as few steps as possible: a call with one row may take some microseconds.
    """
    sizes = [-(-prod(each.target) // ALIGNED) * ALIGNED for each in inputs]
    numbers, bound, places = np.zeros(sum(sizes), np.float32), dict[str, Array](), list[tuple[Any, ...]]()
    for each, size, end in zip(inputs, sizes, np.cumsum(sizes), strict=True):
        place = numbers[end - size :][: prod(each.target)]
        bound[each.name] = place.reshape(each.target)
        places.append((each.source, each.shape, each.dtype, place.reshape(each.shape)))
    results = [(name, np.zeros(shape, np.float32)) for name, shape in outputs.items()]
    compute, vdot = foreign.bind(bound, dict(results)), np.vdot
    matrix = None if is_named else results[0][1].reshape(results[0][1].shape[0], -1)

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
        found = {}
        for name, result in results:
            found[name] = result.copy()
        return found

    return call


def _feeding_call(
    foreign: ForeignNetwork, inputs: Sequence[_Input], outputs: NamedShapes, limit: float | None, is_named: bool
) -> _Call:
    """Return the function that has ONNX Runtime read arrays where they are."""
    expected = inputs

    def call(inputs: Any) -> Any:
        arrays, feeds = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs, {}
        if type(arrays) is not dict or len(arrays) != len(expected):
            return None
        for source, shape, dtype, name, target in expected:
            array = arrays.get(source)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            if dtype != np.float32:
                array = array.astype(np.float32)
            if limit is not None and not np.vdot(array, array) < limit:
                return None
            feeds[name] = array if shape == target else array.reshape(target)
        results = foreign.results(feeds)
        return dict(zip(outputs, results, strict=True)) if is_named else results[0].reshape(results[0].shape[0], -1)

    return call
