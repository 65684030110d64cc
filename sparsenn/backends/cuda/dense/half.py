"""The rungs of mlp in half precision, all for one network, with its weights in registers.

Features and outputs are float32; between them, inputs, weights and hidden values are rounded to half precision (11
significant bits, up to 65,504), and so are products and sums of up to `CHAIN` of them; longer sums are float32. What
exceeds half precision's range becomes infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.cuda.dense.plain import STUDY_WIDTHS, fits, resident_blocks
from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.loader import Program, cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "CHAIN",
    "PRECISION",
    "RUNGS",
    "Shares",
    "fits",
    "launch_coalesced_weights",
    "launch_conflict_free",
    "launch_hidden_loads",
    "launch_higher_occupancy",
    "launch_registers_half",
    "launch_tuned_large",
    "launch_tuned_small",
    "pack_weights",
    "packing_order",
]

PRECISION = "fp16"
"""Of inputs, weights and hidden values."""

CHAIN = 9
"""Products that are added in half precision, at most."""

THREADS = 256
"""Of a block."""

Shares = tuple[tuple[int, int], ...]
"""For each layer: among how many threads the weights of an output are divided, and how many pairs one takes a turn."""

_PAIRS_OF_TURNS: Shares = ((2, 2), (2, 2), (32, 1))
_HALF_BLOCK: Shares = ((2, 2), (2, 2), (16, 2))
_QUARTERS: Shares = ((4, 1), (4, 1), (4, 4))
_WIDE: Shares = ((2, 4), (2, 4), (8, 4))

_REGISTERS_HALF = program("mlp/08_registers_half.cu", THREADS=(THREADS,))
_CONFLICT_FREE = program("mlp/09_conflict_free.cu", THREADS=(THREADS,))
_COALESCED_WEIGHTS = program("mlp/10_coalesced_weights.cu", THREADS=(THREADS,))
_HIDDEN_LOADS = program("mlp/11_hidden_loads.cu", THREADS=(THREADS,))
_HIGHER_OCCUPANCY = program("mlp/12_higher_occupancy.cu", THREADS=(THREADS,))
_TUNED_SMALL = program("mlp/13_tuned_small.cu", THREADS=(THREADS,))
_TUNED_LARGE = program("mlp/14_tuned_large.cu", THREADS=(THREADS,))

_packed: WeakKeyDictionary[DenseStack, dict[Shares, tuple[tuple[Array, ...], Any]]] = WeakKeyDictionary()
"""Packed weights and an event after which they are there; a stack keeps those of every division it was run with."""


def packing_order(inputs: int, parts: int, turn: int) -> Array:
    """Return which inputs each of the threads of an output takes.

    Inputs are taken in pairs. The threads take turns of `turn` neighbouring pairs; those that do not fill a turn for
    each are divided evenly. It is `pair_of` in the kernels.

    Parameters
    ----------
    inputs : a multiple of 2 · `parts`.
    parts : threads of an output.
    turn : pairs.

    Returns
    -------
    (pairs of a thread, parts, 2) int64, every input once.
    """
    count = inputs // (2 * parts)
    assert inputs == 2 * parts * count, "each thread gets equally many pairs"
    rest = count % turn
    whole = count - rest
    part, taken = np.arange(parts), np.arange(count)[:, None]
    in_turns = (taken // turn * parts + part) * turn + taken % turn
    pair = np.where(taken < whole, in_turns, whole * parts + part * rest + taken - whole)
    order: Array = 2 * pair[:, :, None] + np.arange(2)
    return order


def pack_weights(weights: Array, order: Array) -> Array:
    """Reorder weights so that the first pairs of all threads come first, then the second, and so on.

    Parameters
    ----------
    weights : (inputs, outputs) float32, NumPy or CuPy.
    order : as `packing_order` returns it, in the same kind of array.

    Returns
    -------
    (pairs of a thread, outputs, parts, 2) float16, contiguous.
    """
    packed: Array = weights[order].transpose(0, 3, 1, 2).astype(np.float16, order="C")
    return packed


def launch_registers_half(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, weights in registers, two numbers an instruction."""
    return _run(_REGISTERS_HALF, 2, None, stack, features)


