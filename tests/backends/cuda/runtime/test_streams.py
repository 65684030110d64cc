"""Work is queued on the stream that another library made."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda.runtime import streams


def test_the_default_stream_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    null = object()
    cuda = SimpleNamespace(Stream=SimpleNamespace(null=null), ExternalStream=lambda pointer: ("stream", pointer))
    monkeypatch.setattr(streams, "cupy", lambda: SimpleNamespace(cuda=cuda))
    assert streams.on_stream(0) is null
    assert streams.on_stream(77) == ("stream", 77)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What stands in for CuPy while a graph is captured; `done` lists what was asked for."""
    done: list[str] = []
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        deviceSynchronize=lambda: done.append("waited"),
        streamEndCapture=lambda stream: done.append("end") or 5,
        graphInstantiate=lambda graph: done.append("made") or 6,
        graphDestroy=lambda graph: done.append(f"destroyed {graph}"),
        graphExecDestroy=lambda graph: done.append(f"destroyed {graph}"),
        graphLaunch=lambda graph, stream: done.append(f"launched {graph} on {stream}"),
    )
    monkeypatch.setattr(streams, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    return SimpleNamespace(done=done, stream=SimpleNamespace(ptr=7, begin_capture=lambda: done.append("begin")))


def test_a_device_is_not_waited_for_while_a_stream_is_captured(capturing: SimpleNamespace) -> None:
    waiting = threading.Thread(target=streams.wait_for_device)

    def enqueue() -> None:
        waiting.start()
        waiting.join(0.05)
        capturing.done.append("queued")

    graph = streams.Graph(enqueue, capturing.stream)
    waiting.join()
    assert capturing.done[:3] == ["begin", "queued", "end"]
    assert {*capturing.done[3:]} == {"made", "waited"}
    assert (graph.graph, graph.executable) == (5, 6)


def test_a_graph_is_launched_and_then_destroyed(capturing: SimpleNamespace) -> None:
    graph = streams.Graph(lambda: None, capturing.stream)
    graph.launch(capturing.stream)
    del graph
    assert capturing.done[:4] == ["begin", "end", "made", "launched 6 on 7"]
    assert {*capturing.done[4:]} == {"destroyed 5", "destroyed 6"}


def test_a_capture_that_fails_is_ended(capturing: SimpleNamespace) -> None:
    def enqueue() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streams.Graph(enqueue, capturing.stream)
    assert capturing.done == ["begin", "end", "destroyed 5"]
