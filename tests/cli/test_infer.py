"""`sparsenn infer`: the answer, its verification, and everything it prints and writes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Refused, Run
from result_files import result_in

from sparsenn import infer
from sparsenn.backends import Features
from sparsenn.backends.cpu import CPUBackend
from sparsenn.io import Dataset, write_dataset
from sparsenn.io.challenge.tsv import read_categories

KEYS = [
    *("dataset", "provenance", "version", "machine", "inputs", "neurons", "layers", "edges", "device", "plan", "notes"),
    *("categories", "verified", "seconds", "edges_per_second", "performed_edges", "per_layer"),
]


@pytest.mark.parametrize("source", ["problem", "folder"])
def test_right_answer_passes(run: Run, request: pytest.FixtureRequest, dataset: Dataset, source: str) -> None:
    done = run("infer", request.getfixturevalue(source))
    assert f"PASSED: all {dataset.truth.size} true categories" in done.stdout
    assert "200 samples × 1,024 neurons × 6 layers, 196,608 edges" in done.stdout
    assert re.search(r"time .*read .*plan .*transfer .*compute ", done.stdout)
    assert re.search(r"rate +[\d.,]+ (Mega|Giga|Tera)Edges/s", done.stdout)
    assert re.search(r"performed +[\d,]+ edges", done.stdout)
    assert f"{dataset.truth.size} of 200 samples" in done.stdout
    assert re.search(r"Kernel \w+: ", done.stdout)


def test_wrong_truth_fails_with_code_1(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    wrong = np.setdiff1d(np.arange(200), dataset.truth)[:2]
    truth = np.sort(np.append(dataset.truth[1:], wrong))
    path = tmp_path / "wrong.h5"
    write_dataset(Dataset("wrong", dataset.network, dataset.inputs, truth), path)
    done = run("infer", path, "--json", "-", "--output", tmp_path / "found.tsv", code=1)
    assert "FAILED" in done.stderr
    assert "2 (" in done.stderr
    assert "1 (" in done.stderr
    assert "none of these within float32's rounding" in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["verified"] is False
    assert np.array_equal(read_categories(tmp_path / "found.tsv"), dataset.truth)

    done = run("infer", path, "--no-verify", "--json", "-")
    assert "not done (--no-verify)" in done.stderr
    assert json.loads(done.stdout)["verified"] is None


def test_without_truth_it_says_so(run: Run, refused: Refused, dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "unknown.h5"
    write_dataset(Dataset("unknown", dataset.network, dataset.inputs), path)
    done = run("infer", path)
    assert "no truth to verify against" in done.stdout
    refused(("infer", path, "--verify"), "--verify: unknown holds no truth")


def test_json_on_stdout_is_all_there_is(run: Run, problem: Path, dataset: Dataset) -> None:
    done = run("infer", problem, "--json", "-", "--stats", "--kernel", "panel")
    record = json.loads(done.stdout)
    assert list(record) == KEYS
    assert record["verified"] is True
    assert record["categories"] == (dataset.truth + 1).tolist()
    assert list(record["seconds"]) == [*("read", "plan", "prepare", "transfer", "compile", "compute", "total")]
    assert record["seconds"]["read"] > 0
    assert len(record["per_layer"]) == 6
    assert "PASSED" in done.stderr
    assert "distinct rows" in done.stderr


def test_every_file_at_once(run: Run, problem: Path, dataset: Dataset, tmp_path: Path) -> None:
    targets = {option: tmp_path / name for option, name in (("--json", "r.json"), ("--plot", "r.svg"))}
    run("infer", problem, "--output", tmp_path / "r.h5", *(part for pair in targets.items() for part in pair))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.h5", "r.json", "r.svg"]
    outputs, categories, notes = result_in(tmp_path / "r.h5")
    expected = infer(dataset.network, dataset.inputs).outputs
    assert np.array_equal(categories, dataset.truth)
    assert np.array_equal(outputs.indptr, expected.indptr)
    assert np.array_equal(outputs.expanded_values(), expected.expanded_values())
    assert notes["dataset"] == "radixnet-1024x6"
    assert json.loads((tmp_path / "r.json").read_text())["verified"] is True
    assert "<svg" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    ("switch", "key"),
    [("--no-compaction", "compaction"), ("--no-deduplication", "deduplication"), ("--no-merging", "merging")],
)
def test_each_switch_reaches_the_plan(run: Run, problem: Path, switch: str, key: str) -> None:
    plan = json.loads(run("infer", problem, switch, "--json", "-").stdout)["plan"]
    assert [plan[name] for name in ("compaction", "deduplication", "merging")].count(False) == 1
    assert plan[key] is False


def test_reproducible_outputs_can_be_asked_for(run: Run, refused: Refused, problem: Path) -> None:
    for switch in ([], ["--reproducible"]):
        record = json.loads(run("infer", problem, *switch, "--json", "-").stdout)
        assert record["plan"]["reproducible"] is bool(switch)
        assert record["verified"] is True
    which = "'scipy' is not reproducible; those that are: panel, rows, gathered_rows, scatter"
    refused(("infer", problem, "--reproducible", "--kernel", "scipy"), which)


def test_batches(run: Run, problem: Path) -> None:
    record = json.loads(run("infer", problem, "--batch-size", 64, "--json", "-").stdout)
    assert (record["plan"]["batches"], record["verified"]) == (4, True)
    limited = json.loads(run("infer", problem, "--memory-limit", "100k", "--json", "-").stdout)
    assert limited["plan"]["memory_limit"] == 100_000
    assert limited["plan"]["batches"] > 1
    assert limited["verified"] is True


def test_weights_in_parts(run: Run, problem: Path) -> None:
    done = run("infer", problem, "--weight-memory", "1k", "--json", "-")
    record = json.loads(done.stdout)
    assert (record["plan"]["weight_memory"], record["plan"]["streams"], record["verified"]) == (1000, True, True)
    assert [step["last"] for step in record["plan"]["steps"]] == [1, 2, 3, 4, 5, 6]
    assert "Weights are prepared in 6 parts" in " ".join(done.stderr.split())


def test_a_batch_cut_for_want_of_memory_is_told(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = CPUBackend.place

    def small(self: CPUBackend, rows: Any, keep_half: bool = False) -> Features:
        if rows.shape[0] > 60:
            raise MemoryError
        return place(self, rows, keep_half)

    monkeypatch.setattr(CPUBackend, "place", small)
    done = run("infer", problem, "--json", "-")
    record = json.loads(done.stdout)
    assert record["notes"] == ["There was not enough memory for 200 samples at a time; 50 were used."]
    assert record["verified"] is True
    assert record["notes"][0] in done.stderr


def test_layers_inputs_and_bias_are_taken_as_asked(run: Run, problem: Path, dataset: Dataset) -> None:
    record = json.loads(run("infer", problem, "--limit-inputs", 50, "--json", "-").stdout)
    assert record["inputs"] == 50
    assert record["categories"] == [int(c) + 1 for c in dataset.truth if c < 50]
    shorter = json.loads(run("infer", problem, "--layers", 2, "--json", "-").stdout)
    assert (shorter["layers"], shorter["verified"]) == (2, None)
    other = json.loads(run("infer", problem, "--bias", -0.1, "--json", "-").stdout)
    assert other["verified"] is None
    assert len(other["categories"]) > dataset.truth.size


@pytest.mark.parametrize("option", ["--kernel", "--device"])
def test_kernel_and_device_are_checked_before_the_work(
    refused: Refused, problem: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("read although nothing can be computed")

    monkeypatch.setattr("sparsenn.datasets.load", load)
    refused(("infer", problem, option, "conjured"), "conjured", "known: ")


def test_official_data(run: Run, official_folder: Path) -> None:
    record = json.loads(run("infer", official_folder, "--json", "-").stdout)
    assert (record["verified"], len(record["categories"])) == (True, 19)


def test_a_library_that_cannot_draw_is_found_before_the_work(
    refused: Refused, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(("infer", problem, "--plot", "r.png"), "pip install matplotlib")
