"""Ladders: an operation's variants in order, from plain to best, on one problem that all of them solve.

An operation joins by registering a `Ladder`: how its problem is built from a network and inputs, which are a sparse
dataset's unless the ladder makes its own, or from what stands in their place. The rungs are the operation's variants as
the registry has them, on whichever device is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparsenn.backends.base import Backend, Variant, variants
from sparsenn.errors import SparseNNError, UsageError, unknown_name

__all__ = [
    "Ladder",
    "Settled",
    "Stage",
    "Sweep",
    "Work",
    "ladder_for",
    "ladders",
    "register_ladder",
    "register_sweep",
    "rungs_of",
    "sweeps",
]


@dataclass(frozen=True)
class Work:
    """The least that any implementation must do: what physical floors are computed from.

    Parameters
    ----------
    bytes : each input read once, each output written once.
    multiply_adds : those that touch no zero.
    """

    bytes: int
    multiply_adds: int


@dataclass(frozen=True)
class Settled:
    """What became of a launch.

    Parameters
    ----------
    carried : what the next stage is given.
    error : largest difference from the reference: absolute, or in parts of the reference's largest element where the
        ladder is `scaled`.
    correct : whether every element is within what float32 allows.
    allowed : the largest error of rungs of another precision, by its name.
    """

    carried: Any
    error: float
    correct: bool
    allowed: Mapping[str, float] = field(default_factory=dict)

    def correct_in(self, precision: str) -> bool:
        """Return whether the result is as close as a precision allows; NaN never is."""
        return self.error <= self.allowed[precision] if precision in self.allowed else self.correct


class Stage(Protocol):
    """One thing that every rung computes, for example a layer. Stages come in order; results are carried on."""

    @property
    def work(self) -> Work:
        """The least that must be done."""
        ...

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return what the rung's launch takes, given what the stage before left (None for the first)."""
        ...

    def settle(self, output: Any) -> Settled:
        """Compare what a launch returned with the reference; keep what is carried on from later launches."""
        ...


@dataclass(frozen=True)
class Ladder:
    """How to set the rungs of an operation one and the same problem.

    Parameters
    ----------
    operation : whose variants are the rungs.
    stage : what a stage is called, in the singular.
    stages : builds the stages for a device, one after the other, from a network and its inputs.
    problem : makes that network and inputs from rows, sizes and a seed; None where they are a dataset's.
    rows, sizes : of that problem, unless asked for otherwise; no rows where the sizes say how many there are.
    form : what the sizes are, in order, such as m,k,n, with those in brackets that may be left out; empty where they
        are the widths of the rows and then of each layer's outputs.
    row : what one of the rows is, in the singular.
    row_count : says how many there are, given the problem.
    asked : what `Variant.why_not` is given, of the problem.
    launched : turns a variant into the rung that is timed, where its launch is not that itself.
    scaled : whether errors are in parts of the reference's largest element.
    note : sentences on what is computed, and on what errors are where they are not `scaled`.
    """

    operation: str
    stage: str
    stages: Callable[[Backend, Any, Any], Iterable[Stage]]
    problem: Callable[[int, Sequence[int], int], tuple[Any, Any]] | None = None
    rows: int = 0
    sizes: tuple[int, ...] = ()
    form: str = ""
    row: str = "row"
    row_count: Callable[[Any, Any], int] = lambda network, inputs: int(inputs.shape[0])
    asked: Callable[[Any, Any], tuple[Any, Any]] = lambda network, inputs: (network, inputs)
    launched: Callable[[Variant], Variant] = lambda rung: rung
    scaled: bool = False
    note: str = ""


@dataclass(frozen=True)
class Sweep:
    """A rung with a number that can be varied.

    Parameters
    ----------
    rung : the variant with its default.
    parameter : what the number is.
    values : those to try.
    launch_with : returns the launch for one of them.
    """

    rung: Variant
    parameter: str
    values: tuple[int, ...]
    launch_with: Callable[[int], Callable[..., Any]]

    def rungs(self) -> tuple[Variant, ...]:
        """Return a variant for each value."""
        return tuple(
            replace(self.rung, name=f"{self.rung.name}, {self.parameter} {value}", launch=self.launch_with(value))
            for value in self.values
        )


_LADDERS: dict[str, Ladder] = {}
_SWEEPS: list[Sweep] = []


def register_ladder(ladder: Ladder) -> Ladder:
    """Add a ladder; an operation has one."""
    if ladder.operation in _LADDERS:
        raise SparseNNError(f"the ladder of {ladder.operation} is registered twice")
    _LADDERS[ladder.operation] = ladder
    return ladder


def register_sweep(sweep: Sweep) -> None:
    """Add a sweep of one of an operation's rungs."""
    _SWEEPS.append(sweep)


def sweeps() -> tuple[Sweep, ...]:
    """Return all sweeps, in order of registration."""
    return tuple(_SWEEPS)


def ladders() -> tuple[str, ...]:
    """Return the operations that have a ladder."""
    return tuple(_LADDERS)


def ladder_for(operation: str) -> Ladder:
    """Return an operation's ladder.

    Raises
    ------
    UsageError
        It has none; the message lists those that have.
    """
    if operation not in _LADDERS:
        raise unknown_name("ladder", operation, _LADDERS)
    return _LADDERS[operation]


def rungs_of(operation: str, device: str, sweep: bool = False) -> tuple[Variant, ...]:
    """Return an operation's variants on a device in order; with `sweep`, those that can be varied once a value.

    Raises
    ------
    UsageError
        The operation has no variant on that device, or none that can be varied.
    """
    # a kernel that takes all layers at once has no layers to be timed one by one
    launched = ladder_for(operation).launched
    rungs = tuple(launched(entry) for entry in variants(operation, device) if not entry.groups_rows)
    if not rungs:
        there = sorted({entry.device for entry in variants(operation)})
        raise UsageError(f"{operation} has no kernel for the device {device}; use --device {' or '.join(there)}")
    if not sweep:
        return rungs
    varied = {found.rung.name: found for found in _SWEEPS if found.rung in rungs}
    if not varied:
        raise UsageError(_nothing_to_sweep(operation, device))
    return tuple(
        rung
        for entry in rungs
        for rung in (varied[entry.name].rungs() if entry.name in varied else (entry,) if entry is rungs[0] else ())
    )


def _nothing_to_sweep(operation: str, device: str) -> str:
    from sparsenn.backends.tunables import tunables  # which imports this module

    tuned = [entry.rung for entry in tunables() if (entry.operation, entry.device) == (operation, device)]
    if not tuned:
        return f"no {device} kernel for {operation} has a number to vary; leave --sweep out"
    return (
        f"--sweep varies no {device} kernel for {operation}, but sparsenn tune does: {', '.join(tuned)}; "
        f"use sparsenn tune {tuned[0]} --device {device}, or leave --sweep out"
    )
