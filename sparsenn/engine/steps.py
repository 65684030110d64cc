"""Steps of a plan: consecutive layers that one kernel runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeAlias

from sparsenn.backends import Kernel, SparseKernel
from sparsenn.engine.choices import Names

__all__ = ["Alternative", "Step", "is_in_order", "layers_text", "names_of", "prior_of", "skips_rows", "takes_half"]


def layers_text(first: int, last: int) -> str:
    """Return layers, counted from 0, `last` excluded, in words, counted from 1."""
    return f"layer {last}" if last == first + 1 else f"layers {first + 1} to {last}"


@dataclass(frozen=True, eq=False)
class Step:
    """Consecutive layers and the kernel that runs them; a layer of images is a step of its own."""

    first: int  # layer, counted from 0
    last: int  # excluded
    kernel: Kernel
    reason: str = ""  # why the kernel was chosen, in words
    seconds: float | None = None  # for the plan's rows
    is_measured: bool = False  # whether the kernel was chosen, and the seconds were measured, on rows
    prior: float = 0.0  # seconds by the kernel's prior, launch included; alternatives are ordered by these
    in_order: bool = True  # whether sparse layers are summed in the order of all sparse kernels

    @property
    def layers(self) -> range:
        """Numbers of the layers, counted from 0."""
        return range(self.first, self.last)

    @property
    def drops_rows(self) -> bool:
        """Whether rows that have died may leave."""
        return isinstance(self.kernel, SparseKernel) and self.kernel.drops_rows

    @property
    def title(self) -> str:
        """The kernel and its layers, counted from 1."""
        return f"{self.kernel.name}, {layers_text(self.first, self.last)}"

    @property
    def details(self) -> dict[str, str | int | float | None]:
        """Attributes of the step's spans."""
        kernel = self.kernel
        return {
            "kernel": kernel.name,
            "operation": kernel.operation,
            "device": kernel.device,
            "first_layer": self.first + 1,
            "last_layer": self.last,
            "estimate": None if self.seconds is None or not isfinite(self.seconds) else self.seconds,
            "is_measured": self.is_measured,
            "reason": self.reason,
        }

    def moved(self, by: int) -> Step:
        """Return the step of as many layers that stand further back by a number."""
        return replace(self, first=self.first + by, last=self.last + by)

    def of_layers(self, first: int, last: int) -> Step:
        """Return the step of some of its layers; their time is not estimated."""
        if (first, last) == (self.first, self.last):
            return self
        return replace(self, first=first, last=last, seconds=None, is_measured=False)


Alternative: TypeAlias = tuple[Step, ...]
"""Steps that can run the layers of a segment, in the order in which they run."""


def prior_of(alternative: Alternative) -> float:
    """Return the seconds of all steps by their priors."""
    return sum(step.prior for step in alternative)


def is_in_order(alternative: Alternative) -> bool:
    """Return whether sparse layers are summed in the order of all sparse kernels."""
    return all(step.in_order for step in alternative)


def names_of(alternative: Alternative) -> Names:
    """Return layers and kernel of each step."""
    return tuple((step.first, step.last, step.kernel.name) for step in alternative)


def takes_half(alternative: Alternative) -> bool:
    """Return whether rows of float16 stay so."""
    return all(step.kernel.half_rows for step in alternative)


def skips_rows(alternative: Alternative) -> bool:
    """Return whether rows that die, or are equal to others, take no time."""
    kernels = [step.kernel for step in alternative if isinstance(step.kernel, SparseKernel)]
    return any(kernel.groups_rows or (kernel.drops_rows and kernel.fuses) for kernel in kernels)
