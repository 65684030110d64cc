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


def test_a_device_is_not_waited_for_while_a_stream_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    runtime = SimpleNamespace(getDevice=lambda: 0, deviceSynchronize=lambda: done.append("waited"))
    monkeypatch.setattr(streams, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    stream = SimpleNamespace(
        begin_capture=lambda: done.append("begin"), end_capture=lambda: done.append("end") or "graph"
    )
    waiting = threading.Thread(target=streams.wait_for_device)

    def enqueue() -> None:
        waiting.start()
        waiting.join(0.05)
        done.append("queued")

    assert streams.capture(stream, enqueue) == "graph"
    waiting.join()
    assert done == ["begin", "queued", "end", "waited"]


def test_a_capture_that_fails_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setattr(streams, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))

    def end() -> None:
        done.append("end")
        raise RuntimeError("what was captured is spoilt")

    stream = SimpleNamespace(begin_capture=lambda: done.append("begin"), end_capture=end)

    def enqueue() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streams.capture(stream, enqueue)
    assert done == ["begin", "end"]
