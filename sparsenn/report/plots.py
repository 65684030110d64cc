"""Plots, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsenn.engine import LayerStatistics
from sparsenn.errors import UsageError
from sparsenn.printable import printable
from sparsenn.runtime.storage import replacing

PLOT_SUFFIXES = (".png", ".svg", ".pdf")  # file types that a plot can be written as


def draw_layers(statistics: Sequence[LayerStatistics], path: Path, title: str = "") -> None:
    """Draw active and distinct rows, density, and time by layer into one picture."""
    save_figure(layers_figure(statistics, title), path)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib.

    `width`, `height`: in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"pictures need the package matplotlib ({error}); install it: pip install matplotlib"
        ) from error

    class Picture(Figure):
        """A figure that notebooks show, also where pyplot, which makes them show others, is not imported."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure to a file, replaced only when complete, as the type that its suffix names.

    The same figure gives the same SVG at any time: it bears no date.
    """
    suffix = path.suffix.lower()
    if suffix not in PLOT_SUFFIXES:
        raise UsageError(f"{path}: cannot draw a {suffix or 'file without suffix'}; use {', '.join(PLOT_SUFFIXES)}")
    metadata = {"Date": None} if suffix == ".svg" else None
    with replacing(path) as temporary:
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata)


def layers_figure(statistics: Sequence[LayerStatistics], title: str = "") -> Any:
    """Return a figure of active and distinct rows, density, and time by layer; errors are those of `new_figure`."""
    figure = new_figure(8, 8)
    from matplotlib.ticker import MaxNLocator

    figure.suptitle(printable(title), parse_math=False)
    rows, density, time = figure.subplots(3, 1, sharex=True)
    _draw_rows(rows, statistics)
    known = [(layer.layer, layer.density) for layer in statistics if layer.density is not None]
    density.plot([layer for layer, _ in known], [share for _, share in known], ".-", color="C2")
    density.set(ylabel="density of active rows", ylim=(0, 1.05))
    _draw_time(time, statistics)
    time.set_xlabel("layer")
    time.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (rows, density, time):
        axes.grid(alpha=0.3)
    return figure


def _draw_rows(axes: Any, statistics: Sequence[LayerStatistics]) -> None:
    """Rows fall over orders of magnitude, and to nothing: logarithmic above 1, linear below."""
    active = [(layer.layer, layer.active_rows) for layer in statistics if layer.active_rows is not None]
    axes.plot([layer for layer, _ in active], [rows for _, rows in active], ".-", label="active")
    distinct = [(layer.layer, layer.distinct_rows) for layer in statistics if layer.distinct_rows is not None]
    if distinct:
        axes.plot(*zip(*distinct, strict=True), ".-", label="distinct")
    axes.set_yscale("symlog", linthresh=1)
    axes.set(ylabel="rows", ylim=(0, None))
    axes.legend()


def _draw_time(axes: Any, statistics: Sequence[LayerStatistics]) -> None:
    for kernel in dict.fromkeys(layer.kernel for layer in statistics):
        ran = [layer for layer in statistics if layer.kernel == kernel]
        axes.bar([layer.layer for layer in ran], [1e3 * layer.seconds for layer in ran], width=0.9, label=kernel)
    axes.set_ylabel("time (ms)")
    axes.legend(title="kernel")
