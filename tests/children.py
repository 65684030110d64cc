"""Processes that tests start: whether they end at an interrupt, the terminal they have, and the time that they take."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

__all__ = ["interrupts_obeyed", "python", "terminal"]


def python(
    *arguments: object, folder: Path | None = None, seconds: int = 280, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter, in a folder and with more in its environment, and read what it writes."""
    command = [sys.executable, *map(str, arguments)]
    more = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder, env=os.environ | more
    )


@contextmanager
def interrupts_obeyed() -> Iterator[None]:
    """While this lasts, processes are started that end at an interrupt; `nohup` and `&` make them ignore it else."""
    with _own_action(signal.default_int_handler):
        yield


@contextmanager
def _own_action(action: signal._HANDLER) -> Iterator[None]:
    """A process that is started ignores what its parent ignores; what that handles itself ends it."""
    before = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], bytes]]]:
    """A terminal that is read all the time: who writes to one that nobody reads waits once some kilobytes are there.

    Yields its number, to be given to a process, and what returns all that was written, once that has ended.
    """
    leader, follower = pty.openpty()
    written = bytearray()

    def read() -> None:
        with suppress(OSError):  # how Linux says that nobody holds the other end any more
            while block := os.read(leader, 4096):
                written.extend(block)

        os.close(leader)

    reader = Thread(target=read, daemon=True)  # a process that hangs holds the other end
    reader.start()

    def text() -> bytes:
        os.close(follower)
        reader.join()
        return bytes(written)

    yield follower, text
