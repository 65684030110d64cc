"""The layers of a network in HDF5: one table, and all layers' arrays concatenated by type."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

import h5py
import numpy as np

from sparsenn.errors import SparseNNError, UsageError
from sparsenn.formats import CSC, INDEX16_LIMIT, INDEX32_LIMIT, Array
from sparsenn.formats.arrays import frozen
from sparsenn.io.hdf5.model_layers import activation_fields, read_activation
from sparsenn.io.hdf5.reading import Hdf5Source
from sparsenn.layers import SparseLinear
from sparsenn.network import Network

LAYER = np.dtype(
    [
        ("inputs", "<i8"),
        ("outputs", "<i8"),
        ("entries", "<i8"),
        ("degree", "<i8"),  # entries of every column, or -1 where offsets are stored
        ("values", "<i8"),  # 1 or entries
        ("value_bytes", "<i8"),  # 4 or 8
        ("bias_kind", "S6"),  # none, scalar or vector
        ("bias", "<f8"),
        ("activation", "S16"),
        ("clip", "<f8"),  # NaN: none
    ]
)
"""What the table holds of each layer."""


def write_network(group: h5py.Group, network: Network) -> None:
    """Write all layers, one after the other: no more memory is taken than one layer's arrays."""
    layers = network.layers_of(SparseLinear)
    table = np.array([_record(number, layer) for number, layer in enumerate(layers, start=1)], LAYER)
    group["layers"] = table
    weights = [layer.weights for layer in layers]
    for name, dtype, arrays in (
        ("indices16", "<u2", [matrix.indices for matrix in weights if matrix.shape[0] <= INDEX16_LIMIT]),
        ("indices32", "<i4", [matrix.indices for matrix in weights if matrix.shape[0] > INDEX16_LIMIT]),
        ("values32", "<f4", [matrix.values for matrix in weights if matrix.values.itemsize == 4]),
        ("values64", "<f8", [matrix.values for matrix in weights if matrix.values.itemsize == 8]),
        (
            "offsets",
            "<i8",
            [matrix.indptr for matrix, record in zip(weights, table, strict=True) if record["degree"] < 0],
        ),
        ("biases", "<f4", [layer.bias for layer in layers if isinstance(layer.bias, np.ndarray)]),
    ):
        _write_concatenated(group, name, dtype, arrays)


def read_layers(source: Hdf5Source, layers: int | None = None) -> tuple[list[SparseLinear], int]:
    """Read the first `layers` layers, or all; returns them and how many the file has.

    The layers' arrays are slices of a few large ones, and layers of equal columns share their offsets.
    """
    table = source.vector("network/layers", LAYER)
    _check_table(source, table)
    count = len(table) if layers is None else layers
    if count > len(table):
        raise UsageError(f"{source.path}: cannot take {count} layers of a network that has {len(table)}")
    entries, outputs = table["entries"], table["outputs"]
    narrow, single = table["inputs"] <= INDEX16_LIMIT, table["value_bytes"] == 4
    parts = [
        _read_concatenated(source, f"network/{name}", dtype, sizes, count)
        for name, dtype, sizes in (
            ("indices16", "<u2", np.where(narrow, entries, 0)),
            ("indices32", "<i4", np.where(narrow, 0, entries)),
            ("values32", "<f4", np.where(single, table["values"], 0)),
            ("values64", "<f8", np.where(single, 0, table["values"])),
            ("offsets", "<i8", np.where(table["degree"] < 0, outputs + 1, 0)),
            ("biases", "<f4", np.where(table["bias_kind"] == b"vector", outputs, 0)),
        )
    ]
    shared: dict[tuple[int, int], Array] = {}
    found = []
    for number, (record, *arrays) in enumerate(zip(table[:count], *parts, strict=True), start=1):
        try:
            found.append(_layer(record, shared, *arrays))
        except SparseNNError as error:
            raise source.fault(f"layer {number}: {error}") from error
    return found, len(table)


