"""Traces: where the time of a run went, on a line of time, as Chrome and Perfetto show it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from sparsenn.runtime.spans import Span, watching
from sparsenn.runtime.storage import check_replaceable, open_to_write, replacing


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Trace what the block runs, in all threads, and write it to a file when the block ends.

    ::

        with sparsenn.trace("run.json"):
            session.run(rows)

    The file is in the Trace Event Format, which ui.perfetto.dev and chrome://tracing show. Where the block uses a GPU,
    steps are shown a second time, as the device ran them, and all spans are NVTX ranges, too, under the same names.

    Parameters
    ----------
    path : str or path-like
        The file; gzip where it ends in `.gz`. One that is there is replaced. It is written whole, and not at all where
        the block raises.

    Yields
    ------
    None
        The block runs once.

    Raises
    ------
    ResourceError
        The file cannot be written, which is found out before the block begins.
    """
    check_replaceable(path)
    recorder, device = _Recorder(), None
    with ExitStack() as stack:
        stack.enter_context(watching(recorder))
        if find_spec("cupy") is not None:
            from sparsenn.backends.cuda.runtime.spans import DeviceSpans

            device = DeviceSpans()
            stack.enter_context(watching(device))
        yield
    for span, name, begun, ended in () if device is None else device.steps():
        recorder.record(name, span, begun, ended)
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(json.dumps(recorder.document(), allow_nan=False, default=float).encode())


class _Recorder:
    def __init__(self) -> None:
        self._start = time.perf_counter_ns()
        self._here = threading.local()
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._events: list[tuple[int, Span, int, int]] = []

    def __call__(self, span: Span) -> AbstractContextManager[None]:
        return _Timed(self, span)

    def end(self, span: Span, begun: int, ended: int) -> None:
        line: int | None = getattr(self._here, "line", None)
        if line is None:
            line = self._here.line = self._line(threading.current_thread().name, new=True)
        self._events.append((line, span, begun, ended))

    def record(self, name: str, span: Span, begun: int, ended: int) -> None:
        self._events.append((self._line(name), span, begun, ended))

    def _line(self, name: str, new: bool = False) -> int:
        with self._lock:
            if new or name not in self._lines:
                self._lines.append(name)
                return len(self._lines)
            return 1 + self._lines.index(name)

    def document(self) -> dict[str, Any]:
        """Return all that was noted in the Trace Event Format: times are in microseconds since the trace began."""
        process = os.getpid()
        names = [("process_name", 0, "sparsenn")]
        names += [("thread_name", line, name) for line, name in enumerate(self._lines, start=1)]
        return {
            "traceEvents": [
                *(
                    {"ph": "M", "name": what, "pid": process, "tid": line, "args": {"name": name}}
                    for what, line, name in names
                ),
                *(
                    {
                        "ph": "X",
                        "name": span.name,
                        "cat": span.category,
                        "ts": (begun - self._start) / 1e3,
                        "dur": (ended - begun) / 1e3,
                        "pid": process,
                        "tid": line,
                        "args": dict(span.details),
                    }
                    for line, span, begun, ended in sorted(self._events, key=lambda event: event[2])
                ),
            ],
            "displayTimeUnit": "ms",
        }


class _Timed:
    def __init__(self, recorder: _Recorder, span: Span) -> None:
        self._recorder, self._span, self._begun = recorder, span, 0

    def __enter__(self) -> None:
        self._begun = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._recorder.end(self._span, self._begun, time.perf_counter_ns())
