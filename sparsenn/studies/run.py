"""Running a ladder: every rung on the same problem, checked against the reference first, then timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenn.backends import Kernel
from sparsenn.errors import UsageError
from sparsenn.runtime.progress import Progress, silent
from sparsenn.studies.emulation import ladder_backend
from sparsenn.studies.ladder import Stage, ladder_for, rungs_of
from sparsenn.studies.measure import Measurement, Meter, Roofs, meter_for


@dataclass(frozen=True)
class RungResult:
    """What one rung did."""

    name: str  # the rung's, as the next
    summary: str
    correct: bool  # whether every stage agreed with the reference; a rung that did not is not timed any further
    error: float  # largest difference from the reference, over all stages
    stage_seconds: tuple[float, ...]  # median of each stage; empty if the rung is not correct
    seconds: float | None  # median, over the runs, of the time of all stages together; None if the rung is not correct
    spread: float | None  # interquartile range of the same
    kernel_seconds: float | None
    """Median of the time in the operation's own kernels; None where the device does not tell."""
    registers: int | None  # most that a thread takes; None where the device does not tell
    shared_bytes: int | None  # most that a block takes, likewise
    precision: str = "float32"  # of what it multiplies
    tf32_products: int = 0  # products in TF32 that it makes each product in float32 of; 0 where it splits no numbers


@dataclass(frozen=True)
class LadderResult:
    """All rungs of a ladder on one problem."""

    operation: str  # which ladder
    device: str  # where, in words
    stage: str  # what a stage is called
    stages: int
    rows: int  # input rows, or what stands for them
    runs: int  # timed runs of each stage
    roofs: Roofs | None  # what the device can do at most; None where it is emulated, and nothing is timed
    floor_seconds: float  # the time below which no rung can come, all stages added up; 0 without roofs
    bytes: int  # the least that must be moved
    multiply_adds: int  # the least that must be computed
    rungs: tuple[RungResult, ...]  # in the ladder's order
    scaled: bool = False  # whether errors are in parts of the reference's largest element; else they are absolute
    row: str = "row"  # what one of the rows is called
    left_out: tuple[tuple[str, str], ...] = ()  # rungs that cannot run this problem, with the reason
    note: str = ""  # sentences on what was computed, and on what errors are

    @property
    def correct(self) -> bool:
        """Whether every rung agreed with the reference."""
        return all(rung.correct for rung in self.rungs)

    def speedup(self, rung: RungResult) -> float | None:
        """Return how many times faster a rung is than the first one; None if either was not timed."""
        first = self.rungs[0].seconds
        return first / rung.seconds if first and rung.seconds else None

    def floor_share(self, rung: RungResult) -> float | None:
        """Return the floor as a fraction of a rung's time: 1 where nothing is left to gain."""
        return self.floor_seconds / rung.seconds if rung.seconds else None


@dataclass
class _Climber:
    """A rung on its way through the stages."""

    rung: Kernel
    carried: Any = None
    error: float = 0.0
    correct: bool = True
    measured: list[list[Measurement]] = field(default_factory=list)

    def take(self, stage: Stage, operation: str, meter: Meter, runs: int) -> None:
        """Check the stage, then time it; measurements keep no output."""
        arguments = stage.arguments(self.carried)
        settled = stage.settle(self.rung.launch(*arguments))
        self.error = max(self.error, settled.error)
        self.correct = settled.correct_in(self.rung.precision)
        if self.correct:
            self.measured.append([_timed(meter, operation, self.rung, arguments) for _ in range(runs)])
        self.carried = settled.carried

    def result(self) -> RungResult:
        times = np.array([[run.seconds for run in stage] for stage in self.measured])
        kernels = [[run.kernel_seconds for run in stage] for stage in self.measured]
        timed = self.correct and times.size > 0
        totals = times.sum(axis=0) if timed else np.zeros(1)
        every = [run for stage in self.measured for run in stage]
        return RungResult(
            name=self.rung.name,
            summary=self.rung.summary,
            correct=self.correct,
            error=self.error,
            stage_seconds=tuple(map(float, np.median(times, axis=1))) if timed else (),
            seconds=float(np.median(totals)) if timed else None,
            spread=float(np.subtract(*np.percentile(totals, [75, 25]))) if timed else None,
            kernel_seconds=_median_total(kernels) if timed else None,
            registers=max((run.registers for run in every if run.registers is not None), default=None),
            shared_bytes=max((run.shared_bytes for run in every if run.shared_bytes is not None), default=None),
            precision=self.rung.precision,
            tf32_products=self.rung.tf32_products,
        )


def _timed(meter: Meter, operation: str, rung: Kernel, arguments: tuple[Any, ...]) -> Measurement:
    found = meter.measure(operation, lambda: rung.launch(*arguments))
    return Measurement(None, found.seconds, found.kernel_seconds, found.registers, found.shared_bytes)


def _median_total(stages: Sequence[Sequence[float | None]]) -> float | None:
    if any(seconds is None for stage in stages for seconds in stage):
        return None
    return float(np.median(np.array(stages, dtype=float).sum(axis=0)))


def run_ladder(
    operation: str,
    network: Any,
    inputs: Any,
    *,
    roofs: Roofs | None,
    device: str = "auto",
    runs: int = 20,
    sweep: bool = False,
    progress: Progress = silent,
) -> LadderResult:
    """Run all rungs of an operation's ladder on one problem.

    Rungs take a stage in turn, so that whatever slows the machine down meets all of them.

    Parameters
    ----------
    operation : one that has a ladder.
    network, inputs : what the problem is built from: a network and its CSR inputs, or what the ladder's `problem` made.
    roofs : of the device, as `measure.roofs_of` returns them; None to time nothing, as where it is emulated.
    device : `auto`, `cpu`, `cuda`, `cuda:i`, `reference` or `emulated`.
    runs : timed launches of each stage, after one that is checked.
    sweep : run the first rung, and each rung that has a number to vary once for each of its values.
    progress : called for every stage done.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; at least 1 is needed")
    ladder = ladder_for(operation)
    backend = ladder_backend(device)
    rungs = rungs_of(operation, backend.device, sweep)
    asked = ladder.asked(network, inputs)
    reasons = [rung.why_not(backend.machine, *asked) for rung in rungs]
    climbers = [_Climber(rung) for rung, reason in zip(rungs, reasons, strict=True) if reason is None]
    meter = meter_for(backend)
    floor, moved, multiply_adds, stages = 0.0, 0, 0, 0
    expected = ladder.stage_count(network, inputs)
    for stage in ladder.stages(backend, network, inputs):
        for climber in climbers:
            if climber.correct:
                climber.take(stage, operation, meter, 0 if roofs is None else runs)
        stages += 1
        moved += stage.work.bytes
        multiply_adds += stage.work.multiply_adds
        if roofs is not None:
            floor += roofs.floor(stage.work.bytes, stage.work.multiply_adds)
        progress("ladder", stages, max(expected, stages))
    return LadderResult(
        operation=operation,
        device=backend.description,
        stage=ladder.stage,
        stages=stages,
        rows=ladder.row_count(network, inputs),
        runs=runs,
        roofs=roofs,
        floor_seconds=floor,
        bytes=moved,
        multiply_adds=multiply_adds,
        rungs=tuple(climber.result() for climber in climbers),
        scaled=ladder.scaled,
        row=ladder.row,
        left_out=tuple((rung.name, reason) for rung, reason in zip(rungs, reasons, strict=True) if reason is not None),
        note=ladder.note,
    )
