"""Sources of the layers of a model in HDF5: the nodes that each layer reads.

Files of before branches were sources have records of the kinds `keep`, which puts what it reads on a stack, and
`recall`, which takes from it; sums and concatenations read the top of that stack, and the layer before.
"""

from __future__ import annotations

import numpy as np

from sparsenn.formats import INDEX32_LIMIT, Array
from sparsenn.io.hdf5.reading import Hdf5Source
from sparsenn.layers import Add, Concatenate, ForeignLayer, Multiply

# Kinds of records that earlier versions wrote for branches.
_KEEP = b"keep"
_RECALL = b"recall"

_COMBINING = tuple(layer.name.encode() for layer in (Add, Multiply, Concatenate, ForeignLayer))
"""Kinds of records that read several layers."""


def read_sources(source: Hdf5Source, table: Array) -> list[tuple[int, tuple[int, ...]]]:
    """Return the number of each record that is a layer, counted from 1, and the nodes that it reads."""
    return _listed(source, table) if source.has("sources") else _of_stack(source, table)


def _listed(source: Hdf5Source, table: Array) -> list[tuple[int, tuple[int, ...]]]:
    """Return each record's number, counted from 1, and the nodes that it reads."""
    combines = np.isin(table["kind"], _COMBINING)
    counts = np.where(combines, np.clip(table["groups"], 0, INDEX32_LIMIT), 1)
    sources = source.vector("sources", "<i8", length=int(counts.sum()))
    ends = np.cumsum(counts)
    return [
        (number, tuple(sources[end - count : end].tolist()))
        for number, (end, count) in enumerate(zip(ends, counts, strict=True), start=1)
    ]


def _of_stack(source: Hdf5Source, table: Array) -> list[tuple[int, tuple[int, ...]]]:
    """Return the number of each record that is a layer, and the nodes that it reads; others move what is on a stack."""
    found: list[tuple[int, tuple[int, ...]]] = []
    stack: list[int] = []
    current = 0
    for number, record in enumerate(table, start=1):
        kind = bytes(record["kind"])
        if kind == _KEEP:
            stack.append(current)
            continue
        if kind == _RECALL:
            place = len(stack) - int(record["inputs"])
            if not 0 <= place < len(stack):
                raise source.fault(f"layer {number} recalls {record['inputs']} of {len(stack)} values")
            current = stack[place] if record["outputs"] else stack.pop(place)
            continue
        others = int(record["groups"]) - 1 if record["kind"] in _COMBINING else 0
        if not 0 <= others <= len(stack):
            raise source.fault(f"layer {number} reads {others} of {len(stack)} values that were stored")
        found.append((number, (*stack[len(stack) - others :], current)))
        del stack[len(stack) - others :]
        current = len(found)
    if not current:
        raise source.fault("layers holds none that computes anything")
    return found[:current]
