"""Steps of a plan: consecutive layers that one kernel runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from sparsenn.backends import Kernel

__all__ = ["Step", "layers_text"]


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

    @property
    def layers(self) -> range:
        """Numbers of the layers, counted from 0."""
        return range(self.first, self.last)

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

    def of_layers(self, first: int, last: int) -> Step:
        """Return the step of some of its layers; their time is not estimated."""
        if (first, last) == (self.first, self.last):
            return self
        return replace(self, first=first, last=last, seconds=None, is_measured=False)
