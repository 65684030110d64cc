"""A run or a benchmark as one HTML page that needs nothing but itself: no network, no script, light and dark."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn import __version__
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.engine import LayerStatistics, Plan, Result
from sparsenn.printable import printable
from sparsenn.report.fitting import NOTHING
from sparsenn.report.inference import model_layer_table, model_summary
from sparsenn.report.planned import plan_table
from sparsenn.report.quantities import duration, significant
from sparsenn.report.summary import Verification, summary
from sparsenn.report.tables import fact_table, layer_table

_LIBRARIES = ("numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --soft: GrayText; --bar: #0969da; }}
@media (prefers-color-scheme: dark) {{ :root {{ --bar: #4493f8; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
caption, figcaption, footer {{ text-align: left; color: var(--soft); }}
caption {{ max-width: calc(100vw - 2rem); }}
figure {{ margin: 1rem 0; max-width: 60rem; }}
th, td {{ padding: .2rem .75rem; border-bottom: 1px solid var(--soft); text-align: left; }}
.number {{ text-align: right; white-space: nowrap; }}
svg rect {{ fill: var(--bar); }}
</style>
<main>
<h1>{title}</h1>
{body}
</main>
<footer>Made by sparsenn {version}.</footer>
</html>
"""

# of a picture, in its own units
_WIDTH, _HEIGHT = 720, 140

_NAMED_BARS = 4
"""Bars of a picture whose names and values stand under it; those of more are shown under the mouse alone."""


def inference_page(
    name: str, result: Result, verdict: Verification | str, provenance: Mapping[str, str] | None = None
) -> str:
    """Return the page of a dataset's run: summary, plan, layers and machine."""
    facts, layers = summary(name, result, verdict, provenance), layer_table(result.statistics)
    return _run_page(f"Inference of {name}", facts, result.plan, result.statistics, layers)


def model_page(model: str, data: str, run: Any) -> str:
    """Return the page of a model's run on data: summary, plan, layers and machine."""
    facts, layers = model_summary(model, data, run), model_layer_table(run.plan.network, run.statistics)
    return _run_page(f"{model} on {data}", facts, run.plan, run.statistics, layers)


def _run_page(title: str, facts: Table, plan: Plan, statistics: Sequence[LayerStatistics], layers: Table) -> str:
    return page(
        title,
        ("Summary", [facts_part(facts)]),
        ("Plan", [table_part(plan_table(plan))]),
        ("Layers", [*_pictures(statistics), table_part(layers)]),
        ("Machine", [machine_part(plan)]),
    )


def page(title: str, *sections: tuple[str, Iterable[str]]) -> str:
    """Return a whole page; its parts are HTML already, title and headings are texts."""
    body = "\n".join(f"<h2>{_text(heading)}</h2>\n" + "\n".join(parts) for heading, parts in sections)
    return _PAGE.format(title=_text(title), body=body, version=_text(__version__))


def _text(value: Any) -> str:
    """Return a text as HTML, its lines divided by breaks; what a browser would obey is shown."""
    plain = value.plain if isinstance(value, Text) else str(value)
    return "<br>".join(escape(printable(line)) for line in plain.split("\n"))


def facts_part(table: Table) -> str:
    """Return a table of facts, each beside its heading."""
    rows = zip(*(column.cells for column in table.columns), strict=True)
    lines = (f'<tr><th scope="row">{_text(heading)}</th><td>{_text(fact)}</td></tr>' for heading, fact in rows)
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def table_part(table: Table) -> str:
    """Return a table for the terminal as one of HTML, without columns of which nothing is known."""
    columns = [column for column in table.columns if any(_text(cell) not in NOTHING for cell in column.cells)]
    kinds = [' class="number"' if column.justify == "right" else "" for column in columns]
    headings = (
        f'<th scope="col"{kind}>{_text(column.header)}</th>' for column, kind in zip(columns, kinds, strict=True)
    )
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = (
        "".join(f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(cells, kinds, strict=True)) for cells in rows
    )
    caption = "<br>".join(_text(part) for part in (table.title, table.caption) if part)
    body = "\n".join(f"<tr>{line}</tr>" for line in ("".join(headings), *lines))
    return f"<table>\n<caption>{caption}</caption>\n{body}\n</table>"


def _pictures(statistics: Sequence[LayerStatistics]) -> list[str]:
    known: dict[str, list[tuple[int, float | None]]] = {
        "time by layer (ms)": [(layer.layer, 1e3 * layer.seconds) for layer in statistics],
        "active rows by layer": [(layer.layer, layer.active_rows) for layer in statistics],
        "density of active rows by layer": [(layer.layer, layer.density) for layer in statistics],
    }
    bars = {title: [(f"layer {n}", value) for n, value in pairs if value is not None] for title, pairs in known.items()}
    return [bars_part(title, pairs) for title, pairs in bars.items() if len({value for _, value in pairs}) > 1]


def bars_part(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return a picture with a bar for each name, which is shown with its value under the mouse; of few, also below."""
    longest = max(bars, key=lambda bar: bar[1], default=("none", 0.0))
    step, most = _WIDTH / max(1, len(bars)), longest[1] or 1.0
    drawn = "\n".join(
        f'<rect x="{number * step:.1f}" y="{_HEIGHT * (1 - value / most):.1f}" width="{min(0.8 * step, 60.0):.1f}" '
        f'height="{_HEIGHT * value / most:.1f}"><title>{_text(name)}: {significant(value)}</title></rect>'
        for number, (name, value) in enumerate(bars)
    )
    if len(bars) <= _NAMED_BARS:
        named = ", ".join(f"{_text(name)}: {significant(value)}" for name, value in bars)
        label = f"{_text(title)}, from left to right: {named}"
    else:
        label = f"{_text(title)}: {len(bars)} bars, the longest is {_text(longest[0])} with {significant(longest[1])}"
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">\n{drawn}\n</svg>'
    return f"<figure>\n{picture}\n<figcaption>{label}</figcaption>\n</figure>"


def machine_part(plan: Plan | None = None) -> str:
    """Return what a page's figures were measured on."""
    found = [f"{name} {known}" for name in _LIBRARIES if (known := _version(name))]
    facts = [
        ("processor", host_machine().name),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("versions", ", ".join([f"sparsenn {__version__}", f"python {platform.python_version()}", *found])),
    ]
    if plan is not None:
        facts.insert(0, ("device", plan.device))
        if plan.estimate is not None:
            facts.append(("estimated", f"{duration(plan.estimate)} for a batch"))
    return facts_part(fact_table(facts))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
