"""Numbers that a computation cannot hold: NaN and infinity among inputs, and numbers beyond half precision's range."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends import Backend, ConvolutionKernel, Features, Kernel, SparseRows, all_finite
from sparsenn.engine.steps import layers_text
from sparsenn.errors import InputError, NumericError
from sparsenn.formats import CSR, Array
from sparsenn.layers import Add, Conv2d, Flatten, LayerNorm, Linear, Multiply, Pool2d, SparseLinear, connected_layer
from sparsenn.layers.activation_names import table_row
from sparsenn.layers.elementwise import HALF_MAX, Activation
from sparsenn.layers.sparse_or_dense import with_zeros
from sparsenn.network import Network

HALF_PRECISION = "float16"  # the precision whose numbers end at `HALF_MAX`

_HALF_SMALLEST = 2.0**-14
"""The smallest normal number of half precision: smaller ones have fewer digits, and from 2^-25 on they become 0."""

_HALF_STEP, _HALF_LEAST = 2.0**-11, 2.0**-25
"""The most that rounding to half precision changes a number by: the larger of this share of the number, and this."""

_SLACK, _LEAST = 1.01, 256 * _HALF_LEAST
"""The most that rounding makes of a sum: the sum of its terms' sizes, times the first, plus the second."""


class UnderflowWarning(UserWarning):
    """All outputs of a layer are smaller than half precision's smallest normal number."""


def check_inputs(rows: CSR | SparseRows | Array) -> None:
    """Refuse rows that hold NaN or infinity, by an `InputError` that names the first; a matrix may be on a GPU."""
    if isinstance(rows, np.ndarray) and all_finite(rows):
        return
    numbers: Any = rows.values if isinstance(rows, CSR | SparseRows) else rows
    finite = np.isfinite(numbers)
    if finite.all():
        return
    entry = int(np.argmin(finite))
    if isinstance(rows, CSR | SparseRows):
        row, column = int(np.searchsorted(rows.indptr, entry, side="right")), int(rows.indices[entry]) + 1
    else:
        row, column = (int(place) + 1 for place in np.unravel_index(entry, rows.shape))
    value = numbers[entry] if numbers.ndim == 1 else numbers[row - 1, column - 1]
    raise InputError(
        f"input {row:,}, column {column:,}: the value {value} is not a finite number; check the file or "
        "array it comes from"
    )


@dataclass(frozen=True, eq=False)
class _LayerBounds:
    """Bounds of the numbers that a dense layer or a convolution computes in half precision."""

    sums: Array  # (outputs,) float64, of the absolute weights, as half precision has them
    exact_sums: Array  # the same of the weights as they are
    bias: Array  # (outputs,) float64, its absolute value
    activation: Activation
    representable: bool  # whether all weights are within half precision

    def outputs(self, inputs: float) -> float:
        """Return an upper bound of the outputs' size, where no input's size exceeds `inputs`."""
        rounded = inputs * (1 + _HALF_STEP) + _HALF_LEAST
        before = float((rounded * self.sums + self.bias).max()) * _SLACK + _LEAST
        row = table_row(self.activation)
        return math.inf if row is None else row.largest(before)


class OverflowGuard:
    """Reports numbers that leave half precision's range.

    A kernel in half precision makes an input beyond `HALF_MAX` infinite, and a later layer may turn infinity into a
    finite number, an incorrect one. So inputs are scanned before a launch, and outputs after it. Of dense layers, one
    launch runs no more than surely stay within the range: hidden values are bounded by the largest input, the weights
    and the activations. Where layers need several launches, the same kernel runs them, and the values between launches
    are scanned as well.
    """

    def __init__(self, network: Network, backend: Backend) -> None:
        self.network, self.backend = network, backend
        self._bounds: dict[int, _LayerBounds] = {}
        self._has_warned = False

    def warn_of_underflow(self, first: int, last: int, inputs: float, outputs: float) -> None:
        """Warn, once for the network, where all outputs of layers lie below half precision's normal numbers."""
        if self._has_warned or not inputs or outputs >= _HALF_SMALLEST:
            return
        # zeros may be correct, as a ReLU's are, but not where weights are so small that half precision holds no output
        if not outputs:
            bounds = self.bounds_of(first)
            possible = float((inputs * bounds.exact_sums + bounds.bias).max())
            if last > first + 1 or not 0 < possible < _HALF_LEAST:
                return
        self._has_warned = True
        warnings.warn(
            f"{layers_text(first, last)}: all outputs are below {_HALF_SMALLEST:.1e}, where precision {HALF_PRECISION} "
            "loses digits and then all of them; use precision float32 or tf32, or scale up the inputs or the weights",
            UnderflowWarning,
            stacklevel=2,
        )

    def bounds_of(self, number: int) -> _LayerBounds:
        """Return the bounds of a layer, whose weights are read once."""
        if number not in self._bounds:
            layer = connected_layer(self.network[number])
            if isinstance(layer, SparseLinear):  # one whose zeros are multiplied, too
                layer = with_zeros(layer)
            assert isinstance(layer, Linear | Conv2d), "other layers have no kernels in half precision"
            weights = np.abs(layer.weights.reshape(layer.filters, -1) if isinstance(layer, Conv2d) else layer.weights.T)
            halves = np.minimum(weights, np.float32(HALF_MAX)).astype(np.float16).astype(np.float64)
            exact, bias = weights.sum(axis=1, dtype=np.float64), np.abs(layer.bias_vector().astype(np.float64))
            fits = bool(weights.max() <= HALF_MAX)
            self._bounds[number] = _LayerBounds(halves.sum(axis=1), exact, bias, layer.activation, fits)
        return self._bounds[number]


