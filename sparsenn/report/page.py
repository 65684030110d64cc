"""A run or a benchmark as one HTML page that needs nothing but itself: no network, no script, light and dark.

Pictures are SVG within the page, in the page's colours; each has a text for those who cannot see it. Tables have a
caption, and headings of columns and rows.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn import __version__
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.engine import LayerStatistics, Plan, Result
from sparsenn.printable import printable
from sparsenn.report.fitting import NOTHING
from sparsenn.report.inference import ModelRun, model_layer_table, model_summary
from sparsenn.report.planned import plan_table
from sparsenn.report.quantities import duration
from sparsenn.report.summary import summary
from sparsenn.report.tables import fact_table, layer_table
from sparsenn.report.verification import Verification

__all__ = [
    "FACTS_STYLE",
    "bars_part",
    "facts_part",
    "inference_page",
    "line_part",
    "machine_part",
    "model_page",
    "page",
    "table_part",
]

_LIBRARIES = ("numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x")

FACTS_STYLE = """
.sparsenn-facts { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.5rem; }
.sparsenn-facts dt { font-weight: 600; } .sparsenn-facts dd { margin: 0; overflow-wrap: anywhere; }
"""

_STYLE = (
    """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #59636e; --line: #d1d9e0; --bar: #0969da; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9198a1; --line: #3d444d; --bar: #4493f8; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
"""
    + FACTS_STYLE
    + """
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; }
th, td { padding: .2rem .75rem; border-bottom: 1px solid var(--line); text-align: left; font-weight: 400; }
thead th { font-weight: 600; } .number { text-align: right; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg rect { fill: var(--bar); } svg path { stroke: var(--bar); fill: none; stroke-width: 2; }
svg line { stroke: var(--line); }
footer { color: var(--soft); margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem; }
"""
)

_WIDTH = 720  # of a picture, in its own units
_HEIGHT = 180  # likewise
_LEFT = 70  # margin for the numbers of the vertical axis
_BOTTOM = 24  # margin for the numbers of the horizontal axis


def inference_page(name: str, result: Result, verdict: Verification | str) -> str:
    """Return the page of a dataset's run: summary, plan, layers and machine.

    Parameters
    ----------
    name : what the dataset is called.
    result : a finished inference.
    verdict : the verification, or the reason why there is none.
    """
    layers = [*_pictures(result.statistics), table_part(layer_table(result.statistics))]
    return page(
        f"Inference of {name}",
        ("Summary", [facts_part(summary(name, result, verdict))]),
        ("Plan", [table_part(plan_table(result.plan))]),
        ("Layers", layers),
        ("Machine", [machine_part(result.plan)]),
    )


def model_page(model: str, data: str, run: ModelRun) -> str:
    """Return the page of a model's run on data: summary, plan, layers and machine.

    Parameters
    ----------
    model, data : what the two files are called.
    run : the model's run on the data.
    """
    layers = [*_pictures(run.statistics), table_part(model_layer_table(run.plan.network, run.statistics))]
    return page(
        f"{model} on {data}",
        ("Summary", [facts_part(model_summary(model, data, run))]),
        ("Plan", [table_part(plan_table(run.plan))]),
        ("Layers", layers),
        ("Machine", [machine_part(run.plan)]),
    )


def page(title: str, *sections: tuple[str, Iterable[str]]) -> str:
    """Return a whole page; its parts are HTML already, title and headings are texts."""
    body = "\n".join(
        f'<section aria-labelledby="part{number}">\n<h2 id="part{number}">{_text(heading)}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
        for number, (heading, parts) in enumerate(sections, start=1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{_text(title)}</h1>
{body}
</main>
<footer>Made by sparsenn {_text(__version__)}.</footer>
</body>
</html>
"""


def _text(value: Any) -> str:
    """Return a text as HTML, its lines divided by breaks; what a browser would obey is shown."""
    plain = value.plain if isinstance(value, Text) else str(value)
    return "<br>".join(escape(printable(line)) for line in plain.split("\n"))


def facts_part(table: Table) -> str:
    """Return a table of facts, each beside its heading, as a list of definitions."""
    headings, facts = (list(column.cells) for column in table.columns)
    pairs = (f"<dt>{_text(heading)}</dt><dd>{_text(fact)}</dd>" for heading, fact in zip(headings, facts, strict=True))
    return '<dl class="sparsenn-facts">\n' + "\n".join(pairs) + "\n</dl>"


def table_part(table: Table) -> str:
    """Return a table for the terminal as one of HTML, without columns of which nothing is known."""
    columns = [column for column in table.columns if any(_text(cell) not in NOTHING for cell in column.cells)]
    kinds = [' class="number"' if column.justify == "right" else "" for column in columns]
    heads = "".join(
        f'<th scope="col"{kind}>{_text(column.header)}</th>' for column, kind in zip(columns, kinds, strict=True)
    )
    lines = []
    for cells in zip(*(column.cells for column in columns), strict=True):
        first, *others = (f"{kind}>{_text(cell)}" for cell, kind in zip(cells, kinds, strict=True))
        lines.append(f'<tr><th scope="row"{first}</th>{"".join(f"<td{other}</td>" for other in others)}</tr>')
    caption = " ".join(_text(part) for part in (table.title, table.caption) if part)
    body = "\n".join(lines)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_text(table.title or "table")}">\n<table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _pictures(statistics: Sequence[LayerStatistics]) -> list[str]:
    """Return pictures by layer: time, and rows and density where they are known and not the same in all."""
    drawn = [bars_part("time by layer (ms)", [(str(layer.layer), 1e3 * layer.seconds) for layer in statistics])]
    rows = [(layer.layer, layer.active_rows) for layer in statistics if layer.active_rows is not None]
    density = [(layer.layer, layer.density) for layer in statistics if layer.density is not None]
    for title, points in (("active rows by layer", rows), ("density of active rows by layer", density)):
        if len({value for _, value in points}) > 1:
            drawn.append(line_part(title, points))
    return drawn


