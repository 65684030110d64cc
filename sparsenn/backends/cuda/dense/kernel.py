"""What kernels of mlp have in common: how one is described, and how it is launched on its stack's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.stack import DenseStack, StackShape, shape_of
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current, cupy, machine_of
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import launch as queue
from sparsenn.backends.cuda.runtime.row_scan import taken_scan
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.machine import Machine
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Linear

Launch = Callable[[DenseStack, Array], Array]
Fits = Callable[[Machine, StackShape], str | None]

MOST_KEPT = 256  # numbers of rows that a stack remembers how to run: more than sessions and their buckets ask for
ALIGNED = 16  # bytes that kernels read at once, where rows begin at multiples of them


def dense_kernel(
    name: str,
    launch: Launch,
    summary: str,
    fits: Fits = lambda machine, shape: None,
    *,
    needs: tuple[str, ...] = (),
    gpu: str = ANY_GPU,
    **fields: Any,
) -> DenseKernel:
    """Describe a kernel of mlp on the GPU, with further `fields` of `Kernel`.

    `launch` takes a stack and features on its device, without `np.errstate`.
    """
    return DenseKernel(
        name=name,
        device="cuda",
        summary=summary,
        launch=partial(_launch, launch, fits),
        needs=(gpu, *needs),
        why_not=partial(_why_not, fits),
        **fields,
    )


def _why_not(fits: Fits, machine: Machine, layers: Sequence[Linear]) -> str | None:
    return fits(machine, shape_of(layers))


def _launch(launch: Launch, fits: Fits, stack: DenseStack, features: Array) -> Array:
    shape = features.shape
    if len(shape) != 2 or shape[1] != stack.widths[0]:
        raise ShapeError(f"the features have shape {shape}; the first layer takes (rows, {stack.widths[0]})")
    if fits not in stack.fitting:
        reason = fits(machine_of(stack.device), stack.shape)
        if reason is not None:
            raise UsageError(reason)
        stack.fitting.add(fits)
    cuda = cupy().cuda
    try:
        with as_current(stack.device):
            return launch(stack, features)
    except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError):
        row = 4 * (sum(stack.widths[1:]) + max(stack.widths[1:]))
        with as_current(stack.device), within_memory("a stack of dense layers", shape[0], row):
            raise


# ---- Launches of which everything but the features is known ------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """Sizes and types of a prepared launch."""

    rows: int  # of the features
    type: Any  # of their numbers
    aligned: bool  # whether they begin at a multiple of 16 bytes


@dataclass(eq=False)
class Ready:
    """One launch of one kernel, ready but for the features and the outputs, which are the kernel's first arguments."""

    kernel: Any
    grid: tuple[int]
    threads: tuple[int]
    shared_bytes: int
    outputs: tuple[int, int]  # shape of the outputs, whose numbers are of the features' type
    arguments: tuple[Any, ...]  # that follow features and outputs
    scans: bool = False  # whether its last argument is the place for a scan of the features

    def __call__(self, features: Array) -> Array:
        """Queue the launch on the current stream and return the outputs."""
        outputs: Array = cupy().ndarray(self.outputs, features.dtype)
        scan = (taken_scan(features),) if self.scans else ()
        arguments = (features, outputs, *self.arguments, *scan)
        queue("mlp", self.kernel, self.grid, self.threads, *arguments, shared_bytes=self.shared_bytes)
        return outputs


class _Kept:
    def __init__(self, run: Callable[[Array], Array]) -> None:
        self.run = run
        self.pending: Any = cupy().cuda.get_current_stream().record()

    def arrive(self) -> None:
        if self.pending.done:
            self.pending = None
        else:
            cupy().cuda.get_current_stream().wait_event(self.pending)


def prepared(types: tuple[Any, ...], prepare: Callable[[DenseStack, Given], Callable[[Array], Array]]) -> Launch:
    """Return a launch that `prepare` makes ready once for each number of rows, and that the stack keeps.

    It refuses features of another type, or not in row order. What `prepare` returns must not refer to the stack.
    """

    def launch(stack: DenseStack, features: Array) -> Array:
        pointer: Any = features.data
        key = prepare, features.shape[0], features.dtype, pointer.ptr % ALIGNED == 0
        found: _Kept | None = stack.ready.get(key)
        if found is None or not features.flags.c_contiguous:
            _check(features, types)
            if len(stack.ready) >= MOST_KEPT:
                stack.ready.clear()
            with np.errstate(all="ignore"):
                found = stack.ready[key] = _Kept(prepare(stack, Given(*key[1:])))
        if found.pending is not None:
            found.arrive()
        return found.run(features)

    return launch


def _check(features: Array, types: tuple[Any, ...]) -> None:
    if features.dtype not in types or not features.flags.c_contiguous:
        names = " or ".join(np.dtype(kind).name for kind in types)
        raise UsageError(f"the features are {features.dtype}, strides {features.strides}; give {names} in row order")
