"""The report of `sparsify`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleReport:
    """The decision on a `Linear` or `Conv2d`.

    Parameters
    ----------
    name : str
        Its path in the model; empty for the model itself.
    kind : str
        Its class.
    density : float or None
        The share of its weights that are not zero; None where these can't be read.
    is_replaced : bool
        Whether a session computes it.
    reason : str
        Why, or why not.
    seconds_before : float or None
        Median time in a call of the model, computed by PyTorch; None where it was not measured.
    seconds_after : float or None
        The same, computed by a session.
    """

    name: str
    kind: str
    density: float | None
    is_replaced: bool
    reason: str
    seconds_before: float | None = None
    seconds_after: float | None = None


@dataclass(frozen=True)
class SparsifyReport:
    """The decisions on a model's `Linear` and `Conv2d` modules; `str` makes a table of them.

    Parameters
    ----------
    modules : tuple of ModuleReport
        In the model's order.
    """

    modules: tuple[ModuleReport, ...]

    def __str__(self) -> str:
        rows = [("module", "kind", "density", "ms before", "ms after", "computed by"), *map(_row, self.modules)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


def _row(module: ModuleReport) -> tuple[str, ...]:
    share = "" if module.density is None else f"{module.density:.1%}"
    times = (
        "" if seconds is None else f"{1e3 * seconds:.3g}" for seconds in (module.seconds_before, module.seconds_after)
    )
    return (
        module.name or "(the model)",
        module.kind,
        share,
        *times,
        f"{'sparsenn' if module.is_replaced else 'PyTorch'}: {module.reason}",
    )
