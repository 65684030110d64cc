"""A device with too little memory: a GPU, or a stand-in for one, of which most is taken away for a while."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from sessions import altered

from sparsenn.backends import Kernel, RowsLeft, SparseKernel, StepOutput
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.cuda.runtime import memory
from sparsenn.engine import Session
from sparsenn.formats import CSR
from sparsenn.layers import Conv2d, ImageLayer, SparseLinear
from sparsenn.network import Network

__all__ = ["StandIn", "StandInBackend", "Way", "limited", "occupied", "on_stand_in", "settle"]

Way = Callable[[Any, int], AbstractContextManager[None]]
"""Given CuPy and a number of bytes, leaves about so many while it lasts."""

GRAIN = 2 << 20
"""Pieces in which a device gives memory away."""


def settle(cp: Any) -> None:
    """Wait for the current device, and give back to it whatever no array holds any more."""
    gc.collect()
    cp.cuda.runtime.deviceSynchronize()
    cp.get_default_memory_pool().free_all_blocks()


@contextmanager
def occupied(cp: Any, left: int) -> Iterator[None]:
    """Take the current device's memory, as another program would, but for `left` bytes or up to `GRAIN` more."""
    settle(cp)
    runtime, held, piece = cp.cuda.runtime, [], 1 << 30
    try:
        while (piece := min(piece, runtime.memGetInfo()[0] - left)) >= GRAIN:
            try:
                held.append(runtime.malloc(piece // GRAIN * GRAIN))
            except runtime.CUDARuntimeError:  # no piece of that size is left
                piece //= 2
        yield
    finally:
        for pointer in held:
            runtime.free(pointer)
        settle(cp)


@contextmanager
def limited(cp: Any, left: int) -> Iterator[None]:
    """Let CuPy's pool take `left` bytes more than its arrays hold now, however much the current device has."""
    settle(cp)
    pool = cp.get_default_memory_pool()
    before = pool.get_limit()
    pool.set_limit(size=max(1, pool.total_bytes() + left))  # 0 would be no limit
    try:
        yield
    finally:
        pool.set_limit(size=before)
        settle(cp)


# ---- A stand-in for a GPU -----------------------------------------------------------------------------------------


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    status = 2  # cudaErrorMemoryAllocation


class PoolOutOfMemoryError(MemoryError):
    """As CuPy's."""


class _Device:
    """Memory that is given away in whole pieces; `pooled` bytes of it are the pool's."""

    def __init__(self, size: int) -> None:
        self.size, self.pooled = size, 0
        self._taken: dict[int, int] = {}

    @property
    def free(self) -> int:
        return self.size - self.pooled - sum(self._taken.values())

    def take(self, size: int) -> int:
        pieces = -(-size // GRAIN) * GRAIN
        if pieces > self.free:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        pointer = max(self._taken, default=0) + 1
        self._taken[pointer] = pieces
        return pointer

    def give_back(self, pointer: int) -> None:
        del self._taken[pointer]


class _Pool:
    """Keeps blocks for later requests of their size, as CuPy's pool does, which also cuts and joins them.

    What goes beyond the limit is refused at once; if it is the device that has no more, all blocks that are kept are
    given back to it first.
    """

    def __init__(self, device: _Device) -> None:
        self._device = device
        self._limit = self._used = 0
        self._kept: Counter[int] = Counter()

    def malloc(self, size: int) -> int:
        """Take a block and return its size."""
        size = -(-size // 512) * 512
        if self._kept[size]:
            self._kept[size] -= 1
        else:
            if 0 < self._limit < self.total_bytes() + size:
                raise PoolOutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            if size > self._device.free:
                self.free_all_blocks()
            if size > self._device.free:
                raise PoolOutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            self._device.pooled += size
        self._used += size
        return size

    def give_back(self, size: int) -> None:
        self._used -= size
        self._kept[size] += 1

    def free_all_blocks(self) -> None:
        self._device.pooled -= self.free_bytes()
        self._kept.clear()

    def free_bytes(self) -> int:
        return self._device.pooled - self._used

    def used_bytes(self) -> int:
        return self._used

    def total_bytes(self) -> int:
        return self._device.pooled

    def set_limit(self, size: int) -> None:
        self._limit = size

    def get_limit(self) -> int:
        return self._limit


class StandIn:
    """CuPy as far as memory goes, for a device of `size` bytes; to be put in its place in `sys.modules`."""

    def __init__(self, size: int) -> None:
        device = _Device(size)
        self.pool = _Pool(device)
        self.cuda = SimpleNamespace(
            memory=SimpleNamespace(OutOfMemoryError=PoolOutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                malloc=device.take,
                free=device.give_back,
                memGetInfo=lambda: (device.free, device.size),
                deviceSynchronize=lambda: None,
                getDevice=lambda: 0,
            ),
        )

    def get_default_memory_pool(self) -> _Pool:
        """Return the pool."""
        return self.pool


class StandInBackend(CPUBackend):
    """Computes on the CPU, and takes the memory for rows from a stand-in for a GPU."""

    def __init__(self, cupy: StandIn) -> None:
        super().__init__()
        self._pool = cupy.pool

    def free_memory(self) -> int:
        """Return what the device has left."""
        return memory.free_bytes()

    def release(self) -> None:
        """Give back what the pool keeps."""
        super().release()
        memory.release_unused()

    def prepare(self, layers: Any, copies: Any = (), shapes: Any = (), sources: Any = ()) -> Any:
        """Return layers; sparse ones take memory for as long as they live."""
        if not isinstance(layers[0], SparseLinear):
            stack = super().prepare(layers, copies, shapes, sources)
            if len(layers) > 1 or not isinstance(layers[0], ImageLayer) or isinstance(layers[0], Conv2d):
                return stack
            return replace(stack, prepared=(partial(self.run, *layers, *stack.prepared),))
        size = sum(layer.weights.nbytes for layer in layers)
        with memory.within_memory(f"{size:,} bytes of weights", 0, 0):
            block = self._pool.malloc(size)
        stack = super().prepare(layers, copies)
        weakref.finalize(stack, self._pool.give_back, block)
        return stack

    def place(self, features: Any, keep_half: bool = False) -> Any:
        """Return features that take memory for as long as they live."""
        with memory.within_memory("the inputs", features.shape[0], 4 * features.shape[1] + 64):
            placed = super().place(features, keep_half)
            return self.held(replace(placed) if isinstance(placed, CSR) else placed.copy())

    def as_dense(self, features: Any) -> Any:
        """Return a dense matrix, which takes memory unless the features are one."""
        if not isinstance(features, CSR):
            return features
        with memory.within_memory("dense rows", features.shape[0], 4 * features.shape[1]):
            return self.held(super().as_dense(features))

    def run(self, layer: Any, prepared: Any, features: Any) -> Any:
        """Return a layer's outputs, which take memory unless they are the features."""
        outputs = prepared(features)
        with memory.within_memory(f"the outputs of {layer.name}", outputs.shape[0], 4 * outputs.shape[1]):
            return outputs if outputs is features else self.held(outputs)

    def take_out(self, left: Any, own: bool) -> Any:
        """Return rows that take no memory of the device, as outputs do not once they have been asked for."""
        return super().take_out(left, own=False)

    def held(self, features: Any) -> Any:
        """Return the features, for which memory is taken until nothing refers to them any more."""
        weakref.finalize(features, self._pool.give_back, self._pool.malloc(features.nbytes))
        return features

    @contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        block = self._pool.malloc(size)
        try:
            yield
        finally:
            self._pool.give_back(block)

    def taking(self, kernel: Kernel, widest: int) -> Kernel:
        """Return a kernel that takes two buffers of rows `widest` wide while it runs, then what its outputs need."""

        def taken(run: Callable[..., Any], rows: int, *given: Any) -> Any:
            size = 4 * widest * rows
            with memory.within_memory(f"the kernel {kernel.name}", rows, 2 * 4 * widest):
                with self._taken(size), self._taken(size):
                    found = run(*given)
                if isinstance(found, RowsLeft):
                    found = replace(found, features=found.features.copy())
                self.held(found.features if isinstance(found, RowsLeft | StepOutput) else found)
                return found

        def launch(*given: Any) -> Any:
            return taken(kernel.launch, (given[0].features if len(given) == 1 else given[1]).shape[0], *given)

        def prepare(stack: Any, problem: Any) -> Any:
            chain = kernel.prepare(stack, problem)
            run = chain.run
            chain.run = lambda features, *given: taken(run, features.shape[0], features, *given)
            return chain

        is_chain = isinstance(kernel, SparseKernel) and kernel.prepare is not None
        return replace(kernel, prepare=prepare) if is_chain else replace(kernel, launch=launch)


def on_stand_in(network: Network, cupy: StandIn, **options: Any) -> Session:
    """Return a session on the CPU as one on a stand-in for a GPU."""
    backend = StandInBackend(cupy)

    def change(kernel: Kernel) -> Kernel:
        return backend.taking(kernel, network.widest)

    return altered(network, backend=backend, change=change, device="cpu", **options)
