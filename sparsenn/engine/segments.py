"""Prepared weights, segment by segment: all kept where memory holds them, else at most two at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from sparsenn.engine.plan import Plan
from sparsenn.engine.sections import Section

__all__ = ["PreparedSegments"]


class PreparedSegments:
    """Prepares a plan's segments, each when it is first needed, and keeps them where memory holds them all.

    Else it keeps the one in use and, where the backend says that it pays, one thread prepares the next segment
    meanwhile. The thread lives no longer than the `with` block.

    Parameters
    ----------
    plan : its sections and its backend.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._streams = plan.streams and len(plan.segments) > 1
        self._held: dict[int, Any] = {}
        self._parts: dict[tuple[int, int], Any] = {}
        self._ahead: tuple[int, Future[Any]] | None = None
        threaded = self._streams and plan.backend.prepares_ahead
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sparsenn-prepare") if threaded else None

    def __enter__(self) -> PreparedSegments:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        self._let_go()
        self._ahead = None

    def get(self, number: int, following: int | None) -> Any:
        """Return the stack of segment `number`, and begin to prepare segment `following`, if there is one.

        Where not all are kept, the stack returned before is dropped first: whoever asked for it must have let go of
        it, and its last launch must have returned.

        Raises
        ------
        SparseNNError
            As the section's `prepare`.
        """
        if number not in self._held:
            if self._streams:
                self._let_go()
            self._held[number] = self._taken(number)
        if self._worker is not None and self._ahead is None and following is not None and following != number:
            self._ahead = following, self._worker.submit(self._plan.sections[following].prepare)
        return self._held[number]

    def part(self, section: Section) -> Any:
        """Return a stack of some layers alone, which are part of the segment in use.

        It is prepared on first use and kept as long as that segment is, beside it: its weights take memory twice.

        Raises
        ------
        SparseNNError
            As the section's `prepare`.
        """
        key = section.first, section.last
        if key not in self._parts:
            if self._ahead is not None:
                wait([self._ahead[1]])  # one thread prepares at a time
            self._parts[key] = section.prepare()
        return self._parts[key]

    def drop(self) -> None:
        """Let go of all stacks, the one that is being prepared too, unless memory holds them all; of parts anyway."""
        self._parts.clear()
        if self._streams:
            self._held.clear()
            self._forget_ahead()

    def _let_go(self) -> None:
        self._held.clear()
        self._parts.clear()

    def _taken(self, number: int) -> Any:
        """Return a segment: the one made ahead if it is that, else made here."""
        if self._ahead is not None and self._ahead[0] == number:
            (_, future), self._ahead = self._ahead, None
            try:
                return future.result()
            finally:
                del future  # it holds the error, whose traceback holds this frame
        self._forget_ahead()
        return self._plan.sections[number].prepare()

    def _forget_ahead(self) -> None:
        """Wait for the segment made ahead, and drop it; it raises again when it is asked for."""
        if self._ahead is not None:
            (_, future), self._ahead = self._ahead, None
            if not future.cancel():
                future.exception()
