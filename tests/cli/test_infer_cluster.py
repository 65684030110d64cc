"""`sparsenn infer` on a cluster: the same categories and predictions, in files or in pieces; faults in one line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sparsenn.distributed.pieces import Pieces
from sparsenn.io import Dataset

MISSING = "the extra dask is not installed"
NEEDS_DASK = pytest.mark.skipif(find_spec("dask") is None, reason=MISSING)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, ...]]:
    """The options that name a cluster of two processes."""
    pytest.importorskip("distributed.client", reason=MISSING)
    from sparsenn.distributed.cluster import local

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "find_spec", lambda name: None)  # no certificate is needed, which only this process has
        with local.local_cluster(2, device="cpu") as client:
            yield "--device", "cpu", "--scheduler", client.scheduler.address


def test_a_dataset_gives_the_categories_of_one_session(
    run: Any, cluster: tuple[str, ...], problem: Path, dataset: Dataset, tmp_path: Path
) -> None:
    one, many, document = (tmp_path / name for name in ("one.tsv", "many.tsv", "found.json"))
    assert run("infer", problem, "--device", "cpu", "--output", one).exit_code == 0
    told = run("infer", problem, *cluster, "--piece", 50, "--output", many, "--json", document)
    assert told.exit_code == 0, told.output
    assert "2 workers, scheduler at tcp://127.0.0.1:" in told.stdout
    assert "PASSED" in told.stdout
    assert many.read_bytes() == one.read_bytes()
    record = json.loads(document.read_text())
    assert [record[key] for key in ("inputs", "layers", "rows", "pieces", "resumed")] == [1024, 6, 200, 4, 0]
    assert record["verified"] is True
    assert record["categories"] == (dataset.truth + 1).tolist()
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"one.tsv", "many.tsv", "found.json"}


def test_the_inputs_of_a_folder_are_sent(run: Any, cluster: tuple[str, ...], folder: Path, dataset: Dataset) -> None:
    told = run("infer", folder, *cluster, "--json", "-")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["categories"] == (dataset.truth + 1).tolist()


def test_a_run_is_gone_on_with(run: Any, cluster: tuple[str, ...], problem: Path, tmp_path: Path) -> None:
    target = tmp_path / "found.npy"
    words = ("infer", problem, *cluster, "--output", target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pieces, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*words, "--piece", 60).exit_code == 130
    again = run(*words)
    assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    assert "resume it (--resume)" in again.stderr
    (tmp_path / "found.npy.pieces" / "00000001.json").unlink()
    resumed = run(*words, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert "140 rows were done by an earlier run" in resumed.stdout
    assert run("infer", problem, "--device", "cpu", "--stream", "--output", tmp_path / "one.npy").exit_code == 0
    assert target.read_bytes() == (tmp_path / "one.npy").read_bytes()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--resume",), "--resume goes with --output and --stream"),
        (("--piece", 3), "--piece goes with --workers or --scheduler"),
        (("--workers", 2, "--scheduler", "tcp://127.0.0.1:1"), "give one of them"),
        pytest.param(("--workers", 2, "--stats"), "do not go with a cluster", marks=NEEDS_DASK),
        pytest.param(("--workers", 2, "--resume"), "--resume goes with --output", marks=NEEDS_DASK),
        pytest.param(("--workers", 2, "--output", "found.csv"), "does not name a known file type", marks=NEEDS_DASK),
        pytest.param(("--workers", 2, "--limit-inputs", 3), "--limit-inputs does not go", marks=NEEDS_DASK),
        (("--workers", 0), "invalid value for '--workers'"),
    ],
)
def test_options_that_do_not_go_together_are_told(run: Any, problem: Path, words: tuple[Any, ...], why: str) -> None:
    told = run("infer", problem, *words)
    assert told.exit_code == 2
    assert why in told.stderr


def test_without_dask_it_is_told_what_to_install(run: Any, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenn.cli.cluster.find_spec", lambda name: None)
    told = run("infer", problem, "--workers", 2)
    assert (told.exit_code, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert 'pip install "dask[array]" distributed' in told.stderr


def test_workers_are_started_and_an_interrupt_ends_them_without_a_word(
    spawn: Any, problem: Path, dataset: Dataset, tmp_path: Path
) -> None:
    pytest.importorskip("distributed.client", reason=MISSING)
    words = ("infer", problem, "--device", "cpu", "--workers", 2, "--piece", 5, "--output", tmp_path / "found.tsv")
    process = spawn(*words, "--progress", start_new_session=True)
    while not process.stderr.readline().startswith("rows: 0 of 200"):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("rows: ")] == ["error: interrupted"]
    done = spawn(*words, "--resume")
    out, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "")
    assert "PASSED" in out
    assert not (tmp_path / "found.tsv.pieces").exists()