def bars_part(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return a picture with a bar for each name; where there are many, some names are left out."""
    most = max((value for _, value in bars), default=0.0) or 1.0
    step = (_WIDTH - _LEFT) / max(1, len(bars))
    every = max(1, len(bars) // 20)
    drawn = []
    for number, (name, value) in enumerate(bars):
        height = (_HEIGHT - 2 * _BOTTOM) * value / most
        left, wide = _LEFT + number * step + 0.1 * step, min(0.8 * step, 60.0)
        drawn.append(
            f'<rect x="{left:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}" width="{wide:.1f}" height="{height:.1f}">'
            f"<title>{_text(name)}: {value:,.4g}</title></rect>"
        )
        if number % every == 0:
            drawn.append(f'<text x="{left:.1f}" y="{_HEIGHT - 8}">{_text(name)}</text>')
    longest = max(bars, key=lambda bar: bar[1], default=("nothing", 0.0))
    label = f"{title}: {len(bars)} bars, the longest {longest[0]} with {longest[1]:,.4g}"
    return _picture(title, label, most, drawn)


def line_part(title: str, points: Sequence[tuple[int, float]]) -> str:
    """Return a picture with a line through points, ascending from left to right."""
    most = max(value for _, value in points) or 1.0
    first, last = points[0][0], points[-1][0]

    def place(point: tuple[int, float]) -> str:
        across = (_WIDTH - _LEFT - 10) * (point[0] - first) / max(1, last - first)
        up = (_HEIGHT - 2 * _BOTTOM) * point[1] / most
        return f"{_LEFT + across:.1f} {_HEIGHT - _BOTTOM - up:.1f}"

    path = f"M{place(points[0])} " + " ".join(f"L{place(point)}" for _, point in pairwise(points))
    ends = f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{first}</text><text x="{_WIDTH - 40}" y="{_HEIGHT - 8}">{last}</text>'
    label = f"{title}: from {points[0][1]:,.4g} in layer {first} to {points[-1][1]:,.4g} in layer {last}"
    return _picture(title, label, most, [f'<path d="{path}"/>', ends])


def _picture(title: str, label: str, most: float, drawn: Iterable[str]) -> str:
    axis = _HEIGHT - _BOTTOM
    return (
        f'<figure>\n<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(label)}">\n'
        f'<line x1="{_LEFT}" y1="{axis}" x2="{_WIDTH}" y2="{axis}"/>\n'
        f'<text x="0" y="{_BOTTOM + 4}">{most:,.4g}</text><text x="0" y="{axis}">0</text>\n'
        + "\n".join(drawn)
        + f"\n</svg>\n<figcaption>{_text(title)}</figcaption>\n</figure>"
    )


def machine_part(plan: Plan | None = None) -> str:
    """Return what a page's figures were measured on."""
    found = [f"{name} {known}" for name in _LIBRARIES if (known := _version(name))]
    estimate = None if plan is None else plan.estimate
    return facts_part(
        fact_table(
            [
                *([] if plan is None else [("device", plan.device)]),
                ("processor", host_machine().name),
                ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
                ("versions", ", ".join([f"sparsenn {__version__}", f"python {platform.python_version()}", *found])),
                *([] if estimate is None else [("estimated", f"{duration(estimate)} for a batch")]),
            ]
        )
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
