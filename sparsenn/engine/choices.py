"""Choices: which kernels were the fastest for a network, measured on rows, and the records that hold them on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["WHOLE", "Choice", "Measured", "Names", "bucket_of_choice", "choice_of", "label_of", "records_of"]

Names: TypeAlias = tuple[tuple[int, int, str], ...]
"""Of each step: the first layer, counted from 0, the one after the last, and the kernel's name."""


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
        compared = f"{label} takes {seconds / self.seconds:.2f} times as long"
        return f"measured: {compared}, and was slower in {self.wins} of {self.runs} runs"

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kernel": label_of(self.names),
            "steps": [list(name) for name in self.names],
            "seconds": self.seconds,
            "others": dict(self.others),
            "wins": self.wins,
            "runs": self.runs,
            "rows": self.rows,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Measured:
        """Return what `record` returned the values of; raises an error for others, as `choice_of` expects."""
        names = tuple((int(first), int(last), str(name)) for first, last, name in record["steps"])
        others = tuple((str(label), float(seconds)) for label, seconds in record["others"].items())
        counts = tuple(int(record[name]) for name in ("wins", "runs", "rows"))
        measured = cls(names, float(record["seconds"]), others, *counts)
        times = (measured.seconds, *(seconds for _, seconds in others))
        words = (*(label for label, _ in others), *(name for *_, name in names))
        if not (names and all(0 < seconds < math.inf for seconds in times) and all(map(str.isprintable, words))):
            raise ValueError("times are positive, and names printable")
        if not (0 <= measured.wins <= measured.runs and measured.rows > 0):
            raise ValueError("more wins than runs, or no rows")
        return measured


WHOLE = "whole"  # the key of the whole network: the steps of all segments, or ONNX Runtime in their place

Choice: TypeAlias = dict[tuple[int, int] | str, Measured]
"""The fastest steps for rows of one form and bucket: of segments, by the first layer, counted from 0, and the one after
the last; and of the network, as `WHOLE`, where ONNX Runtime was timed beside them."""


def records_of(choice: Choice) -> list[dict[str, Any]]:
    """Return a choice as plain values."""
    return [
        {"first": 0, "last": measured.names[-1][1], "whole": True, **measured.record()}
        if isinstance(key, str)
        else {"first": key[0], "last": key[1], **measured.record()}
        for key, measured in choice.items()
    ]


def choice_of(records: Any) -> Choice | None:
    """Return the choice that `records_of` returned the values of; None for anything else."""
    try:
        return {
            WHOLE if record.get("whole") else (int(record["first"]), int(record["last"])): Measured.of_record(record)
            for record in records
        } or None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def bucket_of_choice(rows: int) -> int:
    """Return the number of rows that a choice is for: rounded up to a power of two."""
    return 1 << max(0, rows - 1).bit_length()
