"""How numbers are brought to the size that a network takes them in: multiplied, moved and divided, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import overload

import numpy as np

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats.arrays import Array
from sparsenn.formats.compressed import CSR
from sparsenn.printable import one_line

_PIECE = 1 << 20  # numbers scaled at a time: 8 MiB of float64

_LARGEST_DENOMINATOR = 1 << 16


@dataclass(frozen=True, eq=False)
class Scaling:
    """A number x becomes (x·factor - mean) / deviation, computed in float64 and rounded to float32 once.

    So 1/255 gives the float32 number nearest to x/255, as dividing in float32 does.

    Parameters
    ----------
    factor, mean, deviation : float64 of shape (1,), for all columns; or (columns,), one each; or, for rows that are
        images, (channels,).

    Raises
    ------
    UsageError
        They are no vectors of finite numbers, a factor is zero, or a deviation is not positive.
    """

    factor: Array
    mean: Array
    deviation: Array

    __repr__ = one_line

    def __post_init__(self) -> None:
        for name in ("factor", "mean", "deviation"):
            array = np.atleast_1d(np.asarray(getattr(self, name), np.float64))
            if array.ndim != 1 or not array.size or not np.isfinite(array).all():
                raise UsageError(f"the {name} of a scaling must be finite numbers: one, or one per column")
            object.__setattr__(self, name, array)
        if not self.factor.all() or not (self.deviation > 0).all():
            raise UsageError("a scaling's factors must not be zero, and its deviations must be positive")

    @classmethod
    def standard(cls, inputs: Array) -> Scaling:
        """Return what gives each column of a matrix the mean 0 and the deviation 1; 0 to a column of equal numbers."""
        mean = inputs.mean(axis=0, dtype=np.float64)
        deviation = np.array([inputs[:, column].std(dtype=np.float64) for column in range(inputs.shape[1])])
        constant = (inputs == inputs[0]).all(axis=0)
        return cls(np.ones(1), np.where(constant, inputs[0], mean), np.where(constant | (deviation == 0), 1, deviation))

    def __str__(self) -> str:
        terms = [("× ", self.factor, 1), ("- ", self.mean, 0), ("÷ ", self.deviation, 1)]
        return (
            ", ".join(sign + _shown(values) for sign, values, nothing in terms if (values != nothing).any()) or "none"
        )

    def check_width(self, width: int, image: tuple[int, ...] | None = None) -> None:
        """Refuse rows of another width.

        Parameters
        ----------
        width : numbers of a row.
        image : channels, height and width where each row is an image.

        Raises
        ------
        ShapeError
            There are several factors, means or deviations, and neither one per column nor one per channel.
        """
        for name in ("factor", "mean", "deviation"):
            _spread(name, getattr(self, name), width, image)

    def affine(self, width: int, image: tuple[int, ...] | None = None) -> tuple[Array, Array]:
        """Return what each of a row's numbers is multiplied by, and what is added then.

        Parameters
        ----------
        width, image : as `check_width` takes them.

        Returns
        -------
        (array, array), both float64 of shape (width,)
            Factors and addends.

        Raises
        ------
        ShapeError
            As `check_width`.
        """
        factor, mean, deviation = (
            np.broadcast_to(_spread(name, getattr(self, name), width, image), (width,))
            for name in ("factor", "mean", "deviation")
        )
        return factor / deviation, -mean / deviation

    @overload
    def apply(self, rows: Array, image: tuple[int, ...] | None = None) -> Array: ...

    @overload
    def apply(self, rows: CSR, image: tuple[int, ...] | None = None) -> Array | CSR: ...

    def apply(self, rows: Array | CSR, image: tuple[int, ...] | None = None) -> Array | CSR:
        """Return rows scaled, as float32; CSR stays CSR where zeros stay zeros.

        Parameters
        ----------
        rows : (rows, columns), in float32.
        image : channels, height and width where each row is an image.

        Raises
        ------
        ShapeError
            As `check_width`.
        InputError
            A number is not finite in float32 any more.
        """
        factor, mean, deviation = (
            _spread(name, getattr(self, name), rows.shape[1], image) for name in ("factor", "mean", "deviation")
        )
        if isinstance(rows, CSR):
            if mean.any():
                dense: Array = rows.to_scipy().toarray()
                return self.apply(dense, image)
            values = rows.expanded_values() * _of_entries(factor, rows) / _of_entries(deviation, rows)
            return CSR(rows.shape, rows.indptr, rows.indices, _rounded(values, np.empty(rows.nnz, np.float32)))
        scaled = np.empty(rows.shape, np.float32)
        step = max(1, _PIECE // max(1, rows.shape[1]))
        for first in range(0, len(rows), step):
            piece = slice(first, first + step)
            _rounded((rows[piece] * factor - mean) / deviation, scaled[piece])
        return scaled


def _spread(name: str, values: Array, width: int, image: tuple[int, ...] | None) -> Array:
    if values.size in (1, width):
        return values
    if image is not None and values.size == image[0]:
        return np.repeat(values, prod(image[1:]))
    channels = "" if image is None else f", or {image[0]:,}, one per channel"
    raise ShapeError(
        f"the scaling has {values.size:,} numbers as {name}; take one, or {width:,}, one per column{channels}"
    )


def _of_entries(values: Array, rows: CSR) -> Array:
    return values if values.size == 1 else values[rows.indices]


def _rounded(exact: Array, scaled: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        scaled[...] = exact
    if not np.isfinite(scaled).all():
        raise InputError("the scaling gives numbers that are not finite in float32; take a smaller factor")
    return scaled


def _shown(values: Array) -> str:
    if (values != values[0]).any():
        return f"{values.size:,} numbers, {values.min():.6g} to {values.max():.6g}"
    value = float(values[0])
    near = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    return str(near) if near.denominator > 1 and near.numerator == 1 and float(near) == value else f"{value:.9g}"
