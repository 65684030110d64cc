"""Stacks of dense layers on the CPU: NumPy's products in float32, bias and activation in place by one compiled pass.

Rows go through all layers in blocks that stay in the last-level cache, between two buffers that are kept: so nothing is
written to memory that is not an output, and no memory is touched for the first time but theirs. The products use the
threads of NumPy's library; a product is kept large, because its threads have to wait for each other after each one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsenn.backends.contract import DenseKernel
from sparsenn.backends.cpu.in_order import multiply
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.machine import Machine
from sparsenn.backends.oracle.dense import check_stack
from sparsenn.backends.registry import register
from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.formats.arrays import read_only
from sparsenn.jit import compiled, example
from sparsenn.layers import Activation, Identity, Linear, ReLU
from sparsenn.workers import chunks, map_threads

__all__ = ["BLAS", "IN_ORDER", "DenseStack", "blas_seconds", "launch_blas", "launch_in_order", "prepare"]

BLOCK_BYTES = 8 << 20
"""Room for a block of rows after a layer."""

PIECE = 1 << 18
"""Elements that are worth a thread in the pass for bias and activation."""


@dataclass(frozen=True, eq=False)
class DenseStack:
    """Dense layers that fit together, with what a launch asks of each.

    Parameters
    ----------
    layers : the layers.
    parameters : for each, its weights, its bias, its activation, and ReLU's clip, or infinity.
    widest : the most outputs of a layer.
    """

    layers: tuple[Linear, ...]
    parameters: tuple[tuple[Array, Array, Activation, float], ...]
    widest: int


def prepare(layers: Sequence[Linear]) -> DenseStack:
    """Look at layers once, for many launches.

    Raises
    ------
    ShapeError
        There is none, or they do not fit together.
    """
    check_stack(layers, (0, layers[0].inputs) if layers else ())
    clips = [getattr(layer.activation, "clip", None) for layer in layers]
    return DenseStack(
        tuple(layers),
        tuple(
            (layer.weights, read_only(layer.bias_vector()), layer.activation, np.inf if clip is None else float(clip))
            for layer, clip in zip(layers, clips, strict=True)
        ),
        max(layer.outputs for layer in layers),
    )


@compiled
def _rectify(sums: Array, bias: Array, clip: float, start: int, stop: int) -> None:
    """Add the bias to rows start to stop, and cut what is below zero or above the clip, in place."""
    zero, top = np.float32(0), np.float32(clip)
    for row in range(start, stop):
        for column in range(sums.shape[1]):
            z = sums[row, column] + bias[column]
            z = zero if z < zero else z
            sums[row, column] = top if z > top else z


@compiled
def _add(sums: Array, bias: Array, start: int, stop: int) -> None:
    """Add the bias to rows start to stop, in place."""
    for row in range(start, stop):
        for column in range(sums.shape[1]):
            sums[row, column] += bias[column]


def _finish(sums: Array, bias: Array, activation: Activation, clip: float) -> None:
    """Add the bias to all rows and apply the activation, in place, on as many threads as pay."""

    def run(piece: tuple[int, int]) -> None:
        if type(activation) is ReLU:
            _rectify(sums, bias, clip, *piece)
            return
        _add(sums, bias, *piece)
        if type(activation) is not Identity:
            part = sums[slice(*piece)]
            part[...] = activation(part)

    rows, width = sums.shape
    if rows * width < 2 * PIECE:
        run((0, rows))
    else:
        map_threads(run, chunks(rows, max(1, PIECE // width)))


_scratch = Scratch()


def launch_blas(stack: DenseStack | Sequence[Linear], features: Array) -> Array:
    """Compute the layers in float32, one after the other. Safe in threads, which each have their own buffers.

    The library's products may sum in another order where there are other rows at a time: bits may depend on how many
    rows there are, by float32 rounding.

    Parameters
    ----------
    stack : what `prepare` returned, or layers.
    features : of shape (rows, inputs).

    Returns
    -------
    A new float32 array of shape (rows, outputs).

    Raises
    ------
    ShapeError
        Layers or features do not fit together.
    """
    return _launch(stack, features, lambda rows, weights, sums: np.matmul(rows, weights, out=sums))


def launch_in_order(stack: DenseStack | Sequence[Linear], features: Array) -> Array:
    """As `launch_blas`, but for the order of sums: it is one, whatever rows there are, and however many threads."""
    return _launch(stack, features, multiply)


def _launch(
    stack: DenseStack | Sequence[Linear], features: Array, product: Callable[[Array, Array, Array], object]
) -> Array:
    """Compute the layers; `product` is given rows, weights, and where their product goes."""
    made = stack if isinstance(stack, DenseStack) else prepare(stack)
    if features.ndim != 2 or features.shape[1] != made.layers[0].inputs:
        raise ShapeError(f"layer 1: rows of {made.layers[0].inputs} inputs are needed, not of shape {features.shape}")
    rows, last = features.shape[0], len(made.parameters) - 1
    given = features if features.dtype == np.float32 else features.astype(np.float32)
    outputs = np.empty((rows, made.layers[-1].outputs), np.float32)
    block = max(1, BLOCK_BYTES // (4 * made.widest))
    buffers = [_scratch.take(name, min(rows, block) * made.widest) for name in ("even", "odd")] if last else []
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for start in range(0, rows, block):
            values = given[start : start + block]
            for number, (weights, bias, activation, clip) in enumerate(made.parameters):
                if number == last:
                    sums = outputs[start : start + block]
                else:
                    shape = values.shape[0], weights.shape[1]
                    sums = buffers[number % 2][: shape[0] * shape[1]].reshape(shape)
                product(values, weights, sums)
                _finish(sums, bias, activation, clip)
                values = sums
    return outputs


@example
def _dense_examples() -> None:
    """Run layers whose passes differ."""
    layers = [Linear(np.ones((1, 1)), None, kind) for kind in (ReLU(), Identity())]
    for launch in (launch_blas, launch_in_order):
        launch(layers, np.ones((1, 1), np.float32))


LAYER, MULTIPLY_ADD, WEIGHT, OUTPUT = 7e-6, 2.2e-11, 4e-11, 2e-10
"""Seconds that a layer's calls take, a multiply-add of a thread, a weight that is read for a few rows, and an output's
bias and activation, as measured on AMD EPYC (Zen 4) cores with NumPy's OpenBLAS."""

