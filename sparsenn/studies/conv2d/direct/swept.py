"""The first story's rung with numbers that can be varied: pixels and filters of a thread, shape of a block.

`launch_swept` takes the parameters that are estimated to be best, `launch_with` those that it is given, and for the
others the best by the estimate.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache, partial

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry
from sparsenn.backends.cuda.conv.kernel import (
    Launch,
    convolution,
    everywhere,
    grid_of,
    new_outputs,
    refuse,
    sizes,
    why_not_plain,
)
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.studies.conv2d.direct.filters import launch_filters

SOURCE = "studies/conv2d/direct/kernels/08_swept.cu"

_PROGRAM = specialised(SOURCE)

PARAMETERS: dict[str, tuple[int, ...]] = {
    "tile": (8, 16, 17, 20, 32),
    "pixels": (1, 2, 4, 5, 7, 8, 10, 17, 20),
    "filters": (1, 2, 4, 8, 16),
}
"""What can be varied, and the values to try: threads of a block side by side, and a thread's pixels and filters."""

MOST_SUMS = 128
"""Pixels times filters of a thread: more leave too few registers for pixels and weights."""

MOST_ROWS = 32
"""Of a window: a thread has a column of them in registers."""

MOST_THREADS = 128  # of a block


def fits(geometry: Geometry) -> str | None:
    """Return why a convolution cannot be run; None if it can.

    Stride and dilation must be 1, there must be one group, and a window must have up to `MOST_ROWS` rows.
    """
    reason = why_not_plain(geometry)
    if reason is None and geometry.kernel[0] > MOST_ROWS:
        return f"a window has {geometry.kernel[0]} rows; registers suffice for {MOST_ROWS}"
    return reason


def why_not_parameters(geometry: Geometry, parameters: Mapping[str, int]) -> str | None:
    """Return why a convolution cannot be run with some parameters; None if it can."""
    reason = fits(geometry)
    if reason is not None:
        return reason
    if set(parameters) != set(PARAMETERS):
        return f"the parameters are {', '.join(sorted(parameters))}; they should be {', '.join(sorted(PARAMETERS))}"
    if min(parameters.values()) < 1:
        return f"the parameters {dict(parameters)} are not all at least 1"
    if parameters["tile"] > MOST_THREADS:
        return f"a tile of {parameters['tile']} threads is wider than a block, {MOST_THREADS}"
    sums = parameters["pixels"] * parameters["filters"]
    if sums > MOST_SUMS:
        return f"a thread would have {sums} sums; registers suffice for {MOST_SUMS}"
    return None


# ---- Choosing -----------------------------------------------------------------------------------------------------


@cache
def _defaults(geometry: Geometry) -> tuple[tuple[str, int], ...]:
    every = (dict(zip(PARAMETERS, values, strict=True)) for values in itertools.product(*PARAMETERS.values()))
    valid = (parameters for parameters in every if why_not_parameters(geometry, parameters) is None)
    return tuple(min(valid, key=partial(_instructions, geometry)).items())


def defaults(geometry: Geometry) -> dict[str, int]:
    """Return the parameters for which an image is estimated to take the fewest instructions."""
    refuse(fits(geometry))
    return dict(_defaults(geometry))


def _instructions(geometry: Geometry, parameters: Mapping[str, int]) -> float:
    """Estimate the instructions of all warps for an image, in units of a thread's.

    A thread loads a column of pixels and its weights once for each column of the window and channel; more sums than 64
    leave so few threads at a time that some wait.
    """
    tile, pixels, filters = (parameters[name] for name in PARAMETERS)
    down = MOST_THREADS // tile
    warps = parts_of(tile * down, 32) * 32
    height, width = geometry.kernel
    blocks = parts_of(geometry.output_width, tile) * parts_of(parts_of(geometry.output_height, pixels), down)
    column = height * pixels * filters + height * filters + 1.5 * (pixels + height - 1)
    thread = geometry.channels * width * column + 3 * pixels * filters + 40
    crowded = 1 + max(0, pixels * filters - 64) / 128
    return blocks * warps * parts_of(geometry.filters, filters) * thread * crowded


# ---- Launching ----------------------------------------------------------------------------------------------------


def launch_swept(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution that `fits`, with its `defaults`."""
    return _run(defaults(layer.geometry), layer, images)


def completed(geometry: Geometry, parameters: Mapping[str, int]) -> dict[str, int]:
    """Return parameters with the `defaults` of those that are missing; fewer filters where registers end."""
    found = defaults(geometry) | dict(parameters)
    if "filters" not in parameters and found["pixels"] > 0:
        fewer = 1 << ((MOST_SUMS // found["pixels"]).bit_length() - 1)
        found["filters"] = min(found["filters"], fewer)
    return found


def launch_with(parameters: Mapping[str, int]) -> Launch:
    """Return the launch with given parameters; it raises, besides, if a convolution cannot be run with them.

    `parameters`: some or all of `PARAMETERS`, which the others are chosen for.
    """
    return partial(_checked, dict(parameters))


def _checked(parameters: Mapping[str, int], layer: ConvLayer, images: Array) -> Array:
    every = completed(layer.geometry, parameters)
    refuse(why_not_parameters(layer.geometry, every))
    return _run(every, layer, images)


def shape_defines(geometry: Geometry, parameters: Mapping[str, int]) -> dict[str, int]:
    """Return a convolution's sizes and all of `PARAMETERS` as the kernel is compiled for them."""
    tile = parameters["tile"]
    shape = {"TILE": tile, "THREADS": MOST_THREADS // tile * tile}
    return {**sizes(geometry), **shape, "PIXELS": parameters["pixels"], "EACH": parameters["filters"]}


def _run(parameters: Mapping[str, int], layer: ConvLayer, images: Array) -> Array:
    outputs = new_outputs(layer, images)
    given = layer.geometry
    cut = shape_defines(given, parameters)
    down = parts_of(parts_of(given.output_height, cut["PIXELS"]), cut["THREADS"] // cut["TILE"])
    tiles = parts_of(given.output_width, cut["TILE"]) * down
    grid = grid_of(images.shape[0] * parts_of(given.filters, cut["EACH"]), tiles)
    launch_filters(layer, images, outputs, _PROGRAM, cut, grid, cut["THREADS"])
    return outputs


_described = partial(convolution, fits=everywhere(fits), needs=("stride 1, no dilation, one group",))

SWEPT = _described("conv_swept", launch_swept, "several pixels and filters per thread, by an estimate")
PIXELS_VARIED = tuple(
    _described(
        f"conv_swept, pixels {pixels}", launch_with({"pixels": pixels}), f"conv_swept with {pixels} pixels per thread"
    )
    for pixels in PARAMETERS["pixels"]
)
"""Variants of `SWEPT`, one for each number of pixels."""
