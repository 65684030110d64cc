"""NaN and infinity: refused as inputs, and told of where half precision cannot hold what was computed."""

from __future__ import annotations

import numpy as np

from sparsenn.backends import Backend, Features, Variant
from sparsenn.errors import InputError, NumericError
from sparsenn.formats import CSR

__all__ = ["HALF_PRECISION", "check_inputs", "check_overflow", "overflow"]

HALF_PRECISION = "fp16"
"""The precision whose numbers end at 65,504."""


def check_inputs(inputs: CSR) -> None:
    """Refuse inputs that hold NaN or infinity.

    Raises
    ------
    InputError
        They do; the message names the first such row and column, counted from 1.
    """
    finite = np.isfinite(inputs.values)
    if finite.all():
        return
    entry = int(np.argmin(finite))
    row = int(np.searchsorted(inputs.indptr, entry, side="right"))
    column = int(inputs.indices[entry]) + 1
    raise InputError(
        f"input {row:,}, column {column:,}: the value {inputs.values[entry]} is not a finite number; check the file or "
        "the array that it comes from"
    )


def check_overflow(backend: Backend, kernel: Variant, features: Features, first: int, last: int) -> None:
    """Refuse what a launch in half precision gave, if a number of it is infinite or NaN; waits for the device.

    Parameters
    ----------
    kernel : of the launch; others than in half precision are not looked at.
    features : what it gave.
    first, last : its layers, counted from 0, `last` excluded.

    Raises
    ------
    NumericError
        There is such a number.
    """
    if kernel.precision == HALF_PRECISION and not backend.all_finite(features):
        raise overflow(first, last)


def overflow(first: int, last: int) -> NumericError:
    """Return the error for layers, counted from 0, whose numbers left half precision."""
    what = f"layer {first + 1}" if last == first + 1 else f"layers {first + 1} to {last}"
    return NumericError(
        f"{what}: numbers went beyond 65,504, the largest that precision {HALF_PRECISION} holds, and became infinite; "
        "use precision float32 or tf32, or scale the inputs or the weights down"
    )
