"""The result of a run: outputs, categories, statistics by layer, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from sparsenn.backends import Features, LayerCounts, RowsLeft
from sparsenn.engine.plan import Plan
from sparsenn.engine.steps import Step
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.formats.arrays import collapse_iso, index_dtype
from sparsenn.formats.conversion import scan
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.network import Network
from sparsenn.plugins import Viewed, views
from sparsenn.printable import one_line
from sparsenn.runtime.spans import span
from sparsenn.runtime.timing import Seconds
from sparsenn.runtime.workers import chunks

_EXPANDED_FLOATS = 1 << 24  # outputs expanded at a time: 64 MiB of float32


@dataclass(frozen=True)
class LayerStatistics:
    """What happened in one layer, over all batches.

    Parameters
    ----------
    layer : int
        Number of the layer, counted from 1.
    kernel : str
        Name of the kernel that computed it.
    rows : int
        Rows computed. Where several threads share them this may differ from run to run, as may `performed_edges`: they
        meet in another order each time. The outputs do not differ.
    active_rows : int or None
        Inputs with a non-zero after this layer; None where the kernel does not count them: those of dense layers
        count after the last of consecutive ones only.
    distinct_rows : int or None
        Rows that differ after this layer; None where equal rows were not searched.
    nonzeros : int or None
        Non-zeros after this layer, over all inputs and all neurons; None likewise.
    density : float or None
        Non-zeros as a fraction of active rows × neurons; None likewise.
    performed_edges : int
        Multiply-adds done.
    seconds : float
        Wall time; layers that ran in one launch share its time in proportion to their multiply-adds.
    estimate : float, optional
        Seconds that the plan estimated, shared likewise; None where the kernel has no estimate.
    """

    layer: int
    kernel: str
    rows: int
    active_rows: int | None
    distinct_rows: int | None
    nonzeros: int | None
    density: float | None
    performed_edges: int
    seconds: float
    estimate: float | None = None


def layer_statistics(
    network: Network, step: Step, counts: Sequence[LayerCounts], seconds: float, estimate: float | None
) -> Iterator[LayerStatistics]:
    """Yield what one run of a step counted; its layers share times in proportion to their multiply-adds."""
    edges = sum(counted.performed_edges for counted in counts)
    for layer, (kernel, rows, active, nonzeros, done, distinct) in enumerate(counts, start=step.first + 1):
        share = done / edges if edges else 1 / len(counts)
        times = seconds * share, None if estimate is None else estimate * share
        density = _density(nonzeros, active, network.sizes[layer])
        yield LayerStatistics(layer, kernel, rows, active, distinct, nonzeros, density, done, *times)


def _density(nonzeros: int | None, active: int | None, outputs: int) -> float | None:
    return None if nonzeros is None or active is None else nonzeros / (active * outputs) if active else 0.0


def sum_statistics(network: Network, records: Iterable[LayerStatistics]) -> tuple[LayerStatistics, ...]:
    """Return the sums of records by layer."""
    by_layer = [[LayerStatistics(layer, "", 0, 0, None, 0, 0.0, 0, 0.0, 0.0)] for layer in range(1, len(network) + 1)]
    for record in records:
        by_layer[record.layer - 1].append(record)
    return tuple(map(_sum, by_layer, network.sizes[1:]))


class BatchOutput:
    """The last layer's distinct rows of one batch, of the merged network's width, and which of them each input has.

    They may stay on a GPU until they are read: `fetch` brings them to the host.
    """

    def __init__(self, left: RowsLeft, inputs: int, fetch: Callable[[Features], Features] | None = None) -> None:
        self._left, self.inputs, self._fetch = left, inputs, fetch

    def on_host(self) -> RowsLeft:
        """Return distinct rows, and the row of each input, none for one that is all zero and was dropped."""
        if self._fetch is not None:
            with span("copy out", "transfer"):
                row_map = self._left.row_map.on_host(self._fetch)
                self._left, self._fetch = RowsLeft(self._fetch(self._left.features), row_map), None
        return self._left

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchOutput, (self.on_host(), self.inputs)


@dataclass(frozen=True, eq=False)
class Result(Viewed):
    """The outcome of running a plan on its inputs.

    Parameters
    ----------
    plan : Plan
        What was run.
    inputs : int
        Number of samples.
    categories : array, shape (categories,), int64
        Sorted numbers of the samples, counted from 0, whose final row has a non-zero.
    statistics : tuple of LayerStatistics
        One record a layer.
    seconds : Seconds
        Where the time went.
    batches : tuple of BatchOutput
        The outputs in compact form; `outputs` and `dense` expand them.
    notes : tuple of str, optional
        Sentences on what did not go as planned, such as a batch that was cut because memory did not suffice.
    """

    plan: Plan
    inputs: int
    categories: Array
    statistics: tuple[LayerStatistics, ...]
    seconds: Seconds
    batches: tuple[BatchOutput, ...]
    notes: tuple[str, ...] = ()

    __repr__ = one_line

    def __str__(self) -> str:
        return str(views().text_of(self))

    @property
    def neurons(self) -> int:
        """Width of the input."""
        return self.plan.network.inputs

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.plan.network)

    @property
    def edges(self) -> int:
        """Connections from layer to layer: the weights, each as often as an input's pixels meet it."""
        return self.plan.network.multiply_adds

    @property
    def edges_per_second(self) -> float:
        """The challenge's rate: inputs × edges / `Seconds.inference`, dead rows included."""
        seconds = self.seconds.inference
        return self.inputs * self.edges / seconds if seconds else 0.0

    @property
    def performed_edges(self) -> int:
        """Multiply-adds really done; as `LayerStatistics.rows`, not the same in every run of several threads."""
        return sum(layer.performed_edges for layer in self.statistics)

    @cached_property
    def outputs(self) -> CSR:
        """The last layer's outputs, CSR of shape (inputs, outputs); built on first use."""
        width = self.plan.network.outputs
        step = max(1, _EXPANDED_FLOATS // max(1, width))
        matrices = [self._expand(batch, *rows) for batch in self.batches for rows in chunks(batch.inputs, step)]
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(matrix.indptr) for matrix in matrices)])
        return CSR(
            (self.inputs, width),
            scan(lengths),
            np.concatenate([np.zeros(0, index_dtype(width)), *(matrix.indices for matrix in matrices)]),
            collapse_iso(np.concatenate([np.zeros(0, np.float32), *(matrix.expanded_values() for matrix in matrices)])),
        )

    @cached_property
    def dense(self) -> Array:
        """The last layer's outputs as a matrix of shape (inputs, outputs); built on first use."""
        expansion = self.plan.merged.expansion
        batches = [batch.on_host().scatter(expansion) for batch in self.batches]
        return np.concatenate(batches) if batches else np.zeros((0, self.plan.network.outputs), np.float32)

    @property
    def by_name(self) -> dict[str, Array]:
        """Outputs by name, each of shape (inputs, ...); an empty dictionary where the network does not name them."""
        return cut_columns(self.plan.network.named_outputs, self.dense)

    def to_frame(self, of: str = "layers") -> Any:
        """Return the statistics by layer, or the outputs, as a table of pandas.

        Parameters
        ----------
        of : str, default "layers"
            `layers` for a row per layer, with the fields of `LayerStatistics`; `outputs` for a row per input.

        Returns
        -------
        pandas.DataFrame
            The table.

        Raises
        ------
        UsageError
            There is no such table, the run counted no statistics, or pandas is not installed.
        """
        return views().frame_of(self, of)

    def plot(self) -> Any:
        """Draw rows, density and time by layer.

        Returns
        -------
        matplotlib.figure.Figure
            A figure that notebooks show, and that its `savefig` writes to a file.

        Raises
        ------
        UsageError
            The run counted no statistics, or matplotlib is not installed.
        """
        return views().figure_of(self)

    def _expand(self, batch: BatchOutput, start: int, stop: int) -> CSR:
        """Give inputs `start` to `stop` of a batch their rows, and each neuron its value, as CSR."""
        left, expansion = batch.on_host(), self.plan.merged.expansion
        used, row_map = left.row_map.take(start, stop)
        features = left.features
        rows = features.to_scipy()[used].toarray() if isinstance(features, CSR) else features[used]
        return row_map.gather(from_dense(rows if expansion is None else rows[:, expansion], rows.dtype.type))


