"""Layers of few rows as a graph: the host, which takes longer to queue a product than the device to compute it, queues
all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.recorder import recorded
from sparsenn.backends.cuda.streams import Turns, captured
from sparsenn.formats import Array

__all__ = ["Replayed", "Room"]


class Room:
    """What the graphs of a stack share, which run one after the other: memory for what lies between layers.

    Attributes
    ----------
    turns : whose turn it is with that memory.
    """

    def __init__(self) -> None:
        cuda = cupy().cuda
        self.turns = Turns()
        self._pool, self._stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)

    def captured(self, enqueue: Callable[[], None]) -> Any:
        """Return a graph of what is launched meanwhile, whose memory nothing but such graphs uses."""
        with cupy().cuda.using_allocator(self._pool.malloc):
            return captured(enqueue, self._stream)


class Replayed:
    """Layers for a number of rows: queued one by one in the first call, captured in the second, replayed in all others.

    Features are copied to where the graph reads them, and outputs from where it leaves them. Where the caller captures
    the stream, or records how long parts take, layers are queued one by one.

    Parameters
    ----------
    run : queues all layers, and returns their outputs.
    room : of the stack.
    """

    def __init__(self, run: Callable[[Array], Array], room: Room) -> None:
        self._run, self._room = run, room
        self._called = False
        self._graph: Any = None
        self._features: Any = None
        self._outputs: Any = None

    def __call__(self, features: Array) -> Array:
        """Queue all layers on the current stream, and return their outputs."""
        if not self._called or recorded() or cupy().cuda.get_current_stream().is_capturing():
            self._called = True
            return self._run(features)
        stream = self._room.turns.take()
        if self._graph is None:
            self._capture(features)
        else:
            _copy(self._features, features)
        self._graph.launch(stream)
        outputs: Array = cupy().ndarray(self._outputs.shape, self._outputs.dtype)
        _copy(outputs, self._outputs)
        return outputs

    def _capture(self, features: Array) -> None:
        self._features = cupy().ndarray(features.shape, features.dtype)
        _copy(self._features, features)
        self._graph = self._room.captured(self._enqueue)

    def _enqueue(self) -> None:
        self._outputs = None  # so that the capture finds the memory that the launches before it had
        self._outputs = self._run(self._features)


def _copy(to: Array, source: Array) -> None:
    """Copy an array to another of its shape, type and order, on the current stream."""
    place: Any = to.data
    place.copy_from_device_async(source.data, source.nbytes)
