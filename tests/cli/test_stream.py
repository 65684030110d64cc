"""`--stream` of infer and predict: rows of a file that need not fit into memory, and runs that resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run

from sparsenn import Linear, Network, Session, write_model
from sparsenn.distributed import streaming
from sparsenn.formats import Scaling
from sparsenn.io import Dataset, write_dataset
from sparsenn.io.challenge.tsv import read_categories
from sparsenn.layers import Identity, ReLU
from sparsenn.model import Model


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so small that there are several."""
    monkeypatch.setattr(streaming, "LEAST_ROWS", 20)


def test_a_dataset_runs_its_own_inputs_from_its_file(run: Run, problem: Path, dataset: Dataset, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ("--output", tmp_path / "found.tsv", "--json", "-", "--stats", "--report", page)
    done = run("infer", problem, "--stream", *options)
    assert "PASSED" in page.read_text()
    record = json.loads(done.stdout)
    assert record["verified"] is True
    assert record["inputs"] == 200
    assert np.array_equal(read_categories(tmp_path / "found.tsv"), dataset.truth)
    assert [path.name for path in tmp_path.glob("found*")] == ["found.tsv"]


def test_the_official_images(run: Run, folder: Path, dataset: Dataset, tmp_path: Path) -> None:
    (images,) = folder.glob("sparse-images*")
    options = ("--devices", "cpu", "--memory-limit", "20M", "--output", tmp_path / "found.tsv")
    done = run("infer", folder, "--stream", "--inputs", images, *options)
    assert "no truth to verify against" in done.stdout
    assert np.array_equal(read_categories(tmp_path / "found.tsv"), dataset.truth)


def test_a_wrong_truth_fails_with_code_1(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(Dataset("wrong", dataset.network, dataset.inputs, dataset.truth[1:]), tmp_path / "wrong.h5")
    run("infer", tmp_path / "wrong.h5", "--stream", code=1)
    run("infer", tmp_path / "wrong.h5", "--stream", "--no-verify")


@pytest.mark.parametrize("classes", [True, False])
def test_a_model_scales_rows_and_tells_classes(run: Run, tmp_path: Path, classes: bool) -> None:
    rng = np.random.default_rng(5)
    network = Network(
        (Linear(rng.normal(size=(6, 9)), None, ReLU()), Linear(rng.normal(size=(9, 3)), None, Identity()))
    )
    scaling = Scaling(np.array([0.5]), np.array([0.1]), np.array([2.0]))
    write_model(tmp_path / "m.h5", Model(network, "cross_entropy" if classes else "mse", classes, scaling=scaling))
    rows = rng.normal(size=(300, 6)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    options = ("--device", "cpu", "--reproducible", "--output", tmp_path / "found.npy")
    run("predict", tmp_path / "m.h5", tmp_path / "rows.npy", "--stream", *options)
    right = Session(network, device="cpu", reproducible=True)(scaling.apply(rows, None))
    found = np.load(tmp_path / "found.npy")
    assert found.tobytes() == (right.argmax(axis=1) if classes else right).tobytes()


def test_a_run_is_gone_on_with(
    run: Run, refused: Refused, problem: Path, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "found.tsv"
    with monkeypatch.context() as patch:
        patch.setattr(streaming.Pieces, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        run("infer", problem, "--stream", "--output", target, code=130)
    refused(("infer", problem, "--stream", "--output", target), "resume it (--resume)")
    done = run("infer", problem, "--stream", "--output", target, "--resume")
    assert "200 of 200 rows were done by an earlier run" in done.stdout
    assert np.array_equal(read_categories(target), dataset.truth)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stream", "--inputs", "none.npy"), "none.npy: no such file"),
        (("--resume",), "--resume goes with --output and --stream"),
        (("--stream", "--resume"), "--resume goes with --output"),
        (("--stream", "--limit-inputs", "3"), "--limit-inputs does not go with --stream"),
        (("--stream", "--output", "found.csv"), "does not name a known file type"),
        (("--stream", "--output", "{problem}"), "would overwrite"),
        (("--stream", "--memory-limit", "1k"), "memory limit"),
    ],
)
def test_what_does_not_go_is_refused(refused: Refused, problem: Path, options: tuple[str, ...], words: str) -> None:
    refused(("infer", problem, *(option.format(problem=problem) for option in options)), words)
