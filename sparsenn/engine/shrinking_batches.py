"""ShrinkingBatches: rows batch by batch; a batch for which memory does not suffice is done again, with fewer rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from sparsenn.errors import OutOfMemoryError

__all__ = ["ShrinkingBatches"]


class ShrinkingBatches:
    """Ranges of rows, one after the other; one for which memory does not suffice comes again, with fewer rows.

    Parameters
    ----------
    end : number of the row behind the last.
    size : rows at a time, to begin with.
    make_room : lets go of what is kept before rows are tried again; told how many there will be at a time.
    begin : number of the first row.
    """

    def __init__(self, end: int, size: int, make_room: Callable[[int], None], begin: int = 0) -> None:
        self._end, self._size, self._make_room = end, size, make_room
        self._first = self._last = begin
        self._count = end - begin
        self._too_many = 0
        self._fitting: int | None = None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self._first < self._end:
            self._last = min(self._first + self._size, self._end)
            self._fitting = None
            yield self._first, self._last
            if self._fitting is not None:  # past the handler: only now are the failed batch's arrays let go of
                self._cut(self._last - self._first, self._fitting)

    @property
    def size(self) -> int:
        """Rows at a time; the last of all may be fewer."""
        return min(self._size, self._count)

    def done(self) -> None:
        """Take note that the rows at hand are done."""
        self._first = self._last

    def trying(self) -> ShrinkingBatches:
        """Return the context of an attempt."""
        return self

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, OutOfMemoryError | MemoryError) or self._last - self._first == 1:
            return False
        self._fitting = error.fitting if isinstance(error, OutOfMemoryError) else 0
        return True

    def _cut(self, rows: int, fitting: int) -> None:
        self._too_many = self._too_many or rows
        half = rows // 2  # at least: what is free may be told wrong, or lie in pieces
        self._size = min(fitting, half) if fitting > 0 else half
        self._make_room(self._size)

    def notes(self) -> tuple[str, ...]:
        """Return sentences on rows that were tried again."""
        if not self._too_many:
            return ()
        return (f"There was not enough memory for {self._too_many:,} samples at a time; {self._size:,} were used.",)
