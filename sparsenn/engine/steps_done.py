"""Progress over all batches of a run, in layers times batches."""

from __future__ import annotations

from sparsenn.runtime.progress import Progress

__all__ = ["StepsDone"]


class StepsDone:
    """Progress over all batches, in layers times batches as planned; it never goes back, whatever is done again.

    Parameters
    ----------
    layers, inputs : of the run.
    size : inputs of a batch, as planned.
    """

    def __init__(self, progress: Progress, layers: int, inputs: int, size: int) -> None:
        self._progress = progress
        self._layers, self._inputs = layers, inputs
        self._total = layers * -(-inputs // size)
        self._reached = 0

    def report(self, first: int, last: int, layers: int) -> None:
        """Take note that the inputs before `first` are done, and those from there to `last` up to so many layers."""
        done = first * self._layers + (last - first) * layers
        self._reached = max(self._reached, self._total * done // (self._inputs * self._layers))
        self._progress("layers", self._reached, self._total)

    def end(self) -> None:
        """Take note that all inputs are done."""
        if self._reached < self._total:
            self._progress("layers", self._total, self._total)
