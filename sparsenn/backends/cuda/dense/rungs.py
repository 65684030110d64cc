"""The CUDA variants of mlp by name, in the ladder's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.dense import fused, half, plain
from sparsenn.backends.cuda.dense.image import SPLIT_PRODUCTS
from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.layers import Linear

__all__ = ["register_all"]

Launch = Callable[[DenseStack, Array], Array]


class _Kind(NamedTuple):
    """What rungs have in common: the networks they take, in words and as a test, precision, and sums in half of it."""

    needs: tuple[str, ...]
    fits: Callable[[DenseStack], str | None]
    precision: str
    half_sums: int = 0


_ANY = _Kind((ANY_GPU,), plain.fits_any, "float32")
_STUDY = _Kind((ANY_GPU, "layers 72 - 64 - 64 - 4, ReLU between them"), plain.fits, "float32")
_FUSED = _Kind((ANY_GPU, f"layers up to {fused.WIDEST} wide"), fused.fits, "float32")

_HALF_ROWS = ("tensor_half",)
"""Rungs that take and give float16 rows, too."""

_TF32_PRODUCTS = {"tensor_float32": SPLIT_PRODUCTS}
"""Rungs that split float32 numbers, and what for."""

_SECONDS = {"fused_fma": fused.fma_seconds, "tensor_float32": fused.tensor_float32_seconds}
"""Estimates of those that `auto` has a choice between."""

_IN_ORDER: tuple[tuple[_Kind, tuple[plain.Rung, ...]], ...] = (
    (_ANY, tuple(rung for rung in plain.RUNGS if rung[0] in plain.GENERAL)),
    (_STUDY, tuple(rung for rung in plain.RUNGS if rung[0] not in plain.GENERAL)),
    (_STUDY._replace(precision=half.PRECISION, half_sums=half.CHAIN), half.RUNGS),
    *(
        (_FUSED._replace(precision=precision), (rung,))
        for rung, precision in zip(fused.RUNGS, fused.PRECISIONS.values(), strict=True)
    ),
    (_ANY, (plain.LIBRARY,)),  # no rung, but what they are held against
)


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    for kind, rungs in _IN_ORDER:
        for rung in rungs:
            _register(rung, kind)


def _register(rung: plain.Rung, kind: _Kind) -> None:
    name, launch, summary = rung
    register(
        Variant(
            operation="mlp",
            name=name,
            device="cuda",
            summary=summary,
            launch=partial(_launch, launch),
            needs=kind.needs,
            why_not=partial(_why_not, kind.fits),
            precision=kind.precision,
            half_rows=name in _HALF_ROWS,
            seconds=_SECONDS.get(name),
            tf32_products=_TF32_PRODUCTS.get(name, 0),
            half_sums=kind.half_sums,
        )
    )


def _why_not(fits: Callable[[DenseStack], str | None], layers: Sequence[Linear], features: Array) -> str | None:
    return fits(plain.described(layers))


def _launch(launch: Launch, stack: DenseStack, features: Array) -> Array:
    """Launch a rung on the stack's device.

    Raises
    ------
    ShapeError
        The features do not have the first layer's width.
    UsageError
        The rung is not written for the stack.
    OutOfMemoryError
        The device's memory does not suffice.
    """
    if features.ndim != 2 or features.shape[1] != stack.widths[0]:
        raise ShapeError(f"the features have shape {features.shape}; the first layer takes (rows, {stack.widths[0]})")
    row = 4 * (sum(stack.widths[1:]) + max(stack.widths[1:]))
    with cupy().cuda.Device(stack.device), within_memory("a stack of dense layers", features.shape[0], row):
        return launch(stack, features)