def launch_conflict_free(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, 32 rows at a time, the lanes of a warp at different rows."""
    return _run(_CONFLICT_FREE, 32, None, stack, features)


def launch_coalesced_weights(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, weights packed in the order in which threads take them."""
    return _run(_COALESCED_WEIGHTS, 32, _PAIRS_OF_TURNS, stack, features)


def launch_hidden_loads(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, half of a block loading rows while the other computes the last layer."""
    return _run(_HIDDEN_LOADS, 32, _HALF_BLOCK, stack, features)


def launch_higher_occupancy(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, four threads an output."""
    return _run(_HIGHER_OCCUPANCY, 16, _QUARTERS, stack, features)


def launch_tuned_small(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, a block a tile, registers reused from layer to layer."""
    return _run(_TUNED_SMALL, 32, _WIDE, stack, features, loops=False)


def launch_tuned_large(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, more registers for the last layer."""
    return _run(_TUNED_LARGE, 32, _WIDE, stack, features)


def _run(
    source: Program, tile: int, shares: Shares | None, stack: DenseStack, features: Any, loops: bool = True
) -> Array:
    """Launch a rung: with weights as they are, or packed; a block a tile, or as many blocks as run at a time."""
    reason = fits(stack)
    if reason is not None:
        raise UsageError(reason)
    if features.data.ptr % 16:
        features = features.copy()
    rows = features.shape[0]
    outputs: Array = cupy().empty((rows, STUDY_WIDTHS[-1]), np.float32)
    kernel = source.kernel("mlp")
    blocks = -(-rows // tile)
    if loops:
        blocks = min(blocks, resident_blocks(kernel, THREADS, stack.device))
    weights = tuple(layer.weights for layer in stack.layers) if shares is None else _weights_packed(stack, shares)
    parameters = (array for pair in zip(weights, stack.layers, strict=True) for array in (pair[0], pair[1].bias))
    launch("mlp", kernel, (blocks,), (THREADS,), np.int64(rows), features, *parameters, outputs)
    return outputs


def _weights_packed(stack: DenseStack, shares: Shares) -> tuple[Array, ...]:
    """Return a stack's weights divided like that, packed on first use; the current stream waits until they are."""
    cp = cupy()
    made = _packed.setdefault(stack, {})
    if shares not in made:
        arrays = tuple(
            pack_weights(layer.weights, cp.asarray(packing_order(layer.inputs, *share)))
            for layer, share in zip(stack.layers, shares, strict=True)
        )
        made[shares] = arrays, cp.cuda.get_current_stream().record()
    arrays, ready = made[shares]
    if not ready.done:
        cp.cuda.get_current_stream().wait_event(ready)
    return arrays


Rung = tuple[str, Callable[[DenseStack, Array], Array], str]

RUNGS: tuple[Rung, ...] = (
    ("registers_half", launch_registers_half, "weights in registers in half precision, two multiply-adds at once"),
    (
        "conflict_free",
        launch_conflict_free,
        "32 rows at a time, in a circular order in which no two lanes hit one bank",
    ),
    ("coalesced_weights", launch_coalesced_weights, "weights reordered once, so that warps take them in whole lines"),
    ("hidden_loads", launch_hidden_loads, "half of a block brings in the next rows beside the last layer"),
    ("higher_occupancy", launch_higher_occupancy, "a quarter of a row of weights a thread, more threads at a time"),
    ("tuned_small", launch_tuned_small, "for few rows: a tile a block, one layer's weights in registers at a time"),
    ("tuned_large", launch_tuned_large, "for many rows: wide reads, more registers for the last layer"),
)
"""Name, launch and summary of the rungs in half precision, in the ladder's order."""
