"""The challenge's rates of a problem: first and repeated runs apart, with the savings of work on and off."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from sparsenn.engine import Session
from sparsenn.errors import UsageError
from sparsenn.io.dataset import Dataset
from sparsenn.runtime.progress import Progress, silent

SAVINGS = ("compaction", "deduplication", "merging")
"""Options of `Session` that leave out work without changing the categories."""


@dataclass(frozen=True)
class ChallengeRuns:
    """Runs of one session."""

    savings: bool  # whether dead rows, equal rows and equal neurons were left out
    kernel: str  # of the first layers
    cold: float
    """Seconds of the first run, from network and inputs in memory to categories there: planning, compiling and
    preparing weights included."""
    warm: tuple[float, ...]  # seconds of each later run
    verified: bool | None  # whether all runs found the true categories; None where these are unknown or not compared

    @property
    def seconds(self) -> float:
        """Median of the warm runs."""
        return median(self.warm)


@dataclass(frozen=True)
class ChallengeResult:
    """The runs of one problem."""

    name: str  # of the dataset, as the next
    provenance: dict[str, str]
    inputs: int  # the dataset's size, as the next three
    neurons: int
    layers: int
    edges: int  # of the network, for one input
    categories: int  # how many were found
    device: str  # in words
    runs: tuple[ChallengeRuns, ...]  # with the savings, and without

    def rate(self, seconds: float) -> float:
        """Return the challenge's rate, inputs × edges a second, of a run of that many seconds."""
        return self.inputs * self.edges / seconds


def run_challenge(
    dataset: Dataset, runs: int = 20, *, verify: bool = True, progress: Progress = silent, **options: Any
) -> ChallengeResult:
    """Run a problem cold once and warm some times, with the savings of work and without.

    Parameters
    ----------
    dataset : the problem.
    runs : warm runs, at least 1.
    verify : whether to compare the categories of each run with the true ones where these are known.
    progress : called after each run.
    options : of `Session`.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; take at least 1")
    truth = dataset.truth if verify else None
    found: list[ChallengeRuns] = []
    for savings in (True, False):
        work: dict[str, Any] = dict.fromkeys(SAVINGS, savings)
        with Session(dataset.network, **work, **options) as session:
            seconds: list[float] = []
            verified = None if truth is None else True
            for _ in range(runs + 1):
                result = session.run(dataset.inputs)
                seconds.append(result.seconds.inference)
                if truth is not None:
                    verified = verified and np.array_equal(result.categories, truth)
                progress(f"run {dataset.name}", len(found) * (runs + 1) + len(seconds), 2 * (runs + 1))
            plan, categories = result.plan, result.categories.size
        found.append(ChallengeRuns(savings, plan.kernel.name, seconds[0], tuple(seconds[1:]), verified))
    network = dataset.network
    return ChallengeResult(
        dataset.name,
        dict(dataset.provenance),
        dataset.inputs.shape[0],
        network.inputs,
        len(network),
        network.edges,
        categories,
        plan.device,
        tuple(found),
    )
