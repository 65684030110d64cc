"""Graphs of layers of images: threads take images through all layers while they stay in cache.

Where there are fewer images than threads, the threads share the lanes or filters of each layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from sparsenn.backends.cpu.image_operations import LANES, run_operations
from sparsenn.backends.cpu.image_program import Planner, Program
from sparsenn.backends.cpu.processor import CACHE_BYTES, THREAD_WORK
from sparsenn.backends.cpu.scratch import Scratch
from sparsenn.backends.kernel_records import PANEL, ImageStack, Sources
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.formats import Array
from sparsenn.layers import Flatten, ImageLayer
from sparsenn.runtime.workers import TASKS, chunks, map_threads, thread_count

IMAGE_WORK = THREAD_WORK // 3  # multiply-adds that are worth a thread: these kernels run at a third of its peak
CHUNK_WORK = 20_000  # multiply-adds of a chunk at least: about a microsecond, as a hand-over between caches takes
WAITING_SECONDS = 2e-5  # between polls of a counter, of a thread whose others are slow

NO_COUNTERS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class GraphStack(ImageStack):
    """Layers of images as one graph, and what they are as operations on some images at a time."""

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.layers, self.shapes, self.sources)

    @cached_property
    def _programs(self) -> dict[tuple[int, int], Program]:
        return {}

    def program(self, rows: int, threads: int = 1) -> Program:
        """Return the operations on as many of `rows` images as stay in a core's cache together.

        threads : how many share each operation.
        """
        most = CACHE_BYTES // (2 * FLOAT_BYTES * self._planner.largest)
        images = 1 << max(1, min(PANEL, most, rows)).bit_length() - 1
        if (images, threads) not in self._programs:
            key = images, threads if self._planner.streams(images) else 1
            if key not in self._programs:
                self._programs[key] = self._planner.packed(*key)
            self._programs[images, threads] = self._programs[key]
        return self._programs[images, threads]


_scratch = Scratch()


def run_graph(stack: ImageStack, features: Array) -> Array:
    """Run all layers of a stack on rows of images, (rows, inputs) float32; returns a new array (rows, outputs)."""
    assert isinstance(stack, GraphStack)
    rows, threads = features.shape[0], thread_count()
    if all(isinstance(layer, Flatten) for layer in stack.layers):
        return features.copy()
    if not features.flags.writeable:
        features = features.copy()  # for which the functions would be compiled once more
    program = stack.program(parts_of(rows, threads))
    outputs = np.empty((rows, program.outputs), np.float32)
    threads = min(threads, max(1, rows * program.work // IMAGE_WORK))
    panels = chunks(rows, program.images)
    shared = len(panels) % threads
    for panel in panels[:shared]:
        _share(stack.program(program.images, threads), features, panel, threads, outputs)
    alone = partial(_run, program, features, outputs)
    if threads > 1 and panels[shared:]:
        map_threads(alone, panels[shared:])
    elif threads == 1:
        for panel in panels:
            alone(panel)
    return outputs


def _share(program: Program, features: Array, panel: tuple[int, int], threads: int, outputs: Array) -> None:
    """Have all threads take the same images through the operations."""
    arena = _scratch.take("arena", program.size)
    counters = np.zeros((threads + 1) * program.packed.groups.shape[0], np.int64)
    run = partial(_run, program, features, outputs, panel, arena, counters, threads)
    try:
        map_threads(run, range(threads))
    except BaseException:
        _scratch.forget("arena")  # other threads may still write to it
        raise


def _run(
    program: Program,
    features: Array,
    outputs: Array,
    panel: tuple[int, int],
    arena: Array | None = None,
    counters: Array = NO_COUNTERS,
    threads: int = 1,
    thread: int = 0,
) -> None:
    """Take some images through all operations, alone, or in an arena and with counters that threads share."""
    first, last = panel
    arena = _scratch.take("arena", program.size) if arena is None else arena
    line = _scratch.take("line", 2 * program.widest)
    totals = _scratch.take("totals", 2 * program.widest).view(np.float64)
    sums = _scratch.take("sums", max(1, program.cut_filters * LANES))
    packed = program.packed_of(thread)
    count, number = packed.groups.shape[0], 0
    while True:
        number = run_operations(packed, number, features, first, last - first, arena, line, totals, sums,
                                outputs, counters, thread, threads, TASKS * threads, CHUNK_WORK)  # fmt: skip
        if number == count:
            return
        time.sleep(WAITING_SECONDS)


def graph_of(layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]], sources: Sources = ()) -> GraphStack:
    """Return layers as a stack; without `sources`, each reads the one before."""
    reads = tuple(sources) or tuple((number,) for number in range(len(layers)))
    return GraphStack(tuple(layers), tuple(shapes), tuple(layers), reads)
