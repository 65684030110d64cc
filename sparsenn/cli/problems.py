"""Problems for a ladder's rungs, from a dataset or from sizes and a seed; and the device's limits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from sparsenn.cli import options
from sparsenn.cli.console import reporting
from sparsenn.errors import UsageError
from sparsenn.printable import printable

if TYPE_CHECKING:
    from sparsenn.backends import Backend
    from sparsenn.io import Dataset
    from sparsenn.runtime.progress import Progress
    from sparsenn.studies.ladder import Ladder
    from sparsenn.studies.measure import MeasuredRoofs

FIRST_LAYERS = 4
"""Layers of a dataset by default: later ones, where many rows have died, say little."""

FIRST_ROWS = 1200
"""Rows of a dataset that are taken unless asked for otherwise."""

OF_DATASETS = ("dataset", "neurons", "layers")
OF_RANDOM_PROBLEMS = ("widths", "sizes", "seed")


@dataclass(frozen=True)
class ProblemOptions:
    """The options that say which problem; each ladder takes those that are meant for it.

    `first_rows`, `first_layers`: how many of a dataset are taken, as far as they are there, where `rows` and `layers`
    do not say; None for all.
    """

    dataset: str
    neurons: int | None
    layers: int | None
    rows: int | None
    widths: str | None
    seed: int
    sizes: str | None = None
    first_rows: int | None = None
    first_layers: int | None = None

    def problem(self, ladder: Ladder, progress: Progress) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """Return what `run_ladder` takes, and where it is from, as plain values."""
        if ladder.problem is None:
            found = self._loaded(progress)
            return (found.network, found.inputs), {"dataset": found.name}
        sizes = ladder.sizes
        if self.widths is not None:
            sizes = options.widths_from(self.widths)
        elif self.sizes is not None:
            sizes = options.sizes_from(self.sizes, ladder.form, ladder.sizes)
        rows = ladder.rows if self.rows is None else self.rows
        made = ladder.problem(rows, sizes, self.seed)
        return made, {"sizes" if ladder.form else "widths": sizes, "seed": self.seed}

    def _loaded(self, progress: Progress) -> Dataset:
        from sparsenn.datasets import load

        limit = self.rows or self.first_rows
        take = partial(load, self.dataset, neurons=self.neurons, limit_inputs=limit, progress=progress)
        if self.layers is not None or self.first_layers is None:
            return take(layers=self.layers)
        try:
            return take(layers=self.first_layers)
        except UsageError:  # it has fewer; anything else is raised again
            return take()


def refuse_unused(context: typer.Context, ladder: Ladder) -> None:
    """Refuse options that a ladder has no use for."""
    if ladder.problem is None:
        _refuse(context, ladder, OF_RANDOM_PROBLEMS, "a dataset, not a random problem")
        return
    _refuse(context, ladder, OF_DATASETS, "a random problem, not a dataset")
    if not ladder.form:
        _refuse(context, ladder, ("sizes",), "--widths N,N,...")
        return
    _refuse(context, ladder, ("widths",) if ladder.rows else ("widths", "rows"), f"--sizes {ladder.form}")


def refuse_sizes(context: typer.Context) -> None:
    """Refuse sizes of random problems where they would be for all ladders at once."""
    useless = _options_set(context, ("widths", "sizes"))
    if useless:
        raise UsageError(f"{useless}: name the OPERATION that these are for")


def refuse_timing(context: typer.Context) -> None:
    """Refuse options of times where kernels are emulated."""
    useless = _options_set(context, ("runs", "plot"))
    if useless:
        raise UsageError(f"{useless} goes with a device whose kernels are timed, not emulated; leave it out")


def _options_set(context: typer.Context, names: tuple[str, ...]) -> str:
    written = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return ", ".join(
        written[name] for name, source in sources.items() if getattr(source, "name", "DEFAULT") != "DEFAULT"
    )


def _refuse(context: typer.Context, ladder: Ladder, names: tuple[str, ...], kind: str) -> None:
    useless = _options_set(context, names)
    if useless:
        raise UsageError(f"{useless}: the ladder of {ladder.operation} takes {kind}; leave the option out")


def known_roofs(backend: Backend, progress: bool | None, anew: bool = False) -> MeasuredRoofs:
    """Return what a device can do at most, from the cache folder or measured now; say on stderr what failed."""
    from sparsenn.studies.measure import meter_for, roofs_of

    with reporting(progress):
        measured = roofs_of(meter_for(backend), anew)
    for note in measured.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return measured