class BatchGuard:
    """Checks a batch of rows on its way through the layers: `before` and `after` each launch."""

    def __init__(
        self, overflow_guard: OverflowGuard, scan: Callable[[Features], tuple[float, bool]] | None = None
    ) -> None:
        self._overflow_guard = overflow_guard
        self._scan = scan or overflow_guard.backend.largest_number
        self._largest: float | None = None  # size that no finite number in flight exceeds; None where unknown

    def before(self, kernel: Kernel, features: Features, first: int, last: int) -> int:
        """Check the inputs of a launch in half precision; wait for the device where their size is unknown.

        Infinite numbers and NaN pass: where they matter, outputs are infinite or NaN as well. Returns the layer that
        the launch must end before: `last`, or less where hidden values have to be scanned; kernels of convolutions have
        theirs scanned by `after`. Raises a `NumericError` if an input is beyond half precision.
        """
        if kernel.precision != HALF_PRECISION:
            return last
        if self._largest is None or self._largest > HALF_MAX:
            self._largest, _ = self._scan(features)
        if self._largest > HALF_MAX:
            raise NumericError(
                f"layer {first + 1}: an input of {self._largest:,.8g} is beyond 65,504, the limit of "
                f"precision {HALF_PRECISION}; use precision float32 or tf32, or scale down the inputs or the weights"
            )
        return last if isinstance(kernel, ConvolutionKernel) else self._end(first, last, self._largest)

    def after(self, kernel: Kernel, features: Features, first: int, last: int) -> None:
        """Check the outputs of a launch in half precision, waiting for the device; refuse infinite ones and NaN."""
        rounds, layer = kernel.precision == HALF_PRECISION, self._overflow_guard.network[first]
        # sums, products and normalised numbers of float16 rows are such outputs, too
        if rounds or (_is_half(features) and isinstance(layer, Add | LayerNorm | Multiply)):
            inputs = self._largest if rounds else None
            self._largest, finite = self._scan(features)
            if not finite:
                raise NumericError(
                    f"{layers_text(first, last)}: numbers went beyond 65,504, the limit of precision "
                    f"{HALF_PRECISION}, and became infinite; use precision float32 or tf32, or scale down the inputs "
                    "or the weights"
                )
            if inputs is not None and (
                last > first + 1 or isinstance(connected_layer(layer), Conv2d | Linear | SparseLinear)
            ):
                self._overflow_guard.warn_of_underflow(first, last, inputs, self._largest)
        elif not isinstance(layer, Pool2d | Flatten):
            self._largest = None

    def _end(self, first: int, last: int, largest: float) -> int:
        """Return the layer that a launch must end before, so that none of its hidden values can leave the range."""
        bounds_of = self._overflow_guard.bounds_of
        if last == first + 1 or not all(bounds_of(number).representable for number in range(first, last)):
            return last  # kernels refuse weights beyond the range, and name the layer
        # to a power of two, as kernels are compiled for the layers that they run at a time: batches that differ little
        # should have the same layers
        size = 2.0 ** math.ceil(math.log2(largest)) if largest else 0.0
        for number in range(first, last - 1):
            size = bounds_of(number).outputs(size)
            if size > HALF_MAX:
                return number + 1
        return last


class LoggingGuard(BatchGuard):
    """A guard of a batch that waits for no scan: it passes every launch, and logs the questions for `approves`."""

    def __init__(self, overflow_guard: OverflowGuard, queue_scan: Callable[[Features], None]) -> None:
        def scan(features: Features) -> tuple[float, bool]:
            queue_scan(features)
            self._scans += 1
            return 0.0, True

        super().__init__(overflow_guard, scan)
        self._scans = 0
        self._questions: list[tuple[str, tuple[Kernel, Features, int, int], int]] = []

    def before(self, kernel: Kernel, features: Features, first: int, last: int) -> int:
        """Log the question, and let all layers pass."""
        super().before(kernel, features, first, last)
        self._log("before", kernel, features, first, last)
        return last

    def after(self, kernel: Kernel, features: Features, first: int, last: int) -> None:
        """Log the question."""
        super().after(kernel, features, first, last)
        self._log("after", kernel, features, first, last)

    def _log(self, question: str, kernel: Kernel, features: Features, first: int, last: int) -> None:
        numbers = np.zeros((0, 0), np.float16 if _is_half(features) else np.float32)
        self._questions.append((question, (kernel, numbers, first, last), self._scans))

    def approves(self, scans: list[tuple[float, bool]]) -> bool:
        """Return whether a guard that waits would have let the launches pass as they were."""
        done = 0

        def next_scan(_: Features) -> tuple[float, bool]:
            nonlocal done
            done += 1
            return scans[min(done, len(scans)) - 1]

        guard = BatchGuard(self._overflow_guard, next_scan)
        try:
            return all(
                getattr(guard, question)(*asked) in (None, asked[-1]) and done == expected
                for question, asked, expected in self._questions
            )
        except NumericError:
            return False


def _is_half(features: Features) -> bool:
    """Return whether features are a float16 matrix."""
    return not isinstance(features, CSR) and features.dtype == np.float16
