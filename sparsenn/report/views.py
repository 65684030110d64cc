"""Views of objects: HTML for notebooks, text, pictures and data frames, made of the tables of the command line."""

from __future__ import annotations

import io
from dataclasses import asdict, fields
from importlib import import_module
from math import prod
from typing import Any

from rich.console import Console

from sparsenn.engine import LayerStatistics, Options, Plan, Result, Session
from sparsenn.engine.compiled_network import merges
from sparsenn.errors import UsageError, unknown_name
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.report.description import describe_layers, describe_model, describe_network
from sparsenn.report.page import facts_part, table_part
from sparsenn.report.plan_text import plan_text
from sparsenn.report.planned import plan_table
from sparsenn.report.plots import layers_figure
from sparsenn.report.summary import summary
from sparsenn.report.tables import fact_table, layer_table
from sparsenn.runtime.memory import shown_bytes

TEXT_COLUMNS = 120  # columns of a result that is printed

OPEN_LAYERS = 20
"""Layers up to which the table of a result is shown without a click."""

FRAMES = ("layers", "outputs")

_STYLE = "<style>.sparsenn :is(td, th):not(.number) { text-align: left !important; }</style>"
"""The style sheets of notebooks put all cells to the right, also those of text."""


def html_of(viewed: Any) -> str:
    """Return an object as HTML that stands within another page."""
    match viewed:
        case Network():
            parts = [facts_part(describe_network(viewed)), table_part(describe_layers(viewed))]
        case Model():
            parts = [facts_part(describe_model(None, viewed)), table_part(describe_layers(viewed.network))]
        case Session():
            options, usual = asdict(viewed.options), asdict(Options())
            chosen = ", ".join(f"{name}={value!r}" for name, value in options.items() if value != usual[name])
            facts = [
                ("session", str(viewed)),
                ("options", chosen or "the usual ones"),
                ("memory", f"{shown_bytes(viewed.nbytes)} of weights and buffers"),
            ]
            parts = [facts_part(fact_table(facts))]
        case Plan():
            parts = [facts_part(fact_table([("plan", str(viewed))])), table_part(plan_table(viewed))]
        case Result():
            parts = [facts_part(summary(None, viewed, None))]
            if viewed.statistics:
                opened = " open" if len(viewed.statistics) <= OPEN_LAYERS else ""
                layers = table_part(layer_table(viewed.statistics))
                parts.append(f"<details{opened}><summary>layers</summary>\n{layers}\n</details>")
        case _:
            raise TypeError(f"{kind_of(viewed)} has no view")
    return "\n".join(['<div class="sparsenn">', _STYLE, *parts, "</div>"])


def values_of(plan: Plan) -> dict[str, Any]:
    """Return the decisions of a plan as values that JSON has."""
    return {
        "text": str(plan),
        "device": plan.device,
        "kernel": plan.kernel.name,
        "kernels": list(dict.fromkeys(step.kernel.name for step in plan.steps)),
        "precision": plan.options.precision,
        "precisions": list(plan.precisions),
        "batch_size": plan.batch_size,
        "batches": len(plan.batches),
        "memory_limit": plan.compiled.memory_limit,
        "weight_memory": plan.compiled.weight_memory,
        "steps": [
            {
                "first": step.first + 1,
                "last": step.last,
                "kernel": step.kernel.name,
                "reason": step.reason,
                "seconds": step.seconds,
                "measured": step.is_measured,
            }
            for step in plan.steps
        ],
        "streams": plan.streams,
        "preparing_seconds": plan.preparing,
        "compaction": plan.options.compaction,
        "deduplication": plan.options.deduplication,
        "merging": merges(plan.options, plan.backend),
        "reproducible": plan.options.reproducible,
        "computed_neurons": sum(plan.merged.network.sizes[1:]),
        "computed_edges": plan.merged.network.edges,
    }


def text_of(viewed: Plan | Result) -> str:
    """Return a plan in words, or the summary of a result."""
    if isinstance(viewed, Plan):
        return plan_text(viewed)
    text = io.StringIO()
    Console(file=text, width=TEXT_COLUMNS, highlight=False, markup=False).print(summary(None, viewed, None))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def figure_of(result: Result) -> Any:
    """Return a matplotlib figure of a result's layers."""
    return layers_figure(_counted(result))


def frame_of(result: Result, of: str) -> Any:
    """Return a data frame of a result's `layers` or `outputs`."""
    if of not in FRAMES:
        raise unknown_name("table", str(of), FRAMES)
    try:
        frame: Any = import_module("pandas").DataFrame
    except ImportError as error:
        raise UsageError(f"tables need the package pandas ({error}); install it: pip install pandas") from error
    if of == "outputs":
        return frame(result.dense, columns=_output_names(result.plan.network))
    columns = [field.name for field in fields(LayerStatistics)]
    return frame([asdict(layer) for layer in _counted(result)], columns=columns).set_index("layer")


def _output_names(network: Network) -> list[str] | None:
    if network.named_outputs is None:
        return None
    sizes = {name: prod(shape) for name, shape in network.named_outputs.items()}
    return [name if size == 1 else f"{name} {number}" for name, size in sizes.items() for number in range(1, size + 1)]


def _counted(result: Result) -> tuple[LayerStatistics, ...]:
    if not result.statistics:
        raise UsageError("the run counted no statistics by layer; run with statistics=True")
    return result.statistics
