"""Tuning: which numbers a rung's launches are fastest with on this device, found by trying all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsenn.backends import Variant, backend_for, variant
from sparsenn.backends.ladder import Stage, ladder_for
from sparsenn.backends.meter import Meter
from sparsenn.backends.selection import meter_for
from sparsenn.backends.tunables import Tunable
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.progress import Progress, silent

__all__ = ["Trial", "TunedSizes", "TuningResult", "tune"]


@dataclass(frozen=True)
class Trial:
    """What became of one choice of numbers.

    Parameters
    ----------
    parameters : the numbers; none for the rung as it comes.
    seconds : median of the runs, over all stages of the same sizes; None if it was not timed.
    error : largest difference from the reference, as the ladder counts it.
    correct : whether every result agreed with the reference; one that did not is not timed.
    refused : why these numbers cannot run; None if they can.
    """

    parameters: Mapping[str, int]
    seconds: float | None
    error: float
    correct: bool
    refused: str | None = None


@dataclass(frozen=True)
class TunedSizes:
    """All trials of one rung on stages of the same sizes: first the rung as it comes, then every choice."""

    sizes: str
    trials: tuple[Trial, ...]

    @property
    def untuned(self) -> Trial:
        """The rung as it comes."""
        return self.trials[0]

    @property
    def best(self) -> Trial | None:
        """The fastest of those that are right; None if none is."""
        timed = [trial for trial in self.trials if trial.seconds is not None]
        return min(timed, key=lambda trial: trial.seconds or 0.0, default=None)


@dataclass(frozen=True)
class TuningResult:
    """What `tune` found.

    Parameters
    ----------
    device : the hardware's own name.
    operation, rung, runs : what was tuned, and how often each choice ran.
    found : by sizes, in the order in which they came up.
    """

    device: str
    operation: str
    rung: str
    runs: int
    found: tuple[TunedSizes, ...]

    @property
    def correct(self) -> bool:
        """Whether every choice that ran agreed with the reference."""
        return all(trial.correct for sizes in self.found for trial in sizes.trials if trial.refused is None)


class _Candidate:
    """One choice of numbers on its way through the stages."""

    def __init__(self, parameters: Mapping[str, int], rung: Variant) -> None:
        self.parameters = parameters
        self.rung = rung
        self.error = 0.0
        self.correct = True
        self.refused: str | None = None
        self.seconds: dict[str, list[float]] = {}

    def check(self, stage: Stage, arguments: tuple[Any, ...]) -> Any:
        """Launch once and compare; returns what the next stage is given."""
        try:
            settled = stage.settle(self.rung.launch(*arguments))
        except SparseNNError as error:
            if not self.parameters:
                raise
            self.refused = str(error)
            return None
        self.error = max(self.error, settled.error)
        self.correct = self.correct and settled.correct_in(self.rung.precision)
        return settled.carried

    def time(self, meter: Meter, sizes: str, runs: list[float]) -> None:
        held = self.seconds.setdefault(sizes, [0.0] * len(runs))
        self.seconds[sizes] = [before + now for before, now in zip(held, runs, strict=True)]

    def trial(self, sizes: str) -> Trial:
        runs = self.seconds.get(sizes)
        timed = self.correct and self.refused is None and runs is not None
        return Trial(
            parameters=self.parameters,
            seconds=statistics.median(runs) if timed and runs else None,
            error=self.error,
            correct=self.correct,
            refused=self.refused,
        )


def tune(
    tunable: Tunable,
    problem: tuple[Any, Any],
    *,
    device: str = "auto",
    runs: int = 10,
    progress: Progress = silent,
) -> TuningResult:
    """Run a rung with every choice of its numbers on one problem: each is checked, then timed, all of them in turn.

    Parameters
    ----------
    tunable : the rung.
    problem : what its operation's ladder is built from: a network and its inputs, or what the ladder's `problem` made.
    device : `auto`, `cpu`, `cuda`, or `cuda:i`, on which the rung is.
    runs : timed launches of each choice on each stage of the ladder.
    progress : told of every choice checked.

    Raises
    ------
    UsageError
        The rung cannot run the problem, or is not on that device; or there are no runs.
    DeviceError, ResourceError
        The device is not there, or its memory does not suffice.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; at least 1 is needed")
    backend = backend_for(device)
    if backend.device != tunable.device:
        raise UsageError(f"{tunable.rung} is a kernel for {tunable.device}; use --device {tunable.device}")
    ladder, meter = ladder_for(tunable.operation), meter_for(backend)
    rung = variant(tunable.operation, tunable.rung, tunable.device)
    reason = rung.why_not(*ladder.asked(*problem))
    if reason is not None:
        raise UsageError(f"{tunable.rung} cannot run this: {reason}")
    launches = [({}, rung.launch), *((chosen, tunable.launch_with(chosen)) for chosen in tunable.combinations())]
    candidates = [_Candidate(chosen, ladder.launched(replace(rung, launch=launch))) for chosen, launch in launches]
    seen: dict[str, None] = {}
    carried: Any = None
    for done, stage in enumerate(ladder.stages(backend, *problem), start=1):
        arguments = stage.arguments(carried)
        sizes = tunable.sizes(*arguments)
        seen[sizes] = None

        def report(task: str, choice: int, number: int = done) -> None:
            progress(f"stage {number}: choices {task}", choice, len(candidates))

        carried = _run_stage(tunable, candidates, stage, arguments, sizes, meter, runs, report)
    found = tuple(TunedSizes(sizes, tuple(candidate.trial(sizes) for candidate in candidates)) for sizes in seen)
    return TuningResult(meter.identity().device, tunable.operation, tunable.rung, runs, found)


def _run_stage(
    tunable: Tunable,
    candidates: Sequence[_Candidate],
    stage: Stage,
    arguments: tuple[Any, ...],
    sizes: str,
    meter: Meter,
    runs: int,
    report: Callable[[str, int], None],
) -> Any:
    """Check every candidate, then time them in turn; returns what the next stage is given."""
    carried = candidates[0].check(stage, arguments)
    for number, candidate in enumerate(candidates[1:], start=2):
        candidate.refused = candidate.refused or tunable.fits(candidate.parameters, *arguments)
        if candidate.correct and candidate.refused is None:
            candidate.check(stage, arguments)
        report("checked", number)
    able = [candidate for candidate in candidates if candidate.correct and candidate.refused is None]
    times: list[list[float]] = [[] for _ in able]
    for _ in range(runs):  # in turn, so that whatever slows the machine down meets all of them
        for candidate, measured in zip(able, times, strict=True):
            measured.append(_seconds(meter, tunable.operation, candidate.rung.launch, arguments))
    for candidate, measured in zip(able, times, strict=True):
        candidate.time(meter, sizes, measured)
    return carried


def _seconds(meter: Meter, operation: str, launch: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    return meter.measure(operation, lambda: launch(*arguments)).seconds
