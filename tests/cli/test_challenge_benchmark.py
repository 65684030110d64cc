"""`sparsenn challenge benchmark`: rates, cold and warm, with the savings on and off, as a table and as JSON."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Refused, Run

import sparsenn
from sparsenn.errors import ResourceError
from sparsenn.io import Dataset, write_dataset

HOW = ("challenge", "benchmark", "--runs", 2, "--device", "cpu", "--kernel", "panel")


def test_json_says_what_was_run_and_how_fast(run: Run, problem: Path, dataset: Dataset) -> None:
    done = run(*HOW, problem, "--json", "-")
    (record,) = json.loads(done.stdout)["problems"]
    assert record["dataset"] == dataset.name
    assert record["provenance"]["inputs"] == "procedural digits, seed 0"
    assert (record["version"], record["neurons"], record["layers"]) == (sparsenn.__version__, 1024, 6)
    assert record["machine"]
    assert (record["edges"], record["categories"]) == (dataset.network.edges, dataset.truth.size)
    assert [(each["savings"], each["kernel"], each["verified"]) for each in record["runs"]] == [
        *((True, "panel", True), (False, "panel", True))
    ]
    for each in record["runs"]:
        assert len(each["warm"]) == 2
        assert each["cold_edges_per_second"] == pytest.approx(200 * dataset.network.edges / each["cold"])
    assert "stand-in digits" in " ".join(done.stderr.split())


@pytest.mark.parametrize("suffix", [".md", ".tex", ".csv"])
def test_a_table_for_a_submission(run: Run, problem: Path, tmp_path: Path, suffix: str) -> None:
    table = tmp_path / f"rates{suffix}"
    run(*HOW, problem, problem, "--no-verify", "--output", table)
    text = table.read_text()
    if suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert [(row["problem"], row["savings"], row["verified"]) for row in rows] == [
            *(("1024 x 6", "on", "–"), ("1024 x 6", "off", "–")) * 2
        ]
        assert all(float(row["warm TeraEdges/s"]) > 0 for row in rows)
    else:
        assert "stand-in digits" in text
        assert text.count("196,608") == 4
        assert "1024 × 6" in text or r"1024 $\times$ 6" in text


def test_a_wrong_truth_fails_with_code_1(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(replace(dataset, truth=dataset.truth[1:]), tmp_path / "wrong.h5")
    text = " ".join(run(*HOW, tmp_path / "wrong.h5", code=1).stdout.split())
    assert "NO" in text
    assert "sparsenn challenge run says which categories differ" in text
    run(*HOW, tmp_path / "wrong.h5", "--no-verify")


def test_all_takes_the_twelve_networks(
    run: Run, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def load(name: str, *, truth: bool, **_: object) -> Dataset:
        taken.append((name, truth))
        if name == "radixnet-65536x1920":
            raise ResourceError("too large\x1b")
        return replace(dataset, name=name)

    monkeypatch.setattr("sparsenn.datasets.load", load)
    done = run(*HOW, "--all", "--no-verify", "--limit-inputs", 20, "--json", tmp_path / "rates.json", code=2)
    assert done.stderr == "error: radixnet-65536x1920: too large\\x1b\n"
    assert len(taken) == 12
    assert not any(truth for _, truth in taken)
    assert len(json.loads((tmp_path / "rates.json").read_text())["problems"]) == 11


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name datasets, or take all"),
        (("radixnet-1024x120", "--all"), "name datasets, or take all"),
        (("none.h5",), "none.h5: no such file"),
        (("{problem}", "--runs", 0), "--runs"),
        (("{problem}", "--output", "a.txt"), "use .md, .tex, .csv"),
        (("{problem}", "--json", "{problem}"), "would overwrite"),
    ],
)
def test_what_is_refused(refused: Refused, problem: Path, words: tuple[object, ...], message: str) -> None:
    refused((*HOW, *(str(word).format(problem=problem) for word in words)), message)
