"""What a device can do at most, for the verbs that hold kernels against it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparsenn.cli.console import reporting
from sparsenn.printable import printable

if TYPE_CHECKING:
    from sparsenn.backends import Backend
    from sparsenn.studies.measure import MeasuredRoofs

__all__ = ["known_roofs"]


def known_roofs(backend: Backend, progress: bool | None, anew: bool = False) -> MeasuredRoofs:
    """Return what a device can do at most, from the cache folder or measured now; say on stderr what failed."""
    from sparsenn.studies.measure import meter_for, roofs_of

    with reporting(progress):
        measured = roofs_of(meter_for(backend), anew)
    for note in measured.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return measured
