"""Enlargement of small grey images to black-and-white inputs, exactly as the challenge's inputs were made.

The recipe is Fourier interpolation (zero-padding of the spectrum), vertically image by image, then horizontally on
all images laid side by side: each pixel row of all images is one periodic signal. Two oddities make the result
complex: the coefficient at the Nyquist frequency stays on the positive side instead of being split. Black is where
the magnitude exceeds half of the largest magnitude of all.

How it is computed. Both steps are linear, so the horizontal spectra of the original pixel rows are made once, and
the spectrum of any vertically enlarged row is a sum of them. Let R be real interpolation, with the Nyquist
coefficient split. Vertically, an unsplit coefficient adds the imaginary part sin(π·h·y/S) · a, where h is the
height, S the new side and a the row of the images' vertical Nyquist coefficients; horizontally it adds
i·c·sin(π·w·x/S), where w is the width and c the long signal's own Nyquist coefficient. So for pixel row y with real
part u: ``R(u) - c(v)·sin + i·(R(v) + c(u)·sin)`` with v = sin(π·h·y/S)·a. R(a) is computed once; each pixel row costs
one real inverse transform.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsenn.datasets.bitmaps import bitmap_stack, stack_to_csr
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, INDEX16_LIMIT, Array
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import Progress, silent

ROWS_AT_ONCE = 2
"""Pixel rows transformed at a time, one per thread; at 60,000 × 256 pixels each takes 0.4 GB."""

TYPICAL_DENSITY = 0.12
"""Black pixels of hand-written digits, rounded up; for the estimate of memory alone."""


def image_side(neurons: int) -> int:
    """Return the side of the square image with one pixel per neuron."""
    side = math.isqrt(max(neurons, 0))
    if side * side != neurons or not 1 <= neurons <= INDEX16_LIMIT:
        raise UsageError(
            f"{neurons} neurons are not a square image of at most 256 × 256 pixels; "
            "the challenge has 1024, 4096, 16384 and 65536"
        )
    return side


def enlarge(images: Array, neurons: int, progress: Progress = silent) -> CSR:
    """Enlarge grey images to square black-and-white ones, one input per image.

    The images form one long signal, so every image has a (minute) influence on all others.

    Parameters
    ----------
    images : array, shape (images, height, width), uint8
        Height and width even and smaller than the new side.
    neurons : int
        Pixels of the enlarged image, a square.
    progress : callable, optional
        Called for each pixel row, then of the images collected.

    Returns
    -------
    CSR, shape (images, neurons), float32
        Iso-valued 1; pixel (x, y) is column x · side + y.

    Raises
    ------
    UsageError
        The number of neurons is no square, or the images are not small and even enough.
    ResourceError
        Memory does not suffice.
    """
    side = image_side(neurons)
    count, height, width = images.shape
    if height % 2 or width % 2 or not 0 < max(height, width) < side or not count:
        raise UsageError(
            f"{count} images of {height} × {width} cannot be enlarged to {side} × {side}: at least one "
            f"is needed, with even sides smaller than the new one"
        )
    check_memory(_working_bytes(images, side), f"enlarging {count:,} images to {side} × {side}", "close other programs")
    stack = bitmap_stack(count, side)
    _cut_rows(_Field(images, side), stack, progress)
    return stack_to_csr(stack, progress)


def _working_bytes(images: Array, side: int) -> int:
    """Estimate the peak: spectra, bitmaps and indices stay, rows under transformation come on top."""
    count, height, width = images.shape
    spectra, bitmaps = height * count * width * 8, count * side * (side // 8)
    indices = int(count * side * side * TYPICAL_DENSITY) * 2
    row = count * side * 8
    return int(spectra + bitmaps + max(indices, (3 * ROWS_AT_ONCE + 1) * row))


def _cut_rows(field: _Field, stack: Array, progress: Progress) -> None:
    """Blacken, pixel row by pixel row, what exceeds half of the largest magnitude.

    The largest is known only at the end. Each row is cut at the largest so far, and the rows that were cut too low
    are computed and cut once more: less work than a first pass for the largest alone, and no row is stored.
    """
    largest, done = 0.0, 0
    used = np.full(field.side, -1.0)
    for rows in _batches(np.arange(field.side)):
        for y, squares in zip(rows, field.squared_rows(rows), strict=True):
            used[y] = largest = max(largest, float(squares.max()))
            _cut(squares, largest / 4, stack[y // 8], 1 << int(y % 8))
        done += rows.size
        progress("enlarge images", done, done + int((used < largest).sum()))
    too_low = np.flatnonzero(used < largest)
    for rows in _batches(too_low):
        for y, squares in zip(rows, field.squared_rows(rows), strict=True):
            _cut(squares, largest / 4, stack[y // 8], 1 << int(y % 8))
        done += rows.size
        progress("enlarge images", done, field.side + too_low.size)


def _batches(rows: Array) -> list[Array]:
    return [rows[start : start + ROWS_AT_ONCE] for start in range(0, rows.size, ROWS_AT_ONCE)]


class _Field:
    """The enlarged images before they are cut, computed one pixel row of all images at a time.

    images : (images, height, width) uint8.
    side : pixels of a side of the enlarged images.
    """

    def __init__(self, images: Array, side: int) -> None:
        count, height, width = images.shape
        self.side, self.width, self.length = side, width, count * width
        self.spectra = np.empty((height, self.length // 2 + 1), np.complex128)
        for row in range(height):
            self.spectra[row] = _fft().rfft(images[:, row].reshape(-1).astype(np.float64))
        self.interpolation = _interpolation(height, side)
        alternating = (1.0 - 2.0 * (np.arange(height) % 2)) / height
        nyquist = alternating @ self.spectra
        self.nyquist_row = self._enlarged(nyquist[None])[0]
        self.nyquist_of_row = float(nyquist[-1].real) / self.length
        self.vertical_sine = np.sin(np.pi * height * np.arange(side) / side)
        self.horizontal_sine = np.sin(np.pi * width * np.arange(side) / side)

    def squared_rows(self, rows: Array) -> Array:
        """Return the squared magnitudes of some pixel rows, (rows, images × side) float64."""
        # One product per row: a row's bits must not depend on which others it is computed with.
        spectra = np.stack([self.interpolation[y] @ self.spectra for y in rows])
        squares = self._enlarged(spectra)
        for y, spectrum, row in zip(rows, spectra, squares, strict=True):
            vertical = float(self.vertical_sine[y])
            own_nyquist = float(spectrum[-1].real) / self.length
            _square(row, self.nyquist_row, self.horizontal_sine, vertical, own_nyquist, self.nyquist_of_row)
        return squares

    def _enlarged(self, spectra: Array) -> Array:
        """Interpolate signals horizontally, the Nyquist coefficient split; returns (rows, images × side) float64."""
        new_length = self.length // self.width * self.side
        padded = np.zeros((len(spectra), new_length // 2 + 1), np.complex128)
        padded[:, : spectra.shape[1]] = spectra
        padded[:, spectra.shape[1] - 1] /= 2
        enlarged: Array = _fft().irfft(padded, new_length, overwrite_x=True, workers=ROWS_AT_ONCE)
        enlarged *= new_length / self.length
        return enlarged


def _fft() -> Any:
    from scipy import fft

    return fft


def _interpolation(length: int, new_length: int) -> Array:
    """Return the matrix that interpolates `length` periodic samples, Nyquist coefficient split: (new, old) float64."""
    spectrum = np.zeros((new_length // 2 + 1, length), np.complex128)
    spectrum[: length // 2 + 1] = _fft().rfft(np.eye(length), axis=0)
    spectrum[length // 2] /= 2
    matrix: Array = _fft().irfft(spectrum, new_length, axis=0) * (new_length / length)
    return matrix


@compiled
def _square(
    row: Array, nyquist_row: Array, sine: Array, vertical: float, own_nyquist: float, nyquist_of_row: float
) -> None:
    """Replace a pixel row's real part, in place, by its squared magnitude; the names are those of `_Field`."""
    side = sine.size
    for start in range(0, row.size, side):
        for x in range(side):
            real = row[start + x] - vertical * nyquist_of_row * sine[x]
            imaginary = vertical * nyquist_row[start + x] + own_nyquist * sine[x]
            row[start + x] = real * real + imaginary * imaginary


@compiled
def _cut(squares: Array, threshold: float, plane: Array, bit: int) -> None:
    """Set one bit of every byte of the plane, (images, side) uint8, to whether its value exceeds the threshold."""
    pixels = plane.reshape(-1)
    for at in range(squares.size):
        if squares[at] > threshold:
            pixels[at] |= bit
        else:
            pixels[at] &= ~bit


@example
def _enlarge_one() -> None:
    enlarge(np.ones((1, 2, 2), np.uint8), 64)
