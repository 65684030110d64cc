"""The values of an ONNX graph that is written node by node; nodes that only undo other nodes are left out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from sparsenn.formats import Array

_NOT_ROWS = (-1,)
"""In place of a shape of rows, that of a value whose first axis holds no rows."""


class ValueWriter:
    """Nodes and initialisers; a node reads the value at hand, and its output is the next value at hand.

    The first axis of a value holds rows; shapes are those of one row.
    """

    def __init__(self, value: str) -> None:
        self._value, self._place = value, "inputs"
        self._uses = Counter[str]()  # of each name, so that none is there twice
        self._reshaped = dict[str, tuple[str, tuple[int, ...]]]()  # values by their other shapes, with their own shape
        self._transposed = dict[str, tuple[str, int]]()  # values by those with rows along the first axis; their axis
        self._columns = dict[tuple[str, int, int], str]()  # by what holds them side by side, and their columns there
        self._shapes = set[str]()  # initialisers that only one node reads, a `Reshape`
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def _unique(self, name: str) -> str:
        self._uses[name] += 1
        return name + (str(self._uses[name]) if self._uses[name] > 1 else "")

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> None:
        name = self._unique(f"{self._place}/{operator}")
        node = onnx.helper.make_node(operator, [self._value, *inputs], [name], name=name, **attributes)
        self.nodes.append(node)
        self._value = name

    def _tensor(self, what: str, array: Array) -> str:
        name = self._unique(f"{self._place}/{what}")
        self.tensors.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _reshape(self, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Give the rows of the value at hand, which have a shape, another one."""
        if shape == target:
            return
        self._value, shape = self._reshaped.get(self._value, (self._value, shape))
        if shape != target:
            self._new_shape(self._value, shape, target)

    def _new_shape(self, source: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
        tensor = self._tensor("shape", np.array([-1, *target], np.int64))
        self._shapes.add(tensor)
        self._node("Reshape", tensor)
        self._reshaped[self._value] = source, shape

    def _rows_first(self, shape: tuple[int, ...], axis: int) -> None:
        """Move the axis of rows to the front; a shape has the others."""
        source = self._value
        if axis and prod(shape[:axis]) == 1:
            self._new_shape(source, _NOT_ROWS, shape)
        elif axis:
            self._node("Transpose", perm=[axis, *(other for other in range(len(shape) + 1) if other != axis)])
            self._transposed[self._value] = source, axis

    def _rows_at(self, rank: int, axis: int) -> None:
        """Move the axis of rows from the front to another place; `rank` are the others."""
        if axis:
            self._node("Transpose", perm=[*range(1, axis + 1), 0, *range(axis + 1, rank + 1)])

    def _concatenate(self, values: Sequence[str], widths: Sequence[int]) -> None:
        self._value = values[0]
        if len(values) > 1:
            self._node("Concat", *values[1:], axis=1)
            for value, width, last in zip(values, widths, itertools.accumulate(widths), strict=True):
                self._columns[self._value, last - width, last] = value

    def _slice(self, first: int, last: int, axis: int) -> None:
        bounds = (("first", first), ("last", last), ("axis", axis))
        self._node("Slice", *(self._tensor(name, np.array([bound], np.int64)) for name, bound in bounds))

    def _slice_matrix(self, first: int, last: int) -> None:
        """Take columns of a matrix: before it became one, where that is a slice, too, since fewer numbers move then."""
        column = self._columns.get((self._value, first, last))
        if column is not None:
            self._value = column
            return
        source, shape = self._reshaped.get(self._value, (self._value, ()))
        step = prod(shape[1:])
        if len(shape) < 2 or first % step or last % step:
            self._slice(first, last, 1)
            return
        self._value, axis = self._transposed.get(source, (source, 0))
        self._slice(first // step, last // step, 0 if axis else 1)
        sliced = (last - first) // step, *shape[1:]
        self._rows_first(sliced, axis)
        self._reshape(sliced, (last - first,))

    def _drop_unread(self) -> None:
        """Drop nodes that only move numbers, and whose outputs no other node reads."""
        moving, read, unread = self._reshaped.keys() | self._transposed.keys(), Counter[str](), set[str]()
        moving |= {value for value, _, _ in self._columns}
        for node in self.nodes:
            read.update(node.input)
        for node in reversed(self.nodes):
            if node.output[0] in moving and not read[node.output[0]]:
                read.subtract(node.input)
                unread.add(node.output[0])
        self.nodes = [node for node in self.nodes if node.output[0] not in unread]
        self.tensors = [tensor for tensor in self.tensors if read[tensor.name] or tensor.name not in self._shapes]
