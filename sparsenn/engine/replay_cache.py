"""The cache of the replays of all executables of a session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from functools import cached_property
from typing import Any

from sparsenn.backends import Backend, RowsWatch

__all__ = ["ReplayCache"]

MAX_BYTES = 512 << 20
"""Device memory of all replays but the last one."""

MAX_REPLAYS = 32
"""Each takes memory of the driver as well: some 100 kB on the device, and as much on the host."""


class ReplayCache:
    """The replays that were called last."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._replays: OrderedDict[tuple[Hashable, ...], Any] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Device memory of all replays, in bytes."""
        return sum(replay.nbytes for replay in self._replays.values())

    @cached_property
    def host_watch(self) -> RowsWatch:
        """The check of rows in host memory, whose calls wait, and report no faults of earlier calls."""
        return self._backend.rows_watch()

    def get(self, key: tuple[Hashable, ...]) -> Any:
        """Return the replay of a key, or None."""
        replay = self._replays.get(key)
        if replay is not None:
            self._replays.move_to_end(key)
        return replay

    def put(self, key: tuple[Hashable, ...], replay: Any) -> None:
        """Cache a replay, or a `HostCall`; keys begin with their executable's."""
        while len(self._replays) >= MAX_REPLAYS or self.nbytes > MAX_BYTES:
            self._backend.before_drop()
            self._replays.popitem(last=False)
        self._replays[key] = replay

    def drop(self, executable: Hashable) -> None:
        """Drop the replays of an executable; the caller has called `Backend.before_drop`."""
        for key in [key for key in self._replays if key[0] == executable]:
            del self._replays[key]

    def clear(self) -> None:
        """Drop all replays, as `drop` does."""
        self._replays.clear()
