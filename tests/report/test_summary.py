"""The summary and the tables, as text."""

from __future__ import annotations

from dataclasses import replace

from screens import cells, shown

from sparsenn.engine import Result
from sparsenn.report import compare_categories, count, layer_table, summary
from sparsenn.report.quantities import duration, rate


def line_of(text: str, heading: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(heading)).removeprefix(heading).strip()


def test_summary_says_all_that_was_promised(result: Result) -> None:
    timed = replace(result, seconds=replace(result.seconds, read=2.5))
    text = shown(summary("small [problem]", timed, compare_categories(result.categories, result.categories)), 2000)
    assert line_of(text, "dataset") == "small [problem]"
    assert line_of(text, "problem") == f"40 samples × 64 neurons × 8 layers, {count(result.edges)} edges"
    assert str(result.plan) in " ".join(text.split())
    assert max(map(len, text.splitlines())) < 120
    time = line_of(text, "time")
    assert time.startswith(duration(timed.seconds.total))
    assert all(part in time for part in ("read 2.50 s", "plan ", "prepare ", "transfer ", "compile ", "compute "))
    assert not any(line.startswith("note") for line in text.splitlines())
    assert line_of(text, "rate").startswith(rate(result.edges_per_second))
    assert line_of(text, "performed").startswith(f"{count(result.performed_edges)} edges")
    assert line_of(text, "categories") == f"{result.categories.size} of 40 samples; files and JSON count samples from 1"
    assert line_of(text, "verification").startswith("PASSED")


def test_layer_table_has_a_line_for_each_layer(result: Result) -> None:
    assert len(result.statistics) == 8
    for row, layer in zip(cells(shown(layer_table(result.statistics), 2000)), result.statistics, strict=True):
        assert row[:4] == [str(layer.layer), layer.kernel, count(layer.rows), count(layer.active_rows)]
        assert row[4] == ("–" if layer.distinct_rows is None else count(layer.distinct_rows))
        assert row[7] == count(layer.performed_edges)
        assert row[9] == ("–" if layer.estimate is None else duration(layer.estimate))
