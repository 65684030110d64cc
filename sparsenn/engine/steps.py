"""Steps of a plan: consecutive layers that one kernel runs; and choices of steps, as measured or on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, TypeAlias

from sparsenn.backends import Kernel, SparseKernel

ORDER_GAIN = 0.95
"""In float32, sparse layers are summed in an order of a kernel's own only where that takes less than this fraction of
the time. In other precisions no bits are given up for it."""


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
        return isinstance(self.kernel, SparseKernel) and self.kernel.drops_rows and not self.kernel.keeps_rows

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


Names: TypeAlias = tuple[tuple[int, int, str], ...]
"""The first layer of each step, counted from 0, the one after the last, and the kernel's name."""


class Alternative(tuple[Step, ...]):
    """Steps that can run consecutive layers, in the order in which they run."""

    __slots__ = ()

    @property
    def layers(self) -> tuple[int, int]:
        """The first layer, counted from 0, and the one after the last."""
        return self[0].first, self[-1].last

    @property
    def names(self) -> Names:
        """Layers and kernel of each step."""
        return tuple((step.first, step.last, step.kernel.name) for step in self)

    @property
    def prior(self) -> float:
        """Seconds of all steps by their priors."""
        return sum(step.prior for step in self)

    @property
    def in_order(self) -> bool:
        """Whether sparse layers are summed in the order of all sparse kernels."""
        return all(step.in_order for step in self)

    @property
    def takes_half(self) -> bool:
        """Whether rows of float16 stay so."""
        return all(step.kernel.half_rows for step in self)

    @property
    def skips_rows(self) -> bool:
        """Whether rows that die, or are equal to others, take no time."""
        kernels = [step.kernel for step in self if isinstance(step.kernel, SparseKernel)]
        return any(kernel.groups_rows or (kernel.drops_rows and kernel.fuses) for kernel in kernels)

    def weighed(self, seconds: float) -> float:
        """Return seconds, increased where another order of sums has to pay."""
        return seconds if self.in_order else seconds / ORDER_GAIN

    def moved(self, by: int) -> Alternative:
        """Return the steps for as many layers that stand further back by a number."""
        return Alternative(replace(step, first=step.first + by, last=step.last + by) for step in self)


def label_of(names: Names) -> str:
    """Return the kernels of steps in words, and the number of steps where a kernel runs several."""
    kernels = list(dict.fromkeys(name for _, _, name in names))
    return " and ".join(kernels) + (f" in {len(names)} steps" if len(names) > len(kernels) else "")


@dataclass(frozen=True)
class Measured:
    """The fastest steps of some consecutive layers."""

    names: Names
    seconds: float  # median
    others: tuple[tuple[str, float], ...] = ()  # medians by kernels, the second fastest first
    wins: int = 0  # of the runs beside the second fastest
    runs: int = 0
    rows: int = 1  # that were timed

    @property
    def reason(self) -> str:
        """The comparison, in words."""
        if not self.others:
            return ""
        label, seconds = self.others[0]
        several = " and " in label
        # of several steps, each has this reason; one of them may have the kernel that was slower for all
        where = f" for layers {self.names[0][0] + 1}–{self.names[-1][1]}" if len(self.names) > 1 else ""
        compared = f"{label}{where} take{'' if several else 's'} {seconds / self.seconds:.2f} times as long"
        return f"measured: {compared}, and w{'ere' if several else 'as'} slower in {self.wins} of {self.runs} runs"


COUNTS = "wins", "runs", "rows"  # attributes of `Measured`

WHOLE = "whole"  # the key of the whole network: the steps of all segments, or ONNX Runtime in their place

Choice: TypeAlias = dict[tuple[int, int] | str, Measured]
"""The fastest steps for rows of one form and bucket: of segments, by the first layer, counted from 0, and the one after
the last; and of the network, as `WHOLE`, where ONNX Runtime was timed beside them."""


def records_of(choice: Choice) -> list[dict[str, Any]]:
    """Return a choice as plain values."""
    return [
        {
            "first": each.names[0][0],
            "last": each.names[-1][1],
            **({WHOLE: True} if key == WHOLE else {}),
            "kernel": label_of(each.names),
            "steps": [list(name) for name in each.names],
            "seconds": each.seconds,
            "others": dict(each.others),
            **{name: getattr(each, name) for name in COUNTS},
        }
        for key, each in choice.items()
    ]


def choice_of(records: Any) -> Choice | None:
    """Return the choice that `records_of` returned the values of; None for anything else."""
    choice: Choice = {}
    try:
        for record in records:
            names = tuple((int(first), int(last), str(name)) for first, last, name in record["steps"])
            others = tuple((str(label), float(seconds)) for label, seconds in record["others"].items())
            seconds, (wins, runs, rows) = float(record["seconds"]), (int(record[name]) for name in COUNTS)
            words = (*(label for label, _ in others), *(name for *_, name in names))
            are_times = all(0 < each < inf for each in (seconds, *(each for _, each in others)))
            if not (names and are_times and all(map(str.isprintable, words)) and 0 <= wins <= runs and rows > 0):
                return None
            key = WHOLE if record.get(WHOLE) else (int(record["first"]), int(record["last"]))
            choice[key] = Measured(names, seconds, others, wins, runs, rows)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return choice or None


def bucket_of_choice(rows: int) -> int:
    """Return the number of rows that a choice is for: rounded up to a power of two."""
    return 1 << max(0, rows - 1).bit_length()
