"""Whether launches on a GPU can be captured as a graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy

__all__ = ["assert_captured"]


def assert_captured(launch: Callable[[], Any], launched_there: bool = False) -> None:
    """Launch, capture the same launch on another stream, and hold what the graph gives against the first array.

    Parameters
    ----------
    launched_there : whether the first launch is also on the stream that is captured.
    """
    cp = cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()  # of what the stream reads, it waits for nothing
    with stream if launched_there else nullcontext():
        first = launch()
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        captured = launch()
        graph = stream.end_capture()
        graph.launch(stream)
        graph.launch(stream)
    stream.synchronize()
    assert bool((captured == first).all())
