"""From a device, a kernel's name and a precision to the trainer: decided here, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.backends import Backend, Kernel, Trainer, TrainingProblem, automatic, backend_for, kernels
from sparsenn.backends.trainer import PRECISIONS, TRAINING_OPERATION
from sparsenn.errors import UsageError, unknown_name


@dataclass(frozen=True, eq=False)
class Choice:
    """What may compute.

    backend : its device.
    candidates : kernels of `train`, the preferred one first.
    precision : what all candidates compute in: one of `PRECISIONS`, or float64 on the reference.
    """

    backend: Backend
    candidates: tuple[Kernel, ...]
    precision: str

    def start(self, problem: TrainingProblem) -> tuple[Kernel, Trainer]:
        """Make the trainer: of the first candidate that takes the problem."""
        machine, last = self.backend.machine, self.candidates[-1]
        able = (entry for entry in self.candidates if entry.why_not(machine, problem) is None)
        chosen = next(able, last)
        return chosen, chosen.launch(problem, getattr(self.backend, "index", 0))


def choose(device: str, kernel: str, precision: str) -> Choice:
    """Return what may compute, for what was asked for.

    `auto` as device is the first GPU where there is one, else the CPU; also where only the CPU has the kernel. `auto`
    as kernel is the best of the device that takes the problem.
    """
    for what, name in (("device", device), ("kernel", kernel), ("precision", precision)):
        if not isinstance(name, str):
            raise UsageError(f"the {what} is {name!r}; give a name, such as 'auto'")
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    backend = backend_for(device)
    if kernel == "auto":
        return Choice(backend, _automatic(backend, precision), _computed_in(precision, backend))
    known = {entry.name: entry for entry in kernels(TRAINING_OPERATION, backend.device)}
    if device == "auto" and kernel not in known:
        on_cpu = {entry.name: entry for entry in kernels(TRAINING_OPERATION, "cpu")}
        if kernel in on_cpu:
            backend, known = backend_for("cpu"), on_cpu
    if kernel not in known:
        raise unknown_name(f"{backend.device} kernel for {TRAINING_OPERATION}", kernel, known)
    found = known[kernel].precision
    if precision not in (PRECISIONS[0], found):
        raise UsageError(f"the kernel {kernel} computes in {found}, not in {precision}")
    return Choice(backend, (known[kernel],), _computed_in(found, backend))


def _automatic(backend: Backend, precision: str) -> tuple[Kernel, ...]:
    there = automatic(TRAINING_OPERATION, backend.device)
    fitting = tuple(entry for entry in there if entry.precision == precision)
    if not fitting:
        found = ", ".join(sorted({entry.precision for entry in there}))
        raise UsageError(f"{backend.device} does not train in {precision} (it has: {found or 'nothing'})")
    return fitting


def _computed_in(precision: str, backend: Backend) -> str:
    return "float64" if backend.device == "reference" else precision