def _record(number: int, layer: SparseLinear) -> tuple[object, ...]:
    weights = layer.weights
    degree = weights.nnz // weights.shape[1] if weights.shape[1] else 0
    regular = degree > 0 and bool((np.diff(weights.indptr) == degree).all())
    is_vector = isinstance(layer.bias, np.ndarray)
    return (
        *weights.shape,
        weights.nnz,
        degree if regular else -1,
        weights.values.size,
        weights.values.itemsize,
        b"none" if layer.bias is None else b"vector" if is_vector else b"scalar",
        0.0 if layer.bias is None or is_vector else layer.bias,
        *activation_fields(number, layer.activation),
    )


def _write_concatenated(group: h5py.Group, name: str, dtype: str, arrays: list[Array]) -> None:
    """Write arrays one after the other into one contiguous dataset; none at all if there is nothing to write."""
    ends = list(accumulate((array.size for array in arrays), initial=0))
    if not ends[-1]:
        return
    dataset = group.create_dataset(name, (ends[-1],), dtype)
    for array, (start, stop) in zip(arrays, pairwise(ends), strict=True):
        if array.size:
            dataset.write_direct(np.ascontiguousarray(array, dtype), dest_sel=np.s_[start:stop])


def _read_concatenated(source: Hdf5Source, name: str, dtype: str, sizes: Array, count: int) -> list[Array]:
    """Read what `_write_concatenated` wrote for the first `count` arrays, as slices of one array."""
    ends = list(accumulate(sizes.tolist(), initial=0))
    if not ends[-1]:
        return [np.empty(0, dtype)] * count
    data = frozen(source.vector(name, dtype, count=ends[count], length=ends[-1]))
    return [data[start:stop] for start, stop in pairwise(ends[: count + 1])]


def _check_table(source: Hdf5Source, table: Array) -> None:
    """Refuse sizes that cannot be, before anything is computed from them; the arrays' lengths are checked later."""
    inputs, outputs, entries, degree = (table[name] for name in ("inputs", "outputs", "entries", "degree"))
    widths_fit = _within(inputs, 0, INDEX32_LIMIT) & _within(outputs, 0, INDEX32_LIMIT)
    regular = _within(degree, 1, INDEX32_LIMIT) & (degree * outputs == entries)  # below 2^62 where the widths fit
    checks: Iterable[tuple[str, Array]] = (
        ("its widths", widths_fit),
        ("its number of entries", _within(entries, 0, source.size)),
        ("its entries per column", (degree == -1) | regular),
        ("its number of values", (table["values"] == entries) | (table["values"] == 1)),
        ("its type of values", np.isin(table["value_bytes"], (4, 8))),
        ("its kind of bias", np.isin(table["bias_kind"], (b"none", b"scalar", b"vector"))),
    )
    for what, sound in checks:
        if not sound.all():
            raise source.fault(f"layer {int(np.argmin(sound)) + 1}: {what} is invalid")
    if not table.size:
        raise source.fault("network/layers is empty; a network needs at least one layer")


def _within(numbers: Array, least: int, most: int) -> Array:
    inside: Array = (numbers >= least) & (numbers <= most)
    return inside


def _layer(
    record: Any,
    shared: dict[tuple[int, int], Array],
    indices16: Array,
    indices32: Array,
    values32: Array,
    values64: Array,
    offsets: Array,
    bias: Array,
) -> SparseLinear:
    shape = int(record["inputs"]), int(record["outputs"])
    degree, kind = int(record["degree"]), bytes(record["bias_kind"])
    if degree > 0:
        key = shape[1], degree
        if key not in shared:
            shared[key] = frozen(np.arange(0, degree * shape[1] + 1, degree, dtype=np.int64))
        offsets = shared[key]
    indices = indices16 if shape[0] <= INDEX16_LIMIT else indices32
    weights = CSC(shape, offsets, indices, values32 if record["value_bytes"] == 4 else values64)
    scalar = None if kind == b"none" else float(record["bias"])
    return SparseLinear(weights, bias if kind == b"vector" else scalar, read_activation(record))