IN_ORDER_MULTIPLY_ADD = 5e-11
"""Seconds of a multiply-add of a thread where sums are in order."""

SHORT_ROWS = 20
"""A product of so many rows takes 1.5 times as long for each as one of very many."""


def blas_seconds(machine: Machine, layers: Sequence[Linear], rows: int, multiply_add: float = MULTIPLY_ADD) -> float:
    """Estimate the seconds of dense layers.

    Parameters
    ----------
    machine : with its threads.
    layers : consecutive layers, whose `inputs`, `outputs` and `edges` are looked at.
    rows : how many.
    multiply_add : seconds of a multiply-add of a thread.
    """
    threads = max(1, machine.multiprocessors)
    seconds = 0.0
    for layer in layers:
        outputs = rows * layer.outputs
        long_rows = rows * (1 + SHORT_ROWS / (SHORT_ROWS + rows))
        product = max(long_rows * layer.edges * multiply_add / threads, layer.edges * WEIGHT)
        seconds += LAYER + product + outputs * OUTPUT / (threads if outputs >= 2 * PIECE else 1)
    return seconds


BLAS = register(
    DenseKernel(
        name="blas",
        device="cpu",
        summary="NumPy's products in float32, then bias and activation",
        launch=launch_blas,
        auto=True,
        seconds=blas_seconds,
    )
)
IN_ORDER = register(
    DenseKernel(
        name="in_order",
        device="cpu",
        summary="sums by increasing input, fused multiply-adds, then bias and activation",
        launch=launch_in_order,
        seconds=partial(blas_seconds, multiply_add=IN_ORDER_MULTIPLY_ADD),
        reproducible=True,
    )
)
