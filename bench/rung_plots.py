"""Pictures of recorded ladders: a panel a problem, a bar a rung, with the library's times as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsenn.report.plots import save_figure

__all__ = ["draw_rungs"]

COLOURS = {"float32": "C0", "tf32": "C1", "float16": "C2"}


def draw_rungs(rows: Sequence[Mapping[str, Any]], problem: str, peer: str, path: Path) -> None:
    """Draw rows of a recorded ladder, a panel for each problem; times are on a logarithmic axis.

    Parameters
    ----------
    rows : with `kernel`, `precision`, `features`, `milliseconds`, `peer_milliseconds` or None there, and the problem;
        in the ladder's order.
    problem : the key that names a row's problem.
    peer : what the lines show.
    path : file to write; its suffix says as what: .png, .svg or .pdf.

    Raises
    ------
    UsageError
        The suffix is another one.
    """
    from matplotlib.figure import Figure

    panels = {
        name: [row for row in rows if row[problem] == name] for name in dict.fromkeys(row[problem] for row in rows)
    }
    heights = [1.2 + 0.25 * len(panel) for panel in panels.values()]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    every = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (name, panel) in zip(every, panels.items(), strict=True):
        _draw_panel(axes, str(name), panel, peer)
    save_figure(figure, path)


def _draw_panel(axes: Any, name: str, panel: Sequence[Mapping[str, Any]], peer: str) -> None:
    several = {row["kernel"] for row in panel if row["features"] == "float16"}
    names = [f"{row['kernel']} ({row['features']})" if row["kernel"] in several else row["kernel"] for row in panel]
    for precision, colour in COLOURS.items():
        of_it = [place for place, row in enumerate(panel) if row["precision"] == precision]
        if not of_it:
            continue
        times = [panel[place]["milliseconds"] for place in of_it]
        axes.bar_label(
            axes.barh(of_it, times, color=colour, label=precision), [f"{each:.3g}" for each in times], padding=3
        )
        peers = [panel[place]["peer_milliseconds"] for place in of_it]
        best = min((each for each in peers if each is not None), default=None)
        if best is not None:
            axes.axvline(best, color=colour, linestyle="--", zorder=3, label=f"{peer}, {precision}")
    axes.set_yticks(range(len(panel)), names)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(title=name, xlabel="time (ms)")
    axes.legend(fontsize="small")
