"""From a device, a kernel's name and a precision to the trainer: decided here, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.backends import backend_for, variants
from sparsenn.backends.base import Backend, Variant
from sparsenn.backends.trainer import PRECISIONS, TRAIN, Trainer, TrainingProblem, precision_of
from sparsenn.errors import UsageError, unknown_name

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, eq=False)
class Choice:
    """What may compute.

    Parameters
    ----------
    backend : its device.
    candidates : variants of `train`, best first.
    precision : what all candidates compute in: one of `PRECISIONS`, or float64 on the reference.
    """

    backend: Backend
    candidates: tuple[Variant, ...]
    precision: str

    def start(self, problem: TrainingProblem) -> tuple[Variant, Trainer]:
        """Make the trainer: of the first candidate that takes the problem.

        Raises
        ------
        UsageError
            None does; the message is the last one's.
        """
        for entry in self.candidates[:-1]:
            try:
                return entry, entry.launch(problem, getattr(self.backend, "index", 0))
            except UsageError:
                continue
        last = self.candidates[-1]
        return last, last.launch(problem, getattr(self.backend, "index", 0))


def choose(device: str, kernel: str, precision: str) -> Choice:
    """Return what may compute, for what was asked for.

    `auto` as device is the first GPU where there is one, else the CPU; also where only the CPU has the kernel. `auto`
    as kernel is the best of the device that takes the problem.

    Raises
    ------
    UsageError
        There is no such device, kernel or precision, or no such kernel on the device in the precision.
    DeviceError
        The device is not there.
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    backend = backend_for(device)
    known = variants(TRAIN, backend.device)
    on_cpu = {entry.name for entry in variants(TRAIN, "cpu")}
    if device == "auto" and (not known or (kernel in on_cpu and kernel not in {entry.name for entry in known})):
        backend, known = backend_for("cpu"), variants(TRAIN, "cpu")
    if kernel == "auto":
        fitting = tuple(entry for entry in reversed(known) if precision_of(entry.name) == precision)
        if not fitting:
            found = ", ".join(sorted({precision_of(entry.name) for entry in known}))
            raise UsageError(f"{backend.device} does not train in {precision} (it has: {found or 'nothing'})")
        return Choice(backend, fitting, _computed_in(precision, backend))
    named = tuple(entry for entry in known if entry.name == kernel)
    if not named:
        raise unknown_name(f"{backend.device} kernel for {TRAIN}", kernel, (entry.name for entry in known))
    if precision != PRECISIONS[0] and precision_of(kernel) != precision:
        raise UsageError(f"the kernel {kernel} computes in {precision_of(kernel)}, not in {precision}")
    return Choice(backend, named, _computed_in(precision_of(kernel), backend))


def _computed_in(precision: str, backend: Backend) -> str:
    return "float64" if backend.device == "reference" else precision
