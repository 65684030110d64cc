"""`sparsenn infer` of a model with several named inputs and outputs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from scipy.sparse import csr_array, save_npz
from typer.testing import Result

from sparsenn import Concatenate, Identity, Linear, Model, Network, Node, Session, Slice, evaluate, write_model

Run = Callable[..., Result]


@pytest.fixture
def named(tmp_path: Path) -> Network:
    nodes = (
        Slice(0, 3),
        Linear(np.array([[1.0, 0], [0, 2], [1, 1]]), None, Identity()),
        Node(Slice(3, 7), (0,)),
        Linear(np.eye(4), None, Identity()),
        Node(Concatenate(), (2, 4)),
    )
    shapes: Any = {"named_inputs": {"data": (3,), "file": (2, 2)}, "named_outputs": {"file": (2,), "b/1": (2, 2)}}
    network = Network(nodes, **shapes)
    write_model(tmp_path / "named.h5", Model(network))
    return network


def test_inputs_by_name_come_from_an_archive_and_outputs_go_into_one(run: Run, named: Network, tmp_path: Path) -> None:
    inputs = {"data": np.arange(15.0).reshape(5, 3), "file": np.arange(20).reshape(5, 2, 2)}
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        for name, array in inputs.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    expected = Session(named, device="cpu")(inputs)
    assert (
        run(
            "infer",
            tmp_path / "named.h5",
            "--inputs",
            tmp_path / "rows.npz",
            "--output",
            tmp_path / "out.npz",
            "--device",
            "cpu",
        ).exit_code
        == 0
    )
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == ["file", "b/1"]
        for name, outputs in expected.items():
            np.testing.assert_array_equal(found[name], outputs)
    assert (
        run(
            "infer", tmp_path / "named.h5", "--inputs", tmp_path / "rows.npz", "--output", tmp_path / "out.parquet"
        ).exit_code
        == 0
    )
    names = parquet.read_table(tmp_path / "out.parquet").column_names
    assert names == ["file[0]", "file[1]", *(f"b/1[{n}]" for n in range(4))]


def test_archives_that_lack_named_inputs(run: Run, named: Network, tmp_path: Path) -> None:
    rows = np.ones((5, 7), np.float32)
    for arrays, words in (
        ({"data": rows[:, :3]}, "missing are 'file'"),
        ({"data": rows[:, :3], "x": rows}, "holds 'x', which the model does not name; known: 'data', 'file', 'inputs'"),
        ({"data": rows[:, :3], "u": rows, "v": rows}, "holds 'u', 'v', which the model does not name"),
        ({"x": rows, "y": rows}, "name the inputs 'data', 'file'"),
        ({"data": rows[:, :3], "inputs": rows}, "missing are 'file'"),
    ):
        np.savez(tmp_path / "rows.npz", **arrays)
        done = run("infer", tmp_path / "named.h5", "--inputs", tmp_path / "rows.npz")
        assert done.exit_code == 2
        assert words in " ".join(done.stderr.split())
    np.savez(tmp_path / "rows.npz", rows)
    assert run("infer", tmp_path / "named.h5", "--inputs", tmp_path / "rows.npz").exit_code == 0
    save_npz(tmp_path / "rows.npz", csr_array(rows))
    assert run("infer", tmp_path / "named.h5", "--inputs", tmp_path / "rows.npz").exit_code == 0


def test_targets_of_several_outputs_are_judged(run: Run, named: Network, tmp_path: Path) -> None:
    rows, targets = np.ones((5, 7), np.float32), np.zeros((5, 6), np.float32)
    np.savez(tmp_path / "rows.npz", inputs=rows, targets=targets)
    done = run("infer", tmp_path / "named.h5", "--inputs", tmp_path / "rows.npz", "--json", "-")
    expected = Session(named, device="cpu")(rows, form="dense")
    assert json.loads(done.stdout)["value"] == pytest.approx(np.square(expected).mean())
    assert evaluate(named, rows, targets, "mse").value == pytest.approx(np.square(expected).mean())
