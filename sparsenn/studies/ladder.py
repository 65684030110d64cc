"""Ladders: an operation's kernels in order, from plain to best, on one problem that all of them solve.

An operation joins by registering a `Ladder`: its rungs in order, on each device that has some, and how its problem is
built from a network and inputs, which are a sparse dataset's unless the ladder makes its own, or from what stands in
their place. Rungs are kernels of the registry, the engine's own and those that exist to be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, Protocol

from sparsenn.backends.contract import Backend
from sparsenn.backends.kernel_records import Kernel
from sparsenn.backends.registry import kernels, register
from sparsenn.errors import SparseNNError, UsageError, unknown_name
from sparsenn.printable import reason_of


@dataclass(frozen=True)
class Work:
    """The least that any implementation must do: what physical floors are computed from."""

    bytes: int  # each input read once, each output written once
    multiply_adds: int  # those that touch no zero


@dataclass(frozen=True)
class Settled:
    """What became of a launch."""

    carried: Any  # what the next stage is given
    error: float
    """Largest difference from the reference: absolute, or in parts of the reference's largest element where the ladder
    is `scaled`."""
    correct: bool  # whether every element is within what float32 allows
    allowed: Mapping[str, float] = field(default_factory=dict)
    """The largest error of rungs of another precision, by its name."""

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
    """How to set the rungs of an operation one and the same problem."""

    operation: str  # whose kernels are the rungs
    stage: str  # what a stage is called, in the singular
    stages: Callable[[Backend, Any, Any], Iterable[Stage]]
    """Builds the stages for a device, one after the other, from a network and its inputs."""
    rungs: Mapping[str, tuple[Kernel, ...]]  # of each device, in the order in which the story is told
    sweeps: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict)
    """By the names of rungs, their variants, which `--sweep` runs in their place."""
    problem: Callable[[int, Sequence[int], int], tuple[Any, Any]] | None = None
    """Makes that network and inputs from rows, sizes and a seed; None where they are a dataset's."""
    rows: int = 0  # of that problem, unless asked for otherwise; 0 where the sizes say how many there are
    sizes: tuple[int, ...] = ()  # likewise
    emulated_sizes: tuple[int, ...] = ()  # the sizes where rungs are emulated
    form: str = ""
    """What the sizes are, in order, such as m,k,n, with those in brackets that may be left out; empty where they are
    the widths of the rows and then of each layer's outputs."""
    row: str = "row"  # what one of the rows is, in the singular
    row_count: Callable[[Any, Any], int] = lambda network, inputs: int(inputs.shape[0])
    """Says how many rows there are, given the problem."""
    stage_count: Callable[[Any, Any], int] = lambda network, inputs: 1
    """Says how many stages there are, given the problem."""
    asked: Callable[[Any, Any], tuple[Any, ...]] = lambda network, inputs: (network, inputs)
    """What `Kernel.why_not` is given besides the machine, of the problem."""
    launched: Callable[[Kernel], Kernel] = lambda rung: rung
    """Turns a kernel into the rung that is timed, where its launch is not that itself."""
    modelled: Callable[[Any, Any], tuple[Any, ...]] | None = None
    """What `Kernel.traffic` is given, of the problem; None where no rung has a model of what it moves."""
    scaled: bool = False  # whether errors are in parts of the reference's largest element
    note: str = ""  # sentences on what is computed, and on what errors are where they are not `scaled`


_LADDERS: dict[str, Ladder] = {}


def register_ladder(ladder: Ladder) -> Ladder:
    """Add a ladder; an operation has one."""
    if ladder.operation in _LADDERS:
        raise SparseNNError(f"the ladder of {ladder.operation} is registered twice")
    _LADDERS[ladder.operation] = ladder
    return ladder


def add_rung(kernel: Kernel) -> None:
    """Register a kernel that is not the package's own, and make it the last rung of its operation on its device.

    What it raises when it is launched becomes a `UsageError` that names the rung and the line.

    Raises
    ------
    UsageError
        Its operation has no ladder.
    SparseNNError
        There is a kernel of that name.
    """
    ladder = ladder_for(kernel.operation)
    rung = register(replace(kernel, launch=partial(_launch_foreign, kernel.name, kernel.launch)))
    rungs = {**ladder.rungs, kernel.device: (*ladder.rungs.get(kernel.device, ()), rung)}
    _LADDERS[kernel.operation] = replace(ladder, rungs=rungs)


def _launch_foreign(name: str, launch: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return launch(*arguments)
    except SparseNNError as error:
        raise UsageError(f"the rung {name}: {error}") from error
    except Exception as error:
        within = extract_tb(error.__traceback__)[1:2] or extract_tb(error.__traceback__)
        raise UsageError(f"the rung {name} fails at {_place_of(within[0])}: {_named(error)}") from error


def load_rungs(path: Path) -> None:
    """Run a Python file, which adds rungs by `add_rung`; its folder is where it may import from.

    Raises
    ------
    UsageError
        The file cannot be read or fails; the message has the line.
    """
    spec = spec_from_file_location(f"sparsenn_rungs_{path.stem}", path.absolute())
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{path}: is no Python file; its name ends in .py")
    folder = str(path.parent.absolute())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module_from_spec(spec))
    except SparseNNError as error:
        raise UsageError(f"{path}: {error}") from error
    except SyntaxError as error:
        raise UsageError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        within = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()]
        raise UsageError(f"{_place_of(within[-1])}: {_named(error)}") from error
    finally:
        sys.path.remove(folder)


def _place_of(frame: FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_of(error)}"


def ladders() -> tuple[str, ...]:
    """Return the operations that have a ladder."""
    return tuple(_LADDERS)


def ladder_for(operation: str) -> Ladder:
    """Return an operation's ladder."""
    if operation not in _LADDERS:
        raise unknown_name("ladder", operation, _LADDERS)
    return _LADDERS[operation]


def rungs_of(operation: str, device: str, sweep: bool = False) -> tuple[Kernel, ...]:
    """Return an operation's rungs on a device in order; with `sweep`, the first, and the variants of others."""
    ladder = ladder_for(operation)
    rungs = ladder.rungs.get(device, ())
    if not rungs:
        raise UsageError(f"{operation} has no kernel for the device {device}; use --device {_devices(ladder)}")
    if sweep:
        variants = [variant for rung in rungs for variant in ladder.sweeps.get(rung.name, ())]
        if not variants:
            raise UsageError(f"no {device} kernel for {operation} has a number to vary; leave --sweep out")
        rungs = (rungs[0], *variants)
    return tuple(map(ladder.launched, rungs))


def _devices(ladder: Ladder) -> str:
    *others, last = sorted(device for device, rungs in ladder.rungs.items() if rungs)
    return f"{', '.join(others)} or {last}" if others else last


def listing(operation: str | None = None) -> tuple[Kernel, ...]:
    """Return all kernels, or those of an operation, by operation and device; rungs in their order first."""
    known = kernels(operation)
    rungs = [rung for ladder in _LADDERS.values() for every in ladder.rungs.values() for rung in every]
    ordered = [*(rung for rung in rungs if rung in known), *(kernel for kernel in known if kernel not in rungs)]
    groups = list(dict.fromkeys((kernel.operation, kernel.device) for kernel in ordered))
    return tuple(sorted(ordered, key=lambda kernel: groups.index((kernel.operation, kernel.device))))
