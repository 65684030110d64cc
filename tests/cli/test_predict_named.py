"""`sparsenn predict` of a model with several named inputs and outputs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Refused, Run
from pyarrow import parquet
from scipy.sparse import csr_array, save_npz

from sparsenn import Concatenate, Identity, Linear, Model, Network, Node, Session, Slice, evaluate, write_model

FILES = ("named.h5", "rows.npz")


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    """A network, which a file in the current folder holds."""
    monkeypatch.chdir(tmp_path)
    nodes = (
        Slice(0, 3),
        Linear(np.array([[1.0, 0], [0, 2], [1, 1]]), None, Identity()),
        Node(Slice(3, 7), (0,)),
        Linear(np.eye(4), None, Identity()),
        Node(Concatenate(), (2, 4)),
    )
    shapes: Any = {"named_inputs": {"data": (3,), "file": (2, 2)}, "named_outputs": {"file": (2,), "b/1": (2, 2)}}
    network = Network(nodes, **shapes)
    write_model(Path("named.h5"), Model(network))
    return network


def test_inputs_by_name_come_from_an_archive_and_outputs_go_into_one(run: Run, named: Network, tmp_path: Path) -> None:
    inputs = {"data": np.arange(15.0).reshape(5, 3), "file": np.arange(20).reshape(5, 2, 2)}
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        for name, array in inputs.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    expected = Session(named, device="cpu")(inputs)
    run("predict", *FILES, "--output", "out.npz", "--device", "cpu")
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == ["file", "b/1"]
        for name, outputs in expected.items():
            np.testing.assert_array_equal(found[name], outputs)
    run("predict", *FILES, "--output", "out.parquet")
    names = parquet.read_table(tmp_path / "out.parquet").column_names
    assert names == ["file[0]", "file[1]", *(f"b/1[{n}]" for n in range(4))]


@pytest.mark.usefixtures("named")
def test_archives_that_lack_named_inputs(run: Run, refused: Refused, tmp_path: Path) -> None:
    rows = np.ones((5, 7), np.float32)
    for arrays, words in (
        ({"data": rows[:, :3]}, "missing are 'file'"),
        ({"data": rows[:, :3], "x": rows}, "holds 'x', which the model does not name; known: 'data', 'file', 'inputs'"),
        ({"data": rows[:, :3], "u": rows, "v": rows}, "holds 'u', 'v', which the model does not name"),
        ({"x": rows, "y": rows}, "name the inputs 'data', 'file'"),
        ({"data": rows[:, :3], "inputs": rows}, "missing are 'file'"),
    ):
        np.savez(tmp_path / "rows.npz", **arrays)
        refused(("predict", *FILES), words)
    np.savez(tmp_path / "rows.npz", rows)
    run("predict", *FILES)
    save_npz(tmp_path / "rows.npz", csr_array(rows))
    run("predict", *FILES)


def test_targets_of_several_outputs_are_judged(run: Run, named: Network, tmp_path: Path) -> None:
    rows, targets = np.ones((5, 7), np.float32), np.zeros((5, 6), np.float32)
    np.savez(tmp_path / "rows.npz", inputs=rows, targets=targets)
    done = run("predict", *FILES, "--json", "-")
    expected = Session(named, device="cpu")(rows, form="dense")
    assert json.loads(done.stdout)["value"] == pytest.approx(np.square(expected).mean())
    assert evaluate(named, rows, targets, "mse").value == pytest.approx(np.square(expected).mean())
