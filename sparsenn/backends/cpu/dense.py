"""Stacks of dense layers on the CPU: products in tiles of registers; bias and activation while sums are in a cache.

Weights are laid out in panels of `TILE` outputs, input after input, so that what a tile reads lies together. Of CSR
rows with few entries, the first layer multiplies only these. Threads take blocks of rows through all layers; of few
rows, they share each layer's panels. Sums are in the order of sparse kernels: how rows and outputs are cut changes no
bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line, activation_code, unknown_activation
from sparsenn.backends.cpu.incoming import sparse_to_dense
from sparsenn.backends.cpu.processor import CACHE_BYTES, THREAD_WORK, shared_seconds
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.cpu.tiles import TALL, TILE, one_filter, one_row, tall_rows, two_rows
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.oracle.dense import check_stack
from sparsenn.backends.prior import CACHED, Prior
from sparsenn.backends.registry import register
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.errors import ShapeError
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.formats.arrays import read_only
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import chunks, map_threads, thread_count

DEPTH = 1024  # inputs whose weights, a quarter of a megabyte, all rows of a block meet before the next ones

INPUTS, OUTPUTS, PANELS, FIRST_WEIGHT, FIRST_BIAS, ACTIVATION = range(6)  # columns of `Packed.layers`


class Packed(NamedTuple):
    """L layers in arrays that compiled functions take as one argument.

    layers : (L, 6) int64: inputs, outputs, panels of outputs, places of the first weight and bias, the activation's
        code.
    weights : float32: by layer, panel and input, the weights of `TILE` outputs, zeros beyond the last.
    biases : float32, of all panels; no zero of them is negative, which would make the sign of an output's zero.
    """

    layers: Array
    weights: Array
    biases: Array
    clips: Array  # (L,) float32, infinity where there is none


@dataclass(frozen=True, eq=False)
class DenseStack:
    """Dense layers that fit together."""

    layers: tuple[Linear, ...]
    edges: int  # weights of all
    widest: int  # places of a row after the layer with the most panels
    packed: Packed  # the layers as the kernel takes them


def prepare(layers: Sequence[Linear]) -> DenseStack:
    """Lay layers out, once for many launches."""
    check_stack(layers, (0, layers[0].inputs) if layers else ())
    widest = max(parts_of(layer.outputs, TILE) * TILE for layer in layers)
    return DenseStack(tuple(layers), sum(layer.edges for layer in layers), widest, _packed(layers))


def _packed(layers: Sequence[Linear]) -> Packed:
    records, weights, biases, clips = [], [], [], []
    first_weight = first_bias = 0
    for layer in layers:
        panels = parts_of(layer.outputs, TILE)
        code, clip = activation_code(layer.activation)
        records.append([layer.inputs, layer.outputs, panels, first_weight, first_bias, code])
        padded = np.zeros((layer.inputs, panels * TILE), np.float32)
        padded[:, : layer.outputs] = layer.weights
        weights.append(padded.reshape(layer.inputs, panels, TILE).transpose(1, 0, 2).ravel())
        biases.append(np.zeros(panels * TILE, np.float32))
        biases[-1][: layer.outputs] = layer.bias_vector() + np.float32(0)
        clips.append(clip)
        first_weight, first_bias = first_weight + padded.size, first_bias + panels * TILE
    return Packed(
        np.array(records, np.int64), np.concatenate(weights), np.concatenate(biases), np.array(clips, np.float32)
    )


# ---- Compiled ----------------------------------------------------------------------------------------------------


@compiled
def _finish(packed: Any, number: int, panel: int, rows: int, sums: Array, at: int, across: int) -> None:
    kind, clip = packed.layers[number, ACTIVATION], packed.clips[number]
    bias, zero = np.uintp(packed.layers[number, FIRST_BIAS] + panel * TILE), np.float32(0)
    for _ in range(rows):
        begin = np.uintp(at)
        if kind == RELU:
            for lane in range(np.uintp(TILE)):
                z = sums[begin + lane] + packed.biases[bias + lane]
                z = zero if z < zero else z
                sums[begin + lane] = clip if z > clip else z
        else:
            for lane in range(np.uintp(TILE)):
                sums[begin + lane] += packed.biases[bias + lane]
            if kind != IDENTITY:
                activate_line(kind, sums, at, TILE, np.float32(clip))
        at += across


@compiled
def _run_panels(packed: Any, number: int, first: int, last: int, source: Array, begin: int, apart: int, rows: int,
                sums: Array, to: int, across: int) -> None:  # fmt: skip
    """Compute panels first to last of a layer for rows `apart` places apart; outputs go `across` places apart."""
    weights, inputs = packed.weights, packed.layers[number, INPUTS]
    for panel in range(first, last):
        column = to + panel * TILE
        for top in range(0, max(inputs, 1), DEPTH):
            depth, fresh = min(DEPTH, inputs - top), top == 0
            weight = packed.layers[number, FIRST_WEIGHT] + (panel * inputs + top) * TILE
            row = 0
            while row + TALL <= rows:
                at, place = begin + row * apart + top, column + row * across
                tall_rows(source, at, apart, weights, weight, depth, fresh, sums, place, across)
                row += TALL
            while row + 2 <= rows:
                at, place = begin + row * apart + top, column + row * across
                two_rows(source, at, apart, weights, weight, depth, fresh, sums, place, across)
                row += 2
            if row < rows:
                at, place = begin + row * apart + top, column + row * across
                one_row(source, at, apart, weights, weight, depth, fresh, sums, place, across)
        _finish(packed, number, panel, rows, sums, column, across)


@compiled
def _enter_sparse(packed: Any, offsets: Array, columns: Array, entries: Array, top: int, rows: int, first: int,
                  last: int, sums: Array, across: int) -> None:  # fmt: skip
    """Compute panels first to last of the first layer for CSR rows `top` and following; `columns` is int64."""
    begin, inputs = np.zeros(1, np.float32), packed.layers[0, INPUTS]
    for row in range(rows):
        entry, stop = offsets[top + row], offsets[top + row + 1]
        for panel in range(first, last):
            weight, to = packed.layers[0, FIRST_WEIGHT] + panel * inputs * TILE, row * across + panel * TILE
            one_filter(packed.weights, weight, TILE, columns, entry, stop, entries, entry, begin, 0, sums, to)
    for panel in range(first, last):
        _finish(packed, 0, panel, rows, sums, panel * TILE, across)


@compiled
def _copy_out(sums: Array, across: int, rows: int, outputs: Array, to: int, width: int) -> None:
    for row in range(rows):
        source, place = np.uintp(row * across), np.uintp(to + row * width)
        for step in range(np.uintp(width)):
            outputs[place + step] = sums[source + step]


@compiled
def _run_rows(packed: Any, inputs: Array, first: int, rows: int, even: Array, odd: Array, outputs: Array,
              entered: int) -> None:  # fmt: skip
    """Take some rows through all layers, or those after the first where `entered` is 1; outputs in `even` and `odd`."""
    layers = packed.layers
    count = layers.shape[0]
    if entered == 1 and count == 1:
        _copy_out(even, layers[0, PANELS] * TILE, rows, outputs, first * layers[0, OUTPUTS], layers[0, OUTPUTS])
    for number in range(entered, count):
        panels, width = layers[number, PANELS], layers[number, OUTPUTS]
        across, apart = panels * TILE, layers[number, INPUTS]
        sums, before = (even, odd) if number % 2 == 0 else (odd, even)
        straight = number + 1 == count and width == across
        if number > 0:
            apart = layers[number - 1, PANELS] * TILE
        if number == 0 and straight:
            _run_panels(packed, number, 0, panels, inputs, first * apart, apart, rows, outputs, first * width, across)
        elif number == 0:
            _run_panels(packed, number, 0, panels, inputs, first * apart, apart, rows, sums, 0, across)
        elif straight:
            _run_panels(packed, number, 0, panels, before, 0, apart, rows, outputs, first * width, across)
        else:
            _run_panels(packed, number, 0, panels, before, 0, apart, rows, sums, 0, across)
        if number + 1 == count and not straight:
            _copy_out(sums, across, rows, outputs, first * width, width)


# ---- Launches ----------------------------------------------------------------------------------------------------

_scratch = Scratch()


def launch(stack: DenseStack | Sequence[Linear], features: Array | CSR) -> Array:
    """Compute the layers in float32. Safe in threads, which each have their own buffers."""
    made = stack if isinstance(stack, DenseStack) else prepare(stack)
    if len(features.shape) != 2 or features.shape[1] != made.layers[0].inputs:
        raise ShapeError(f"layer 1: rows of {made.layers[0].inputs} inputs are needed, not of shape {features.shape}")
    packed, rows = made.packed, features.shape[0]
    entries = _Entries.of(features) if isinstance(features, CSR) else None
    dense = sparse_to_dense(features) if isinstance(features, CSR) and entries is None else features
    given = _NOTHING if entries is not None else np.ascontiguousarray(dense, np.float32).reshape(-1)
    outputs = np.empty((rows, made.layers[-1].outputs), np.float32)
    edges = made.edges if entries is None else made.edges - int((1 - entries.density) * made.layers[0].edges)
    threads = _threads_for(rows, edges, thread_count())
    if threads > parts_of(rows, 2 * TALL):
        _run_shared(made, given, entries, rows, outputs.reshape(-1))
        return outputs
    if threads == 1 and rows <= 4 * TALL and entries is None:  # a call of a few microseconds
        _run_rows(packed, given, 0, rows, *_rooms(made, rows), outputs.reshape(-1), 0)
        return outputs
    most = max(4 * TALL, CACHE_BYTES // (4 * made.widest))
    blocks = threads * parts_of(rows, threads * most)
    size = max(TALL, parts_of(parts_of(rows, TALL), blocks or 1) * TALL)

    def run(block: tuple[int, int]) -> None:
        first, count = block[0], block[1] - block[0]
        even, odd = _rooms(made, count)
        if entries is not None:
            panels = int(packed.layers[0, PANELS])
            _enter_sparse(packed, *entries.arrays, first, count, 0, panels, even, panels * TILE)
        _run_rows(packed, given, first, count, even, odd, outputs.reshape(-1), int(entries is not None))

    map_threads(run, chunks(rows, size))
    return outputs


_NOTHING = np.empty(0, np.float32)  # in the place of dense rows where there are none


@dataclass(frozen=True, eq=False)
class _Entries:
    """CSR rows of which only entries are multiplied."""

    arrays: tuple[Array, Array, Array]  # offsets, columns as int64, a value for each entry
    density: float  # share of their places that is stored

    @classmethod
    def of(cls, rows: CSR) -> _Entries | None:
        """Return rows with as few entries as pay; None for others."""
        density = rows.nnz / max(1, rows.shape[0] * rows.shape[1])
        if density > MOST_DENSITY:
            return None
        columns = read_only(rows.indices.astype(np.int64))
        return cls((read_only(rows.indptr), columns, read_only(rows.expanded_values())), density)


def _rooms(made: DenseStack, rows: int) -> tuple[Array, Array]:
    return _scratch.take("even", rows * made.widest), _scratch.take("odd", rows * made.widest)


def _run_shared(made: DenseStack, given: Array, entries: _Entries | None, rows: int, outputs: Array) -> None:
    """Take few rows through all layers; threads share the panels of those that are worth it."""
    packed, (sums, before) = made.packed, _rooms(made, rows)
    source, apart = given, made.layers[0].inputs
    for number, layer in enumerate(made.layers):
        panels = int(packed.layers[number, PANELS])
        enters = entries is not None and number == 0
        edges = int(entries.density * layer.edges) if entries is not None and number == 0 else layer.edges
        parts = _threads_for(rows, edges, thread_count())

        def run(some: tuple[int, int], number: int = number, source: Array = source, apart: int = apart,
                sums: Array = sums, across: int = panels * TILE, enters: bool = enters) -> None:  # fmt: skip
            if enters:
                assert entries is not None
                _enter_sparse(packed, *entries.arrays, 0, rows, *some, sums, across)
                return
            _run_panels(packed, number, *some, source, 0, apart, rows, sums, 0, across)

        map_threads(run, chunks(panels, max(1, parts_of(panels, parts))))
        source, apart, sums, before = sums, panels * TILE, before, sums
    _copy_out(source, apart, rows, outputs, 0, made.layers[-1].outputs)


@example
def _dense_examples() -> None:
    for outputs in (1, TILE):
        layers = [Linear(np.ones((1, 1)), None, ReLU()), Linear(np.ones((1, outputs)), None, Identity())]
        launch(layers, np.ones((1, 1), np.float32))
        launch(layers[1:], np.ones((1, 1), np.float32))
    launch(layers, from_dense(np.zeros((1, 1), np.float32)))


# ---- The prior ---------------------------------------------------------------------------------------------------

PRIOR = Prior(compute=1.0, memory=CACHED)
MOST_DENSITY = 1 / 8  # stored entries, as a share of all places, up to which multiplying them alone pays
LEAST_ROWS = 4  # rows that a weight is multiplied with while the next one comes from the cache


def _threads_for(rows: int, edges: int, most: int) -> int:
    return max(1, min(most, edges * max(rows, LEAST_ROWS) // THREAD_WORK))


def seconds(machine: Machine, layers: Sequence[Linear], rows: int, density: float = 1.0) -> float:
    """Estimate the seconds of dense layers, of which `density` of the rows' elements is stored."""
    first, *others = (layer.inputs * layer.outputs for layer in layers)  # of sparse layers as well
    share = density if density <= MOST_DENSITY else 1.0
    edges = int(share * first) + sum(others)
    # Rows share the weights that they read; each entry of a CSR row reads those of its input.
    weights = (rows * share if share < 1 else 1) * first + sum(others)
    values = rows * (share * layers[0].inputs + sum(layer.outputs for layer in layers))
    threads = _threads_for(rows, edges, machine.multiprocessors)
    return shared_seconds(PRIOR, machine, threads, rows * edges, FLOAT_BYTES * (weights + values))


REGISTER_TILED = register(
    DenseKernel(
        name="register_tiled",
        device="cpu",
        summary="sums of a tile of rows and outputs in registers, input after input; then bias and activation",
        launch=launch,
        auto=True,
        seconds=seconds,
        sparse_rows=True,
        why_not=lambda machine, layers: unknown_activation(layers),
        reproducible=True,
    )
)