def concatenate_results(results: Sequence[Result], plan: Plan, seconds: Seconds, notes: Sequence[str] = ()) -> Result:
    """Return the result of all rows of a run, of results of some of them each, in the order of the rows."""
    starts = [0, *accumulate(result.inputs for result in results)]
    categories = [
        np.add(start, result.categories, dtype=np.int64) for start, result in zip(starts, results, strict=False)
    ]
    counted = [result.statistics for result in results if result.inputs] or [each.statistics for each in results[:1]]
    statistics = counted[0] if len(counted) == 1 else ()
    if len(counted) > 1 and all(counted):
        statistics = sum_statistics(plan.network, chain(*counted))
    return Result(
        plan,
        inputs=starts[-1],
        categories=categories[0] if len(results) == 1 else np.concatenate([np.zeros(0, np.int64), *categories]),
        statistics=statistics,
        seconds=seconds,
        batches=tuple(batch for result in results for batch in result.batches),
        notes=tuple(dict.fromkeys((*notes, *(note for result in results for note in result.notes)))),
    )


def _sum(records: Sequence[LayerStatistics], outputs: int) -> LayerStatistics:
    """Add up the statistics of one layer; a number that a record lacks is not known, but for that of distinct rows."""
    totals: dict[str, Any] = {}
    for name in ("rows", "active_rows", "nonzeros", "performed_edges", "seconds", "estimate"):
        known = [getattr(record, name) for record in records]
        totals[name] = None if None in known else sum(known)
    distinct = [record.distinct_rows for record in records if record.distinct_rows is not None]
    return replace(
        records[0],
        kernel=next((record.kernel for record in records if record.kernel), ""),
        distinct_rows=sum(distinct) if distinct else None,
        density=_density(totals["nonzeros"], totals["active_rows"], outputs),
        **totals,
    )
