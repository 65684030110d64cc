"""Tuning: which numbers a kernel's launches are fastest with on this device, found by trying all of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparsenn.backends import Kernel, Tunable, backend_for, kernels, tuning_table
from sparsenn.backends.tuning_table import Tuned
from sparsenn.errors import SparseNNError, UsageError, unknown_name
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import package_version
from sparsenn.studies.ladder import Ladder, Stage, ladder_for
from sparsenn.studies.measure import Meter, meter_for

__all__ = ["Trial", "TunedSizes", "TuningResult", "keep", "limited", "tunable_named", "tunables", "tune"]


def tunables(device: str | None = None) -> tuple[Kernel, ...]:
    """Return every kernel with numbers to tune, or those of a device."""
    return tuple(kernel for kernel in kernels(device=device) if kernel.tunable is not None)


def tunable_named(name: str, device: str, operation: str | None = None) -> Kernel:
    """Return the kernel of that name that can be tuned on a device, of an operation or of the only one that has it.

    Raises
    ------
    UsageError
        There is none, or several operations have one; the message lists the choices.
    """
    there = [kernel for kernel in tunables(device) if operation in (None, kernel.operation)]
    found = [kernel for kernel in there if kernel.name == name]
    if not found:
        what = f"{device} kernel that can be tuned" if operation is None else f"{device} kernel for {operation} to tune"
        raise unknown_name(what, name, {kernel.name for kernel in there})
    if len(found) > 1:
        names = ", ".join(kernel.operation for kernel in found)
        raise UsageError(f"{name} is a {device} kernel of {names}; say which by --operation")
    return found[0]


def limited(kernel: Kernel, values: Mapping[str, tuple[int, ...]]) -> Kernel:
    """Return a kernel with fewer values to try of the numbers that are named.

    Raises
    ------
    UsageError
        It has no number of that name, or does not take a value.
    """
    tunable = _tunable(kernel)
    for number, wanted in values.items():
        if number not in tunable.parameters:
            raise unknown_name(f"number of {kernel.name}", number, tunable.parameters)
        known = tunable.parameters[number]
        for value in wanted:
            if value not in known:
                listed = ", ".join(map(str, known))
                raise UsageError(f"{number} of {value} cannot be tried; {kernel.name} takes {listed}")
    return replace(kernel, tunable=replace(tunable, parameters=dict(tunable.parameters) | dict(values)))


def _tunable(kernel: Kernel) -> Tunable:
    assert kernel.tunable is not None, f"{kernel.name} has no numbers to tune"
    return kernel.tunable


@dataclass(frozen=True)
class Trial:
    """What became of one choice of numbers.

    Parameters
    ----------
    parameters : the numbers; none for the kernel as it comes.
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
    """All trials of one kernel on stages of the same sizes: first the kernel as it comes, then every choice."""

    sizes: str
    trials: tuple[Trial, ...]

    @property
    def untuned(self) -> Trial:
        """The kernel as it comes."""
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

    def __init__(self, parameters: Mapping[str, int], kernel: Kernel) -> None:
        self.parameters = parameters
        self.kernel = kernel
        self.error = 0.0
        self.correct = True
        self.refused: str | None = None
        self.seconds: dict[str, list[float]] = {}

    def check(self, stage: Stage, arguments: tuple[Any, ...]) -> Any:
        """Launch once and compare; returns what the next stage is given."""
        try:
            settled = stage.settle(self.kernel.launch(*arguments))
        except SparseNNError as error:
            if not self.parameters:
                raise
            self.refused = str(error)
            return None
        self.error = max(self.error, settled.error)
        self.correct = self.correct and settled.correct_in(self.kernel.precision)
        return settled.carried

    def time(self, sizes: str, runs: list[float]) -> None:
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
    kernel: Kernel,
    problem: tuple[Any, Any],
    *,
    device: str = "auto",
    runs: int = 10,
    progress: Progress = silent,
) -> TuningResult:
    """Run a kernel with every choice of its numbers on one problem: each is checked, then timed, all of them in turn.

    Parameters
    ----------
    kernel : one with numbers to tune.
    problem : what its operation's ladder is built from: a network and its inputs, or what the ladder's `problem` made.
    device : `auto`, `cpu`, `cuda`, or `cuda:i`, on which the kernel is.
    runs : timed launches of each choice on each stage of the ladder.
    progress : called for every choice checked.

    Raises
    ------
    UsageError
        The kernel cannot run the problem, or is not on that device; or there are no runs.
    DeviceError, ResourceError
        The device is not there, or its memory does not suffice.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; at least 1 is needed")
    backend, ladder = backend_for(device), ladder_for(kernel.operation)
    if backend.device != kernel.device:
        raise UsageError(f"{kernel.name} is a kernel for {kernel.device}; use --device {kernel.device}")
    reason = kernel.why_not(backend.machine, *ladder.asked(*problem))
    if reason is not None:
        raise UsageError(f"{kernel.name} cannot run this: {reason}")
    trials = _Trials(kernel, ladder, meter_for(backend), runs, progress)
    carried: Any = None
    for number, stage in enumerate(ladder.stages(backend, *problem), start=1):
        carried = trials.run(stage, number, carried)
    return TuningResult(backend.machine.name, kernel.operation, kernel.name, runs, trials.found())


class _Trials:
    """Every choice of a kernel's numbers, run on one stage after the other."""

    def __init__(self, kernel: Kernel, ladder: Ladder, meter: Meter, runs: int, progress: Progress) -> None:
        tunable = _tunable(kernel)
        launches = [({}, kernel.launch), *((chosen, tunable.launch_with(chosen)) for chosen in tunable.combinations())]
        self._candidates = [
            _Candidate(chosen, ladder.launched(replace(kernel, launch=launch))) for chosen, launch in launches
        ]
        self._tunable, self._meter, self._runs, self._progress = tunable, meter, runs, progress
        self._sizes: dict[str, None] = {}

    def run(self, stage: Stage, number: int, carried: Any) -> Any:
        """Check every choice, then time them in turn; returns what the next stage is given."""
        arguments = stage.arguments(carried)
        sizes = self._tunable.sizes(*arguments)
        self._sizes[sizes] = None
        carried = self._check(stage, number, arguments)
        able = [candidate for candidate in self._candidates if candidate.correct and candidate.refused is None]
        times: list[list[float]] = [[] for _ in able]
        for _ in range(self._runs):  # in turn, so that whatever slows the machine down meets all of them
            for candidate, measured in zip(able, times, strict=True):
                measured.append(self._seconds(candidate.kernel, arguments))
        for candidate, measured in zip(able, times, strict=True):
            candidate.time(sizes, measured)
        return carried

    def found(self) -> tuple[TunedSizes, ...]:
        """Return the trials by sizes, in the order in which these came up."""
        return tuple(
            TunedSizes(sizes, tuple(candidate.trial(sizes) for candidate in self._candidates)) for sizes in self._sizes
        )

    def _check(self, stage: Stage, number: int, arguments: tuple[Any, ...]) -> Any:
        untuned, *others = self._candidates
        carried = untuned.check(stage, arguments)
        for done, candidate in enumerate(others, start=2):
            candidate.refused = candidate.refused or self._tunable.fits(candidate.parameters, *arguments)
            if candidate.correct and candidate.refused is None:
                candidate.check(stage, arguments)
            self._progress(f"stage {number}: choices checked", done, len(self._candidates))
        return carried

    def _seconds(self, kernel: Kernel, arguments: tuple[Any, ...]) -> float:
        return self._meter.measure(kernel.operation, lambda: kernel.launch(*arguments)).seconds


def keep(result: TuningResult) -> tuple[Tuned, ...]:
    """Write the best of each sizes into the table of tuned numbers, in place of what it had, and return these entries.

    A table that cannot be read is a `TuningWarning`, and begun anew.

    Raises
    ------
    ResourceError
        It cannot be written.
    """
    found = tuple(
        Tuned(
            result.device,
            result.operation,
            result.rung,
            sizes.sizes,
            dict(sizes.best.parameters),
            sizes.best.seconds,
            sizes.untuned.seconds,
            result.runs,
            package_version(),
        )
        for sizes in result.found
        if sizes.best is not None and sizes.best.seconds and sizes.untuned.seconds
    )
    tuning_table.keep(found)
    return found
