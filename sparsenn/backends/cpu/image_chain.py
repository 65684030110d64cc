"""Chains of convolutions and poolings: images in panels, that threads take through all layers while they stay in cache.

Where there are fewer images than threads, the threads share the filters of those layers that are worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparsenn.backends.cpu.planes import FIRST_BLOCK, LAST_BLOCK, Program, program_of
from sparsenn.backends.cpu.processor import LAST_CACHE_BYTES, PANELS, THREAD_WORK
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.cpu.windows import ROOM, begin_layer, copy_in, run_layer, run_panels
from sparsenn.backends.kernel_records import PANEL, ImageStack
from sparsenn.formats import Array
from sparsenn.layers import ImageLayer
from sparsenn.runtime.workers import TASKS, chunks, map_threads, thread_count

__all__ = ["ChainStack", "chain_of", "run_chain"]

WORTH_A_THREAD = int(PANELS.compute * THREAD_WORK)  # multiply-adds of a thread, at least


@dataclass(frozen=True, eq=False)
class ChainStack(ImageStack):
    """Layers of images, with what they are as one chain."""

    @cached_property
    def program(self) -> Program:
        """The layers as the kernel takes them."""
        return program_of(self.layers, self.shapes)


_scratch = Scratch()


def run_chain(stack: ImageStack, features: Array) -> Array:
    """Run all layers of a stack on rows of images, (rows, inputs) float32; returns a new array (rows, outputs)."""
    assert isinstance(stack, ChainStack)
    program, rows = stack.program, features.shape[0]
    if not program.work:
        return features.copy()
    outputs = np.empty((rows, program.outputs), np.float32)
    threads = min(thread_count(), max(1, rows * sum(program.work) // WORTH_A_THREAD))
    if threads > rows > 0:
        for row in range(rows):
            _run_shared(program, features, row, threads, outputs)
        return outputs
    together = max(1, min(PANEL, -(-rows // threads)))
    while together > 1 and 4 * together * program.largest > LAST_CACHE_BYTES:
        together //= 2

    def run(part: tuple[int, int]) -> None:
        even, odd, sums, totals = _rooms(program, together)
        run_panels(program.packed, features, *part, together, even, odd, sums, totals, outputs)

    panels = -(-rows // together)
    map_threads(run, chunks(rows, together * max(1, -(-panels // (TASKS * threads if threads > 1 else 1)))))
    return outputs


def _rooms(program: Program, together: int) -> tuple[Array, Array, Array, Array]:
    size = program.largest * together + ROOM
    even, odd = _scratch.take("even", size), _scratch.take("odd", size)
    return even, odd, _scratch.take("sums", 4 * ROOM), _scratch.take("totals", 2 * ROOM).view(np.float64)


def _run_shared(program: Program, features: Array, row: int, threads: int, outputs: Array) -> None:
    packed = program.packed
    panel, after, sums, _ = _rooms(program, 1)
    copy_in(packed, features, row, 1, sums, panel)
    for number, (layer, work) in enumerate(zip(packed.layers, program.work, strict=True)):
        if number + 1 < len(program.work):
            begin_layer(packed, number + 1, 1, after)
        first, last = int(layer[FIRST_BLOCK]), int(layer[LAST_BLOCK])
        parts = min(threads, max(1, work // WORTH_A_THREAD))

        def run(part: tuple[int, int], number: int = number, panel: Array = panel, after: Array = after) -> None:
            *_, sums, totals = _rooms(program, 0)
            run_layer(packed, number, *part, panel, 1, after, row, outputs, sums, totals)

        map_threads(run, [(first + a, first + b) for a, b in chunks(last - first, -(-(last - first) // parts))])
        panel, after = after, panel


def chain_of(layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ChainStack:
    """Return layers as a stack whose program is made when it is first asked for."""
    return ChainStack(tuple(layers), tuple(shapes), tuple(layers))
