"""Hand-written-like digits, drawn by rule: inputs of the challenge's kind for when MNIST is not at hand.

Ten glyphs of lines and arcs, each image one of them under its own size, slant, turn, shift, wobble and pen width.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from sparsenn.datasets.bitmaps import CHUNK, bitmap_stack, stack_to_csr
from sparsenn.datasets.enlarge import image_side
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, INDEX32_LIMIT, Array
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import Progress, silent

# A stroke is (centre x, centre y, radius x, radius y, first angle, last angle) in turns, clockwise from the right,
# for an arc, or (x, y, x, y) for a line. The glyph's box is -0.5..0.5, y downward.
GLYPHS: tuple[tuple[tuple[float, ...], ...], ...] = (
    ((0.0, 0.0, 0.32, 0.5, 0.0, 1.0),),
    ((-0.12, -0.34, 0.04, -0.5), (0.04, -0.5, 0.04, 0.5)),
    ((0.0, -0.22, 0.3, 0.28, 0.48, 1.08), (0.26, -0.08, -0.32, 0.5), (-0.32, 0.5, 0.34, 0.5)),
    ((-0.02, -0.25, 0.28, 0.25, 0.55, 1.25), (-0.02, 0.25, 0.32, 0.25, -0.25, 0.42)),
    ((-0.06, -0.5, -0.34, 0.12), (-0.34, 0.12, 0.36, 0.12), (0.16, -0.36, 0.12, 0.5)),
    ((0.3, -0.5, -0.22, -0.5), (-0.22, -0.5, -0.26, -0.06), (-0.02, 0.17, 0.32, 0.32, -0.37, 0.4)),
    ((0.24, 0.22, 0.54, 0.72, -0.25, -0.5), (0.0, 0.22, 0.3, 0.28, 0.0, 1.0)),
    ((-0.34, -0.46, 0.34, -0.5), (0.34, -0.5, -0.08, 0.5)),
    ((0.0, -0.26, 0.24, 0.24, 0.0, 1.0), (0.0, 0.24, 0.3, 0.26, 0.0, 1.0)),
    ((0.0, -0.22, 0.28, 0.28, 0.0, 1.0), (0.28, -0.22, 0.14, 0.5)),
)

ARC_STEP = 1 / 16
"""Turns between two points of an arc: the chord leaves it by 1 % of the radius, less than a pixel at any size."""

# Ranges that the images' parameters are drawn from, evenly. The extents follow MNIST, whose digits are 20 of 28
# pixels high; the pen makes the mean density 10 %, like that of the challenge's inputs.
HEIGHT = (0.60, 0.76)  # of the image's side
WIDTH = (0.52, 0.80)  # of the image's side, for the box of the glyph
SLANT = (-0.10, 0.35)  # shift to the right per unit of height
TURN = (-0.03, 0.03)  # turns
SHIFT = (-0.05, 0.05)  # of the image's side, in x and in y
PEN = (0.014, 0.068)  # half of the stroke's width, of the image's side; the square of an even draw, so mostly thin
WOBBLE = (0.0, 0.05)  # amplitude of a sine of the other coordinate, of the glyph's box, in x and in y
RANGES = np.array([(0, 10), HEIGHT, WIDTH, SLANT, TURN, SHIFT, SHIFT, PEN, WOBBLE, WOBBLE, (0, 1), (0, 1)])
PEN_COLUMN = 7


def digit_inputs(neurons: int, images: int = 60_000, *, seed: int = 0, progress: Progress = silent) -> CSR:
    """Draw digits as black-and-white inputs, one image a row.

    The first images of a larger set with the same seed are the same, and so is each image's shape at every size.

    Parameters
    ----------
    neurons : int
        Pixels of an image: a square, at most 256².
    images : int, default 60000
        Number of images.
    seed : int, default 0
        Seed of the shapes (NumPy's PCG64).
    progress : callable, optional
        Called for the images drawn, then of those collected.

    Returns
    -------
    CSR, shape (images, neurons), float32
        Iso-valued 1; pixel (x, y) is column x · side + y.

    Raises
    ------
    UsageError
        The number of neurons is no square, that of the images not positive, or the seed negative.
    ResourceError
        Memory does not suffice.
    """
    side = image_side(neurons)
    if not 1 <= images <= INDEX32_LIMIT:
        raise UsageError(f"cannot draw {images} images; give 1 to {INDEX32_LIMIT:,}")
    if seed < 0:
        raise UsageError(f"a seed of {seed} is negative; give 0 or more")
    # the parameters, the bitmap, and 16-bit indices of one pixel in eight
    each = 2 * len(RANGES) * 8 + side * -(-side // 8) + side * side // 4
    check_memory(images * each, f"drawing {images:,} images of {neurons:,} pixels", "draw fewer")
    shapes = _random_shapes(images, seed)
    points, breaks = _glyph_points()
    stack = bitmap_stack(images, side)
    for start in range(0, images, CHUNK):
        stop = min(start + CHUNK, images)
        _draw(shapes[start:stop], points, breaks, stack[:, start:stop])
        progress("draw digits", stop, images)
    return stack_to_csr(stack, progress)


def _random_shapes(images: int, seed: int) -> Array:
    draws = np.random.default_rng(seed).random((images, len(RANGES)))
    draws[:, PEN_COLUMN] **= 2
    low, high = RANGES.T
    shapes: Array = low + (high - low) * draws
    return shapes


def _glyph_points() -> tuple[Array, Array]:
    """Break the strokes into line segments: (segments, 4) float64, and (11,) where each glyph's segments begin."""
    segments: list[tuple[float, float, float, float]] = []
    breaks = [0]
    for glyph in GLYPHS:
        for stroke in glyph:
            if len(stroke) == 4:
                x0, y0, x1, y1 = stroke
                path = [(x0 + (x1 - x0) * t, y0 + (y1 - y0) * t) for t in np.linspace(0, 1, 5)]
            else:
                x, y, radius_x, radius_y, first, last = stroke
                turns = np.linspace(first, last, math.ceil(abs(last - first) / ARC_STEP) + 1) * 2 * math.pi
                path = [(x + radius_x * math.cos(turn), y + radius_y * math.sin(turn)) for turn in turns]
            segments += [(*here, *there) for here, there in pairwise(path)]
        breaks.append(len(segments))
    return np.array(segments), np.array(breaks)


@compiled
def _place(shape: Array, x: float, y: float) -> tuple[float, float]:
    """Move a point of the glyph's box into the image: wobble, size, slant, turn, shift; 0..1 is the image's side."""
    wobbled_x = x + shape[8] * np.sin(2 * np.pi * (y + shape[10]))
    wobbled_y = y + shape[9] * np.sin(2 * np.pi * (x + shape[11]))
    high = wobbled_y * shape[1]
    wide = wobbled_x * shape[2] - shape[3] * high
    cosine, sine = np.cos(2 * np.pi * shape[4]), np.sin(2 * np.pi * shape[4])
    return 0.5 + shape[5] + cosine * wide - sine * high, 0.5 + shape[6] + sine * wide + cosine * high


@compiled
def _blacken(tile: Array, x0: float, y0: float, x1: float, y1: float, pen: float) -> None:
    """Blacken the pixels whose centre is at most `pen` from the segment; all lengths in pixels."""
    side = tile.shape[1]
    along_x, along_y = x1 - x0, y1 - y0
    length = max(along_x * along_x + along_y * along_y, 1e-12)
    left, right = max(int(min(x0, x1) - pen), 0), min(int(max(x0, x1) + pen) + 1, side)
    top, bottom = max(int(min(y0, y1) - pen), 0), min(int(max(y0, y1) + pen) + 1, side)
    for y in range(top, bottom):
        for x in range(left, right):
            from_x, from_y = x + 0.5 - x0, y + 0.5 - y0
            t = min(max((from_x * along_x + from_y * along_y) / length, 0.0), 1.0)
            off_x, off_y = from_x - t * along_x, from_y - t * along_y
            if off_x * off_x + off_y * off_y <= pen * pen:
                tile[y >> 3, x] |= np.uint8(1 << (y & 7))


@compiled
def _draw(shapes: Array, points: Array, breaks: Array, stack: Array) -> None:
    octets, images, side = stack.shape
    tile = np.empty((octets, side), np.uint8)
    for image in range(images):
        tile[:] = 0
        shape = shapes[image]
        digit = int(shape[0])
        for segment in range(breaks[digit], breaks[digit + 1]):
            x0, y0 = _place(shape, points[segment, 0], points[segment, 1])
            x1, y1 = _place(shape, points[segment, 2], points[segment, 3])
            _blacken(tile, x0 * side, y0 * side, x1 * side, y1 * side, shape[7] * side)
        stack[:, image] = tile


@example
def _draw_one() -> None:
    digit_inputs(64, 1)
