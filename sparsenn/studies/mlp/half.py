"""The rungs of mlp in half precision, all for one network, with its weights in registers.

Features and outputs are float32; between them, inputs, weights and hidden values are rounded to half precision (11
significant bits, up to 65,504), and so are products and sums of up to `CHAIN` of them; longer sums are float32. What
exceeds half precision's range becomes infinite.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.kernel import Launch, dense_kernel
from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.formats import Array
from sparsenn.studies.mlp.float32 import NEEDS, THREADS, fits, run_specialised

CHAIN = 9
"""Products that are added in half precision, at most."""

Shares = tuple[tuple[int, int], ...]
"""For each layer: among how many threads the weights of an output are divided, and how many pairs one takes a turn."""

_PAIRS_OF_TURNS: Shares = ((2, 2), (2, 2), (32, 1))
_HALF_BLOCK: Shares = ((2, 2), (2, 2), (16, 2))
_QUARTERS: Shares = ((4, 1), (4, 1), (4, 4))
_WIDE: Shares = ((2, 4), (2, 4), (8, 4))

_REGISTERS_HALF = program("studies/mlp/kernels/08_registers_half.cu", THREADS=(THREADS,))
_CONFLICT_FREE = program("studies/mlp/kernels/09_conflict_free.cu", THREADS=(THREADS,))
_COALESCED_WEIGHTS = program("studies/mlp/kernels/10_coalesced_weights.cu", THREADS=(THREADS,))
_HIDDEN_LOADS = program("studies/mlp/kernels/11_hidden_loads.cu", THREADS=(THREADS,))
_HIGHER_OCCUPANCY = program("studies/mlp/kernels/12_higher_occupancy.cu", THREADS=(THREADS,))
_TUNED_SMALL = program("studies/mlp/kernels/13_tuned_small.cu", THREADS=(THREADS,))
_TUNED_LARGE = program("studies/mlp/kernels/14_tuned_large.cu", THREADS=(THREADS,))


def packing_order(inputs: int, parts: int, turn: int) -> Array:
    """Return which inputs each of the threads of an output takes.

    Inputs are taken in pairs. The threads take turns of `turn` neighbouring pairs; those that do not fill a turn for
    each are divided evenly. It is `pair_of` in the kernels. `inputs` are a multiple of 2 · `parts`, the threads of an
    output. Returns (pairs of a thread, parts, 2) int64, every input once.
    """
    count = inputs // (2 * parts)
    assert inputs == 2 * parts * count, "each thread gets equally many pairs"
    rest = count % turn
    whole = count - rest
    part, taken = np.arange(parts), np.arange(count)[:, None]
    in_turns = (taken // turn * parts + part) * turn + taken % turn
    pair = np.where(taken < whole, in_turns, whole * parts + part * rest + taken - whole)
    return 2 * pair[:, :, None] + np.arange(2)


def pack_weights(weights: Array, order: Array) -> Array:
    """Reorder weights so that the first pairs of all threads come first, then the second, and so on.

    Returns float16 of shape (pairs of a thread, outputs, parts, 2), contiguous.
    """
    return weights[order].transpose(0, 3, 1, 2).astype(np.float16, order="C")


def _run(
    source: Program, tile: int, shares: Shares | None, stack: DenseStack, features: Any, loops: bool = True
) -> Array:
    """Launch a rung: with weights as they are, or packed; a block a tile, or as many blocks as run at a time."""
    aligned = features.copy() if features.data.ptr % 16 else features
    weights = None if shares is None else _weights_packed(stack, shares)
    return run_specialised(source, tile, loops, stack, aligned, weights)


def _weights_packed(stack: DenseStack, shares: Shares) -> list[np.uint64]:
    """Return where a stack's weights lie, divided like that; a stack keeps those of every division it was run with."""
    packed: Any = cache_on_device(stack, shares, lambda: _pack_all(stack, shares))
    sizes = (2 * layer.weights.size for layer in stack.layers[:-1])
    return [np.uint64(packed.data.ptr + start) for start in accumulate(sizes, initial=0)]


def _pack_all(stack: DenseStack, shares: Shares) -> Array:
    """Pack the weights of all layers, one after the other: each begins at a multiple of 16 bytes."""
    cp = cupy()
    parts = (
        pack_weights(layer.weights, cp.asarray(packing_order(layer.inputs, *share))).ravel()
        for layer, share in zip(stack.layers, shares, strict=True)
    )
    return cp.concatenate(list(parts))


def _kernel(name: str, launch: Launch, summary: str) -> DenseKernel:
    return replace(dense_kernel(name, launch, summary, fits, needs=NEEDS, precision="float16"), adds_in_half=True)


KERNELS = (
    _kernel(
        "registers_half",
        partial(_run, _REGISTERS_HALF, 2, None),
        "weights in registers in half precision, two multiply-adds at once",
    ),
    _kernel(
        "conflict_free",
        partial(_run, _CONFLICT_FREE, 32, None),
        "32 rows at a time, in a circular order in which no two lanes hit one bank",
    ),
    _kernel(
        "coalesced_weights",
        partial(_run, _COALESCED_WEIGHTS, 32, _PAIRS_OF_TURNS),
        "weights reordered once, so that warps take them in whole lines",
    ),
    _kernel(
        "hidden_loads",
        partial(_run, _HIDDEN_LOADS, 32, _HALF_BLOCK),
        "half of a block brings in the next rows beside the last layer",
    ),
    _kernel(
        "higher_occupancy",
        partial(_run, _HIGHER_OCCUPANCY, 16, _QUARTERS),
        "a quarter of a row of weights per thread, more threads at a time",
    ),
    _kernel(
        "tuned_small",
        partial(_run, _TUNED_SMALL, 32, _WIDE, loops=False),
        "for few rows: one tile per block, one layer's weights in registers at a time",
    ),
    _kernel(
        "tuned_large",
        partial(_run, _TUNED_LARGE, 32, _WIDE),
        "for many rows: wide reads, more registers for the last layer",
    ),
)
"""In the ladder's order."""
