"""Layers of images with branches, on the host: a few images at a time run through all of them, and stay in cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import numpy as np

from sparsenn.backends import RowsLeft
from sparsenn.backends.kernel_records import CONV_OPERATION, IMAGE_OPERATION
from sparsenn.engine.plan import Plan
from sparsenn.engine.steps import Step
from sparsenn.formats import Array
from sparsenn.layers import CombiningLayer
from sparsenn.runtime.workers import chunks, map_threads, thread_count

__all__ = ["run_tiles", "spans"]

TILE = 16
"""Images that a thread takes through all layers together."""


def spans(plan: Plan) -> list[tuple[int, int]]:
    """Return the steps of a plan as ranges, the last excluded: steps that run tile by tile together, or single ones."""
    ranges: list[tuple[int, int]] = []
    for images, group in groupby(range(len(plan.steps)), lambda number: _is_of_images(plan, plan.steps[number])):
        numbers = list(group)
        if images and _has_branches(plan, plan.steps[numbers[0]].first, plan.steps[numbers[-1]].last):
            ranges.append((numbers[0], numbers[-1] + 1))
        else:
            ranges += [(number, number + 1) for number in numbers]
    return ranges


def _is_of_images(plan: Plan, step: Step) -> bool:
    on_host = plan.backend.in_host_memory and not plan.backend.doubles
    return on_host and step.kernel.operation in (CONV_OPERATION, IMAGE_OPERATION)


def _has_branches(plan: Plan, first: int, last: int) -> bool:
    """Whether layers have branches, all of which begin and end among them."""
    network = plan.network
    whole = network.live[first] == (first,) and network.live[last] == (last,)
    return whole and any(isinstance(layer, CombiningLayer) for layer in network.layers[first:last])


def run_tiles(run: Callable[[RowsLeft], RowsLeft], rows: RowsLeft, features: Array, outputs: int) -> RowsLeft:
    """Take rows, whose features are a matrix, through steps of images, tile by tile on all cores."""
    count = features.shape[0]
    results = np.empty((count, outputs), features.dtype)

    def through(tile: tuple[int, int]) -> None:
        with np.errstate(all="ignore"):
            results[slice(*tile)] = run(RowsLeft(features[slice(*tile)])).features

    map_threads(through, chunks(count, max(1, min(TILE, -(-count // thread_count())))))
    return RowsLeft(results, rows.row_map)
