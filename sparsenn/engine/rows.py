"""Run a network on dense rows that are made ready some at a time, and add up what is known of the parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.engine.execute import execute
from sparsenn.engine.plan import Plan, plan
from sparsenn.engine.result import LayerStatistics, Result, Seconds
from sparsenn.formats import Array, from_dense
from sparsenn.memory import check_memory
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["RowsResult", "run_rows"]

_NUMBERS = 1 << 25
"""Numbers made ready at a time: 128 MiB of float32."""

_BYTES_A_NUMBER = 32
"""What a number of a row may take while the row is made ready: itself, and as a non-zero its row, column and copy."""


@dataclass(frozen=True, eq=False)
class RowsResult:
    """What a network gave for some rows, and how.

    Parameters
    ----------
    plan : how all rows were run.
    outputs : (rows, outputs), the network's outputs.
    statistics : one record a layer, over all rows.
    seconds : where the time went; `read` is that for making the rows ready and bringing them into the engine's form.
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
    network: Network,
    count: int,
    rows: Callable[[int, int], Array],
    *,
    batch_size: int | None = None,
    progress: Progress = silent,
    **options: Any,
) -> RowsResult:
    """Run a network on rows, of which some at a time are made ready.

    Parameters
    ----------
    network : the layers.
    count : how many rows there are, one or more.
    rows : makes ready those from one number, counted from 0, up to another: (rows, network.inputs).
    batch_size : rows taken through the network together; by default as many as memory allows.
    progress : told how many rows are done.
    options : the other options of `sparsenn.plan`.

    Raises
    ------
    ResourceError
        Memory does not hold the rows of a batch.
    SparseNNError
        As `rows`, `sparsenn.plan` and `sparsenn.execute` do.
    """
    width, together = network.inputs, min(count, batch_size or 1)
    check_memory(_BYTES_A_NUMBER * width * together, f"making {together:,} × {width:,} numbers ready")
    found: list[Result] = []
    outputs: list[Array] = []
    step, start = _rows_at_a_time(width, batch_size), time.perf_counter()
    for first in range(0, count, step):
        last = min(first + step, count)
        inputs = from_dense(rows(first, last))
        prepared = time.perf_counter() - start
        result = execute(plan(network, inputs, batch_size=batch_size, **options), inputs)
        found.append(replace(result, seconds=replace(result.seconds, read=prepared)))
        outputs.append(result.outputs.to_scipy().toarray())
        progress("rows", last, count)
        start = time.perf_counter()
    by_part = [result.statistics for result in found]
    return RowsResult(
        plan=_whole_plan(found, count),
        outputs=np.concatenate(outputs),
        statistics=tuple(map(_added, zip(*by_part, strict=True), network.sizes[1:])),
        seconds=Seconds(*(sum(getattr(result.seconds, part.name) for result in found) for part in fields(Seconds))),
        notes=tuple(dict.fromkeys(note for result in found for note in result.notes)),
    )


def _rows_at_a_time(width: int, batch_size: int | None) -> int:
    """Return how many rows are made ready together: whole batches where their size is given."""
    most = max(1, _NUMBERS // width)
    if batch_size is None or batch_size < 1:
        return most
    return max(1, most // batch_size) * batch_size


def _whole_plan(found: Sequence[Result], rows: int) -> Plan:
    """Return the plan of all rows, of those of the parts that they were run in."""
    first = found[0].plan
    density = sum(result.plan.density * result.inputs for result in found) / rows
    return replace(first, inputs=rows, density=density, batch_size=min(first.batch_size, first.inputs))


def _added(parts: Sequence[LayerStatistics], outputs: int) -> LayerStatistics:
    """Add up what is known of one layer of so many outputs; what a part does not tell is not known of all rows."""

    def total(name: str) -> int | None:
        known = [getattr(part, name) for part in parts]
        return None if None in known else sum(known)

    active, nonzeros = total("active_rows"), total("nonzeros")
    density = None if active is None or nonzeros is None else nonzeros / (active * outputs) if active else 0.0
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        active_rows=active,
        distinct_rows=total("distinct_rows"),
        nonzeros=nonzeros,
        density=density,
        performed_edges=sum(part.performed_edges for part in parts),
        seconds=sum(part.seconds for part in parts),
    )
