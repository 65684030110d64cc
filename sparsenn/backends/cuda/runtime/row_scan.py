"""The scan of a call's rows for NaN and infinity, by a kernel that reads all of them anyway, or by one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.formats import Array

NOWHERE = np.uintp(0)


@dataclass
class RowScan:
    """A scan of rows on the device: a kernel that finds a number that is not finite stores a 1 at `place`."""

    rows: Any
    place: np.uintp
    is_taken: bool = False


_requested: ContextVar[RowScan | None] = ContextVar("requested row scan", default=None)


@contextmanager
def requested_scan(rows: Array, place: np.uintp) -> Iterator[RowScan]:
    """Request a scan from the kernels that are launched in the block."""
    scan = RowScan(rows, place)
    token = _requested.set(scan)
    try:
        yield scan
    finally:
        _requested.reset(token)


def taken_scan(rows: Any) -> np.uintp:
    """Return the place for the scan of rows that the next kernel reads whole; `NOWHERE` unless these are requested."""
    scan = _requested.get()
    if scan is None or scan.rows.data.ptr != rows.data.ptr or scan.rows.nbytes != rows.nbytes:
        return NOWHERE
    scan.is_taken = True
    return scan.place
