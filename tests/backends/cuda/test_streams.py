"""Work is queued on the stream that another library made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda import streams


def test_the_default_stream_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    null = object()
    cuda = SimpleNamespace(Stream=SimpleNamespace(null=null), ExternalStream=lambda pointer: ("stream", pointer))
    monkeypatch.setattr(streams, "cupy", lambda: SimpleNamespace(cuda=cuda))
    assert streams.on_stream(0) is null
    assert streams.on_stream(77) == ("stream", 77)
