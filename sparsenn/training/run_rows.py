"""Run a network on dense rows that are prepared some at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sparsenn.engine.inputs import Inputs
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import LayerStatistics, Result, concatenate_results
from sparsenn.formats import Array
from sparsenn.network import Network
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import Progress, ProgressOption, silent
from sparsenn.runtime.timing import Seconds, Timer

_NUMBERS = 1 << 25  # numbers made ready at a time: 128 MiB of float32

_BYTES_A_NUMBER = 8
"""What a number of a row may take while the row is made ready: itself, and a copy."""


class Runner(Protocol):
    """What runs rows: a `Session`, or what several devices share."""

    @property
    def network(self) -> Network:
        """The network as given."""
        ...

    @property
    def options(self) -> Options:
        """What was asked for."""
        ...

    def run(self, inputs: Inputs, *, statistics: bool = True, progress: ProgressOption = None) -> Result:
        """Run the network, as `Session.run` does."""
        ...

    def __call__(self, inputs: Inputs, *, form: str | None = None) -> Any:
        """Return outputs, as a `Session` does."""
        ...


@dataclass(frozen=True, eq=False)
class RowsResult:
    """What a network gave for some rows, and how.

    outputs : the network's, of shape (rows, outputs).
    statistics : one record a layer, over all rows.
    seconds : where the time went; `read` is that for making the rows ready.
    notes : sentences on what did not go as planned.
    """

    plan: Plan
    outputs: Array
    statistics: tuple[LayerStatistics, ...]
    seconds: Seconds
    notes: tuple[str, ...]

    @cached_property
    def predicted(self) -> Array:
        """The class of each row, int64: the number of its largest output, the first where several are."""
        return np.asarray(self.outputs.argmax(axis=1), np.int64)


def run_rows(
    session: Runner, count: int, rows: Callable[[int, int], Inputs], *, progress: Progress = silent
) -> RowsResult:
    """Run a session on rows, of which some at a time are made ready.

    session : the network, ready to run.
    count : how many rows there are, one or more.
    rows : makes ready those from one number, counted from 0, up to another: (rows, inputs of the network).
    progress : called with the number of rows that are done.
    """
    network, batch_size = session.network, session.options.batch_size
    width, together = network.inputs, min(count, batch_size or 1)
    check_memory(_BYTES_A_NUMBER * width * together, f"making {together:,} × {width:,} numbers ready")
    results: list[Result] = []
    outputs: list[Array] = []
    step, timer = max(1, _NUMBERS // width), Timer()
    if batch_size is not None:  # whole batches are made ready together
        step = max(1, step // batch_size) * batch_size
    for first in range(0, count, step):
        last = min(first + step, count)
        inputs = rows(first, last)
        reading = timer.reading()
        result = session.run(inputs, progress=silent)
        outputs.append(result.dense)
        results.append(replace(result, seconds=reading + result.seconds, batches=()))
        progress("rows", last, count)
        timer = Timer()
    plan, seconds = replace(results[0].plan, inputs=count), sum((result.seconds for result in results), Seconds())
    whole = concatenate_results(results, plan, seconds)
    return RowsResult(plan, np.concatenate(outputs), whole.statistics, seconds, whole.notes)
