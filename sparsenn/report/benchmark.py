"""Benchmarks of a model as a table, a page and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.model import PRUNED, Model
from sparsenn.printable import printable
from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.page import bars_part, facts_part, machine_part, page, table_part
from sparsenn.report.quantities import count, duration
from sparsenn.report.tables import fact_table
from sparsenn.studies.benchmark import OURS, BenchmarkResult


def benchmark_table(name: str, model: Model, result: BenchmarkResult) -> Table:
    """Return the table of a benchmark: a line for each number of rows and each engine, in 80 columns."""
    caption = (
        f"Warm calls, until the answer is available; {OURS} multiplies in {result.precision}. A peer's outputs are "
        f"within {result.allowed:g} of {OURS}'s, relative to the largest. Rows and outputs lie where each engine "
        "computes."
    )
    caption += "".join(f" Left out: {peer}, because {reason}." for peer, reason in result.left_out)
    if PRUNED in model.provenance:
        caption += f" Pruned: {model.provenance[PRUNED]}."
    title = f"{printable(name)} on {result.device}"
    columns = *numbers("samples"), *unbroken("engine"), *numbers("p50", "p95", "p99", "samples/s", "× ours")
    table = FittedTable(*columns, title=title, caption=printable(caption))
    before = None
    for call in result.calls:
        table.add_row(
            count(call.rows) if call.rows != before else "",
            Text(call.way),
            *map(duration, (call.median, call.p95, call.p99)),
            count(round(call.rows_per_second)),
            f"{call.median / result.ours(call.rows).median:.2f}",
        )
        before = call.rows
    return table


def benchmark_record(name: str, model: Model, result: BenchmarkResult) -> dict[str, Any]:
    """Return a benchmark for JSON; times are in seconds."""
    calls = [asdict(call) | {"rows_per_second": call.rows_per_second} for call in result.calls]
    return {
        "model": name,
        "provenance": dict(model.provenance),
        "device": result.device,
        "precision": result.precision,
        "allowed_error": result.allowed,
        "calls": calls,
        "left_out": dict(result.left_out),
    }


def benchmark_page(name: str, model: Model, result: BenchmarkResult) -> str:
    """Return the page of a benchmark: times beside those of peers, as pictures and as a table, and the machine."""
    pictures = [
        bars_part(f"samples per call: {count(rows)}; median in ms", [(call.way, 1e3 * call.median) for call in calls])
        for rows in dict.fromkeys(call.rows for call in result.calls)
        for calls in [[call for call in result.calls if call.rows == rows]]
    ]
    network = model.network
    facts = fact_table(
        [
            ("model", name),
            ("network", f"{count(len(network))} layers, {count(network.inputs)} → {count(network.outputs)}"),
            ("device", result.device),
            ("precision", result.precision),
        ]
    )
    return page(
        f"Benchmark of {name}",
        ("Summary", [facts_part(facts)]),
        ("Times", [*pictures, table_part(benchmark_table(name, model, result))]),
        ("Machine", [machine_part()]),
    )
