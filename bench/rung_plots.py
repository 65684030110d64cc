#!/usr/bin/env python3
"""Pictures of recorded ladders: a panel per problem, a bar per kernel, with the library's times as lines.

Draws those of result files, beside them, as <table>-ladder.svg::

    python bench/rung_plots.py bench/results/h100/conv2d.json bench/results/h100/gemm.json
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results_file import ResultError, read_results

from sparsenn.errors import SparseNNError
from sparsenn.report.plots import save_figure

__all__ = ["draw_rungs"]

PEERS = {"conv2d": "PyTorch", "gemm": "cuBLAS"}
"""By table: whose times the lines are."""

SMALL = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "ytick.major.size": 0,
}
"""Settings of matplotlib with which pictures of many bars stay small: letters are no paths, fonts have one name."""

COLOURS = {"float32": "C0", "tf32": "C1", "float16": "C2"}


def draw_rungs(table: str, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw rows of a recorded ladder, a panel for each problem; times are on a logarithmic axis.

    Parameters
    ----------
    table : one of `PEERS`.
    rows : as the table's result file has them, in the ladder's order. Of those that differ in `images` alone, the
        largest are drawn.
    path : file to write; its suffix says as what: .png, .svg or .pdf. Texts of .svg stay texts.

    Raises
    ------
    UsageError
        The suffix is another one.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = _problems(rows)
    heights = [0.8 + 0.22 * len(panel) for panel in panels.values()]
    with rc_context(SMALL | {"svg.hashsalt": table}):
        figure = Figure(figsize=(9, sum(heights)), layout="constrained")
        every = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, (name, panel) in zip(every, panels.items(), strict=True):
            _draw_panel(axes, name, panel, PEERS[table])
        every[-1].set_xlabel("time (ms)")
        lines = {line.get_label(): line for axes in every for line in axes.get_legend_handles_labels()[0]}
        figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(COLOURS), fontsize="small")
        save_figure(figure, path)


def _problems(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return rows by the problem that they are of, in words."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        shape = row.get("shape")
        if shape is None:
            found.setdefault(row["sizes"], []).append(row)
        elif row["images"] == max(other["images"] for other in rows if other["shape"] == shape):
            found.setdefault(f"{row['images']:,} images, {shape}", []).append(row)
    return found


def _draw_panel(axes: Any, name: str, panel: Sequence[Mapping[str, Any]], peer: str) -> None:
    from matplotlib.ticker import NullLocator

    peers = (row["peer_milliseconds"] or math.inf for row in panel)
    least = 0.5 * min(*(row["milliseconds"] for row in panel), *peers)
    for precision, colour in COLOURS.items():
        of_it = [(place, row) for place, row in enumerate(panel) if row["precision"] == precision]
        if not of_it:
            continue
        # bars as one line with gaps: an SVG holds it as one path
        ends = [end for _, row in of_it for end in (least, row["milliseconds"], None)]
        places = [end for place, _ in of_it for end in (place, place, None)]
        axes.plot(ends, places, color=colour, linewidth=9, solid_capstyle="butt", label=precision)
        best = min((row["peer_milliseconds"] for _, row in of_it if row["peer_milliseconds"] is not None), default=None)
        if best is not None:
            axes.axvline(best, color=colour, linestyle="--", zorder=3, label=f"{peer}, {precision}")
    several = {row["kernel"] for row in panel if row["features"] == "float16"}
    axes.set_yticks(range(len(panel)), [_told(row, row["kernel"] in several) for row in panel])
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=least)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(name)


def _told(row: Mapping[str, Any], of_several: bool) -> str:
    """Return a kernel's name, of what its numbers are where there are several, and its time."""
    features = f" ({row['features']})" if of_several else ""
    time = f"{row['milliseconds']:{',.0f' if row['milliseconds'] >= 1000 else '.3g'}}"
    return f"{row['kernel']}{features}: {time}"


def main(paths: Sequence[str]) -> int:
    """Draw the pictures of result files; return the exit code."""
    try:
        for path in map(Path, paths):
            result = read_results(path)
            if result.table not in PEERS:
                raise ResultError(f"{path}: no ladder is drawn of table {result.table}; there are {', '.join(PEERS)}")
            draw_rungs(result.table, result.rows, path.with_name(f"{result.table}-ladder.svg"))
    except (ResultError, SparseNNError) as error:
        print(f"rung_plots: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
